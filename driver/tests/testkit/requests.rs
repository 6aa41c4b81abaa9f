//! Volumes and capabilities for tests, as pool types and as CSI messages.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hostloop_driver::kernel::FsType;
use hostloop_driver::storage::{
    Access, AccessMode, Capability, Format, NewVolume, PoolId, Provisioning, Reach, Settings,
    Source, Stage, VolumeId, VolumeRecord,
};
use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_capability::{
    AccessMode as CsiAccessMode, AccessType, BlockVolume, MountVolume,
};

use super::MI;

/// The settings of a thin volume without discard.
pub(crate) const THIN: Settings = Settings {
    provisioning: Provisioning::Thin,
    discard: false,
    direct_io: true,
    read_ahead_kib: None,
};

/// The record of a volume as in [`new`] that was never in use.
pub(crate) fn record_of(pool: PoolId, name: &str) -> VolumeRecord {
    let new = new(name);
    VolumeRecord {
        schema: 1,
        id: VolumeId::generate(pool),
        name: new.name.into(),
        capacity_bytes: new.capacity_bytes,
        requested_bytes: new.requested_bytes,
        capabilities: new.capabilities.into(),
        parameters: new.parameters.into(),
        mutable_parameters: new.mutable_parameters.into(),
        settings: new.settings,
        mkfs_options: new.mkfs_options.into(),
        source: None,
        ancestor: None,
        created_ns: 1,
        format: Format::None,
        fresh: false,
        publications: BTreeMap::new(),
        stage: None,
        freeze: None,
        inline: None,
        growth: None,
        fault: None,
        fault_disk: None,
        reach: Reach::Node,
    }
}

/// A staging, as a record has it.
pub(crate) fn stage_at(
    path: impl Into<PathBuf>,
    capability: Capability,
    minor: Option<u32>,
) -> Box<Stage> {
    let read_only_loops = BTreeMap::new();
    Stage {
        path: path.into(),
        capability,
        minor,
        read_only_loops,
        disk: None,
    }
    .into()
}

/// A thin ext4 volume of 4 MiB.
pub(crate) fn new(name: &str) -> NewVolume {
    NewVolume {
        name: name.to_owned(),
        capacity_bytes: 4 * MI,
        requested_bytes: None,
        capabilities: vec![mounted()],
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
        settings: THIN,
        mkfs_options: Vec::new(),
        source: None,
        inline: None,
        fault_disk: None,
        reach: Reach::Node,
    }
}

/// A volume for any use on one node. Its size is at least the minimum of its filesystem.
pub(crate) fn new_volume(access: Access, bytes: u64) -> NewVolume {
    let floor = match access {
        Access::Mount { fs, .. } => fs.minimum_bytes(),
        Access::Block => 0,
    };
    NewVolume {
        capacity_bytes: bytes.max(floor),
        capabilities: vec![Capability {
            access,
            mode: AccessMode::SingleNodeMultiWriter,
        }],
        settings: Settings {
            discard: true,
            read_ahead_kib: Some(64),
            ..THIN
        },
        ..new(&format!("pvc-{}", uuid::Uuid::new_v4()))
    }
}

pub(crate) fn copy_of(source: Source, access: Access, bytes: u64) -> NewVolume {
    NewVolume {
        source: Some(source),
        ..new_volume(access, bytes)
    }
}

/// Access through a mount of this filesystem.
pub(crate) fn on(fs: FsType) -> Access {
    Access::Mount {
        fs,
        flags: Vec::new(),
        group: None,
    }
}

pub(crate) fn ext4() -> Access {
    on(FsType::Ext4)
}

/// An ext4 mount for a single writer.
pub(crate) fn mounted() -> Capability {
    Capability {
        access: ext4(),
        mode: AccessMode::SingleNodeWriter,
    }
}

/// A raw block device for a single writer.
pub(crate) fn raw() -> Capability {
    Capability {
        access: Access::Block,
        mode: AccessMode::SingleNodeWriter,
    }
}

/// CSI's mount capability with this filesystem and access mode.
pub(crate) fn mount_as(fs: impl ToString, mode: Mode) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(CsiAccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: fs.to_string(),
            ..Default::default()
        })),
    }
}

/// CSI's block capability with this access mode.
pub(crate) fn block_as(mode: Mode) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(CsiAccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Block(BlockVolume {})),
    }
}

/// CSI's capability for this access, for several writers on one node.
pub(crate) fn capability(access: &Access) -> csi::VolumeCapability {
    match access {
        Access::Block => block(),
        Access::Mount { .. } => mount("ext4"),
    }
}

/// CSI's mount capability for several writers on one node.
pub(crate) fn mount(fs: impl ToString) -> csi::VolumeCapability {
    mount_as(fs, Mode::SingleNodeMultiWriter)
}

/// CSI's block capability for several writers on one node.
pub(crate) fn block() -> csi::VolumeCapability {
    block_as(Mode::SingleNodeMultiWriter)
}

fn mount_of(capability: &mut csi::VolumeCapability) -> &mut MountVolume {
    match &mut capability.access_type {
        Some(AccessType::Mount(mount)) => mount,
        _ => panic!("not a mount capability"),
    }
}

/// Adds these mount flags to the mount capability.
pub(crate) fn with_flags(
    mut capability: csi::VolumeCapability,
    flags: &[&str],
) -> csi::VolumeCapability {
    mount_of(&mut capability).mount_flags = flags.iter().map(|f| (*f).to_owned()).collect();
    capability
}

/// Adds this volume mount group to the mount capability.
pub(crate) fn with_group(
    mut capability: csi::VolumeCapability,
    group: &str,
) -> csi::VolumeCapability {
    mount_of(&mut capability).volume_mount_group = group.to_owned();
    capability
}

/// A map for parameters, a volume context or topology segments.
pub(crate) fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    let entry = |(k, v): &(&str, &str)| (k.to_string(), v.to_string());
    entries.iter().map(entry).collect()
}

/// An answer, or the code of its error.
pub(crate) fn code<T, E: Into<tonic::Status>>(answer: Result<T, E>) -> Result<T, tonic::Code> {
    answer.map_err(|error| error.into().code())
}

/// Kubelet's handle of the inline volume with this number.
pub(crate) fn inline(number: usize) -> String {
    format!("csi-{number:064x}")
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// The device number of a loop device with this minor.
pub(crate) fn rdev(minor: u32) -> u64 {
    rustix::fs::makedev(7, minor)
}

/// A pattern of bytes that depends on the seed.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

/// Writes a file with the pattern of this seed, and syncs it.
pub(crate) fn write(at: &Path, seed: u8, len: usize) {
    let file = File::create(at).unwrap();
    file.write_all_at(&pattern(seed, len), 0).unwrap();
    file.sync_all().unwrap();
}

#[track_caller]
pub(crate) fn assert_written(at: &Path, seed: u8, len: usize) {
    let read = std::fs::read(at).unwrap();
    assert!(read == pattern(seed, len), "{} changed", at.display());
}
