//! Why a fault is not as its claim asks for.

use hostloop_terminal::humanize::exact_bytes;

use crate::{kernel, storage};

/// Why a volume can't have a fault, as the end of a sentence that names both.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// A fault of filesystems for a raw block volume.
    #[error(
        "it is in use as a raw block device, and this is a fault of filesystems; gone and eio-from \
         are faults of devices"
    )]
    NoFilesystem,
    /// The fault begins behind the end of a volume of this size.
    #[error("the offset is not within its {}", exact_bytes(*bytes))]
    BeyondEnd { bytes: u64 },
    #[error("an XFS shuts down after an error, and does not become read-only")]
    XfsShutsDown,
    #[error("a btrfs becomes read-only only after a failed write: see gone")]
    BtrfsNeedsWrite,
    #[error("its class mounts it with errors=continue, so an error has no effect")]
    ErrorsIgnored,
    #[error("its filesystem is read-only, so nothing can take its room")]
    ReadOnly,
    /// Users have the file that would take the free room.
    #[error("its users have a file {file} in its root directory")]
    FileOfUsers { file: &'static str },
    #[error("its pool is nearly full, and freezing a filesystem in it might not end")]
    PoolNearlyFull,
    #[error("another program has frozen its filesystem already")]
    FrozenByOthers,
    /// A fault would be one of all nodes that use the volume. They also take a limited device for
    /// another one.
    #[error("all nodes of a kernel may use it (reach=kernel), and a fault is of one node")]
    Shared,
    #[error("a btrfs does not say where on the disk its files are: name no file")]
    BtrfsAddresses,
    /// The fault is for a file, and there is another thing, or nothing.
    #[error(
        "the volume has no regular file {path:?} (the path begins at the root of the volume, and \
         symlinks and mounts are not followed)"
    )]
    NoFile { path: String },
    #[error("that part of the file has no blocks on the disk: write it first")]
    NoBlocks,
    #[error("the file has some of its bytes in no blocks of its own, but in its inode or encoded")]
    NotInBlocks,
    #[error(
        "the file is in more than {most} pieces on the disk, or in 65,536 extents that follow each \
         other: name a part of it by range=FROM-TO"
    )]
    TooManyRanges { most: usize },
    /// A fault of fault disks for another volume.
    #[error("its class has no faultDisk, and this is a fault of fault disks")]
    NoFaultDisk,
}

/// What a fault waits for that is to end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndsLater {
    #[error("the file {file} is removed once a pod uses the volume")]
    Unused { file: &'static str },
    #[error(
        "the volume's filesystem has stopped. The file {file} is removed once it is mounted again"
    )]
    Stopped { file: &'static str },
}

/// Why a fault is not as its claim asks for.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    /// The volume can't have this fault.
    #[error(transparent)]
    Impossible(#[from] Obstacle),
    /// It can't end before the volume is used again.
    #[error(transparent)]
    Later(#[from] EndsLater),
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    #[error(transparent)]
    Pool(#[from] storage::Error),
    #[error("its fault disk: {0}")]
    Disk(#[from] hostloop_fault_disk::Error),
}
