//! What a pool can answer besides success.

use std::path::PathBuf;

use super::{GroupId, PoolId, SnapshotId, VolumeHandle};
use crate::kernel;

/// Result of a pool operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A pool operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No pool of this name is configured.
    #[error("no pool named {0:?} is configured")]
    UnknownPool(String),
    /// A configured pool is missing: it may hold what was asked for.
    #[error("pool {name} is not available: {why}")]
    Unavailable {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
    /// Another process has the pool open.
    #[error("pool {name}: {path} is in use by another process")]
    Locked {
        /// Its name.
        name: String,
        /// Its lock.
        path: PathBuf,
    },
    /// The pool belongs to another node: it was copied or moved.
    #[error("pool {name}: {why}")]
    OtherNode {
        /// Its name.
        name: String,
        /// The owning node, and what to do.
        why: String,
    },
    /// The ID belongs to a pool that is not on this node.
    #[error("pool {0} is not on this node")]
    ForeignPool(PoolId),
    /// No such volume.
    #[error("volume {0} not found")]
    NoVolume(VolumeHandle),
    /// No such snapshot.
    #[error("snapshot {0} not found")]
    NoSnapshot(SnapshotId),
    /// No such group.
    #[error("group snapshot {0} not found")]
    NoGroup(GroupId),
    /// The pool can't promise this much.
    #[error("pool {pool} has no room for {wanted} bytes: {available} bytes can be promised")]
    NoRoom {
        /// Its name.
        pool: String,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes it could promise.
        available: u64,
    },
    /// A loop device still holds the image.
    #[error("volume {volume} is in use: {by}")]
    Attached {
        /// The volume.
        volume: VolumeHandle,
        /// By what.
        by: String,
    },
    /// The snapshot belongs to a group and is deleted with it.
    #[error("snapshot {0} belongs to group {1}: delete the group")]
    InGroup(SnapshotId, GroupId),
    /// The record is there, the image not.
    #[error("{path}: the image is missing")]
    ImageMissing {
        /// Where it should be.
        path: PathBuf,
    },
    /// A consistent copy would freeze the volume for longer than allowed, or can't freeze it; the
    /// message says what to do instead.
    #[error("{0}")]
    CannotFreeze(String),
    /// It would break a promise (thick that would not stay thick…); the message says which.
    #[error("{0}")]
    Refused(String),
    /// A record that can't be read, or a layout that is not ours.
    #[error("{path}: {why}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A record that can't be encoded as JSON. Nothing was written.
    #[error("{file} can't be written: {source}")]
    Unwritable {
        /// The record's file.
        file: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// The kernel failed.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
}
