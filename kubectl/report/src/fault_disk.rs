//! What claims ask of fault disks, in words of the annotation that their server reads, too.

use serde::{Deserialize, Serialize};

/// What a filesystem does with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operation {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It makes the disk keep what was written.
    Flush,
    /// It gives bytes back, or makes them zeroes.
    Discard,
}

impl Operation {
    pub const ALL: [Operation; 4] = [
        Operation::Read,
        Operation::Write,
        Operation::Flush,
        Operation::Discard,
    ];

    /// The word of the annotation.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Flush => "flush",
            Operation::Discard => "discard",
        }
    }
}

/// What becomes of the writes that a disk has not flushed when its power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Loss {
    /// All are lost.
    All,
    /// About half are lost, and the others reach the disk in any order.
    Some,
    /// Like `Some`, and of half of the others only some blocks of 4,096 bytes.
    TornBlocks,
    /// Like `Some`, and of half of the others only some sectors of 512 bytes.
    TornSectors,
}

impl Loss {
    pub const ALL: [Loss; 4] = [Loss::All, Loss::Some, Loss::TornBlocks, Loss::TornSectors];

    /// The word of the annotation.
    pub fn name(self) -> &'static str {
        match self {
            Loss::All => "all",
            Loss::Some => "some",
            Loss::TornBlocks => "torn-blocks",
            Loss::TornSectors => "torn-sectors",
        }
    }
}
