//! Finds loop devices that no volume or pool needs, and images with two writable loop devices.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use hostloop_report::machine::LeftoverLoop;

use crate::diagnose::Problem;
use crate::diagnose::kernel_state::destroy_data;
use crate::inspect::inventory::{LoopOwner, LoopUse, Survey, loop_uses};
use crate::kernel::{LoopInfo, loop_path};
use crate::reach::{markers, pins};
use crate::storage::pool_named_in;

use super::{ProblemKind, Repair, ReportedProblem, Severity, person, problem};

/// Checks the driver's loop devices. A loop over one of them is not a problem: it is a read-only
/// publication, or kubelet's way of holding a raw block volume.
pub(super) fn check(survey: &Survey, found: &mut Vec<ReportedProblem>) {
    let loops = loop_uses(survey);
    // Nodes that share the kernel may use a volume that this one has not staged.
    let pinned = pins::pinned(survey.kernel.loops.iter());
    found.extend(twice(&loops));
    found.extend(survey.kernel.loops.iter().filter_map(silent));
    found.extend(survey.leftover.iter().map(leftover));
    found.extend(dead_pins(survey, &loops));
    found.extend(loops.values().filter_map(|l| changed(survey, l)));
    found.extend(loops.values().filter_map(|l| match &l.owner {
        LoopOwner::Deleted(path) => Some(over_deleted(l, path)),
        LoopOwner::Volume(name) if staged(survey, name) || pinned.contains(&l.device.minor) => None,
        LoopOwner::Volume(name) => unused(l, name),
        LoopOwner::Snapshot(name) | LoopOwner::Leftover(name) => unused(l, name),
        LoopOwner::Pool(_) | LoopOwner::Loop(_) => None,
    }));
}

/// Finds images with more than one loop device, at least one of them writable. Each device has its
/// own page cache.
fn twice(loops: &BTreeMap<u32, LoopUse>) -> Vec<ReportedProblem> {
    let mut over: BTreeMap<&LoopOwner, Vec<&LoopUse>> = BTreeMap::new();
    for l in loops.values() {
        match l.owner {
            LoopOwner::Loop(_) | LoopOwner::Deleted(_) => {}
            _ => over.entry(&l.owner).or_default().push(l),
        }
    }
    over.into_iter()
        .filter(|(_, loops)| destroy_data(loops.iter().map(|l| &l.device)))
        .map(|(owner, loops)| {
            let minors = loops.iter().map(|l| l.device.minor).collect();
            let found = Problem::AttachedTwice { minors };
            report(
                Severity::Error,
                ProblemKind::LoopTwice,
                object(owner),
                &found,
            )
        })
        .collect()
}

/// Reports a problem that a volume's health may show, too, in the same words.
fn report(
    severity: Severity,
    kind: ProblemKind,
    object: impl Display,
    found: &Problem,
) -> ReportedProblem {
    let advice = found.advice().unwrap_or_default();
    problem(severity, kind, object, found.to_string(), person(advice))
}

/// Reports a device that a deleted cluster may have left. A pool of this driver that can't be read
/// now may have it, too.
fn leftover(l: &LeftoverLoop) -> ReportedProblem {
    let device = l.device.display();
    problem(
        Severity::Note,
        ProblemKind::LoopOfOtherPool,
        &device,
        format!(
            "it holds {}, of a pool that is not open here: its space is not free",
            l.file
        ),
        person(format!(
            "if the cluster of that pool is gone for good, detach it: losetup -d {device}"
        )),
    )
}

fn silent(device: &LoopInfo) -> Option<ReportedProblem> {
    let ours = pool_named_in(Path::new(&device.backing_path)).is_some();
    (device.backing.is_none() && ours).then(|| {
        let found = Problem::DeviceSilent {
            minor: device.minor,
            file: device.backing_path.clone(),
        };
        let object = loop_path(device.minor);
        report(
            Severity::Warning,
            ProblemKind::LoopSilent,
            object.display(),
            &found,
        )
    })
}

fn changed(survey: &Survey, l: &LoopUse) -> Option<ReportedProblem> {
    // The driver attaches none of these. A person may attach one to inspect it.
    if let LoopOwner::Snapshot(_) | LoopOwner::Leftover(_) | LoopOwner::Deleted(_) = l.owner {
        return None;
    }
    pins::tampered(&l.device)?;
    let found = Problem::DeviceChanged {
        minor: l.device.minor,
        why: l.device.tampered_beside(own_limit(survey, &l.owner))?,
    };
    Some(report(
        Severity::Error,
        ProblemKind::LoopChanged,
        object(&l.owner),
        &found,
    ))
}

fn over_deleted(l: &LoopUse, path: &str) -> ReportedProblem {
    let (what, repair) = match l.mounts.first() {
        Some(mount) => (
            format!(
                "it holds {path}, mounted at {}",
                mount.mount_point.display()
            ),
            person("unmount it: its space is freed then"),
        ),
        None if l.device.autoclear => (
            format!("it holds {path}: its space is not free"),
            Repair::Itself("it detaches when nothing has it open or mounted any more".into()),
        ),
        None => (
            format!("it holds {path}: its space is not free"),
            Repair::Recovery,
        ),
    };
    problem(
        Severity::Warning,
        ProblemKind::LoopOverDeleted,
        device(l),
        what,
        repair,
    )
}

/// Reports a loop device that is not mounted and not in any record.
fn unused(l: &LoopUse, name: &str) -> Option<ReportedProblem> {
    l.mounts.is_empty().then(|| {
        problem(
            Severity::Warning,
            ProblemKind::LoopUnused,
            device(l),
            format!("it is over {name}, and nothing uses it"),
            Repair::Recovery,
        )
    })
}

/// Reports what nodes that are gone have left over this driver's devices.
fn dead_pins(survey: &Survey, loops: &BTreeMap<u32, LoopUse>) -> Vec<ReportedProblem> {
    let pins = pins::of(survey.kernel.loops.iter());
    let markers = markers::all(survey.kernel.loops.iter());
    let dead = pins::dead(&pins, &markers);
    let live = pins::live(&pins, &markers);
    let own = dead.iter().filter(|pin| loops.contains_key(&pin.over));
    own.map(|pin| {
        let end = if pins::may_be_bound(pin, &live) {
            "the driver detaches it once no node uses the volume"
        } else {
            "the driver detaches it after ten seconds"
        };
        problem(
            Severity::Note,
            ProblemKind::LoopUnused,
            loop_path(pin.minor).display(),
            format!(
                "it keeps /dev/loop{} for a node that shares the kernel and is gone",
                pin.over
            ),
            Repair::Itself(end.into()),
        )
    })
    .collect()
}

fn staged(survey: &Survey, name: &str) -> bool {
    let mut volumes = survey.contents().flat_map(|(_, c)| &c.volumes);
    volumes.any(|item| item.name == name && item.record.as_ref().is_ok_and(|v| v.stage.is_some()))
}

/// The limit that the driver itself has set to the device of a volume, for a fault.
fn own_limit(survey: &Survey, owner: &LoopOwner) -> Option<u64> {
    let LoopOwner::Volume(name) = owner else {
        return None;
    };
    let mut volumes = survey.contents().flat_map(|(_, c)| &c.volumes);
    let item = volumes.find(|item| item.name == *name)?;
    item.record.as_ref().ok()?.own_limit()
}

fn device(l: &LoopUse) -> String {
    loop_path(l.device.minor).display().to_string()
}

fn object(owner: &LoopOwner) -> String {
    match owner {
        LoopOwner::Pool(name) => format!("pool {name}"),
        owner => owner.parts().1,
    }
}
