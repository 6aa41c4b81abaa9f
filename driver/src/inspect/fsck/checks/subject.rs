//! What each problem means to `fsck`: how bad it is, and what repairs it.

use std::fmt::Display;

use super::{ProblemKind, Repair, ReportedProblem, Severity, person, problem, unless_running};
use crate::diagnose::Problem;
use crate::inspect::inventory::{PoolSurvey, UnusableRecord};

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
        let (severity, kind) = self.rank(found)?;
        let repair = self.repair(found)?;
        let what = found.to_string();
        Some(problem(severity, kind, &self.object, what, repair))
    }

    /// How bad a problem is, and its name. `None` if `report` leaves it out.
    fn rank(&self, found: &Problem) -> Option<(Severity, ProblemKind)> {
        use Severity::{Error, Note, Warning};
        Some(match found {
            Problem::ImageMissing { .. } | Problem::ImageUnreadable(_) => {
                (Error, ProblemKind::ImageMissing)
            }
            Problem::ImageShort { .. } => (Error, ProblemKind::ImageShort),
            Problem::ImageLong { .. } => (Warning, ProblemKind::ImageLong),
            Problem::NotThick { .. } => (Warning, ProblemKind::NotThick),
            Problem::RecordUnusable(why) => (Error, record_problem_kind(why)),
            Problem::Buffered { .. } => (Warning, ProblemKind::DirectIoOff),
            Problem::DeviceSmall { .. } => (Note, ProblemKind::LoopSize),
            Problem::NoDevice { .. } => (Warning, ProblemKind::StageWithoutLoop),
            Problem::NotMounted { .. } => (Warning, ProblemKind::StageWithoutMount),
            Problem::OtherDevice { .. } | Problem::ReadOnlyDeviceLost { .. } => {
                (Error, ProblemKind::StageOtherLoop)
            }
            Problem::UsedUnstaged { .. } => (Warning, ProblemKind::UseWithoutStage),
            Problem::Frozen { .. } => (unless_running(self.pool, Error), ProblemKind::FreezeLeft),
            Problem::Fault { .. } | Problem::StoppedByFault(_) | Problem::PoolFault(_) => {
                (Note, ProblemKind::Fault)
            }
            Problem::Formatting(_) => (Note, ProblemKind::FormatLeft),
            Problem::FilesystemShutDown => (Error, ProblemKind::FilesystemShutDown),
            Problem::FilesystemReadOnly => (Error, ProblemKind::FilesystemReadOnly),
            Problem::GroupMissing(_) => (Warning, ProblemKind::GroupMissing),
            Problem::GroupIncomplete(_) => (Error, ProblemKind::GroupIncomplete),
            Problem::UnknownFile => (Warning, ProblemKind::Stranger),
            Problem::PoolMissing(_) => (Error, ProblemKind::PoolMissing),
            Problem::PoolLost(_) => (Error, ProblemKind::PoolImageLost),
            Problem::PoolReadOnly(_) => (Error, ProblemKind::PoolReadOnly),
            Problem::PoolNearlyFull(_) => (Warning, ProblemKind::PoolNearlyFull),
            Problem::DeviceSilent { .. }
            | Problem::AttachedTwice { .. }
            | Problem::DeviceChanged { .. } => return None,
            // Only a running driver, or a request with a path, shows these.
            Problem::FilesystemErrors(_)
            | Problem::FilesystemSmaller(_)
            | Problem::FaultDiskGone
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

    /// Who repairs a problem: a person, unless the driver does.
    fn repair(&self, found: &Problem) -> Option<Repair> {
        Some(match found {
            Problem::ImageLong { .. } if self.is_snapshot => {
                person("find out what wrote to it: a snapshot never grows")
            }
            Problem::ImageLong { .. } | Problem::NoDevice { .. } | Problem::Frozen { .. } => {
                Repair::Recovery
            }
            Problem::DeviceSmall { .. } => {
                itself("NodeExpandVolume, or the next NodeStageVolume, grows it")
            }
            Problem::NotMounted { .. } => {
                itself("the next NodeStageVolume mounts it, NodeUnstageVolume forgets it")
            }
            Problem::Formatting(_) => itself("the next NodeStageVolume formats it again"),
            _ => person(found.advice()?),
        })
    }
}

fn record_problem_kind(why: &UnusableRecord) -> ProblemKind {
    match why {
        UnusableRecord::Missing => ProblemKind::RecordMissing,
        UnusableRecord::Newer(_) => ProblemKind::RecordNewer,
        UnusableRecord::Misplaced(_) | UnusableRecord::OtherPool(_) => ProblemKind::RecordMisplaced,
        UnusableRecord::Damaged(_) => ProblemKind::RecordUnreadable,
    }
}

fn itself(how: &str) -> Repair {
    Repair::Itself(how.to_owned())
}
