//! Reconciles loop devices and stagings: compares the records with the state of the kernel.
//!
//! The pure function [`decide`] derives the steps for a volume from both.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::VolumeImage;
use crate::diagnose::kernel_state::destroy_data;
use crate::diagnose::pool::PoolFiles;
use crate::diagnose::{KernelState, Problem, VolumeIdentity, VolumeState};
use crate::kernel::{self, Detached, FileId, Kernel, loop_names};
use crate::reach::pins;
use crate::storage::file_names::EntryKind;
use crate::storage::noted_problem::Until;
use crate::storage::{About, Access, Error, Pool, Reach, Result, Stage, VolumeRecord};

mod reattach_raw_block;
#[cfg(test)]
mod tests;

/// A recovery step for a volume. The steps run in order; a detach that fails ends them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LoopStep {
    /// Detach this idle device.
    Detach(u32),
    /// Attach the image again at this minor: targets are bound to the device node.
    Attach(u32),
    /// Attach this read-only device over that one again: targets are bound to its node.
    AttachReadOnly { minor: u32, over: u32 },
    /// Clear the stage in the record: the volume is not staged any more.
    ClearStage,
    /// Note this problem.
    Report(Problem),
}

/// Compares the stagings and loop devices of these volumes, and applies the steps.
pub(super) fn reconcile(pool: &Pool, kernel: &dyn Kernel, images: &[VolumeImage]) -> Result<()> {
    let kernel_state = KernelState::read_to_know(kernel)?;
    let mut attached: HashMap<FileId, Vec<u32>> = HashMap::new();
    for device in kernel_state.loops.iter() {
        if let Some(file) = device.backing {
            attached.entry(file).or_default().push(device.minor);
        }
    }
    for found in images {
        attached.remove(&found.image.file);
        let name = found.volume.id.to_string();
        if let Some(silent) = kernel_state.loops.silent().find(|l| l.may_hold(&name)) {
            let (minor, file) = (silent.minor, silent.backing_path.clone());
            note(pool, &found.volume, Problem::DeviceSilent { minor, file });
            continue;
        }
        let identity = VolumeIdentity::of(&found.volume, Some(found.image.file));
        let state = VolumeState::of(&kernel_state, identity);
        let stage = found.volume.stage.as_deref();
        for step in decide(stage, found.volume.reach, &state) {
            match act(pool, kernel, found, &step) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    let why = failed(&step, &e, &kernel_state);
                    note(pool, &found.volume, Problem::Unrepaired(why));
                    break;
                }
            }
        }
    }
    Ok(report_strays(pool, &kernel_state, &attached)?)
}

/// Reports loop devices over files in the pool that are not the image of a volume, such as a
/// deleted image. The check also uses the remaining backing paths: enough to report, not to act.
fn report_strays(
    pool: &Pool,
    kernel_state: &KernelState,
    left: &HashMap<FileId, Vec<u32>>,
) -> crate::kernel::Result<()> {
    let ours = PoolFiles {
        id: pool.id(),
        device: kernel::file_id(pool.layout.root())?.dev,
        root: pool.root(),
    };
    for device in kernel_state.loops.iter().filter(|l| ours.holds(l, file_at)) {
        let Some(backing) = device.backing.filter(|file| left.contains_key(file)) else {
            continue;
        };
        let what = format!(
            "it holds {}, which no readable volume has",
            device.backing_path
        );
        let until = Until::LoopDetached(device.minor, backing);
        pool.note_unrepaired(About::Loop(device.minor), until, what);
    }
    Ok(())
}

fn file_at(path: &Path) -> Option<FileId> {
    let metadata = path.metadata().ok()?;
    Some(FileId {
        dev: metadata.dev(),
        ino: metadata.ino(),
    })
}

fn decide(stage: Option<&Stage>, reach: Reach, state: &VolumeState) -> Vec<LoopStep> {
    let kernel_state = state.kernel();
    if reach == Reach::Kernel && is_pinned_alone(state) {
        // Other nodes use it, and this node's mount has ended with its container. It is staged again
        // when the volume is published again.
        return Vec::new();
    }
    let (idle, busy): (Vec<u32>, Vec<u32>) = state
        .own()
        .map(|l| l.minor)
        .partition(|minor| kernel_state.users(*minor).is_empty());
    let mut steps = Vec::new();
    if destroy_data(state.own()) {
        // The idle ones are detached next, so this is about the past.
        steps.push(unrepaired(format!(
            "its image was on several loop devices at once: {}",
            loop_names(state.own())
        )));
    }
    // The targets of a raw block volume are bound to this device.
    let keep = stage.filter(|stage| is_raw(stage));
    let keep = keep.and_then(|stage| stage.minor);
    let detach = idle.iter().copied().filter(|minor| Some(*minor) != keep);
    steps.extend(detach.map(LoopStep::Detach));
    steps.extend(match stage {
        None => used(&busy, kernel_state, "though it is not staged"),
        Some(stage) if is_raw(stage) => reattach_raw_block::decide(stage, &idle, &busy, state),
        Some(stage) if busy.is_empty() || state.mount_at(&stage.path).is_none() => {
            let but = format!("but not at {}, where it is staged", stage.path.display());
            unstaged(&busy, kernel_state, &but)
        }
        Some(_) => Vec::new(),
    });
    steps
}

/// True if the volume is on one device, which nodes have pinned and nothing else here uses.
fn is_pinned_alone(state: &VolumeState) -> bool {
    let mut own = state.own();
    let (Some(device), None) = (own.next(), own.next()) else {
        return false;
    };
    let is_used_here = state.kernel().mounts_of(device.minor).next().is_some();
    !is_used_here && !pins::of(state.over()).is_empty()
}

fn is_raw(stage: &Stage) -> bool {
    stage.capability.access == Access::Block
}

fn unrepaired(what: String) -> LoopStep {
    LoopStep::Report(Problem::Unrepaired(what))
}

/// Reports these devices, which are in use.
fn used(minors: &[u32], kernel_state: &KernelState, but: &str) -> Vec<LoopStep> {
    minors
        .iter()
        .map(|minor: &u32| {
            let users = kernel_state.users(*minor).join(", ");
            unrepaired(format!("/dev/loop{minor} is {users}, {but}"))
        })
        .collect()
}

/// Clears the stage if no device is in use, as after a reboot or an interrupted staging: kubelet
/// stages the volume again. Otherwise reports the devices in use.
fn unstaged(busy: &[u32], kernel_state: &KernelState, but: &str) -> Vec<LoopStep> {
    if busy.is_empty() {
        vec![LoopStep::ClearStage]
    } else {
        used(busy, kernel_state, but)
    }
}

/// Describes a step that failed. Another program may take a free device at any moment.
fn failed(step: &LoopStep, error: &Error, kernel_state: &KernelState) -> String {
    match (step, error) {
        (
            LoopStep::Attach(minor) | LoopStep::AttachReadOnly { minor, .. },
            Error::Kernel(kernel::Error::Busy { .. }),
        ) => reattach_raw_block::minor_taken(*minor, kernel_state),
        _ => format!("recovery: {step:?} failed: {error}"),
    }
}

/// Applies a step; false ends the volume's steps.
fn act(pool: &Pool, kernel: &dyn Kernel, found: &VolumeImage, step: &LoopStep) -> Result<bool> {
    let volume = &found.volume;
    tracing::info!(volume = %volume.id, ?step, "recovery takes a step");
    match step {
        LoopStep::Detach(minor) => {
            if kernel.loop_detach(*minor, found.image.file)? == Detached::WhenClosed {
                let what = format!(
                    "/dev/loop{minor} is still open: the kernel detaches it when it is closed"
                );
                note(pool, volume, Problem::Unrepaired(what));
                return Ok(false);
            }
        }
        LoopStep::Attach(minor) if volume.fault_disk.is_some() => {
            // The next staging serves its fault disk again.
            let what = format!(
                "its targets are bound to /dev/loop{minor}, which is gone with its fault disk: \
                 delete the pods that use it"
            );
            note(pool, volume, Problem::Unrepaired(what));
            return Ok(false);
        }
        LoopStep::Attach(minor) => {
            let entry = volume.id.to_string();
            let image = pool.layout.open_image(EntryKind::Volumes, &entry, true)?;
            reattach_raw_block::attach(kernel, volume, &image, *minor, false)?;
        }
        LoopStep::AttachReadOnly { minor, over } => {
            let below = kernel.loop_open(*over, found.image.file)?;
            reattach_raw_block::attach(kernel, volume, &below.file, *minor, true)?;
        }
        LoopStep::ClearStage => {
            pool.update(&volume.id, |record| record.stage = None)?;
            // Its devices are detached, so nothing is over the file of its fault disk either.
            kernel::forget_stand_ins_of(found.image.file);
        }
        LoopStep::Report(problem) => note(pool, volume, problem.clone()),
    }
    Ok(true)
}

fn note(pool: &Pool, volume: &VolumeRecord, problem: Problem) {
    let until = Until::DevicesSettled(volume.id);
    pool.note(About::Volume(volume.id), until, problem);
}

/// True if a volume needs no further step or report.
pub(super) fn is_settled(volume: &VolumeRecord, image: FileId, state: &KernelState) -> bool {
    let state = VolumeState::of(state, VolumeIdentity::of(volume, Some(image)));
    decide(volume.stage.as_deref(), volume.reach, &state).is_empty()
}
