//! What can be wrong with a volume, a snapshot, a group or a pool: in one sentence each, and what a
//! person can do about it.
//!
//! A problem is found again from record, image and kernel whenever one is needed. Recovery, health,
//! `fsck`, `status` and the node service each decide what a problem means for them.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hostloop_controllers::api::constants::FAULT;
use hostloop_terminal::humanize::{self, exact_bytes};

use super::{Lost, NotedFault};
use crate::kernel::{FsType, loop_path, silent_device};
use crate::record::UnusableRecord;
use crate::record::id::{GroupId, SnapshotId};

/// A difference between a record, its image, the kernel, and what they should be. As text, it is a
/// sentence about the object, which "it" refers to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The image is missing. These devices still hold the deleted file.
    #[error("{}", image_missing(held_by))]
    ImageMissing { held_by: Vec<u32> },
    /// The image could not be read.
    #[error("{0}")]
    ImageUnreadable(String),
    /// The image is shorter than recorded: its end is lost.
    #[error("its image {}: its end is lost", lengths_differ(*bytes, *recorded))]
    ImageShort { bytes: u64, recorded: u64 },
    /// The image is longer than recorded: an expansion was interrupted. The next start of the
    /// driver records its length.
    #[error("its image {}", lengths_differ(*bytes, *recorded))]
    ImageLong { bytes: u64, recorded: u64 },
    /// The volume is thick, and its image has fewer blocks than recorded.
    #[error(
        "it is thick, and {} of its {} are allocated",
        humanize::bytes(*allocated),
        humanize::bytes(*recorded)
    )]
    NotThick { allocated: u64, recorded: u64 },
    /// The device does not report its backing file. The path of that file contains an ID.
    #[error("{}", silent_device(&loop_path(*minor), file))]
    DeviceSilent { minor: u32, file: String },
    /// Several devices are over the image, and at least one is writable.
    #[error(
        "its image is attached to {} at once: writing through several destroys it",
        list(minors.iter().map(device), " and ")
    )]
    AttachedTwice { minors: Vec<u32> },
    /// A user of the device changed it after it was attached.
    #[error("{} was changed by one of its users: {why}", device(minor))]
    DeviceChanged { minor: u32, why: String },
    /// Direct I/O is requested, and this device does buffered I/O.
    #[error(
        "{} does buffered I/O, although direct I/O is requested",
        device(minor)
    )]
    Buffered { minor: u32 },
    /// The device is smaller than the image.
    #[error(
        "{} has {}, and its image has {}",
        device(minor),
        exact_bytes(*bytes),
        exact_bytes(*image)
    )]
    DeviceSmall { minor: u32, bytes: u64, image: u64 },
    /// The volume is staged, and no device is over its image. `minor` is recorded once
    /// NodeStageVolume has attached one.
    #[error("it is staged at {path}, and no loop device has its image")]
    NoDevice { path: PathBuf, minor: Option<u32> },
    /// A raw block volume is on another device than the one its targets are bound to.
    #[error(
        "it was staged at {path} as {}, and is {} now",
        device(was),
        device(is)
    )]
    OtherDevice { path: PathBuf, was: u32, is: u32 },
    /// A target has lost its read-only device.
    #[error(
        "it is published read-only at {target} from {}, which is not its own any more",
        device(minor)
    )]
    ReadOnlyDeviceLost { target: PathBuf, minor: u32 },
    /// The volume is staged and attached, but the staging path does not show its filesystem.
    /// `staging` is true if NodeStageVolume may not have mounted it yet.
    #[error("its filesystem is not mounted at {path}")]
    NotMounted { path: PathBuf, staging: bool },
    /// The process that served the volume's fault disk is gone, and the volume is still attached.
    #[error(
        "its fault disk is gone with the process that served it, which is a power cut: all I/O fails"
    )]
    FaultDiskGone,
    /// The mounted filesystem has shut down.
    #[error("its filesystem has shut down after an error")]
    FilesystemShutDown,
    /// The mounted filesystem is read-only, but the volume was staged for writing.
    #[error("its filesystem has become read-only")]
    FilesystemReadOnly,
    /// The mounted filesystem has found errors.
    #[error("{0}")]
    FilesystemErrors(String),
    /// The mounted filesystem is smaller than its device.
    #[error("{0}")]
    FilesystemSmaller(String),
    /// The volume is mounted with these options, which no class may set any more.
    #[error("it is mounted with options that no class may set any more: {}", .0.join(", "))]
    MountOptionsRefused(Vec<String>),
    /// Nothing is mounted at this target.
    #[error("nothing is mounted at {target}")]
    NotPublished { target: PathBuf },
    /// This target is bound to a loop device that lost the volume.
    #[error("{target} is bound to a loop device that lost the volume")]
    TargetLost { target: PathBuf },
    /// This is mounted at a target, and is not the volume.
    #[error("{what} is mounted at {target}, which is not this volume")]
    ForeignMount { what: String, target: PathBuf },
    /// Nothing is mounted at this staging path.
    #[error("nothing is mounted at {staging}")]
    NotStaged { staging: PathBuf },
    /// This is mounted at a staging path, and is not the volume.
    #[error("{what} is mounted at {staging}, which is not this volume")]
    ForeignStagingMount { what: String, staging: PathBuf },
    /// A device node is bound at this staging path.
    #[error("a device node is bound at {staging}")]
    DeviceAtStaging { staging: PathBuf },
    /// The record has no staging, but the volume is mounted or bound.
    #[error("{} is in use at {at}, and its record has no staging", device(minor))]
    UsedUnstaged { minor: u32, at: PathBuf },
    /// The start of a freeze is recorded, and its end is not.
    #[error("its filesystem was frozen for a copy and not thawed")]
    Frozen { since_ns: u64 },
    /// The volume has the fault that its claim or its class asks for. With a total one, it can't be
    /// used.
    #[error(
        "it has the fault {fault}, by the annotation {} of its claim or by its class",
        FAULT
    )]
    Fault { fault: String, total: bool },
    /// The filesystem takes no writes before it is mounted again, because of a fault that is over.
    #[error("its filesystem has stopped by the fault {0}, which is over")]
    StoppedByFault(String),
    /// The start of mkfs is recorded, and its end is not.
    #[error("its formatting as {0} was interrupted")]
    Formatting(FsType),
    /// The record can't be used.
    #[error("its record {0}")]
    RecordUnusable(UnusableRecord),
    /// A snapshot's record names a group that is not here.
    #[error("its record names {0}, which does not exist; the snapshot is kept")]
    GroupMissing(GroupId),
    /// A group lacks these snapshots.
    #[error("its snapshots {} are missing", list(.0, ", "))]
    GroupIncomplete(Vec<SnapshotId>),
    /// A file or directory is not an entry of its pool.
    #[error("it is not an entry of this pool, and the driver leaves it as it is")]
    UnknownFile,
    /// Recovery could not repair something, for this reason.
    #[error("{0}")]
    Unrepaired(String),
    /// The pool has the fault that an administrator has asked for.
    #[error("it has the fault {}, which an administrator has asked for", .0.fault)]
    PoolFault(NotedFault),
    /// The pool is not open.
    #[error("{0}")]
    PoolMissing(String),
    /// The pool is open but does not answer.
    #[error("{0}")]
    PoolSilent(String),
    /// The pool has lost what it was opened from.
    #[error("{}", .0.what)]
    PoolLost(Lost),
    /// The pool's filesystem, or one below it, is read-only.
    #[error("{0}")]
    PoolReadOnly(String),
    /// Thin volumes may soon find no space.
    #[error("{0}")]
    PoolNearlyFull(String),
    /// Recovery noted problems of the pool.
    #[error("{0}")]
    PoolNeedsAttention(String),
}

/// The advice for a filesystem that stopped by itself.
const TO_MOUNT_AGAIN: &str = "the kernel's log (dmesg) has the cause: often the disk below is full \
     or failing. Mend that, then delete the pods that use the volume: it is checked and mounted \
     again for the next one";

/// The advice for a fault that a claim asks for.
const TO_END_A_FAULT: &str = "remove that annotation, or set it to none if it is the fault of the \
     class; a filesystem that has shut down or become read-only is mounted again once the pods that \
     use the volume are deleted";

/// The advice for a fault of a pool.
const TO_END_A_POOL_FAULT: &str =
    "it ends in time, with the driver's process, or by kubectl hostloop fault node NODE clear";

/// The advice for a pool on a read-only filesystem.
const READ_ONLY_TO_DO: &str = "the kernel's log (dmesg) has the cause: a full or failing disk makes \
     filesystems read-only. Mend that, then check the filesystem and mount it again";

/// The advice for a device that does not report its file.
const SILENT_TO_DO: &str =
    "bring that filesystem back; until then the volume can be unpublished and unstaged";

/// The advice for a raw block volume on another device than its targets.
const RESTART: &str = "restart the pods that use it: their device is no longer this volume's";

impl Problem {
    /// What a person can do about the problem; `None` if the driver repairs it, or if that depends
    /// on more than the problem.
    pub(crate) fn advice(&self) -> Option<&str> {
        Some(match self {
            Problem::ImageMissing { held_by } if held_by.is_empty() => {
                "bring the image back from a backup, or delete the object"
            }
            Problem::ImageMissing { .. } => "copy it now",
            Problem::ImageUnreadable(_) => "the kernel's log (dmesg) may have the cause",
            Problem::ImageShort { .. } => "bring it back from a snapshot or a backup",
            Problem::DeviceSilent { .. } => SILENT_TO_DO,
            Problem::AttachedTwice { .. } => "stop what uses the later one, and detach it",
            Problem::DeviceChanged { .. } => {
                "unpublish and unstage the volume: the next staging attaches it again"
            }
            Problem::NotThick { .. } => "make room in the pool, then set provisioning=thick again",
            Problem::Buffered { .. } => {
                "keep the pool on a filesystem that does direct I/O, or set directIO=false"
            }
            Problem::OtherDevice { .. } | Problem::ReadOnlyDeviceLost { .. } => RESTART,
            Problem::UsedUnstaged { .. } => "unpublish and unstage it, or unmount it",
            Problem::FilesystemShutDown | Problem::FilesystemReadOnly => TO_MOUNT_AGAIN,
            Problem::Fault { .. } => TO_END_A_FAULT,
            Problem::StoppedByFault(_) | Problem::FaultDiskGone => {
                "delete the pods that use the volume: it is staged again for the next ones"
            }
            Problem::MountOptionsRefused(_) => {
                "remove them from the mountOptions of its PersistentVolume and of its class"
            }
            Problem::RecordUnusable(why) => why.advice(),
            Problem::GroupMissing(_) => {
                "put the group's record back, or delete the snapshot if it is not needed"
            }
            Problem::GroupIncomplete(_) => "delete the group: it can't be restored whole",
            Problem::UnknownFile => "move it out of the pool",
            Problem::PoolFault(_) => TO_END_A_POOL_FAULT,
            Problem::PoolMissing(_) => {
                "bring it back; until then everything in it is answered UNAVAILABLE"
            }
            Problem::PoolLost(lost) => lost.to_do.as_str(),
            Problem::PoolReadOnly(_) => READ_ONLY_TO_DO,
            Problem::PoolNearlyFull(_) => "free some space, or delete volumes or snapshots",
            _ => return None,
        })
    }

    /// The problem and what to do about it, in one text.
    pub(crate) fn message(&self) -> String {
        match (self, self.advice()) {
            (Problem::PoolLost(lost), _) => lost.message(),
            (Problem::Frozen { since_ns }, _) => {
                let time = elapsed(*since_ns).unwrap_or_default();
                format!("{self} for {} s", time.as_secs())
            }
            // Its reason says what to do.
            (Problem::PoolMissing(_), _) | (_, None) => self.to_string(),
            (_, Some(advice)) => format!("{self}; {advice}"),
        }
    }
}

fn image_missing(held_by: &[u32]) -> String {
    if held_by.is_empty() {
        return "its image is missing".to_owned();
    }
    format!(
        "its image was deleted; its data is lost as soon as {} is detached",
        list(held_by.iter().map(device), ", ")
    )
}

/// Compares two sizes in a sentence that begins with the image or its path.
pub(crate) fn lengths_differ(bytes: u64, recorded: u64) -> String {
    format!(
        "has {}, and its record says {}",
        exact_bytes(bytes),
        exact_bytes(recorded)
    )
}

/// The IDs of objects, or the names of devices, as a list.
fn list(all: impl IntoIterator<Item = impl ToString>, and: &str) -> String {
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::without_advice(
        Problem::NotStaged { staging: "/s".into() },
        "nothing is mounted at /s",
        "nothing is mounted at /s"
    )]
    #[case::with_advice(
        Problem::ImageMissing { held_by: vec![3, 4] },
        "its image was deleted; its data is lost as soon as /dev/loop3, /dev/loop4 is detached",
        "its image was deleted; its data is lost as soon as /dev/loop3, /dev/loop4 is detached; \
         copy it now"
    )]
    #[case::its_reason_says_what_to_do(Problem::PoolMissing("no".into()), "no", "no")]
    #[case::its_reason_is_an_error(
        Problem::ImageUnreadable("EIO".into()),
        "EIO",
        "EIO; the kernel's log (dmesg) may have the cause"
    )]
    #[case::its_reason_is_a_state(
        Problem::PoolNearlyFull("1 GiB is free".into()),
        "1 GiB is free",
        "1 GiB is free; free some space, or delete volumes or snapshots"
    )]
    #[case::of_a_device(
        Problem::AttachedTwice { minors: vec![3, 4] },
        "its image is attached to /dev/loop3 and /dev/loop4 at once: writing through several \
         destroys it",
        "its image is attached to /dev/loop3 and /dev/loop4 at once: writing through several \
         destroys it; stop what uses the later one, and detach it"
    )]
    #[case::sizes(
        Problem::ImageLong { bytes: 8192, recorded: 4096 },
        "its image has 8 KiB (8192 bytes), and its record says 4 KiB (4096 bytes)",
        "its image has 8 KiB (8192 bytes), and its record says 4 KiB (4096 bytes)"
    )]
    fn sentences(#[case] problem: Problem, #[case] sentence: &str, #[case] message: &str) {
        assert_eq!(problem.to_string(), sentence);
        assert_eq!(problem.message(), message);
    }

    /// `fsck` compares the sentences of two looks.
    #[test]
    fn only_the_message_has_the_time_of_a_freeze() {
        let problem = Problem::Frozen { since_ns: 1 };
        assert!(problem.message().starts_with(&format!("{problem} for ")));
        let frozen_again = Problem::Frozen { since_ns: 2 };
        assert_eq!(problem.to_string(), frozen_again.to_string());
    }
}
