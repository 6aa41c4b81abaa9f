//! The output of `hostloop status --json`. Names and meanings are stable; fields may be added. All
//! sizes are in bytes, all times in nanoseconds since the epoch.

use std::borrow::Cow;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::reported_problem::ReportedProblem;

/// A word of a fixed list. A report of a newer program may have words that this one does not know.
pub type Word = Cow<'static, str>;

/// The whole output of `hostloop status`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The configured pools, in order.
    pub pools: Vec<PoolReport>,
    /// The volumes with a readable record, oldest first in each pool.
    pub volumes: Vec<VolumeReport>,
    /// The snapshots with a readable record, oldest first in each pool.
    pub snapshots: Vec<SnapshotReport>,
    /// The group snapshots with a readable record, oldest first in each pool.
    pub groups: Vec<GroupReport>,
    /// The driver's loop devices, by minor.
    pub loops: Vec<LoopReport>,
    /// The driver's mounts, in the order they were made.
    pub mounts: Vec<MountReport>,
    /// What has no owner or can't be read: the problems of `hostloop fsck` about such things.
    pub orphans: Vec<ReportedProblem>,
    /// The kernel that this node shares with others; null if it shares none, or has not proved it.
    #[serde(default)]
    pub kernel: Option<KernelReport>,
    /// The devices of other nodes' volumes that this node uses; empty from earlier versions.
    #[serde(default)]
    pub foreign: Vec<ForeignUse>,
}

/// A kernel that several nodes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelReport {
    /// The kernel's name, which the administrator chose.
    pub name: String,
    /// The nodes that the administrator lists with this one, and this one.
    pub listed: Vec<String>,
    /// The nodes with a marker on the kernel: they are proved to share it.
    pub seen: Vec<String>,
    /// True if the kernel numbers the attachments of loop devices, as Linux does from 5.15 on.
    pub shows_diskseq: bool,
}

/// The use of another node's volume on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ForeignUse {
    /// The volume's ID.
    pub id: String,
    /// N of the volume's `/dev/loopN`.
    pub minor: u32,
    /// Where this node has its filesystem mounted or its device bound.
    pub mounts: Vec<PathBuf>,
    /// True if this node pins the device.
    pub pins: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolReport {
    /// The pool's name in the configuration.
    pub name: String,
    /// `directory`, `device` or `image`.
    pub kind: Word,
    /// The configured path.
    pub path: PathBuf,
    /// `open` (a driver has it open), `closed` (no driver has), or `missing`.
    pub state: Word,
    /// The reason if the pool is missing.
    pub why: Option<String>,
    /// The fault that an administrator has asked for; null without one.
    pub fault: Option<PoolFault>,
    /// The driver's process ID, if it is visible from this PID namespace.
    pub pid: Option<u32>,
    /// The pool's ID, part of every ID in it.
    pub id: Option<String>,
    /// The pool's root directory.
    pub root: Option<PathBuf>,
    /// The filesystem type, by the kernel's name.
    pub fs: Option<String>,
    /// Whether snapshots share blocks; null if unknown.
    pub reflinks: Option<bool>,
    /// Size of the pool's filesystem.
    pub size_bytes: Option<u64>,
    /// Free space of the pool's filesystem, including what it reserves for root.
    pub free_bytes: Option<u64>,
    /// The part of the free space that volumes may use.
    pub available_bytes: Option<u64>,
    /// Bytes promised to volumes and snapshots.
    pub promised_bytes: Option<u64>,
    /// Bytes that the images of volumes and snapshots hold at least: blocks that they may share
    /// count once. Null if unknown, and from earlier versions.
    pub held_bytes: Option<u64>,
    /// Number of volumes in the pool.
    pub volumes: usize,
    /// Number of snapshots in the pool.
    pub snapshots: usize,
    /// The cuts among the snapshots; null without any, and from earlier versions.
    pub cuts: Option<CutUsage>,
    /// Number of deleted snapshots that keep their images; null if unknown.
    pub deleted_bases: Option<usize>,
    /// Bytes that these images held when the snapshots were taken, including blocks shared with
    /// others; null if unknown.
    pub deleted_base_bytes: Option<u64>,
}

/// The cuts of crash explorations in a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CutUsage {
    /// Number of cuts.
    pub count: usize,
    /// Bytes promised to them at most. Blocks that they share count for each.
    pub promised_bytes: u64,
}

/// A fault of a pool that an administrator has asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolFault {
    /// What happens, such as `full`.
    pub name: String,
    /// The fault as it was asked for, with its time.
    pub fault: String,
    /// When it began.
    pub since_ns: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VolumeReport {
    /// The volume's ID.
    pub id: String,
    /// The name in the CreateVolume request.
    pub name: String,
    /// Kubelet's handle for an inline volume.
    pub inline: Option<String>,
    /// The name of the volume's pool.
    pub pool: String,
    /// The volume's size.
    pub size_bytes: u64,
    /// Bytes allocated on disk, including blocks shared with others; null without an image.
    pub allocated_bytes: Option<u64>,
    /// When the image was last written; null without an image.
    pub written_ns: Option<u64>,
    /// `thin` or `thick`.
    pub provisioning: Word,
    /// `none`, `ext4`, `xfs`, `btrfs` or `raw`; a `?` at the end means that mkfs did not finish.
    pub format: String,
    /// The snapshot or volume that is the content source.
    pub source: Option<String>,
    /// Nodes to which the volume is published.
    pub published_nodes: Vec<String>,
    /// The staging path.
    pub staged_at: Option<PathBuf>,
    /// `block` or `mount`, if the volume is staged.
    pub staged_as: Option<Word>,
    /// The volume's loop devices, including those over them.
    pub loops: Vec<PathBuf>,
    /// True if direct I/O is active; null without a loop device.
    pub direct_io: Option<bool>,
    /// When a freeze that has not ended began.
    pub frozen_since_ns: Option<u64>,
    /// The fault that its claim asks for, or that has stopped its filesystem; null without one.
    pub fault: Option<VolumeFault>,
    /// Where the volume's filesystem is mounted or its device is bound.
    pub mounts: Vec<PathBuf>,
    /// When the volume was created.
    pub created_ns: u64,
    /// `node`, or `kernel` for a volume that all nodes of a kernel may use; null from earlier versions.
    #[serde(default)]
    pub reach: Option<Word>,
    /// The nodes that use the volume, or to which it is published; empty from earlier versions.
    #[serde(default)]
    pub users: Vec<VolumeUser>,
}

/// A node that uses a volume, or to which it is published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeUser {
    /// The node's ID.
    pub node: String,
    /// True if the volume is published to it.
    pub published: bool,
    /// True if it pins the volume's device, and its container runs.
    pub pins: bool,
}

impl VolumeUser {
    /// The node. If the volume is attached to it and not in use there, or the reverse, with a remark.
    pub fn words(&self) -> String {
        let node = &self.node;
        match (self.published, self.pins) {
            (true, true) => node.clone(),
            (true, false) => format!("{node}(attached)"),
            (false, _) => format!("{node}(held)"),
        }
    }
}

/// A fault of a volume, from before its first effect until nothing asks for it any more and it has left
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeFault {
    /// What happens, such as `gone`.
    pub name: String,
    /// The fault as it was asked for, with its time and its seed.
    pub fault: String,
    /// When it began.
    pub since_ns: u64,
    /// `active`; `waiting` for a pod that uses the volume; `stopped`, if it is over and the
    /// filesystem has to be mounted again; or `over`.
    pub state: Word,
}

impl VolumeFault {
    /// The mark of a volume that can't be used as usual: `fault gone`. `None` once the fault is over
    /// and has left nothing.
    pub fn mark(&self) -> Option<String> {
        (self.state != "over").then(|| format!("fault {}", self.name))
    }

    /// True if it freezes the volume's filesystem. Under another fault, a copy has frozen it.
    pub fn is_freeze(&self) -> bool {
        self.name == "frozen" && self.state != "over"
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotReport {
    /// The snapshot's ID.
    pub id: String,
    /// The name in the request that created the snapshot.
    pub name: String,
    /// The name of the snapshot's pool.
    pub pool: String,
    /// The ID of the source volume.
    pub source: String,
    /// True if the source volume still exists.
    pub source_exists: bool,
    /// The source volume's size when the snapshot was taken.
    pub size_bytes: u64,
    /// Bytes allocated on disk, including blocks shared with others; null without an image.
    pub allocated_bytes: Option<u64>,
    /// When the image was last written; null without an image.
    pub written_ns: Option<u64>,
    /// The group snapshot of which this is a member.
    pub group: Option<String>,
    /// `frozen`, or `powercut` for what a power cut would have left; null from earlier versions.
    pub consistency: Option<Word>,
    /// The mark of a cut; null for other snapshots, and from earlier versions.
    pub cut: Option<CutMark>,
    /// The point in time that the snapshot shows.
    pub created_ns: u64,
}

/// What makes a snapshot a cut: it is one of many of a crash exploration, and expires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CutMark {
    /// The exploration's ID.
    pub exploration: String,
    /// Its number in the exploration, from 1.
    pub number: u32,
    /// When the driver deletes it.
    pub expires_ns: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GroupReport {
    /// The group snapshot's ID.
    pub id: String,
    /// The name in the request that created the group snapshot.
    pub name: String,
    /// The name of the pool.
    pub pool: String,
    /// The IDs of the member snapshots.
    pub snapshots: Vec<String>,
    /// The point in time that the snapshots show.
    pub created_ns: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LoopReport {
    /// The device node.
    pub device: PathBuf,
    /// The kind of object that the device is over: `pool`, `volume`, `snapshot`, `leftover`,
    /// `deleted` or `loop`.
    pub over: Word,
    /// That object: a pool's name, an ID, a path, or a device.
    pub object: String,
    /// The device's size.
    pub size_bytes: u64,
    /// The logical block size.
    pub block_size: u32,
    /// True if direct I/O is active.
    pub direct_io: bool,
    /// True if the device is read-only.
    pub read_only: bool,
    /// True if the kernel detaches the device at its last close.
    pub autoclear: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MountReport {
    /// The mount point.
    pub path: PathBuf,
    /// `filesystem` or `device` (the node of a raw block volume).
    pub kind: Word,
    /// The filesystem type; for a device, that of `/dev`.
    pub fs: String,
    /// The loop device that is mounted or bound.
    pub device: PathBuf,
    /// The object under the loop device: a pool's name, an ID, a path, or a device.
    pub object: String,
    /// True if the mount is read-only.
    pub read_only: bool,
    /// All options of the mount and its filesystem.
    pub options: Vec<String>,
}

impl AsRef<PoolReport> for PoolReport {
    fn as_ref(&self) -> &PoolReport {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_marks_its_volume_until_it_is_over() {
        for (state, mark) in [
            ("active", Some("fault gone")),
            ("waiting", Some("fault gone")),
            ("stopped", Some("fault gone")),
            ("over", None),
        ] {
            let fault = VolumeFault {
                name: "gone".to_owned(),
                fault: "gone,for=600s".to_owned(),
                since_ns: 1,
                state: state.into(),
            };
            assert_eq!(fault.mark().as_deref(), mark, "{state}");
        }
    }
}
