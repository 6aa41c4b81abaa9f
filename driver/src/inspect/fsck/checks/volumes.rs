//! Checks the records of volumes and snapshots against their images and the kernel.

use hostloop_terminal::humanize::bytes;

use crate::diagnose::volume::{Image, Issue, Length, TO_MOUNT_AGAIN, judge, length};
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::inspect::inventory::{self, Contents, PoolSurvey, Survey, readable};

use super::{Kind, Problem, Repair, Severity, person, problem, unless_running};

/// Checks every volume and snapshot with a record.
pub(super) fn check(
    survey: &Survey,
    pool: &PoolSurvey,
    contents: &Contents,
    found: &mut Vec<Problem>,
) {
    for (volume, item) in readable(&contents.volumes) {
        let identity = VolumeIdentity::of(volume, item.image.map(|image| image.file));
        let state = VolumeState::of(&survey.kernel, identity);
        let mut issues = judge(volume, &image(item.image), &state);
        if pool.shut_down.contains(&volume.id) && !issues.contains(&Issue::FilesystemShutDown) {
            issues.push(Issue::FilesystemShutDown);
        }
        let issues = issues.into_iter();
        found.extend(issues.filter_map(|issue| of_volume(pool, &item.name, issue)));
    }
    for (snapshot, item) in readable(&contents.snapshots) {
        match item.image.map(|image| image.bytes) {
            None => found.push(missing(&item.name, "the snapshot's")),
            Some(have) => match length(have, snapshot.size_bytes) {
                Length::Same => {}
                Length::Short => found.push(short(&item.name, have, snapshot.size_bytes)),
                Length::Long(_) => found.push(long(
                    &item.name,
                    (have, snapshot.size_bytes),
                    "a snapshot never grows",
                    person("find out what wrote to it"),
                )),
            },
        }
    }
}

fn image(found: Option<inventory::Image>) -> Image {
    match found {
        Some(image) => Image::Present {
            bytes: image.bytes,
            allocated: image.allocated,
        },
        None => Image::Missing,
    }
}

/// Describes an issue of a volume. `None` if [`devices`](super::devices) reports it: that module
/// checks every loop device, including those of volumes without a readable record.
pub(crate) fn of_volume(pool: &PoolSurvey, name: &str, issue: Issue) -> Option<Problem> {
    let warning = |kind, what, repair| problem(Severity::Warning, kind, name, what, repair);
    let error = |kind, what, repair| problem(Severity::Error, kind, name, what, repair);
    let note = |kind, what, how: &str| {
        let repair = Repair::Itself(how.to_owned());
        problem(Severity::Note, kind, name, what, repair)
    };
    Some(match issue {
        Issue::DeviceSilent { .. } | Issue::AttachedTwice { .. } | Issue::DeviceChanged { .. } => {
            return None;
        }
        Issue::ImageMissing { .. } => missing(name, "the volume's"),
        Issue::ImageUnreadable(why) => error(
            Kind::ImageMissing,
            format!("has an image that can't be read: {why}"),
            person("find out why"),
        ),
        Issue::ImageShort { bytes, recorded } => short(name, bytes, recorded),
        Issue::ImageLong { bytes, recorded } => long(
            name,
            (bytes, recorded),
            "an expansion was interrupted",
            Repair::Recovery,
        ),
        Issue::NotThick {
            allocated,
            recorded,
        } => warning(
            Kind::NotThick,
            format!(
                "is thick, and {} of its {} are allocated",
                bytes(allocated),
                bytes(recorded)
            ),
            person("make room in the pool, then set provisioning=thick again"),
        ),
        Issue::Buffered { minor } => warning(
            Kind::DirectIoOff,
            format!("asks for direct I/O, and /dev/loop{minor} is buffered"),
            person("keep the pool on a filesystem that does direct I/O, or set directIO=false"),
        ),
        Issue::DeviceSmall {
            minor,
            bytes: device,
            image,
        } => note(
            Kind::LoopSize,
            format!(
                "has grown to {}, and /dev/loop{minor} is still of {}",
                bytes(image),
                bytes(device)
            ),
            "NodeExpandVolume, or the next NodeStageVolume, grows it",
        ),
        Issue::NoDevice { path, .. } => warning(
            Kind::StageWithoutLoop,
            format!(
                "is staged at {} on record, and no loop device is attached",
                path.display()
            ),
            Repair::Recovery,
        ),
        Issue::NotMounted { path, .. } => warning(
            Kind::StageWithoutMount,
            format!(
                "is staged at {} on record, and is not mounted there",
                path.display()
            ),
            Repair::Itself(
                "the next NodeStageVolume mounts it, NodeUnstageVolume forgets it".into(),
            ),
        ),
        Issue::OtherDevice { was, is, .. } => error(
            Kind::StageOtherLoop,
            format!("was published as /dev/loop{was}, and is on /dev/loop{is} now"),
            restart(),
        ),
        Issue::ReadOnlyDeviceLost { target, minor } => error(
            Kind::StageOtherLoop,
            format!(
                "is published read-only at {} from /dev/loop{minor}, which is not its own",
                target.display()
            ),
            restart(),
        ),
        Issue::UsedUnstaged { minor, at } => warning(
            Kind::UseWithoutStage,
            format!(
                "is in use at {} from /dev/loop{minor}, and its record knows of no staging",
                at.display()
            ),
            person("unpublish and unstage it, or unmount it"),
        ),
        Issue::Frozen { .. } => problem(
            unless_running(pool, Severity::Error),
            Kind::FreezeLeft,
            name,
            "may be frozen: a freeze is on record, and its end is not",
            Repair::Recovery,
        ),
        Issue::Formatting(fs) => note(
            Kind::FormatLeft,
            format!("was being formatted as {fs}, and the end of it is not on record"),
            "the next NodeStageVolume formats it again",
        ),
        Issue::FilesystemShutDown => error(
            Kind::FilesystemShutDown,
            "has a filesystem that has shut down after an error".to_owned(),
            person(TO_MOUNT_AGAIN),
        ),
        Issue::FilesystemReadOnly => error(
            Kind::FilesystemReadOnly,
            "has a filesystem that has become read-only".to_owned(),
            person(TO_MOUNT_AGAIN),
        ),
    })
}

fn restart() -> Repair {
    person("restart the pods that use it: their device is no longer this volume's")
}

fn missing(name: &str, owner: &str) -> Problem {
    problem(
        Severity::Error,
        Kind::ImageMissing,
        name,
        "has a record and no image",
        person(format!(
            "bring {owner} image back from a backup, or delete it"
        )),
    )
}

fn short(name: &str, have: u64, recorded: u64) -> Problem {
    let (have, want) = (bytes(have), bytes(recorded));
    problem(
        Severity::Error,
        Kind::ImageShort,
        name,
        format!("has an image of {have} and a record of {want}: the end is lost"),
        person("bring it back from a snapshot or a backup"),
    )
}

fn long(name: &str, (have, recorded): (u64, u64), why: &str, repair: Repair) -> Problem {
    let (have, want) = (bytes(have), bytes(recorded));
    problem(
        Severity::Warning,
        Kind::ImageLong,
        name,
        format!("has an image of {have} and a record of {want}: {why}"),
        repair,
    )
}
