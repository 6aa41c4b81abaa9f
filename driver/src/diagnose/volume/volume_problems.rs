//! Compares a volume's record with its image and the kernel. Pure.
//!
//! It only reports differences. The caller decides how bad one is and what to do. Health runs
//! beside the driver's own work and ignores what a running call explains; `fsck` does not.

use std::cmp::Ordering;
use std::path::Path;

use super::{MountedObject, VolumeState};
use crate::diagnose::Problem;
use crate::diagnose::kernel_state::destroy_data;
use crate::kernel::{MountEntry, mounts_read_only, whole_blocks};
use crate::reach::pins;
use crate::record::{Access, Capability, FaultRecord, Format, Provisioning, Stage, VolumeRecord};

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
    let freeze = record.freeze.filter(|_| !record.is_frozen_by_fault());
    problems.extend(freeze.map(|freeze| Problem::Frozen {
        since_ns: freeze.since_ns,
    }));
    problems.extend(fault_problem(record, state));
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
    problems.extend(silent.map(|l| Problem::DeviceSilent {
        minor: l.minor,
        file: l.backing_path.clone(),
    }));
    if destroy_data(state.own()) {
        let minors = state.own().map(|l| l.minor).collect();
        problems.push(Problem::AttachedTwice { minors });
    }
    let own = state
        .own()
        .map(|l| (l.minor, l.tampered_beside(record.own_limit())));
    let over = state.over().map(|l| (l.minor, pins::tampered(l)));
    for (minor, why) in own.chain(over) {
        problems.extend(why.map(|why| Problem::DeviceChanged { minor, why }));
    }
    for device in state.own() {
        let (minor, bytes) = (device.minor, device.size_bytes);
        if record.settings.direct_io && !device.direct_io {
            problems.push(Problem::Buffered { minor });
        }
        let ImageState::Present { bytes: image, .. } = *image else {
            continue;
        };
        let is_faulty = record.own_limit() == Some(device.size_limit);
        if bytes < whole_blocks(image) && !is_faulty {
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
    let stopped = mount.and_then(|mount| stopped(stage, mount));
    problems.extend(stopped.filter(|_| record.stopping_fault().is_none()));
    problems
}

/// The problem of a filesystem that stopped by itself.
fn stopped(stage: &Stage, mount: &MountEntry) -> Option<Problem> {
    if mount.super_options.has("shutdown") {
        Some(Problem::FilesystemShutDown)
    } else if mount.fs_read_only() && !read_only(&stage.capability) {
        Some(Problem::FilesystemReadOnly)
    } else {
        None
    }
}

/// The fault of a volume, while it lasts or has left the filesystem stopped. It is the cause of
/// that, so the latter is not another problem.
fn fault_problem(record: &VolumeRecord, state: &VolumeState) -> Option<Problem> {
    let fault = record.stopping_fault()?;
    if has_stopped(record, state) {
        Some(stop_problem(fault))
    } else if fault.over {
        None
    } else {
        Some(Problem::Fault {
            fault: fault.fault.clone(),
            total: fault.is_total(),
        })
    }
}

/// The problem of a volume that can't be used by its fault.
pub(crate) fn stop_problem(fault: &FaultRecord) -> Problem {
    let text = fault.fault.clone();
    if fault.over {
        Problem::StoppedByFault(text)
    } else {
        Problem::Fault {
            fault: text,
            total: true,
        }
    }
}

/// The problem of a volume with a filesystem that has shut down, as it says when it is asked. A fault
/// of the volume is the cause of that.
pub(crate) fn shut_down_problem(record: &VolumeRecord) -> Problem {
    let by_fault = record.stopping_fault().map(stop_problem);
    by_fault.unwrap_or(Problem::FilesystemShutDown)
}

/// True if the filesystem of a staged volume says that it has shut down or become read-only. An
/// XFS and a btrfs do not say that they have shut down.
pub(crate) fn has_stopped(record: &VolumeRecord, state: &VolumeState) -> bool {
    let stage = record.stage.as_deref();
    let mount = stage.and_then(|stage| Some((stage, state.staged_mount(stage)?)));
    mount.is_some_and(|(stage, mount)| stopped(stage, mount).is_some())
}

/// True if a volume is staged only for reading.
fn read_only(capability: &Capability) -> bool {
    mounts_read_only(capability.access.flags()) || capability.mode.is_read_only()
}

/// Compares what is at a target path of the volume with what should be there.
pub(crate) fn target_problem(state: &VolumeState, target: &Path) -> Option<Problem> {
    let path = target.to_path_buf();
    match state.at(target) {
        MountedObject::Filesystem { .. } | MountedObject::Device { .. } => None,
        MountedObject::Nothing => Some(Problem::NotPublished { target: path }),
        MountedObject::Stale => Some(Problem::TargetLost { target: path }),
        MountedObject::Foreign(what) => Some(Problem::ForeignMount { what, target: path }),
    }
}

/// Compares what is at a staging path of the volume with what should be there: nothing for a raw
/// block volume.
pub(crate) fn staging_problem(
    state: &VolumeState,
    is_raw: bool,
    staging: &Path,
) -> Option<Problem> {
    let path = staging.to_path_buf();
    match state.at(staging) {
        MountedObject::Filesystem { .. } => None,
        MountedObject::Nothing if is_raw => None,
        MountedObject::Nothing => Some(Problem::NotStaged { staging: path }),
        MountedObject::Foreign(what) => Some(Problem::ForeignStagingMount {
            what,
            staging: path,
        }),
        MountedObject::Device { .. } | MountedObject::Stale => {
            Some(Problem::DeviceAtStaging { staging: path })
        }
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
