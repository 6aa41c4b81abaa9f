//! Loop devices and stagings: what the records say against what the kernel shows.
//!
//! What to do about a volume is a pure function of the two, [`decide`].

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Found;
use crate::pool::finding::Holds;
use crate::pool::layout::Shelf;
use crate::pool::view::View;
use crate::pool::{About, Access, Pool, PoolId, Result, Stage, VolumeRecord, pool_named_in};
use crate::sys::{self, Detached, FileId, Kernel, LoopDevice, LoopInfo, LoopSpec};

#[cfg(test)]
mod tests;

/// Read-ahead of a loop device where the record asks for none: the kernel's default, since a
/// device may still have what its last user set.
const READ_AHEAD_KIB: u32 = 128;

/// What is to be done about a volume. The steps are in order; a detach that fails ends them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Detach this device: it is idle.
    Detach(u32),
    /// Attach the image again at this minor: targets are bound to its node.
    Attach(u32),
    /// Attach this read-only device over that one again, likewise.
    AttachReadOnly { minor: u32, over: u32 },
    /// The volume is not staged any more.
    ClearStage,
    /// Tell somebody.
    Report(String),
}

/// Compares stagings and loop devices of these volumes, and acts.
pub(super) fn settle(pool: &Pool, kernel: &dyn Kernel, images: &[Found]) -> Result<()> {
    let view = View::take(kernel)?;
    let mut attached: HashMap<FileId, Vec<u32>> = HashMap::new();
    for device in &view.loops {
        if let Some(file) = device.backing {
            attached.entry(file).or_default().push(device.minor);
        }
    }
    for found in images {
        let devices = attached.remove(&found.image.id).unwrap_or_default();
        let name = found.volume.id.to_string();
        if let Some(silent) = view.loops.iter().find(|l| l.may_hold(&name)) {
            let why = sys::Error::silent(silent);
            note(pool, &found.volume, why.to_string());
            continue;
        }
        let stage = found.volume.stage.as_ref();
        for step in decide(stage, &devices, &view) {
            match act(pool, kernel, found, &step) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    let what = format!("recovery: {step:?} failed: {e}");
                    note(pool, &found.volume, what);
                    break;
                }
            }
        }
    }
    Ok(report_strays(pool, &view, &attached)?)
}

/// Devices over files in the pool that are no volume's image (a deleted one, above all). That is
/// judged by what is left of their paths, too: good enough to tell, not to act.
fn report_strays(
    pool: &Pool,
    view: &View,
    left: &HashMap<FileId, Vec<u32>>,
) -> crate::sys::Result<()> {
    let ours = InPool {
        id: pool.id(),
        device: sys::file_id(pool.layout.root())?.dev,
        root: pool.root(),
    };
    for device in view.loops.iter().filter(|l| ours.holds(l, file_at)) {
        let Some(backing) = device.backing.filter(|file| left.contains_key(file)) else {
            continue;
        };
        let what = format!(
            "it holds {}, which no readable volume has",
            device.backing_path
        );
        let holds = Holds::Loop(device.minor, backing);
        pool.note(About::Loop(device.minor), holds, what);
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

/// Where a pool's files are.
struct InPool<'a> {
    id: PoolId,
    device: u64,
    root: &'a Path,
}

impl InPool<'_> {
    /// Whether a device is over a file of the pool's. Its path is of whoever attached it, in whatever
    /// mount namespace, and another node's pool may well have the same one: what counts is the ID in
    /// it, or, where none is, that it leads to the very file from here as well.
    fn holds(&self, device: &LoopInfo, file_at: impl Fn(&Path) -> Option<FileId>) -> bool {
        let path = Path::new(&device.backing_path);
        device.backing.is_some_and(|file| file.dev == self.device)
            && match pool_named_in(path) {
                Some(named) => named == self.id,
                None => path.starts_with(self.root) && file_at(path) == device.backing,
            }
    }
}

fn decide(stage: Option<&Stage>, devices: &[u32], view: &View) -> Vec<Step> {
    let (idle, busy): (Vec<u32>, Vec<u32>) = devices
        .iter()
        .partition(|minor| view.users(**minor).is_empty());
    let mut steps = Vec::new();
    if devices.len() > 1 {
        let names: Vec<String> = devices.iter().map(|m| format!("/dev/loop{m}")).collect();
        let names = names.join(", ");
        steps.push(Step::Report(format!(
            "its image was on several loop devices at once: {names}"
        )));
    }
    match stage {
        None => {
            steps.extend(idle.into_iter().map(Step::Detach));
            steps.extend(
                busy.into_iter()
                    .map(|minor| used(minor, view, "though it is not staged")),
            );
        }
        Some(stage) if stage.capability.access == Access::Block => {
            steps.extend(decide_raw(stage, &idle, &busy, view));
        }
        Some(stage) => {
            let staged = |minor: &u32| view.mounted_at(*minor).contains(&stage.path.as_path());
            steps.extend(idle.into_iter().map(Step::Detach));
            if busy.is_empty() {
                // A reboot, or a staging that was cut short: it will be staged anew.
                steps.push(Step::ClearStage);
            } else if !busy.iter().any(staged) {
                let but = format!("but not at {}, where it is staged", stage.path.display());
                steps.extend(busy.into_iter().map(|minor| used(minor, view, &but)));
            }
        }
    }
    steps
}

fn used(minor: u32, view: &View, but: &str) -> Step {
    let users = view.users(minor).join(", ");
    Step::Report(format!("/dev/loop{minor} is {users}, {but}"))
}

/// A volume staged as a raw block device: its targets are bound to the node of one device, by its
/// number, and stay bound to it when nothing is attached there, or something else.
fn decide_raw(stage: &Stage, idle: &[u32], busy: &[u32], view: &View) -> Vec<Step> {
    let Some(minor) = stage.minor else {
        // Cut short before anybody was told of a device.
        let mut steps: Vec<Step> = idle.iter().copied().map(Step::Detach).collect();
        if busy.is_empty() {
            steps.push(Step::ClearStage);
        }
        steps.extend(
            busy.iter()
                .map(|m| used(*m, view, "though its staging was never finished")),
        );
        return steps;
    };
    let attached = idle.contains(&minor) || busy.contains(&minor);
    let others = || {
        idle.iter()
            .copied()
            .filter(|m| *m != minor)
            .map(Step::Detach)
    };
    let lost: Vec<u32> = stage
        .read_only_loops
        .values()
        .copied()
        .filter(|ro| {
            !view.bound_at(*ro).is_empty() && !view.over_loop(minor).any(|l| l.minor == *ro)
        })
        .collect();
    let mut steps: Vec<Step> = others().collect();
    if !attached {
        if view.bound_at(minor).is_empty() && lost.is_empty() {
            if busy.is_empty() {
                steps.push(Step::ClearStage);
            }
            steps.extend(
                busy.iter()
                    .map(|m| used(*m, view, "which is not the device it is staged on")),
            );
            return steps;
        }
        if let Some(why) = in_the_way(minor, busy, view) {
            steps.push(why);
            return steps;
        }
        steps.push(Step::Attach(minor));
    }
    for ro in lost {
        let taken = view.loops.iter().any(|l| l.minor == ro);
        steps.push(if taken {
            bound_to_a_stranger(ro, view)
        } else {
            Step::AttachReadOnly {
                minor: ro,
                over: minor,
            }
        });
    }
    steps
}

/// Why a device can't be had back.
fn in_the_way(minor: u32, busy: &[u32], view: &View) -> Option<Step> {
    if view.loops.iter().any(|l| l.minor == minor) {
        return Some(bound_to_a_stranger(minor, view));
    }
    let but = format!("while targets are bound to /dev/loop{minor}");
    busy.first().map(|other| used(*other, view, &but))
}

fn bound_to_a_stranger(minor: u32, view: &View) -> Step {
    let targets: Vec<String> = view
        .bound_at(minor)
        .iter()
        .map(|p| p.display().to_string())
        .collect();
    let targets = targets.join(", ");
    Step::Report(format!(
        "its targets ({targets}) are bound to /dev/loop{minor}, which holds another file by now: unpublish them"
    ))
}

/// Carries a step out; false ends the volume's steps.
fn act(pool: &Pool, kernel: &dyn Kernel, found: &Found, step: &Step) -> Result<bool> {
    let volume = &found.volume;
    tracing::info!(volume = %volume.id, ?step, "recovery");
    match step {
        Step::Detach(minor) => {
            if kernel.loop_detach(*minor, found.image.id)? == Detached::WhenClosed {
                let what =
                    format!("/dev/loop{minor} is open somewhere, and goes when it is closed");
                note(pool, volume, what);
                return Ok(false);
            }
        }
        Step::Attach(minor) => {
            let image = pool.open_image(Shelf::Volumes, &volume.id.to_string(), true)?;
            let label = volume.id.to_string();
            let spec = loop_spec(volume, &label, &image, *minor);
            set_read_ahead(kernel, volume, &kernel.loop_attach(&spec)?)?;
        }
        Step::AttachReadOnly { minor, over } => {
            let below = kernel.loop_open(*over, found.image.id)?;
            let label = volume.id.to_string();
            let spec = LoopSpec {
                read_only: true,
                ..loop_spec(volume, &label, &below.file, *minor)
            };
            set_read_ahead(kernel, volume, &kernel.loop_attach(&spec)?)?;
        }
        Step::ClearStage => {
            pool.update(&volume.id, |record| record.stage = None)?;
        }
        Step::Report(what) => note(pool, volume, what.as_str()),
    }
    Ok(true)
}

fn note(pool: &Pool, volume: &VolumeRecord, what: impl Into<String>) {
    pool.note(About::Volume(volume.id), Holds::Devices(volume.id), what);
}

/// True if nothing is left to do or to report for a volume.
pub(super) fn is_settled(volume: &VolumeRecord, image: FileId, view: &View) -> bool {
    let devices: Vec<u32> = view.over(image).map(|device| device.minor).collect();
    decide(volume.stage.as_ref(), &devices, view).is_empty()
}

fn loop_spec<'a>(
    volume: &VolumeRecord,
    label: &'a str,
    backing: &'a File,
    minor: u32,
) -> LoopSpec<'a> {
    LoopSpec {
        backing,
        label,
        read_only: false,
        direct_io: volume.settings.direct_io,
        autoclear: false,
        minor: Some(minor),
    }
}

fn set_read_ahead(
    kernel: &dyn Kernel,
    volume: &VolumeRecord,
    device: &LoopDevice,
) -> sys::Result<()> {
    let kib = volume.settings.read_ahead_kib.unwrap_or(READ_AHEAD_KIB);
    kernel.loop_set_read_ahead(device, kib)
}
