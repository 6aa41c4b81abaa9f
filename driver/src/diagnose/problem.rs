//! What can be wrong with a volume, a snapshot, a group or a pool.
//!
//! A problem is found again from record, image and kernel whenever one is needed. Recovery, health,
//! `fsck`, `status` and the node service each decide what a problem means for them. `fsck` has
//! words of its own, in `inspect/fsck/checks/subject.rs`.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Lost;
use crate::kernel::{FsType, loop_path, silent_device};
use crate::record::UnusableRecord;
use crate::record::id::{GroupId, SnapshotId};

/// A difference between a record, its image, the kernel, and what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The image is missing. These devices still hold the deleted file.
    ImageMissing { held_by: Vec<u32> },
    /// The image could not be read.
    ImageUnreadable(String),
    /// The image is shorter than recorded: its end is lost.
    ImageShort { bytes: u64, recorded: u64 },
    /// The image is longer than recorded: an expansion was interrupted. The next start of the
    /// driver records its length.
    ImageLong { bytes: u64, recorded: u64 },
    /// The volume is thick, and its image has fewer blocks than recorded.
    NotThick { allocated: u64, recorded: u64 },
    /// The device does not report its backing file. Its path contains the volume's ID.
    DeviceSilent { minor: u32 },
    /// Several devices are over the image, and at least one is writable.
    AttachedTwice { minors: Vec<u32> },
    /// A user of the device changed it after it was attached.
    DeviceChanged { minor: u32, why: String },
    /// Direct I/O is requested, and this device does buffered I/O.
    Buffered { minor: u32 },
    /// The device is smaller than the image.
    DeviceSmall { minor: u32, bytes: u64, image: u64 },
    /// The volume is staged, and no device is over its image. `minor` is recorded once
    /// NodeStageVolume has attached one.
    NoDevice { path: PathBuf, minor: Option<u32> },
    /// A raw block volume is on another device than the one its targets are bound to.
    OtherDevice { path: PathBuf, was: u32, is: u32 },
    /// A target has lost its read-only device.
    ReadOnlyDeviceLost { target: PathBuf, minor: u32 },
    /// The volume is staged and attached, but the staging path does not show its filesystem.
    /// `staging` is true if NodeStageVolume may not have mounted it yet.
    NotMounted { path: PathBuf, staging: bool },
    /// The mounted filesystem has shut down.
    FilesystemShutDown,
    /// The mounted filesystem is read-only, but the volume was staged for writing.
    FilesystemReadOnly,
    /// The mounted filesystem has found errors.
    FilesystemErrors(String),
    /// The mounted filesystem is smaller than its device.
    FilesystemSmaller(String),
    /// The volume is mounted with these options, which no class may set any more.
    MountOptionsRefused(Vec<String>),
    /// Nothing is mounted at this target.
    NotPublished { target: PathBuf },
    /// This target is bound to a loop device that lost the volume.
    TargetLost { target: PathBuf },
    /// This is mounted at a target, and is not the volume.
    ForeignMount { what: String, target: PathBuf },
    /// Nothing is mounted at this staging path.
    NotStaged { staging: PathBuf },
    /// This is mounted at a staging path, and is not the volume.
    ForeignStagingMount { what: String, staging: PathBuf },
    /// A device node is bound at this staging path.
    DeviceAtStaging { staging: PathBuf },
    /// The record has no staging, but the volume is mounted or bound.
    UsedUnstaged { minor: u32, at: PathBuf },
    /// The start of a freeze is recorded, and its end is not.
    Frozen { since_ns: u64 },
    /// The start of mkfs is recorded, and its end is not.
    Formatting(FsType),
    /// The record can't be used.
    RecordUnusable(UnusableRecord),
    /// A snapshot's record names a group that is not here.
    GroupMissing(GroupId),
    /// A group lacks these snapshots.
    GroupIncomplete(Vec<SnapshotId>),
    /// A file or directory is not an entry of its pool.
    UnknownFile,
    /// Recovery could not repair something, for this reason.
    Unrepaired(String),
    /// The pool is not open.
    PoolMissing(String),
    /// The pool is open but does not answer.
    PoolSilent(String),
    /// The pool has lost what it was opened from.
    PoolLost(Lost),
    /// The pool's filesystem, or one below it, is read-only.
    PoolReadOnly(String),
    /// Thin volumes may soon find no space.
    PoolNearlyFull(String),
    /// Recovery noted problems of the pool.
    PoolNeedsAttention(String),
}

/// The advice for a filesystem that stopped by itself.
const TO_MOUNT_AGAIN: &str = "The kernel's log (dmesg) has the cause: often the disk below is full \
     or failing. Mend that, then delete the pods that use the volume: it is checked and mounted \
     again for the next one";

/// The advice for a snapshot without its group.
const GROUP_TO_DO: &str = "put the group's record back, or delete the snapshot if it is not needed";

/// The advice for a pool on a read-only filesystem.
const READ_ONLY_TO_DO: &str = "the kernel's log (dmesg) has the cause: a full or failing disk makes \
     filesystems read-only. Mend that, then check the filesystem and mount it again";

impl Problem {
    /// What a person can do about the problem; `None` if that depends on more than the problem.
    pub(crate) fn advice(&self) -> Option<&str> {
        Some(match self {
            Problem::FilesystemShutDown | Problem::FilesystemReadOnly => TO_MOUNT_AGAIN,
            Problem::RecordUnusable(why) => why.advice(),
            Problem::GroupMissing(_) => GROUP_TO_DO,
            Problem::GroupIncomplete(_) => "delete the group: it can't be restored whole",
            Problem::PoolLost(lost) => lost.to_do.as_str(),
            Problem::PoolReadOnly(_) => READ_ONLY_TO_DO,
            _ => return None,
        })
    }
}

/// Compares two sizes in a sentence that begins with the image or its path.
pub(crate) fn lengths_differ(bytes: u64, recorded: u64) -> String {
    format!("has {bytes} bytes, and its record says {recorded}")
}

/// The IDs of objects, or the names of devices, as a list.
pub(crate) fn list(all: impl IntoIterator<Item = impl ToString>, and: &str) -> String {
    let words: Vec<String> = all.into_iter().map(|one| one.to_string()).collect();
    words.join(and)
}

/// The time since a point in nanoseconds since the epoch; `None` if the clock was set back since.
pub(crate) fn elapsed(since_ns: u64) -> Option<Duration> {
    let since = UNIX_EPOCH + Duration::from_nanos(since_ns);
    SystemTime::now().duration_since(since).ok()
}

fn device(minor: &u32) -> String {
    loop_path(*minor).display().to_string()
}

/// A sentence about the object, which "its" refers to.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::ImageMissing { held_by } if held_by.is_empty() => {
                f.write_str("its image is missing")
            }
            Problem::ImageMissing { held_by } => write!(
                f,
                "its image was deleted; its data is lost as soon as {} is detached: copy it now",
                list(held_by.iter().map(device), ", ")
            ),
            Problem::ImageUnreadable(why) => f.write_str(why),
            Problem::ImageShort { bytes, recorded } | Problem::ImageLong { bytes, recorded } => {
                write!(f, "its image {}", lengths_differ(*bytes, *recorded))
            }
            Problem::NotThick {
                allocated,
                recorded,
            } => write!(
                f,
                "it is thick, and {allocated} of its {recorded} bytes are allocated"
            ),
            Problem::DeviceSilent { minor } => {
                f.write_str(&silent_device(&loop_path(*minor), "its image"))
            }
            Problem::AttachedTwice { minors } => write!(
                f,
                "its image is attached to {} at once: writing through several destroys it",
                list(minors.iter().map(device), " and ")
            ),
            Problem::DeviceChanged { minor, why } => {
                write!(
                    f,
                    "{} was changed by one of its users: {why}",
                    device(minor)
                )
            }
            Problem::Buffered { minor } => write!(
                f,
                "{} does buffered I/O, although direct I/O is requested",
                device(minor)
            ),
            Problem::DeviceSmall {
                minor,
                bytes,
                image,
            } => write!(
                f,
                "{} has {bytes} of the {image} bytes of its image",
                device(minor)
            ),
            Problem::NoDevice { path, .. } => write!(
                f,
                "it is staged at {} and no loop device has its image",
                path.display()
            ),
            Problem::OtherDevice { path, was, is } => write!(
                f,
                "it was staged at {} as {} and is {} now: its users must start again",
                path.display(),
                device(was),
                device(is)
            ),
            Problem::ReadOnlyDeviceLost { target, .. } => {
                write!(f, "{} has lost its read-only device", target.display())
            }
            Problem::NotMounted { path, .. } => {
                write!(f, "its filesystem is not mounted at {}", path.display())
            }
            Problem::FilesystemShutDown => {
                write!(
                    f,
                    "its filesystem has shut down after an error. {TO_MOUNT_AGAIN}"
                )
            }
            Problem::FilesystemReadOnly => {
                write!(f, "its filesystem has become read-only. {TO_MOUNT_AGAIN}")
            }
            Problem::MountOptionsRefused(options) => write!(
                f,
                "it is mounted with options that no class may set any more: {}; remove them from the \
                 mountOptions of its PersistentVolume and of its class",
                options.join(", ")
            ),
            Problem::NotPublished { target: path } | Problem::NotStaged { staging: path } => {
                write!(f, "nothing is mounted at {}", path.display())
            }
            Problem::TargetLost { target } => write!(
                f,
                "{} is bound to a loop device that lost the volume",
                target.display()
            ),
            Problem::ForeignMount { what, target: path }
            | Problem::ForeignStagingMount {
                what,
                staging: path,
            } => write!(
                f,
                "{what} is mounted at {}, which is not this volume",
                path.display()
            ),
            Problem::DeviceAtStaging { staging } => {
                write!(f, "a device node is bound at {}", staging.display())
            }
            Problem::UsedUnstaged { minor, at } => write!(
                f,
                "{} is in use at {}, and its record has no staging",
                device(minor),
                at.display()
            ),
            Problem::Frozen { since_ns } => {
                let time = elapsed(*since_ns).unwrap_or_default();
                write!(
                    f,
                    "its filesystem was frozen for a copy {} s ago and not thawed",
                    time.as_secs()
                )
            }
            Problem::Formatting(fs) => write!(f, "its formatting as {fs} was interrupted"),
            Problem::RecordUnusable(why) => write!(f, "its record {why}; {}", why.advice()),
            Problem::GroupMissing(group) => write!(
                f,
                "its record names {group}, which does not exist. The snapshot is kept: {GROUP_TO_DO}"
            ),
            Problem::GroupIncomplete(lost) => {
                write!(f, "its snapshots {} are missing", list(lost, ", "))
            }
            Problem::UnknownFile => {
                f.write_str("it is not an entry of this pool, and the driver leaves it as it is")
            }
            Problem::FilesystemErrors(what)
            | Problem::FilesystemSmaller(what)
            | Problem::Unrepaired(what)
            | Problem::PoolMissing(what)
            | Problem::PoolSilent(what)
            | Problem::PoolNearlyFull(what)
            | Problem::PoolNeedsAttention(what) => f.write_str(what),
            Problem::PoolLost(lost) => f.write_str(&lost.message()),
            Problem::PoolReadOnly(which) => write!(f, "{which}: {READ_ONLY_TO_DO}"),
        }
    }
}
