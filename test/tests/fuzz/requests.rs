//! Sequences of CSI requests: every RPC with every field arbitrary.
//!
//! Messages are built from their descriptors, so new fields are covered. Values are often real
//! (known IDs and parameters), because random ones rarely pass the first check. After each sequence
//! the process restarts and everything is removed.

use std::path::Path;
use std::sync::LazyLock;

use hostloop_proto::csi;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};
use tonic::Status;

use crate::entropy::Entropy;
use crate::target;
use crate::world::World;

static DESCRIPTORS: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(hostloop_proto::FILE_DESCRIPTOR_SET).expect("our descriptors")
});

/// Maximum number of requests in a sequence.
const SEQUENCE: usize = 24;

const INLINE: [&str; 2] = [
    "csi-1111111111111111111111111111111111111111111111111111111111111111",
    "csi-2222222222222222222222222222222222222222222222222222222222222222",
];

target!(
    /// No request panics, returns INTERNAL or UNKNOWN, or leaves something that cannot be removed.
    requests,
    |bytes: &[u8]| {
        let world = World::new();
        let mut ids: Vec<String> = INLINE.map(String::from).into();
        let mut entropy = Entropy::new(bytes);
        for path in World::paths(world.dir.path()) {
            if path.starts_with(world.dir.path().join("stage")) {
                std::fs::create_dir_all(&path).expect("a staging directory");
            }
        }
        for _ in 0..SEQUENCE {
            if entropy.is_empty() {
                break;
            }
            call(&world, &mut entropy, &mut ids);
        }
        let world = world.restart();
        world.remove_everything(&ids);
    }
);

/// The RPCs: the service of each, and the IDs in its response.
macro_rules! calls {
    ($($service:ident.$method:ident($request:ident) $(=> $ids:expr)?;)+) => {
        /// Makes one call, selected by the input.
        fn call(world: &World, entropy: &mut Entropy<'_>, ids: &mut Vec<String>) {
            const NAMES: &[&str] = &[$(stringify!($request)),+];
            let name = *entropy.pick(NAMES);
            let message = DESCRIPTORS.get_message_by_name(&format!("csi.v1.{name}"));
            let message = message.expect("a message of CSI");
            let words = Words { dir: world.dir.path(), ids: &*ids };
            let message = words.message(entropy, &message, 0);
            let shown = format!("{name} {message:?}");
            match name {
                $(stringify!($request) => {
                    let request: csi::$request = message.transcode_to().expect("the same message");
                    let answer = world.$service.$method(request).map_err(Status::from);
                    world.check(&shown, answer.as_ref().err().cloned());
                    $(if let Ok(answer) = answer {
                        let found: Vec<String> = ($ids)(answer);
                        ids.extend(found);
                    })?
                })+
                _ => unreachable!("{name} is one of the names"),
            }
        }
    };
}

calls! {
    controller.create_volume(CreateVolumeRequest)
        => |r: csi::CreateVolumeResponse| r.volume.into_iter().map(|v| v.volume_id).collect();
    controller.delete_volume(DeleteVolumeRequest);
    controller.controller_publish_volume(ControllerPublishVolumeRequest);
    controller.controller_unpublish_volume(ControllerUnpublishVolumeRequest);
    controller.validate_volume_capabilities(ValidateVolumeCapabilitiesRequest);
    controller.list_volumes(ListVolumesRequest);
    controller.get_capacity(GetCapacityRequest);
    controller.controller_get_volume(ControllerGetVolumeRequest);
    controller.controller_expand_volume(ControllerExpandVolumeRequest);
    controller.controller_modify_volume(ControllerModifyVolumeRequest);
    controller.controller_get_volume_health(ControllerGetVolumeHealthRequest);
    controller.controller_list_volume_health(ControllerListVolumeHealthRequest);
    controller.create_snapshot(CreateSnapshotRequest)
        => |r: csi::CreateSnapshotResponse| r.snapshot.into_iter().map(|s| s.snapshot_id).collect();
    controller.delete_snapshot(DeleteSnapshotRequest);
    controller.list_snapshots(ListSnapshotsRequest);
    controller.get_snapshot(GetSnapshotRequest);
    controller.create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest)
        => |r: csi::CreateVolumeGroupSnapshotResponse| {
            r.group_snapshot.into_iter().flat_map(|g| {
                let members = g.snapshots.into_iter().map(|s| s.snapshot_id);
                members.chain([g.group_snapshot_id]).collect::<Vec<_>>()
            }).collect()
        };
    controller.delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest);
    controller.get_volume_group_snapshot(GetVolumeGroupSnapshotRequest);
    node.node_stage_volume(NodeStageVolumeRequest);
    node.node_unstage_volume(NodeUnstageVolumeRequest);
    node.node_publish_volume(NodePublishVolumeRequest);
    node.node_unpublish_volume(NodeUnpublishVolumeRequest);
    node.node_get_volume_stats(NodeGetVolumeStatsRequest);
    node.node_get_volume_health(NodeGetVolumeHealthRequest);
    node.node_get_storage_health(NodeGetStorageHealthRequest);
    node.node_expand_volume(NodeExpandVolumeRequest);
    node.node_get_info(NodeGetInfoRequest);
}

/// Real values to build messages from.
struct Words<'a> {
    dir: &'a Path,
    ids: &'a [String],
}

impl Words<'_> {
    /// A message with arbitrary fields.
    fn message(
        &self,
        entropy: &mut Entropy<'_>,
        descriptor: &MessageDescriptor,
        depth: u8,
    ) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields() {
            // A later member of a oneof replaces an earlier one.
            let set = match field.containing_oneof() {
                Some(_) => entropy.chance(128),
                None => entropy.chance(200),
            };
            if set && depth < 6 {
                let value = self.field(entropy, &field, depth);
                message.set_field(&field, value);
            }
        }
        message
    }

    fn field(&self, entropy: &mut Entropy<'_>, field: &FieldDescriptor, depth: u8) -> Value {
        if field.is_map() {
            let Kind::Message(entry) = field.kind() else {
                return Value::Map(Default::default());
            };
            let value = entry.map_entry_value_field();
            let entries = (0..entropy.below(4)).map(|_| {
                let key = MapKey::String(self.key(entropy));
                (key, self.single(entropy, &value, depth))
            });
            Value::Map(entries.collect())
        } else if field.is_list() {
            let count = entropy.below(3);
            Value::List(
                (0..count)
                    .map(|_| self.single(entropy, field, depth))
                    .collect(),
            )
        } else {
            self.single(entropy, field, depth)
        }
    }

    fn single(&self, entropy: &mut Entropy<'_>, field: &FieldDescriptor, depth: u8) -> Value {
        const MI: i64 = 1 << 20;
        const SIZES: [i64; 12] = [
            0,
            -1,
            1,
            4096,
            MI,
            8 * MI,
            8 * MI,
            16 * MI,
            320 * MI,
            1 << 40,
            i64::MAX,
            i64::MIN,
        ];
        match field.kind() {
            Kind::Message(message) => Value::Message(self.message(entropy, &message, depth + 1)),
            Kind::Enum(kind) => {
                let known: Vec<i32> = kind.values().map(|v| v.number()).collect();
                Value::EnumNumber(if entropy.chance(240) {
                    *entropy.pick(&known)
                } else {
                    entropy.word() as i32
                })
            }
            Kind::Bool => Value::Bool(entropy.chance(128)),
            Kind::String => Value::String(self.string(entropy, field.name())),
            Kind::Bytes => Value::Bytes(entropy.text().into_bytes().into()),
            Kind::Double | Kind::Float => Value::F64(entropy.word() as f64),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(if entropy.chance(200) {
                entropy.below(8) as i32
            } else {
                entropy.word() as i32
            }),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(if entropy.chance(230) {
                *entropy.pick(&SIZES)
            } else {
                entropy.word() as i64
            }),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(entropy.word() as u32),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(entropy.word()),
        }
    }

    /// A string for a field of this name, usually a plausible one.
    fn string(&self, entropy: &mut Entropy<'_>, field: &str) -> String {
        if entropy.chance(16) {
            return self.junk(entropy);
        }
        let one_of = |entropy: &mut Entropy<'_>, words: &[&str]| (*entropy.pick(words)).to_owned();
        match field {
            "name" => one_of(entropy, &["a", "b", "c", "d"]),
            "node_id" => one_of(entropy, &["n1", "n1", "n1", "n2", ""]),
            "fs_type" => one_of(entropy, &["", "", "ext4", "xfs", "btrfs", "vfat"]),
            "mount_flags" => {
                const FLAGS: [&str; 8] = [
                    "noatime",
                    "ro",
                    "discard",
                    "nodev",
                    "data=ordered",
                    "rtdev=/dev/null",
                    "context=\"u:r:t:s0:c1,c2\"",
                    "noatime,commit=5",
                ];
                one_of(entropy, &FLAGS)
            }
            "volume_mount_group" => one_of(entropy, &["", "", "1000", "0"]),
            _ if field.ends_with("_path") => {
                let paths = World::paths(self.dir);
                entropy.pick(&paths).display().to_string()
            }
            _ if field.contains("_id") || field.ends_with("token") => {
                entropy.pick(self.ids).clone()
            }
            _ => self.value(entropy),
        }
    }

    fn key(&self, entropy: &mut Entropy<'_>) -> String {
        const KEYS: [&str; 15] = [
            "allowVolumeModeChange",
            "pool",
            "kind",
            "provisioning",
            "discard",
            "directIO",
            "readAheadKiB",
            "mkfsOptions",
            "size",
            "t/node",
            "csi.storage.k8s.io/ephemeral",
            "csi.storage.k8s.io/pod.name",
            "csi.storage.k8s.io/pvc/name",
            "csi.storage.k8s.io/fstype",
            "deletionPolicy",
        ];
        if entropy.chance(240) {
            (*entropy.pick(&KEYS)).to_owned()
        } else {
            self.junk(entropy)
        }
    }

    fn value(&self, entropy: &mut Entropy<'_>) -> String {
        const VALUES: [&str; 14] = [
            "true", "false", "default", "other", "thin", "thick", "n1", "n2", "8Mi", "1Gi", "ext4",
            "128", "-m 0", "",
        ];
        if entropy.chance(240) {
            (*entropy.pick(&VALUES)).to_owned()
        } else {
            self.junk(entropy)
        }
    }

    /// A meaningless string. An absolute path starts in `dir`, because the model kernel creates
    /// real directories.
    fn junk(&self, entropy: &mut Entropy<'_>) -> String {
        match entropy.below(6) {
            0 => String::new(),
            1 => "x".repeat(200),
            2 => "../../../etc".to_owned(),
            3 => "vol-0123456789abcdef-00000000-0000-7000-8000-000000000000".to_owned(),
            4 => format!("{}/../escape", self.dir.display()),
            _ => entropy.text().trim_start_matches('/').to_owned(),
        }
    }
}
