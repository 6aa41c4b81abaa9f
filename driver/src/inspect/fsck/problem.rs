//! What a check can find, and what is done about it.

use serde::Serialize;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; nothing is wrong. Does not count for the exit code.
    Note,
    /// Space is held for nothing, or a promise is not kept.
    Warning,
    /// Data is missing or in danger, or something can't be used.
    Error,
}

impl Severity {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// What kind of problem. The names are stable: they are in the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A configured pool can't be read.
    PoolMissing,
    /// A record that can't be read.
    RecordUnreadable,
    /// A record a newer build wrote.
    RecordNewer,
    /// A directory without a record.
    RecordMissing,
    /// A record that speaks of another ID than its directory, or of another pool.
    RecordMisplaced,
    /// An entry not named by an ID.
    Stranger,
    /// A record without its image.
    ImageMissing,
    /// An image shorter than the record says.
    ImageShort,
    /// An image longer than the record says.
    ImageLong,
    /// An image whose space was promised and is not taken.
    NotThick,
    /// One name for two.
    DuplicateName,
    /// A snapshot of a group that is not there.
    GroupMissing,
    /// A group that lacks a snapshot.
    GroupIncomplete,
    /// An entry left under `incoming/` or `trash/`.
    Leftover,
    /// Two writable loop devices over one image.
    LoopTwice,
    /// A loop device over a deleted image.
    LoopOverDeleted,
    /// A loop device nobody uses.
    LoopUnused,
    /// A loop device with one of our IDs in its path, but without a known backing file.
    LoopSilent,
    /// A loop device that one of its users changed, so that it shows other bytes of its image.
    LoopChanged,
    /// A record says staged and there is no loop device.
    StageWithoutLoop,
    /// A record says staged and nothing is mounted there.
    StageWithoutMount,
    /// A staged raw block volume is on another loop device than its record says.
    StageOtherLoop,
    /// A volume is mounted or bound, and its record knows of no staging.
    UseWithoutStage,
    /// A freeze was begun and its end is not on record.
    FreezeLeft,
    /// Formatting was begun and its end is not on record.
    FormatLeft,
    /// Direct I/O was asked for and is not in force.
    DirectIoOff,
    /// A loop device that has not taken its image's size over.
    LoopSize,
}

impl Kind {
    /// Whether it is about something that nobody owns any more.
    pub fn is_orphan(self) -> bool {
        matches!(
            self,
            Kind::RecordUnreadable
                | Kind::RecordNewer
                | Kind::RecordMissing
                | Kind::RecordMisplaced
                | Kind::Stranger
                | Kind::Leftover
                | Kind::LoopOverDeleted
                | Kind::LoopUnused
        )
    }
}

/// What is done about a problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "by", content = "how", rename_all = "lowercase")]
pub enum Repair {
    /// The driver's recovery does it: at its next start, or now by `fsck --repair`.
    Recovery,
    /// A person has to: what.
    Person(String),
    /// It needs none, or the driver does it when the volume is next used: what happens.
    Itself(String),
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How bad.
    pub severity: Severity,
    /// What kind.
    pub kind: Kind,
    /// What it is about: an ID, a path below the pool, a device.
    pub object: String,
    /// The pool by name, where it is about one.
    pub pool: Option<String>,
    /// What is wrong, in a sentence.
    pub what: String,
    /// What is done about it.
    pub repair: Repair,
}

/// A person's repair.
pub(super) fn person(how: impl Into<String>) -> Repair {
    Repair::Person(how.into())
}
