//! The records of volumes, snapshots and groups, and their IDs.
//!
//! Records are JSON files beside the images. They have a schema version. Unknown fields of a newer
//! version are an error, so that no data is lost.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

mod cut_mark;
mod disk_settings;
mod fault_disk_record;
mod fault_record;
mod growth_intent;
pub mod id;
mod reach;
mod unusable_record;

pub use cut_mark::CutMark;
pub use fault_disk_record::{DiskFile, FaultDiskRecord};
pub use fault_record::FaultRecord;
pub use growth_intent::GrowthIntent;
pub use hostloop_report::clock::now_ns;
use id::{GroupId, PoolId, SnapshotId, VolumeId};
pub use reach::Reach;
pub use unusable_record::UnusableRecord;
pub(crate) use unusable_record::check_schema;

use crate::kernel::{FsType, READ_AHEAD_KIB};

/// The schema version that this build writes, and the newest that it reads.
pub const SCHEMA: u32 = 1;

/// A parameter map, as in requests and records.
pub type Parameters = BTreeMap<String, String>;

/// The key in which kubelet passes the pod's namespace. With podInfoOnMount, kubelet overwrites
/// what a user wrote there, so this key comes before the others.
pub(crate) const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";

/// The parameters that name the namespace of a pod, a snapshot, a group or a claim.
const NAMESPACES: [&str; 4] = [
    POD_NAMESPACE,
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumegroupsnapshot/namespace",
    "csi.storage.k8s.io/pvc/namespace",
];

/// The parameter with the name of a claim, as `--extra-create-metadata` adds it.
pub(crate) const CLAIM: &str = "csi.storage.k8s.io/pvc/name";

/// The parameters that name the owner of an object, for a copy without a request.
pub(crate) fn owner_of(parameters: &Parameters) -> Parameters {
    let keys = NAMESPACES.iter().chain([&CLAIM]);
    let named = keys.filter_map(|key| parameters.get_key_value(*key));
    named.map(|(key, of)| (key.clone(), of.clone())).collect()
}

/// The namespace of an object; empty if the parameters in its request or record do not have it.
pub(crate) fn namespace_of(parameters: &Parameters) -> &str {
    NAMESPACES
        .iter()
        .find_map(|key| parameters.get(*key))
        .map_or("", String::as_str)
}

/// The parameter that says how many deleted snapshots of a volume keep their images.
pub(crate) const KEEP_DELETED_BASES: &str = "keepDeletedBases";

/// The largest number in [`KEEP_DELETED_BASES`].
pub(crate) const MOST_DELETED_BASES: usize = 8;

/// Reads the value of [`KEEP_DELETED_BASES`]; `None` if it is not a number from 0 to
/// [`MOST_DELETED_BASES`].
pub(crate) fn deleted_bases(value: &str) -> Option<usize> {
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    let number = value.parse().ok().filter(|n| *n <= MOST_DELETED_BASES);
    // `parse` would accept a leading plus.
    number.filter(|_| digits)
}

/// The record of a volume. A node may have ten thousand of them in memory, so fields that many
/// volumes have in common are shared, and fields that few volumes have are boxed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRecord {
    /// Schema version, see [`SCHEMA`].
    pub schema: u32,
    /// The volume's ID, also the name of its directory.
    pub id: VolumeId,
    /// The name in the CreateVolume request (`pvc-<claim UID>` from a provisioner).
    pub name: Box<str>,
    /// The volume's size in bytes, a multiple of 4096.
    pub capacity_bytes: u64,
    /// The size in bytes that was requested, which may be less: a copy with this request is as
    /// large. `None` if the size itself shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<u64>,
    /// The capabilities in the CreateVolume request.
    pub capabilities: Arc<[Capability]>,
    /// The class parameters as given, to compare a repeated CreateVolume with.
    pub parameters: Arc<BTreeMap<String, String>>,
    /// The mutable parameters as given at creation, to compare a repeated CreateVolume with.
    pub mutable_parameters: Arc<BTreeMap<String, String>>,
    /// The settings in force (parameters, then mutable ones, then ModifyVolume).
    pub settings: Settings,
    /// Further arguments of mkfs, from `mkfsOptions`.
    pub mkfs_options: Arc<[String]>,
    /// The source of the volume's content; `None` for an empty volume.
    pub source: Option<Box<Source>>,
    /// The volume that began the line of copies to which this one belongs, if its source does not
    /// name it: both may share blocks, also once the source is deleted. Only pools that need it to
    /// count what their images hold write it, and earlier builds can't read a record that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ancestor: Option<Box<Uuid>>,
    /// Time of creation, nanoseconds since the epoch.
    pub created_ns: u64,
    /// The state of formatting.
    pub format: Format,
    /// True until the first publication or staging. Earlier builds do not write the field, and
    /// false is assumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fresh: bool,
    /// Nodes with a publication (ControllerPublishVolume), with the parameters of the request.
    pub publications: BTreeMap<String, Publication>,
    /// The current staging, written before the loop device is attached. In `state.json`, except
    /// for an inline volume.
    pub stage: Option<Box<Stage>>,
    /// The freeze in progress, written before the freeze. In `state.json`.
    pub freeze: Option<FreezeIntent>,
    /// Kubelet's volume handle of an inline ephemeral volume.
    pub inline: Option<Box<str>>,
    /// The growth of its unmounted filesystem that is under way or was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Box<GrowthIntent>>,
    /// The fault that the volume has, or has had, because its claim asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Box<FaultRecord>>,
    /// The fault disk that stands between the image and the loop device, if there is one. Earlier
    /// builds can't read a record that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_disk: Option<Box<FaultDiskRecord>>,
    /// The nodes that may use the volume. Earlier builds can't read a record that has it: they would
    /// give the volume's device to one node while others use it.
    #[serde(default, skip_serializing_if = "Reach::is_node")]
    pub reach: Reach,
}

impl VolumeRecord {
    /// True if all nodes that share a kernel may use the volume.
    pub fn is_shared(&self) -> bool {
        self.reach == Reach::Kernel
    }

    /// The eldest volume or snapshot that the record knows with which it may share blocks; `None`
    /// for a volume without a source in its pool.
    pub fn eldest(&self) -> Option<Uuid> {
        if let Some(ancestor) = self.ancestor.as_deref() {
            return Some(*ancestor);
        }
        let source = self.source.as_deref()?;
        (source.pool() == self.id.pool()).then(|| source.uuid())
    }

    /// True if nothing was written to the volume: it has no source, and was never published or
    /// staged.
    pub fn is_empty(&self) -> bool {
        self.fresh && self.source.is_none() && self.inline.is_none()
    }
}

/// The use of a volume: access type and access mode.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capability {
    /// Block device or mounted filesystem.
    pub access: Access,
    /// The number of nodes and writers.
    pub mode: AccessMode,
}

/// Block device or mounted filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// A raw block device.
    Block,
    /// A mounted filesystem.
    Mount {
        /// The filesystem type, with the default already filled in.
        fs: FsType,
        /// Mount options.
        flags: Vec<String>,
        /// Group that owns the files, if the orchestrator delegates fsGroup to the driver.
        group: Option<u32>,
    },
}

impl Access {
    /// The filesystem of a mount.
    pub fn fs(&self) -> Option<FsType> {
        match self {
            Access::Mount { fs, .. } => Some(*fs),
            Access::Block => None,
        }
    }

    /// The options of a mount; none for a raw block device.
    pub fn flags(&self) -> &[String] {
        match self {
            Access::Mount { flags, .. } => flags,
            Access::Block => &[],
        }
    }
}

/// CSI's access modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AccessMode {
    SingleNodeWriter,
    SingleNodeReaderOnly,
    MultiNodeReaderOnly,
    MultiNodeSingleWriter,
    MultiNodeMultiWriter,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
}

impl AccessMode {
    /// True for modes that allow several nodes.
    pub fn is_multi_node(self) -> bool {
        use AccessMode::*;
        matches!(
            self,
            MultiNodeReaderOnly | MultiNodeSingleWriter | MultiNodeMultiWriter
        )
    }

    /// True for modes that never write.
    pub fn is_read_only(self) -> bool {
        matches!(
            self,
            AccessMode::SingleNodeReaderOnly | AccessMode::MultiNodeReaderOnly
        )
    }
}

/// When a volume's space is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provisioning {
    /// Space is allocated when it is written.
    #[default]
    Thin,
    /// All space is allocated at creation, and stays allocated.
    Thick,
}

impl Provisioning {
    /// The name in class parameters, publish contexts and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Provisioning::Thin => "thin",
            Provisioning::Thick => "thick",
        }
    }

    /// Finds a kind of allocation by its name.
    pub(crate) fn parse(name: &str) -> Option<Provisioning> {
        [Provisioning::Thin, Provisioning::Thick]
            .into_iter()
            .find(|known| known.as_str() == name)
    }
}

/// Settings that ControllerModifyVolume can change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Thin or thick provisioning.
    pub provisioning: Provisioning,
    /// Return freed space to the pool (mount option `discard`).
    pub discard: bool,
    /// Use direct I/O on the image.
    pub direct_io: bool,
    /// Read-ahead of the loop device in KiB; `None` leaves the kernel's default (128).
    pub read_ahead_kib: Option<u32>,
}

impl Settings {
    /// Read-ahead of the loop device in KiB.
    pub(crate) fn read_ahead(&self) -> u32 {
        self.read_ahead_kib.unwrap_or(READ_AHEAD_KIB)
    }
}

/// The source of a volume's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Snapshot(SnapshotId),
    /// Another volume.
    Volume(VolumeId),
}

impl Source {
    pub fn uuid(&self) -> Uuid {
        match self {
            Source::Snapshot(id) => id.uuid(),
            Source::Volume(id) => id.uuid(),
        }
    }

    fn pool(&self) -> PoolId {
        match self {
            Source::Snapshot(id) => id.pool(),
            Source::Volume(id) => id.pool(),
        }
    }
}

/// The state of formatting, written before each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Never formatted and never handed out: mkfs may run if the device is blank.
    None,
    /// mkfs was started and may run again over its remains.
    Formatting(FsType),
    /// The volume has a filesystem. If the device looks blank, data was lost: never run mkfs.
    Done(FsType),
    /// The bytes belong to the user (raw block, or a copy of one): never run mkfs.
    Raw,
}

impl Format {
    /// True if mkfs may have begun, and its end is not recorded.
    pub(crate) fn is_begun(self) -> bool {
        matches!(self, Format::Formatting(_))
    }

    /// Takes back the start of an mkfs that wrote nothing.
    pub(crate) fn take_back(&mut self) {
        if self.is_begun() {
            *self = Format::None;
        }
    }
}

/// One publication by ControllerPublishVolume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    /// The capability in the request.
    pub capability: Capability,
    /// The publication is read-only.
    pub readonly: bool,
}

/// A staging, recorded from before its first effect until after its last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// The staging path.
    pub path: PathBuf,
    /// The capability in the request.
    pub capability: Capability,
    /// The loop device's minor, once attached. Raw block publications are bound to its node.
    pub minor: Option<u32>,
    /// Targets published through a second, read-only loop device: target path to its minor.
    pub read_only_loops: BTreeMap<PathBuf, u32>,
    /// The file of the fault disk, written before the loop device is attached to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskFile>,
}

/// A freeze of the volume's filesystem, recorded from before the freeze until after the thaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreezeIntent {
    /// Time of the freeze, nanoseconds since the epoch.
    pub since_ns: u64,
}

/// The size of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSize {
    /// As [`VolumeRecord::capacity_bytes`].
    pub bytes: u64,
    /// As [`VolumeRecord::requested_bytes`].
    pub requested: Option<u64>,
}

impl From<u64> for VolumeSize {
    fn from(bytes: u64) -> VolumeSize {
        VolumeSize {
            bytes,
            requested: None,
        }
    }
}

/// The state of its volume that a snapshot shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// All that was written before, in a filesystem that was frozen meanwhile.
    #[default]
    Frozen,
    /// What a power cut at that moment would have left: nothing was frozen or flushed.
    Powercut,
}

impl Consistency {
    /// The name in records, class parameters and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Consistency::Frozen => "frozen",
            Consistency::Powercut => "powercut",
        }
    }

    fn is_frozen(&self) -> bool {
        *self == Consistency::Frozen
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRecord {
    /// Schema version, see [`SCHEMA`].
    pub schema: u32,
    /// The snapshot's ID, also the name of its directory.
    pub id: SnapshotId,
    /// The name in the CreateSnapshot request.
    pub name: String,
    /// The source volume, which may be deleted by now.
    pub source: VolumeId,
    /// The volume's size at that time in bytes: the minimum size of a restore.
    pub size_bytes: u64,
    /// The volume's [`requested_bytes`](VolumeRecord::requested_bytes) at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<u64>,
    /// The volume's [`eldest`](VolumeRecord::eldest), in the pools that need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ancestor: Option<Box<Uuid>>,
    /// The point in time of the content, nanoseconds since the epoch.
    pub created_ns: u64,
    /// The parameters in the request.
    pub parameters: BTreeMap<String, String>,
    /// The group of which the snapshot is a member.
    pub group: Option<GroupId>,
    /// The volume's state of formatting, which a restore inherits.
    pub format: Format,
    /// The volume's provisioning, which a restore inherits unless it sets another one.
    pub provisioning: Provisioning,
    /// Bytes allocated when the snapshot was taken, counted as promised: it can never hold more.
    pub allocated_bytes: u64,
    /// The state of the volume that the snapshot shows. Earlier builds do not write the field, and
    /// can't read a record that has it.
    #[serde(default, skip_serializing_if = "Consistency::is_frozen")]
    pub consistency: Consistency,
    /// The mark of a cut; `None` for all other snapshots. Earlier builds do not write the field, and
    /// can't read a record that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<CutMark>,
}

impl SnapshotRecord {
    /// The eldest volume or snapshot that the record knows with which it may share blocks.
    pub fn eldest(&self) -> Uuid {
        let ancestor = self.ancestor.as_deref();
        ancestor.copied().unwrap_or(self.source.uuid())
    }
}

/// The record of a group snapshot. The group exists while this record is in its place. Under
/// `incoming/` or `trash/`, the record lists the snapshots that recovery frees; their own records
/// must name the group too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRecord {
    /// Schema version, see [`SCHEMA`].
    pub schema: u32,
    /// The group's ID, in the pool of its first snapshot.
    pub id: GroupId,
    /// The name in the CreateVolumeGroupSnapshot request.
    pub name: String,
    /// The snapshots, in the order of the volumes in the request.
    pub snapshots: Vec<SnapshotId>,
    /// The source volumes, in the order of the request.
    pub sources: Vec<VolumeId>,
    /// The parameters in the request.
    pub parameters: BTreeMap<String, String>,
    /// The common point in time, nanoseconds since the epoch.
    pub created_ns: u64,
}
