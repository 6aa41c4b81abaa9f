//! What each problem means to `fsck`: how bad it is, and what repairs it.

use std::fmt::Display;

use super::{ProblemKind, Repair, ReportedProblem, Severity, person, problem, unless_running};
use crate::diagnose::{Problem, list};
use crate::inspect::inventory::{PoolSurvey, UnusableRecord};
use hostloop_terminal::humanize::bytes;

/// The object that a problem is about.
pub(crate) struct Subject<'a> {
    pool: &'a PoolSurvey,
    /// The object, as `fsck` prints it.
    object: String,
    is_snapshot: bool,
}

impl<'a> Subject<'a> {
    /// The pool itself.
    pub(crate) fn pool(pool: &'a PoolSurvey) -> Subject<'a> {
        Subject::entry(pool, pool.path.display())
    }

    /// A volume, a group, or a file in the pool.
    pub(crate) fn entry(pool: &'a PoolSurvey, object: impl Display) -> Subject<'a> {
        Subject {
            pool,
            object: object.to_string(),
            is_snapshot: false,
        }
    }

    /// A snapshot in the pool.
    pub(crate) fn snapshot(pool: &'a PoolSurvey, object: impl Display) -> Subject<'a> {
        Subject {
            is_snapshot: true,
            ..Subject::entry(pool, object)
        }
    }

    /// Reports a problem of this object. `None` if that is not for `fsck`, or if
    /// [`devices`](super::devices) reports it: that module checks every loop device, including
    /// those of volumes without a readable record.
    pub(crate) fn report(&self, found: &Problem) -> Option<ReportedProblem> {
        Some(match found {
            Problem::ImageMissing { .. }
            | Problem::ImageUnreadable(_)
            | Problem::ImageShort { .. }
            | Problem::ImageLong { .. }
            | Problem::NotThick { .. } => self.of_image(found)?,
            Problem::RecordUnusable(why) => self.of_record(why),
            Problem::DeviceSilent { .. }
            | Problem::AttachedTwice { .. }
            | Problem::DeviceChanged { .. } => return None,
            Problem::Buffered { minor } => self.warning(
                ProblemKind::DirectIoOff,
                format!("asks for direct I/O, and /dev/loop{minor} is buffered"),
                person("keep the pool on a filesystem that does direct I/O, or set directIO=false"),
            ),
            Problem::DeviceSmall {
                minor,
                bytes: device,
                image,
            } => self.note(
                ProblemKind::LoopSize,
                format!(
                    "has grown to {}, and /dev/loop{minor} is still of {}",
                    bytes(*image),
                    bytes(*device)
                ),
                "NodeExpandVolume, or the next NodeStageVolume, grows it",
            ),
            Problem::NoDevice { path, .. } => self.warning(
                ProblemKind::StageWithoutLoop,
                format!(
                    "is staged at {} on record, and no loop device is attached",
                    path.display()
                ),
                Repair::Recovery,
            ),
            Problem::NotMounted { path, .. } => self.warning(
                ProblemKind::StageWithoutMount,
                format!(
                    "is staged at {} on record, and is not mounted there",
                    path.display()
                ),
                Repair::Itself(
                    "the next NodeStageVolume mounts it, NodeUnstageVolume forgets it".to_owned(),
                ),
            ),
            Problem::OtherDevice { was, is, .. } => self.error(
                ProblemKind::StageOtherLoop,
                format!("was published as /dev/loop{was}, and is on /dev/loop{is} now"),
                person(RESTART),
            ),
            Problem::ReadOnlyDeviceLost { target, minor } => self.error(
                ProblemKind::StageOtherLoop,
                format!(
                    "is published read-only at {} from /dev/loop{minor}, which is not its own",
                    target.display()
                ),
                person(RESTART),
            ),
            Problem::UsedUnstaged { minor, at } => self.warning(
                ProblemKind::UseWithoutStage,
                format!(
                    "is in use at {} from /dev/loop{minor}, and its record knows of no staging",
                    at.display()
                ),
                person("unpublish and unstage it, or unmount it"),
            ),
            Problem::Frozen { .. } => self.problem(
                unless_running(self.pool, Severity::Error),
                ProblemKind::FreezeLeft,
                "may be frozen: a freeze is on record, and its end is not",
                Repair::Recovery,
            ),
            Problem::Formatting(fs) => self.note(
                ProblemKind::FormatLeft,
                format!("was being formatted as {fs}, and the end of it is not on record"),
                "the next NodeStageVolume formats it again",
            ),
            Problem::FilesystemShutDown => self.error(
                ProblemKind::FilesystemShutDown,
                "has a filesystem that has shut down after an error",
                advised(found)?,
            ),
            Problem::FilesystemReadOnly => self.error(
                ProblemKind::FilesystemReadOnly,
                "has a filesystem that has become read-only",
                advised(found)?,
            ),
            Problem::GroupMissing(group) => self.warning(
                ProblemKind::GroupMissing,
                format!("is of {group}, which is not there"),
                advised(found)?,
            ),
            Problem::GroupIncomplete(lost) => self.error(
                ProblemKind::GroupIncomplete,
                format!("lacks {}", list(lost, ", ")),
                advised(found)?,
            ),
            Problem::UnknownFile => self.warning(
                ProblemKind::Stranger,
                "is nothing the driver made",
                person("move it out of the pool"),
            ),
            Problem::PoolMissing(why) => self.error(
                ProblemKind::PoolMissing,
                format!("can't be read: {why}"),
                person("bring it back; until then everything in it is answered UNAVAILABLE"),
            ),
            Problem::PoolLost(lost) => self.error(
                ProblemKind::PoolImageLost,
                lost.what.clone(),
                advised(found)?,
            ),
            Problem::PoolReadOnly(which) => {
                self.error(ProblemKind::PoolReadOnly, which.clone(), advised(found)?)
            }
            Problem::PoolNearlyFull(what) => self.warning(
                ProblemKind::PoolNearlyFull,
                what.clone(),
                person("free some space, or delete volumes or snapshots"),
            ),
            // Only a running driver, or a request with a path, shows these.
            Problem::FilesystemErrors(_)
            | Problem::FilesystemSmaller(_)
            | Problem::MountOptionsRefused(_)
            | Problem::NotPublished { .. }
            | Problem::TargetLost { .. }
            | Problem::ForeignMount { .. }
            | Problem::NotStaged { .. }
            | Problem::ForeignStagingMount { .. }
            | Problem::DeviceAtStaging { .. }
            | Problem::Unrepaired(_)
            | Problem::PoolSilent(_)
            | Problem::PoolNeedsAttention(_) => return None,
        })
    }

    fn of_image(&self, found: &Problem) -> Option<ReportedProblem> {
        Some(match found {
            Problem::ImageMissing { .. } => {
                let owner = if self.is_snapshot {
                    "the snapshot's"
                } else {
                    "the volume's"
                };
                self.error(
                    ProblemKind::ImageMissing,
                    "has a record and no image",
                    person(format!(
                        "bring {owner} image back from a backup, or delete it"
                    )),
                )
            }
            Problem::ImageUnreadable(why) => self.error(
                ProblemKind::ImageMissing,
                format!("has an image that can't be read: {why}"),
                person("find out why"),
            ),
            Problem::ImageShort { .. } => self.error(
                ProblemKind::ImageShort,
                format!("is cut off: {found}"),
                person("bring it back from a snapshot or a backup"),
            ),
            Problem::ImageLong { .. } if self.is_snapshot => self.warning(
                ProblemKind::ImageLong,
                format!("has changed: {found}, and a snapshot never grows"),
                person("find out what wrote to it"),
            ),
            Problem::ImageLong { .. } => self.warning(
                ProblemKind::ImageLong,
                format!("has grown: {found}, because an expansion was interrupted"),
                Repair::Recovery,
            ),
            Problem::NotThick {
                allocated,
                recorded,
            } => self.warning(
                ProblemKind::NotThick,
                format!(
                    "is thick, and {} of its {} are allocated",
                    bytes(*allocated),
                    bytes(*recorded)
                ),
                person("make room in the pool, then set provisioning=thick again"),
            ),
            _ => return None,
        })
    }

    fn of_record(&self, why: &UnusableRecord) -> ReportedProblem {
        let (kind, what) = match why {
            UnusableRecord::Missing => (ProblemKind::RecordMissing, "has no record".to_owned()),
            UnusableRecord::Newer(_) => (
                ProblemKind::RecordNewer,
                format!("can't be read: its record {why}"),
            ),
            UnusableRecord::Misplaced(id) => (
                ProblemKind::RecordMisplaced,
                format!("holds the record of {id}"),
            ),
            UnusableRecord::OtherPool(other) => {
                let here = self.pool.state.as_ref().ok();
                let here = here.map(|contents| format!(", and this is {}", contents.id));
                (
                    ProblemKind::RecordMisplaced,
                    format!("belongs to pool {other}{}", here.unwrap_or_default()),
                )
            }
            UnusableRecord::Damaged(_) => (
                ProblemKind::RecordUnreadable,
                format!("can't be read: its record {why}"),
            ),
        };
        self.error(kind, what, person(why.advice()))
    }

    fn error(&self, kind: ProblemKind, what: impl Into<String>, repair: Repair) -> ReportedProblem {
        self.problem(Severity::Error, kind, what, repair)
    }

    fn warning(
        &self,
        kind: ProblemKind,
        what: impl Into<String>,
        repair: Repair,
    ) -> ReportedProblem {
        self.problem(Severity::Warning, kind, what, repair)
    }

    fn note(&self, kind: ProblemKind, what: impl Into<String>, how: &str) -> ReportedProblem {
        let repair = Repair::Itself(how.to_owned());
        self.problem(Severity::Note, kind, what, repair)
    }

    fn problem(
        &self,
        severity: Severity,
        kind: ProblemKind,
        what: impl Into<String>,
        repair: Repair,
    ) -> ReportedProblem {
        problem(severity, kind, &self.object, what, repair)
    }
}

/// The advice for a raw block volume on another device than its targets.
const RESTART: &str = "restart the pods that use it: their device is no longer this volume's";

/// The repair of a problem that comes with an advice.
fn advised(found: &Problem) -> Option<Repair> {
    found.advice().map(person)
}
