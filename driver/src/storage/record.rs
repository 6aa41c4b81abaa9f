//! The records: what the pool remembers of a volume, a snapshot and a group, as JSON beside the
//! bytes. They carry a schema version; unknown fields of a newer one are an error, not a loss.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::id::{GroupId, SnapshotId, VolumeId};
use crate::kernel::FsType;

/// The schema this build writes, and the newest it reads.
pub const SCHEMA: u32 = 1;

/// A volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRecord {
    /// Schema version.
    pub schema: u32,
    /// Its ID.
    pub id: VolumeId,
    /// The name the caller made it by (`pvc-<claim UID>` from a provisioner).
    pub name: String,
    /// Its size in bytes, a multiple of 4096.
    pub capacity_bytes: u64,
    /// What the caller said it would use it for.
    pub capabilities: Vec<Capability>,
    /// The class parameters as given, to judge a repeated call by.
    pub parameters: BTreeMap<String, String>,
    /// The mutable parameters as given at creation, likewise.
    pub mutable_parameters: BTreeMap<String, String>,
    /// What holds now (parameters, then mutable ones, then ModifyVolume).
    pub settings: Settings,
    /// Further words for mkfs, from `mkfsOptions`.
    pub mkfs_options: Vec<String>,
    /// What it was made from.
    pub source: Option<Source>,
    /// Time of creation, nanoseconds since the epoch.
    pub created_ns: u64,
    /// How far formatting got.
    pub format: Format,
    /// It has never been published or staged. Records that don't say so are of volumes that were,
    /// or of builds that didn't note it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fresh: bool,
    /// Nodes it is published to (ControllerPublishVolume), with what was asked.
    pub publications: BTreeMap<String, Publication>,
    /// Where it is staged, written before the loop is attached.
    pub stage: Option<Stage>,
    /// A freeze is under way, written before it.
    pub freeze: Option<FreezeIntent>,
    /// Kubelet's handle, for an inline ephemeral volume.
    pub inline: Option<String>,
}

/// What a volume is used as: block device or mount, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capability {
    /// Block device or mounted filesystem.
    pub access: Access,
    /// By how many nodes and writers.
    pub mode: AccessMode,
}

/// Block device or mounted filesystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// The raw device.
    Block,
    /// A mounted filesystem.
    Mount {
        /// Which filesystem (the default already filled in).
        fs: FsType,
        /// Mount options.
        flags: Vec<String>,
        /// Group that owns the files, where the orchestrator leaves that to the driver.
        group: Option<u32>,
    },
}

/// CSI's access modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs)] // CSI's own names say it all
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
    /// Speaks of several nodes.
    pub fn is_multi_node(self) -> bool {
        use AccessMode::*;
        matches!(
            self,
            MultiNodeReaderOnly | MultiNodeSingleWriter | MultiNodeMultiWriter
        )
    }

    /// Never written through.
    pub fn is_read_only(self) -> bool {
        matches!(
            self,
            AccessMode::SingleNodeReaderOnly | AccessMode::MultiNodeReaderOnly
        )
    }
}

/// Whether space is promised or taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provisioning {
    /// Space is taken as it is written.
    #[default]
    Thin,
    /// All space is taken at creation, and stays so.
    Thick,
}

/// What can be changed later (ControllerModifyVolume).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Thin or thick.
    pub provisioning: Provisioning,
    /// Give freed space back to the pool (mount option `discard`).
    pub discard: bool,
    /// Direct I/O on the image.
    pub direct_io: bool,
    /// Read-ahead of the loop device in KiB; `None` leaves the kernel's default (128).
    pub read_ahead_kib: Option<u32>,
}

/// What a volume was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A snapshot.
    Snapshot(SnapshotId),
    /// Another volume.
    Volume(VolumeId),
}

/// How far formatting got; written before each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Never formatted and never handed out: mkfs may run if the device is blank.
    None,
    /// mkfs was started: it may run again over what it left.
    Formatting(FsType),
    /// There is a filesystem. If the device looks blank all the same, data was lost: never mkfs.
    Done(FsType),
    /// The bytes are the user's (raw block, or copied from one): never mkfs.
    Raw,
}

/// One ControllerPublishVolume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    /// For this use.
    pub capability: Capability,
    /// Read-only.
    pub readonly: bool,
}

/// A staging, from before its first effect to after its last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// The staging path.
    pub path: PathBuf,
    /// For this use.
    pub capability: Capability,
    /// The loop device's minor, once attached: what a raw block publication is bound to.
    pub minor: Option<u32>,
    /// Targets published read-only from a second, read-only loop: target → its minor.
    pub read_only_loops: BTreeMap<PathBuf, u32>,
}

/// A freeze of the filesystem in this volume, from before it to after the thaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreezeIntent {
    /// When, nanoseconds since the epoch.
    pub since_ns: u64,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRecord {
    /// Schema version.
    pub schema: u32,
    /// Its ID.
    pub id: SnapshotId,
    /// The name the caller made it by.
    pub name: String,
    /// The volume it was taken of (which may be gone).
    pub source: VolumeId,
    /// The volume's size then, in bytes: what a restore needs at least.
    pub size_bytes: u64,
    /// The point in time, nanoseconds since the epoch.
    pub created_ns: u64,
    /// The parameters as given.
    pub parameters: BTreeMap<String, String>,
    /// The group it belongs to.
    pub group: Option<GroupId>,
    /// How the volume was formatted: what a restore inherits.
    pub format: Format,
    /// The volume's provisioning, which a restore without one of its own inherits.
    pub provisioning: Provisioning,
    /// Bytes allocated to it when taken: the most it can come to hold alone, counted as promised.
    pub allocated_bytes: u64,
}

/// A group snapshot. It exists while this record is in its place. Under `incoming/` or `trash/` the
/// record lists the snapshots that recovery frees, if they name the group too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupRecord {
    /// Schema version.
    pub schema: u32,
    /// Its ID; it lives in the pool of its first snapshot.
    pub id: GroupId,
    /// The name the caller made it by.
    pub name: String,
    /// The snapshots, in the order of the volumes in the request.
    pub snapshots: Vec<SnapshotId>,
    /// The volumes, likewise.
    pub sources: Vec<VolumeId>,
    /// The parameters as given.
    pub parameters: BTreeMap<String, String>,
    /// The point in time, nanoseconds since the epoch.
    pub created_ns: u64,
}
