//! The errors of pool operations.

use std::path::PathBuf;

use hostloop_terminal::humanize::exact_bytes;

use super::{GroupId, PoolId, SnapshotId, VolumeHandle};
use crate::kernel;

/// The result of a pool operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a pool operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No pool of this name is configured.
    #[error("no pool named {0:?} is configured")]
    UnknownPool(String),
    /// A configured pool is missing; it may hold the requested object.
    #[error("pool {name} is not available: {why}")]
    Unavailable { name: String, why: String },
    /// Another process has the pool open.
    #[error("pool {name}: {path} is in use by another process")]
    Locked { name: String, path: PathBuf },
    /// The pool belongs to another node: it was copied or moved.
    #[error("pool {name}: {why}")]
    OtherNode {
        name: String,
        /// The owning node, and instructions for the operator.
        why: String,
    },
    /// The ID belongs to a pool that is not on this node.
    #[error("pool {0} is not on this node")]
    ForeignPool(PoolId),
    /// The volume does not exist.
    #[error("volume {0} not found")]
    NoVolume(VolumeHandle),
    /// The snapshot does not exist.
    #[error("snapshot {0} not found")]
    NoSnapshot(SnapshotId),
    /// The group does not exist.
    #[error("group snapshot {0} not found")]
    NoGroup(GroupId),
    /// The pool can't promise the requested space.
    #[error(
        "pool {pool} has no room for {}: it can promise {} more. Delete volumes or snapshots, or \
         raise --overcommit",
        exact_bytes(*requested),
        exact_bytes(*available)
    )]
    NoRoom {
        pool: String,
        requested: u64,
        available: u64,
    },
    /// The disk below can't hold the whole image of a pool, which a thick volume needs.
    #[error(
        "pool {pool} has no room for a thick volume: its image {path} lacks {} on the disk below, \
         which has {} free. Free space there, or make the volume thin",
        exact_bytes(*lacks),
        exact_bytes(*free)
    )]
    NoRoomBelow {
        pool: String,
        path: PathBuf,
        lacks: u64,
        free: u64,
    },
    /// The snapshots of a namespace would promise more than it may have.
    #[error(
        "the snapshots of namespace {namespace:?} promise {} on this node, and {} more would exceed \
         its limit of {} (--max-snapshot-bytes-per-namespace): delete some",
        exact_bytes(*used),
        exact_bytes(*requested),
        exact_bytes(*limit)
    )]
    SnapshotQuota {
        namespace: String,
        requested: u64,
        used: u64,
        limit: u64,
    },
    /// A loop device still holds the image.
    #[error("volume {volume} is in use: {by}")]
    Attached {
        /// The volume's handle in the request.
        volume: VolumeHandle,
        /// The users of the loop device.
        by: String,
    },
    /// The snapshot belongs to a group and can only be deleted with it.
    #[error("snapshot {0} belongs to group {1}: delete the group")]
    InGroup(SnapshotId, GroupId),
    /// The record exists, but the image does not.
    #[error("{path}: the image is missing")]
    ImageMissing { path: PathBuf },
    /// The volume can't be frozen for a consistent copy, or not within the limit; the message says
    /// what to do instead.
    #[error("{0}")]
    CannotFreeze(String),
    /// The operation would break a guarantee (a thick volume would not stay thick…); the message
    /// says which.
    #[error("{0}")]
    Refused(String),
    /// A record that can't be read, or an unknown directory layout.
    #[error("{path}: {why}")]
    Corrupt { path: PathBuf, why: String },
    /// The record can't be encoded as JSON. Nothing was written.
    #[error("{file} can't be written: {source}")]
    Unwritable {
        file: &'static str,
        source: serde_json::Error,
    },
    /// A system call or kernel check failed.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
}

impl Error {
    /// True if a pool, the disk below it, or a limit has no room for the request. Nothing has
    /// changed then.
    pub fn is_no_room(&self) -> bool {
        use Error::*;
        matches!(
            self,
            NoRoom { .. } | NoRoomBelow { .. } | SnapshotQuota { .. }
        )
    }
}
