//! Findings: problems in a pool that an operator should know about, for status, health and the log.

use std::fmt;
use std::path::PathBuf;

use super::{GroupId, SnapshotId, VolumeId};
use crate::kernel::FileId;

/// The subject of a finding.
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
pub struct Issue {
    /// The pool's name.
    pub pool: String,
    pub about: About,
    pub what: String,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {}: {}: {}", self.pool, self.about, self.what)
    }
}

/// A finding, and the condition under which it still holds.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    pub(super) finding: Issue,
    pub(super) holds: Holds,
}

/// The condition under which a finding still holds. `recovery::recheck` checks it periodically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// Until the pool is opened again, or the finding's subject is deleted.
    Open,
    /// This file exists.
    File(PathBuf),
    /// The volume's image is missing, or not as long as its record says.
    Image(VolumeId),
    /// The volume's record says that a freeze is under way.
    Frozen(VolumeId),
    /// Loop devices and mounts are not what the volume's record says.
    Devices(VolumeId),
    /// The loop device has this backing file.
    Loop(u32, FileId),
    /// The snapshot exists.
    Snapshot(SnapshotId),
    /// The record of this volume, snapshot or group can't be used.
    Record(About),
}
