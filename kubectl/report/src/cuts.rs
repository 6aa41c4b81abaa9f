//! What `hostloop cuts` prints: power cuts of a volume that is in use, many in one burst.
//!
//! A *cut* is a snapshot that is a power cut, and belongs to an *exploration*: one burst of them. A
//! client writes one line to the driver's socket for cuts, a [`CutsRequest`], and gets lines with a
//! [`CutsLine`] each. A burst ends when its client hangs up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::status::Word;

/// The most cuts of one exploration.
pub const MAX_CUTS: u32 = 1000;
/// The shortest time from one cut to the next.
pub const MIN_EVERY: Duration = Duration::from_millis(10);
/// The longest time from one cut to the next.
pub const MAX_EVERY: Duration = Duration::from_secs(60);
/// The shortest time for which cuts are kept.
pub const MIN_EXPIRE: Duration = Duration::from_secs(60);
/// The longest time for which cuts are kept.
pub const MAX_EXPIRE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The socket for cuts beside the CSI socket of a driver.
pub fn cuts_beside(endpoint: &Path) -> PathBuf {
    endpoint.with_extension("cuts.sock")
}

/// What a client asks of the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum CutsRequest {
    /// Take cuts in one burst.
    Take(TakeCuts),
    /// List the cuts of an exploration, or all.
    List { exploration: Option<String> },
    /// Make an ordinary snapshot of a cut.
    Keep { snapshot: String },
    /// Delete the cuts of an exploration that are left.
    Drop { exploration: String },
}

/// A burst of cuts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeCuts {
    /// The volume's ID.
    pub volume: String,
    /// How many cuts: 1 to [`MAX_CUTS`].
    pub cuts: u32,
    /// The time from one cut to the next, in milliseconds.
    pub every_ms: u64,
    /// How long the cuts are kept, in seconds.
    pub expire_after_s: u64,
}

/// A line of the driver's answer. `hostloop cuts take` prints its lines as they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum CutsLine {
    /// The burst begins: the first line of one.
    Begun(BegunExploration),
    /// A cut was taken.
    Cut(TakenCut),
    /// The burst is over: the last line of one.
    Ended(EndedExploration),
    /// All cuts that were asked for.
    Listed(CutList),
    /// The cut is an ordinary snapshot now.
    Kept(KeptCut),
    /// The cuts that were left are deleted.
    Dropped(DroppedCuts),
    /// The request is refused, or failed. Nothing was taken.
    Refused { error: String },
}

/// An exploration that is about to take its cuts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunExploration {
    /// The exploration's ID, in the records of its cuts.
    pub exploration: String,
    /// The volume's ID.
    pub volume: String,
    /// How many cuts are to be taken.
    pub cuts: u32,
    /// The time from one cut to the next, in milliseconds.
    pub every_ms: u64,
    /// When its first cut is deleted at the earliest, unless it is kept: nanoseconds since the epoch.
    pub expires_ns: u64,
}

/// A cut that is in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenCut {
    /// Its number in the exploration, from 1.
    pub number: u32,
    /// The snapshot's ID, as in `source.snapshotHandle` of a VolumeSnapshotContent.
    pub snapshot: String,
    /// The source volume's size in bytes: the minimum size of a restore.
    pub size_bytes: u64,
    /// When the image was about to be cloned: CLOCK_MONOTONIC of the node. What was acknowledged
    /// before is in the cut.
    pub monotonic_ns: u64,
    /// The same moment, in nanoseconds since the epoch.
    pub taken_ns: u64,
    /// How long the clone took. What was acknowledged after it may be missing.
    pub clone_ns: u64,
    /// How much later than planned the cut was taken.
    pub late_ms: u64,
    /// Bytes that the cut promises beside those of the snapshots before it.
    pub promised_bytes: u64,
}

/// How a burst ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedExploration {
    /// The exploration's ID.
    pub exploration: String,
    /// How many cuts were taken.
    pub taken: u32,
    /// `complete`; or why there are fewer cuts than asked for: `no-room` in the pool, `not-in-use`
    /// any more, `volume-gone`, `busy` with other calls for too long, `ended` by the driver's stop
    /// or by `hostloop cuts drop`, or `failed`.
    pub outcome: Word,
    /// The reason for people, unless it is complete.
    pub why: Option<String>,
}

impl EndedExploration {
    /// The outcome of a burst with all of its cuts.
    pub const COMPLETE: &'static str = "complete";

    /// True if all cuts were taken.
    pub fn is_complete(&self) -> bool {
        self.outcome == Self::COMPLETE
    }
}

/// The output of `hostloop cuts list --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutList {
    /// By exploration, oldest first, and number.
    pub cuts: Vec<CutReport>,
}

/// A cut that is neither kept nor deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutReport {
    /// The exploration's ID.
    pub exploration: String,
    /// Its number in the exploration, from 1.
    pub number: u32,
    /// The snapshot's ID.
    pub snapshot: String,
    /// The source volume's ID. The volume may be deleted by now.
    pub volume: String,
    /// The name of the pool.
    pub pool: String,
    /// The source volume's size in bytes: the minimum size of a restore.
    pub size_bytes: u64,
    /// When it was taken, in nanoseconds since the epoch.
    pub taken_ns: u64,
    /// When it is deleted, in nanoseconds since the epoch.
    pub expires_ns: u64,
    /// Bytes that the cut promises beside those of the snapshots before it.
    pub promised_bytes: u64,
}

/// The output of `hostloop cuts keep`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptCut {
    /// The snapshot's ID, which stays.
    pub snapshot: String,
    /// The snapshot's name.
    pub name: String,
}

/// The output of `hostloop cuts drop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedCuts {
    /// The exploration's ID.
    pub exploration: String,
    /// How many cuts were deleted.
    pub dropped: u32,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_and_lines_have_these_forms() {
        let take = CutsRequest::Take(TakeCuts {
            volume: "vol-1".to_owned(),
            cuts: 200,
            every_ms: 100,
            expire_after_s: 60,
        });
        let json = json!({"do": "take", "volume": "vol-1", "cuts": 200, "every_ms": 100,
            "expire_after_s": 60});
        assert_eq!(serde_json::to_value(&take).unwrap(), json);
        assert_eq!(serde_json::from_value::<CutsRequest>(json).unwrap(), take);
        let ended = EndedExploration {
            exploration: "exploration-1".to_owned(),
            taken: 7,
            outcome: "no-room".into(),
            why: Some("full".to_owned()),
        };
        assert!(!ended.is_complete());
        let json = json!({"line": "ended", "exploration": "exploration-1", "taken": 7,
            "outcome": "no-room", "why": "full"});
        let ended = CutsLine::Ended(ended);
        assert_eq!(serde_json::to_value(&ended).unwrap(), json);
        assert_eq!(serde_json::from_value::<CutsLine>(json).unwrap(), ended);
    }

    #[test]
    fn each_csi_socket_has_its_own() {
        let cuts = cuts_beside(Path::new("/run/hostloop/csi.sock"));
        assert_eq!(cuts, Path::new("/run/hostloop/csi.cuts.sock"));
    }
}
