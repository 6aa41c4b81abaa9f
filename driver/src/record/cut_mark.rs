//! What makes a snapshot a cut.

use serde::{Deserialize, Serialize};

use super::id::ExplorationId;

/// The mark of a cut in the record of its snapshot: it is one of many power cuts of a volume, and
/// expires unless it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CutMark {
    /// The burst in which it was taken.
    pub exploration: ExplorationId,
    /// Its number in the exploration, from 1.
    pub number: u32,
    /// When the driver deletes it, nanoseconds since the epoch.
    pub expires_ns: u64,
}

impl CutMark {
    /// The name of the snapshot, also once it is kept.
    pub fn snapshot_name(&self) -> String {
        format!("{}-{:04}", self.exploration, self.number)
    }

    /// True if the driver is to delete the cut.
    pub fn has_expired(&self, now_ns: u64) -> bool {
        self.expires_ns <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_expiry() {
        let exploration: ExplorationId = "exploration-01a208746f95736e8ad0684137aef26f"
            .parse()
            .unwrap();
        let cut = CutMark {
            exploration,
            number: 7,
            expires_ns: 10,
        };
        assert_eq!(
            cut.snapshot_name(),
            "exploration-01a208746f95736e8ad0684137aef26f-0007"
        );
        assert_eq!(
            [9, 10, 11].map(|now| cut.has_expired(now)),
            [false, true, true]
        );
        for wrong in [
            "",
            "exploration-",
            "exploration-01A2",
            "snap-1",
            "exploration-x",
        ] {
            assert!(wrong.parse::<ExplorationId>().is_err(), "{wrong:?}");
        }
    }
}
