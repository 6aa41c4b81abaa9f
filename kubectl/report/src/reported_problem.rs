//! The problems that `fsck` can find, and how each is repaired.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How bad a problem is. The order is from harmless to bad.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; nothing is wrong. Does not count for the exit code.
    Note,
    /// Space is wasted, or a guarantee is not met.
    Warning,
    /// Data is missing or in danger, or something can't be used.
    Error,
}

impl Severity {
    /// The name of the severity in the output.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// The kind of a problem. The names are stable, because they are in the JSON.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// A configured pool can't be read.
    PoolMissing,
    /// The image of a mounted pool is not at its path any more, or is cut off.
    PoolImageLost,
    /// The filesystem of a pool, or one below it, is read-only.
    PoolReadOnly,
    /// The filesystem of a pool, or one below it, is nearly full.
    PoolNearlyFull,
    /// The filesystem of a volume in use has shut down after an error.
    FilesystemShutDown,
    /// The filesystem of a volume in use has become read-only.
    FilesystemReadOnly,
    /// A record can't be read.
    RecordUnreadable,
    /// A newer build wrote the record.
    RecordNewer,
    /// A directory has no record.
    RecordMissing,
    /// A record contains another ID than its directory's, or another pool's.
    RecordMisplaced,
    /// The name of an entry is not an ID.
    Stranger,
    /// A record has no image.
    ImageMissing,
    /// An image is shorter than recorded.
    ImageShort,
    /// An image is longer than recorded.
    ImageLong,
    /// The space of a thick image is not fully allocated.
    NotThick,
    /// Two objects have the same name.
    DuplicateName,
    /// A snapshot belongs to a group that does not exist.
    GroupMissing,
    /// A group lacks one of its snapshots.
    GroupIncomplete,
    /// An entry is left under `incoming/` or `trash/`.
    Leftover,
    /// Two loop devices are over one image, and at least one is writable.
    LoopTwice,
    /// A loop device is over a deleted image.
    LoopOverDeleted,
    /// A loop device is over a deleted image of a pool that is not configured here.
    LoopOfOtherPool,
    /// A loop device is not in use.
    LoopUnused,
    /// The path of a loop device contains an ID of the driver, but its backing file is unknown.
    LoopSilent,
    /// A user of a loop device changed it, so that it shows other bytes of its image.
    LoopChanged,
    /// A record says that the volume is staged, and there is no loop device.
    StageWithoutLoop,
    /// A record says that the volume is staged, and nothing is mounted there.
    StageWithoutMount,
    /// A staged raw block volume is on another loop device than its record says.
    StageOtherLoop,
    /// A volume is mounted or bound, and its record has no staging.
    UseWithoutStage,
    /// The start of a freeze is recorded, and its end is not.
    FreezeLeft,
    /// A volume has the fault that its claim asks for.
    Fault,
    /// The start of mkfs is recorded, and its end is not.
    FormatLeft,
    /// Direct I/O is requested and not active.
    DirectIoOff,
    /// The size of a loop device differs from the size of its image.
    LoopSize,
}

impl ProblemKind {
    /// True if the problem is about an object without an owner.
    pub fn is_orphan(self) -> bool {
        matches!(
            self,
            ProblemKind::RecordUnreadable
                | ProblemKind::RecordNewer
                | ProblemKind::RecordMissing
                | ProblemKind::RecordMisplaced
                | ProblemKind::Stranger
                | ProblemKind::Leftover
                | ProblemKind::LoopOverDeleted
                | ProblemKind::LoopUnused
        )
    }
}

/// Who repairs a problem, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "by", content = "how", rename_all = "lowercase")]
pub enum Repair {
    /// The driver's recovery repairs it: at its next start, or now with `fsck --repair`.
    Recovery,
    /// A person has to repair it, in this way.
    Person(String),
    /// No repair is needed, or the driver repairs it at the volume's next use. The text explains
    /// it.
    Itself(String),
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReportedProblem {
    pub severity: Severity,
    pub kind: ProblemKind,
    /// The object: an ID, a path below the pool, or a device.
    pub object: String,
    /// The pool's name, if the problem is about one pool.
    pub pool: Option<String>,
    /// The problem, as a sentence about the object.
    pub what: String,
    pub repair: Repair,
}

impl ReportedProblem {
    /// True if the problem counts for the exit code.
    pub fn counts(&self) -> bool {
        self.severity > Severity::Note
    }
}

/// A repair by a person.
pub fn person(how: impl Into<String>) -> Repair {
    Repair::Person(how.into())
}
