//! What records say of staging, freezing and formatting against the kernel.

use std::path::Path;

use crate::pool::{Access, Format, Stage, VolumeRecord};
use crate::status::units::bytes;
use crate::survey::{Contents, Image, LoopUse, Owner, PoolSurvey, Uses};

use super::{Kind, Problem, Repair, Severity, person, problem, unless_running};

/// Checks every volume that has a record.
pub(super) fn check(pool: &PoolSurvey, contents: &Contents, uses: &Uses, found: &mut Vec<Problem>) {
    for item in &contents.volumes {
        let Ok(volume) = &item.record else { continue };
        let loops = uses.over_volume(&item.name);
        match &volume.stage {
            Some(stage) => {
                found.extend(staged(&item.name, stage, &loops));
                found.extend(read_only_loops(&item.name, stage, &loops, uses));
            }
            None => found.extend(unstaged(&item.name, &loops)),
        }
        found.extend(loops.iter().filter_map(|l| settings(volume, item.image, l)));
        found.extend(under_way(pool, volume));
    }
}

/// A volume that its record says is staged.
fn staged(name: &str, stage: &Stage, loops: &[&LoopUse]) -> Option<Problem> {
    let Some(first) = loops.first() else {
        return Some(problem(
            Severity::Warning,
            Kind::StageWithoutLoop,
            name,
            format!(
                "is staged at {} on record, and no loop device is attached",
                stage.path.display()
            ),
            Repair::Recovery,
        ));
    };
    match stage.capability.access {
        Access::Mount { .. } => {
            let mounted = loops
                .iter()
                .any(|l| l.mounts.iter().any(|m| m.mount_point == stage.path));
            (!mounted).then(|| without_mount(name, &stage.path))
        }
        Access::Block => {
            let on_record = stage.minor?;
            let same = loops.iter().any(|l| l.device.minor == on_record);
            (!same).then(|| other_loop(name, on_record, first.device.minor))
        }
    }
}

fn without_mount(name: &str, path: &Path) -> Problem {
    problem(
        Severity::Warning,
        Kind::StageWithoutMount,
        name,
        format!(
            "is staged at {} on record, and is not mounted there",
            path.display()
        ),
        Repair::Itself("the next NodeStageVolume mounts it, NodeUnstageVolume forgets it".into()),
    )
}

fn other_loop(name: &str, on_record: u32, now: u32) -> Problem {
    problem(
        Severity::Error,
        Kind::StageOtherLoop,
        name,
        format!("was published as /dev/loop{on_record}, and is on /dev/loop{now} now"),
        person("restart the pods that use it: their device is somebody else's"),
    )
}

/// Second, read-only loop devices that are on record and not there.
fn read_only_loops(name: &str, stage: &Stage, loops: &[&LoopUse], uses: &Uses) -> Vec<Problem> {
    let ours = |minor: &u32| {
        uses.loops.get(minor).is_some_and(|l| {
            loops
                .iter()
                .any(|first| l.owner == Owner::Loop(first.device.minor))
        })
    };
    let missing = stage.read_only_loops.iter().filter(|(_, m)| !ours(m));
    missing
        .map(|(target, minor)| {
            problem(
                Severity::Error,
                Kind::StageOtherLoop,
                name,
                format!(
                    "is published read-only at {} from /dev/loop{minor}, which is not its own",
                    target.display()
                ),
                person("restart the pods that use it: their device is somebody else's"),
            )
        })
        .collect()
}

/// A volume that its record says is not staged.
fn unstaged(name: &str, loops: &[&LoopUse]) -> Option<Problem> {
    let used = loops.iter().find_map(|l| Some((l, l.mounts.first()?)));
    used.map(|(l, mount)| {
        problem(
            Severity::Warning,
            Kind::UseWithoutStage,
            name,
            format!(
                "is in use at {} from /dev/loop{}, and its record knows of no staging",
                mount.mount_point.display(),
                l.device.minor
            ),
            person("unpublish and unstage it, or unmount it"),
        )
    })
}

/// What was asked for against what the device does.
fn settings(volume: &VolumeRecord, image: Option<Image>, l: &LoopUse) -> Option<Problem> {
    let device = &l.device;
    if volume.settings.direct_io && !device.direct_io {
        return Some(problem(
            Severity::Warning,
            Kind::DirectIoOff,
            volume.id,
            format!(
                "asks for direct I/O, and /dev/loop{} is buffered",
                device.minor
            ),
            person("keep the pool on a filesystem that does direct I/O, or set directIO=false"),
        ));
    }
    let bytes_there = image?.bytes;
    (device.size_bytes < bytes_there).then(|| {
        problem(
            Severity::Note,
            Kind::LoopSize,
            volume.id,
            format!(
                "has grown to {}, and /dev/loop{} is still of {}",
                bytes(bytes_there),
                device.minor,
                bytes(device.size_bytes)
            ),
            Repair::Itself("NodeExpandVolume, or the next NodeStageVolume, grows it".into()),
        )
    })
}

/// What was begun and not ended.
fn under_way(pool: &PoolSurvey, volume: &VolumeRecord) -> Vec<Problem> {
    let mut found = Vec::new();
    if volume.freeze.is_some() {
        found.push(problem(
            unless_running(pool, Severity::Error),
            Kind::FreezeLeft,
            volume.id,
            "may be frozen: a freeze is on record, and its end is not",
            Repair::Recovery,
        ));
    }
    if let Format::Formatting(fs) = volume.format {
        found.push(problem(
            Severity::Note,
            Kind::FormatLeft,
            volume.id,
            format!("was being formatted as {fs}, and the end of it is not on record"),
            Repair::Itself("the next NodeStageVolume formats it again".into()),
        ));
    }
    found
}
