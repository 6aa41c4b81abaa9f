//! Finds loop devices that no volume or pool needs, and images with two writable loop devices.

use std::collections::BTreeMap;
use std::path::Path;

use hostloop_report::machine::LeftoverLoop;

use crate::diagnose::kernel_state::destroy_data;
use crate::inspect::inventory::{LoopUse, Owner, Survey, loop_uses};
use crate::kernel::{LoopInfo, loop_path};
use crate::storage::pool_named_in;

use super::{ProblemKind, Repair, ReportedProblem, Severity, person, problem};

/// Checks the driver's loop devices. A loop over one of them is not a problem: it is a read-only
/// publication, or kubelet's way of holding a raw block volume.
pub(super) fn check(survey: &Survey, found: &mut Vec<ReportedProblem>) {
    let loops = loop_uses(survey);
    found.extend(twice(&loops));
    found.extend(survey.kernel.loops.iter().filter_map(silent));
    found.extend(survey.leftover.iter().map(leftover));
    found.extend(loops.values().filter_map(changed));
    found.extend(loops.values().filter_map(|l| match &l.owner {
        Owner::Deleted(path) => Some(over_deleted(l, path)),
        Owner::Volume(name) => (!staged(survey, name)).then(|| unused(l, name)).flatten(),
        Owner::Snapshot(name) | Owner::Leftover(name) => unused(l, name),
        Owner::Pool(_) | Owner::Loop(_) => None,
    }));
}

/// Finds images with more than one loop device, at least one of them writable. Each device has its
/// own page cache.
fn twice(loops: &BTreeMap<u32, LoopUse>) -> Vec<ReportedProblem> {
    let mut over: BTreeMap<&Owner, Vec<&LoopUse>> = BTreeMap::new();
    for l in loops.values() {
        match l.owner {
            Owner::Loop(_) | Owner::Deleted(_) => {}
            _ => over.entry(&l.owner).or_default().push(l),
        }
    }
    over.into_iter()
        .filter(|(_, loops)| destroy_data(loops.iter().map(|l| &l.device)))
        .map(|(owner, loops)| {
            let devices: Vec<String> = loops.iter().map(|l| device(l)).collect();
            problem(
                Severity::Error,
                ProblemKind::LoopTwice,
                object(owner),
                format!(
                    "it is on {} at once: that destroys data",
                    devices.join(" and ")
                ),
                person("stop what uses the later one, and detach it"),
            )
        })
        .collect()
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
        problem(
            Severity::Warning,
            ProblemKind::LoopSilent,
            loop_path(device.minor).display(),
            format!(
                "it does not say which file it holds (maybe {}): that filesystem has shut down or hangs",
                device.backing_path
            ),
            person("bring that filesystem back; until then the volume can be unpublished and unstaged"),
        )
    })
}

fn changed(l: &LoopUse) -> Option<ReportedProblem> {
    // The driver attaches none of these. A person may attach one to inspect it.
    if let Owner::Snapshot(_) | Owner::Leftover(_) | Owner::Deleted(_) = l.owner {
        return None;
    }
    let why = l.device.tampered()?;
    Some(problem(
        Severity::Error,
        ProblemKind::LoopChanged,
        device(l),
        format!("it was changed by one of its users: {why}"),
        person("unpublish and unstage the volume: the next staging attaches it again"),
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

fn staged(survey: &Survey, name: &str) -> bool {
    let mut volumes = survey.contents().flat_map(|(_, c)| &c.volumes);
    volumes.any(|item| item.name == name && item.record.as_ref().is_ok_and(|v| v.stage.is_some()))
}

fn device(l: &LoopUse) -> String {
    loop_path(l.device.minor).display().to_string()
}

fn object(owner: &Owner) -> String {
    match owner {
        Owner::Pool(name) => format!("pool {name}"),
        owner => owner.parts().1,
    }
}
