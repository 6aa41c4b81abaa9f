//! Compares a volume's record with its image and the kernel. Pure.
//!
//! It only reports differences. The caller decides how bad one is and what to do. Health runs
//! beside the driver's own work and ignores what a running call explains; `fsck` does not.

use std::cmp::Ordering;
use std::path::Path;

use super::{Found, VolumeState};
use crate::diagnose::Problem;
use crate::diagnose::kernel_state::destroy_data;
use crate::kernel::{MountEntry, mounts_read_only, whole_blocks};
use crate::record::{Access, Capability, Format, Provisioning, Stage, VolumeRecord};

/// The state of a volume's or a snapshot's image file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageState {
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

/// Compares an image with the recorded size of its volume or snapshot. A partial last block does
/// not count: no loop device shows it.
pub(crate) fn image_problem(image: &ImageState, recorded: u64) -> Option<Problem> {
    let bytes = match image {
        ImageState::Present { bytes, .. } => *bytes,
        ImageState::Missing => {
            return Some(Problem::ImageMissing {
                held_by: Vec::new(),
            });
        }
        ImageState::Unreadable(why) => return Some(Problem::ImageUnreadable(why.clone())),
    };
    match whole_blocks(bytes).cmp(&recorded) {
        Ordering::Less => Some(Problem::ImageShort { bytes, recorded }),
        Ordering::Equal => None,
        Ordering::Greater => Some(Problem::ImageLong { bytes, recorded }),
    }
}

/// Compares a volume's record with its image and the kernel.
pub(crate) fn volume_problems(
    record: &VolumeRecord,
    image: &ImageState,
    state: &VolumeState,
) -> Vec<Problem> {
    let mut problems = image_problems(record, image, state);
    problems.extend(device_problems(record, image, state));
    match &record.stage {
        Some(stage) => {
            problems.extend(stage_problems(stage, image, state));
            if let Access::Mount { .. } = stage.capability.access {
                problems.extend(mount_problems(record, stage, state));
            }
        }
        None => problems.extend(used_unstaged(state)),
    }
    problems.extend(record.freeze.map(|freeze| Problem::Frozen {
        since_ns: freeze.since_ns,
    }));
    if let Format::Formatting(fs) = record.format {
        problems.push(Problem::Formatting(fs));
    }
    problems
}

fn image_problems(record: &VolumeRecord, image: &ImageState, state: &VolumeState) -> Vec<Problem> {
    let recorded = record.capacity_bytes;
    let mut problem = image_problem(image, recorded);
    if let Some(Problem::ImageMissing { held_by }) = &mut problem {
        let deleted = state.own().filter(|l| l.is_deleted());
        held_by.extend(deleted.map(|l| l.minor));
    }
    let mut problems: Vec<Problem> = problem.into_iter().collect();
    if let ImageState::Present { allocated, .. } = *image
        && record.settings.provisioning == Provisioning::Thick
        && allocated < recorded
    {
        problems.push(Problem::NotThick {
            allocated,
            recorded,
        });
    }
    problems
}

fn device_problems(record: &VolumeRecord, image: &ImageState, state: &VolumeState) -> Vec<Problem> {
    let mut problems = Vec::new();
    let silent = state.own().filter(|l| l.backing.is_none());
    problems.extend(silent.map(|l| Problem::DeviceSilent { minor: l.minor }));
    if destroy_data(state.own()) {
        let minors = state.own().map(|l| l.minor).collect();
        problems.push(Problem::AttachedTwice { minors });
    }
    for device in state.own().chain(state.over()) {
        let minor = device.minor;
        if let Some(why) = device.tampered() {
            problems.push(Problem::DeviceChanged { minor, why });
        }
    }
    for device in state.own() {
        let (minor, bytes) = (device.minor, device.size_bytes);
        if record.settings.direct_io && !device.direct_io {
            problems.push(Problem::Buffered { minor });
        }
        let ImageState::Present { bytes: image, .. } = *image else {
            continue;
        };
        if bytes < whole_blocks(image) {
            problems.push(Problem::DeviceSmall {
                minor,
                bytes,
                image,
            });
        }
    }
    problems
}

/// Finds problems with the devices of a staged volume.
fn stage_problems(stage: &Stage, image: &ImageState, state: &VolumeState) -> Vec<Problem> {
    // Without an image, it is unknown whether a device lost it. The missing image is a problem
    // already.
    if !matches!(image, ImageState::Present { .. }) {
        return Vec::new();
    }
    let path = stage.path.clone();
    let mut problems = Vec::new();
    match (state.own().next(), stage.minor) {
        (None, minor) => problems.push(Problem::NoDevice { path, minor }),
        (Some(first), Some(was))
            if stage.capability.access == Access::Block && state.own().all(|l| l.minor != was) =>
        {
            let is = first.minor;
            problems.push(Problem::OtherDevice { path, was, is });
        }
        _ => {}
    }
    let lost = state.lost_read_only(stage);
    problems.extend(lost.map(|(target, minor)| Problem::ReadOnlyDeviceLost {
        target: target.to_path_buf(),
        minor,
    }));
    problems
}

/// Finds problems with the filesystem of a volume that is staged as a mount.
fn mount_problems(record: &VolumeRecord, stage: &Stage, state: &VolumeState) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mount = state.staged_mount(stage);
    if state.mount_at(&stage.path).is_none() && state.own().next().is_some() {
        // NodeStageVolume makes a new filesystem after attaching and before mounting.
        let formatted = matches!(record.format, Format::Done(_));
        problems.push(Problem::NotMounted {
            path: stage.path.clone(),
            staging: !formatted && mount.is_none(),
        });
    }
    if mount.is_some_and(|m| m.super_options.has("shutdown")) {
        problems.push(Problem::FilesystemShutDown);
    } else if mount.is_some_and(MountEntry::fs_read_only) && !read_only(&stage.capability) {
        problems.push(Problem::FilesystemReadOnly);
    }
    problems
}

/// True if a volume is staged only for reading.
fn read_only(capability: &Capability) -> bool {
    mounts_read_only(capability.access.flags()) || capability.mode.is_read_only()
}

/// Compares what is at a target path of the volume with what should be there.
pub(crate) fn target_problem(state: &VolumeState, target: &Path) -> Option<Problem> {
    let path = target.to_path_buf();
    match state.at(target) {
        Found::Filesystem { .. } | Found::Device { .. } => None,
        Found::Nothing => Some(Problem::NotPublished { target: path }),
        Found::Stale => Some(Problem::TargetLost { target: path }),
        Found::Foreign(what) => Some(Problem::ForeignMount { what, target: path }),
    }
}

/// Compares what is at a staging path of the volume with what should be there: nothing for a raw
/// block volume.
pub(crate) fn staging_problem(
    state: &VolumeState,
    record: &VolumeRecord,
    staging: &Path,
) -> Option<Problem> {
    let path = staging.to_path_buf();
    let is_raw = record
        .stage
        .as_ref()
        .is_some_and(|stage| stage.capability.access == Access::Block);
    match state.at(staging) {
        Found::Filesystem { .. } => None,
        Found::Nothing if is_raw => None,
        Found::Nothing => Some(Problem::NotStaged { staging: path }),
        Found::Foreign(what) => Some(Problem::ForeignStagingMount {
            what,
            staging: path,
        }),
        Found::Device { .. } | Found::Stale => Some(Problem::DeviceAtStaging { staging: path }),
    }
}

fn used_unstaged(state: &VolumeState) -> Option<Problem> {
    state.own().find_map(|l| {
        let mount = state.kernel().mounts_of(l.minor).next()?;
        Some(Problem::UsedUnstaged {
            minor: l.minor,
            at: mount.mount_point.to_path_buf(),
        })
    })
}
