//! Problems that recovery notes when it opens a pool: for status, health and the log.

use std::fmt;
use std::path::PathBuf;

use super::{GroupId, SnapshotId, VolumeId};
use crate::diagnose::Problem;
use crate::kernel::FileId;

/// The subject of a noted problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    Pool,
    Volume(VolumeId),
    Snapshot(SnapshotId),
    Group(GroupId),
    /// A file or directory that is not an entry of the pool; it stays untouched.
    File(PathBuf),
    /// A loop device, by its minor.
    Loop(u32),
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            About::Pool => f.write_str("pool"),
            About::Volume(id) => id.fmt(f),
            About::Snapshot(id) => id.fmt(f),
            About::Group(id) => id.fmt(f),
            About::File(path) => path.display().fmt(f),
            About::Loop(minor) => write!(f, "/dev/loop{minor}"),
        }
    }
}

/// A problem that the driver does not repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedProblem {
    /// The pool's name.
    pub pool: String,
    pub about: About,
    pub problem: Problem,
    /// When it is over.
    pub(super) until: Until,
}

impl fmt::Display for NotedProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = self.problem.message();
        write!(f, "pool {}: {}: {problem}", self.pool, self.about)
    }
}

/// When a noted problem is over. `recovery::recheck` looks for that periodically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// The pool is opened again, or the problem's subject is deleted.
    Reopened,
    /// The pool's directories are synced.
    Synced,
    /// This file is gone.
    FileGone(PathBuf),
    /// The volume's image is there, and as long as its record says.
    ImageWhole(VolumeId),
    /// The volume's record says that no freeze is under way.
    Thawed(VolumeId),
    /// Loop devices and mounts are what the volume's record says.
    DevicesSettled(VolumeId),
    /// The loop device has no longer this backing file.
    LoopDetached(u32, FileId),
    /// The snapshot is deleted.
    SnapshotGone(SnapshotId),
    /// The record of this volume, snapshot or group can be used.
    RecordUsable(About),
}
