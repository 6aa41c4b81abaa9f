//! Compares a volume's record with its image and the kernel. Pure.
//!
//! It only reports differences. The caller decides how bad one is and what to do. Health runs
//! beside the driver's own work and ignores what a running call explains; `fsck` does not.

use std::cmp::Ordering;
use std::path::PathBuf;

use super::VolumeState;
use crate::diagnose::kernel_state::destroy_data;
use crate::kernel::{FsType, MountEntry, mounts_read_only, whole_blocks};
use crate::record::{Access, Capability, Format, Provisioning, Stage, VolumeRecord};

/// A volume's image file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Image {
    /// The image exists.
    Present {
        /// Length in bytes.
        bytes: u64,
        /// Allocated bytes, including shared ones.
        allocated: u64,
    },
    /// The record has no image.
    Missing,
    /// The image could not be read, for this reason.
    Unreadable(String),
}

/// A difference between a volume's record, its image and the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Issue {
    /// The image is missing. These devices still hold the deleted file.
    ImageMissing { held_by: Vec<u32> },
    /// The image could not be read.
    ImageUnreadable(String),
    /// The image is shorter than recorded.
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
    /// The record has no staging, but the volume is mounted or bound.
    UsedUnstaged { minor: u32, at: PathBuf },
    /// The start of a freeze is recorded, and its end is not.
    Frozen { since_ns: u64 },
    /// The start of mkfs is recorded, and its end is not.
    Formatting(FsType),
}

/// What to do about a filesystem that stopped by itself.
pub(crate) const TO_MOUNT_AGAIN: &str = "The kernel's log (dmesg) has the cause: often the disk \
     below is full or failing. Mend that, then delete the pods that use the volume: it is checked \
     and mounted again for the next one";

/// Result of comparing an image's length with its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// The lengths agree.
    Same,
    /// The image is too short: its end is lost.
    Short,
    /// An expansion was interrupted. This is the length to record, in bytes.
    Long(u64),
}

/// Compares an image's length with the recorded one. A partial last block does not count: no loop
/// device shows it.
pub(crate) fn length(bytes: u64, recorded: u64) -> Length {
    let whole = whole_blocks(bytes);
    match whole.cmp(&recorded) {
        Ordering::Less => Length::Short,
        Ordering::Equal => Length::Same,
        Ordering::Greater => Length::Long(whole),
    }
}

/// Compares a record with the image and the kernel.
pub(crate) fn judge(record: &VolumeRecord, image: &Image, state: &VolumeState) -> Vec<Issue> {
    let mut issues = image_issues(record, image, state);
    issues.extend(device_issues(record, image, state));
    match &record.stage {
        Some(stage) => {
            issues.extend(stage_issues(stage, image, state));
            if let Access::Mount { .. } = stage.capability.access {
                issues.extend(mount_issues(record, stage, state));
            }
        }
        None => issues.extend(used_unstaged(state)),
    }
    issues.extend(record.freeze.map(|freeze| Issue::Frozen {
        since_ns: freeze.since_ns,
    }));
    if let Format::Formatting(fs) = record.format {
        issues.push(Issue::Formatting(fs));
    }
    issues
}

fn image_issues(record: &VolumeRecord, image: &Image, state: &VolumeState) -> Vec<Issue> {
    let (bytes, allocated) = match image {
        Image::Present { bytes, allocated } => (*bytes, *allocated),
        Image::Missing => {
            let held_by = state
                .own()
                .filter(|l| l.is_deleted())
                .map(|l| l.minor)
                .collect();
            return vec![Issue::ImageMissing { held_by }];
        }
        Image::Unreadable(why) => return vec![Issue::ImageUnreadable(why.clone())],
    };
    let mut issues = Vec::new();
    let recorded = record.capacity_bytes;
    match length(bytes, recorded) {
        Length::Same => {}
        Length::Short => issues.push(Issue::ImageShort { bytes, recorded }),
        Length::Long(_) => issues.push(Issue::ImageLong { bytes, recorded }),
    }
    let thick = record.settings.provisioning == Provisioning::Thick;
    if thick && allocated < recorded {
        issues.push(Issue::NotThick {
            allocated,
            recorded,
        });
    }
    issues
}

fn device_issues(record: &VolumeRecord, image: &Image, state: &VolumeState) -> Vec<Issue> {
    let mut issues = Vec::new();
    let silent = state.own().filter(|l| l.backing.is_none());
    issues.extend(silent.map(|l| Issue::DeviceSilent { minor: l.minor }));
    if destroy_data(state.own()) {
        let minors = state.own().map(|l| l.minor).collect();
        issues.push(Issue::AttachedTwice { minors });
    }
    for device in state.own().chain(state.over()) {
        let minor = device.minor;
        if let Some(why) = device.tampered() {
            issues.push(Issue::DeviceChanged { minor, why });
        }
    }
    for device in state.own() {
        let (minor, bytes) = (device.minor, device.size_bytes);
        if record.settings.direct_io && !device.direct_io {
            issues.push(Issue::Buffered { minor });
        }
        let Image::Present { bytes: image, .. } = *image else {
            continue;
        };
        if bytes < whole_blocks(image) {
            issues.push(Issue::DeviceSmall {
                minor,
                bytes,
                image,
            });
        }
    }
    issues
}

/// Finds issues with the devices of a staged volume.
fn stage_issues(stage: &Stage, image: &Image, state: &VolumeState) -> Vec<Issue> {
    // Without an image, it is unknown whether a device lost it. The missing image is an issue
    // already.
    if !matches!(image, Image::Present { .. }) {
        return Vec::new();
    }
    let path = stage.path.clone();
    let mut issues = Vec::new();
    let on = |minor: u32| state.own().any(|l| l.minor == minor);
    match (state.own().next(), stage.minor) {
        (None, minor) => issues.push(Issue::NoDevice { path, minor }),
        (Some(first), Some(was)) if stage.capability.access == Access::Block && !on(was) => {
            let is = first.minor;
            issues.push(Issue::OtherDevice { path, was, is });
        }
        _ => {}
    }
    let lost = state.lost_read_only(stage);
    issues.extend(lost.map(|(target, minor)| Issue::ReadOnlyDeviceLost {
        target: target.to_path_buf(),
        minor,
    }));
    issues
}

/// Finds issues with the filesystem of a volume that is staged as a mount.
fn mount_issues(record: &VolumeRecord, stage: &Stage, state: &VolumeState) -> Vec<Issue> {
    let mut issues = Vec::new();
    let mount = state.staged_mount(stage);
    if state.mount_at(&stage.path).is_none() && state.own().next().is_some() {
        // NodeStageVolume makes a new filesystem after attaching and before mounting.
        let formatted = matches!(record.format, Format::Done(_));
        issues.push(Issue::NotMounted {
            path: stage.path.clone(),
            staging: !formatted && mount.is_none(),
        });
    }
    if mount.is_some_and(|m| m.super_options.has("shutdown")) {
        issues.push(Issue::FilesystemShutDown);
    } else if mount.is_some_and(MountEntry::fs_read_only) && !read_only(&stage.capability) {
        issues.push(Issue::FilesystemReadOnly);
    }
    issues
}

/// True if a volume is staged only for reading.
fn read_only(capability: &Capability) -> bool {
    mounts_read_only(capability.access.flags()) || capability.mode.is_read_only()
}

fn used_unstaged(state: &VolumeState) -> Option<Issue> {
    state.own().find_map(|l| {
        let mount = state.kernel().mounts_of(l.minor).next()?;
        Some(Issue::UsedUnstaged {
            minor: l.minor,
            at: mount.mount_point.to_path_buf(),
        })
    })
}
