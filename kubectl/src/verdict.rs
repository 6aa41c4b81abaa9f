//! How far a volume or a snapshot is, and why it does not go on. `status`, `describe`, `check` and
//! the page of `ui` call the same things stuck.

use serde::Serialize;

use crate::events::Warning;

mod attachment;
mod failed_calls;
mod snapshot;
#[cfg(test)]
mod testing;
mod volume;

pub(super) use attachment::attachment_stuck;
pub(super) use failed_calls::FailedCalls;
pub(super) use snapshot::{group_stuck, snapshot_stuck};
pub(super) use volume::{OnNode, VolumeFacts, volume_verdict};

/// After this time without progress and without a warning, something is stuck.
const PATIENCE_NS: u64 = 120_000_000_000;
/// A freeze lasts seconds. After this time, it is stuck.
const LONG_FREEZE_NS: u64 = 60_000_000_000;
/// An older warning about a bound claim is no longer news.
const NEWS_NS: u64 = 600_000_000_000;

/// How far a volume is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum VolumePhase {
    /// The claim has no volume yet.
    #[default]
    Pending,
    /// The claim has a volume that no pod uses.
    Bound,
    /// The volume is mounted at the staging path.
    Staged,
    /// The volume is mounted in a pod.
    Published,
    /// The claim is being deleted.
    Deleting,
    /// The claim's volume does not exist.
    Lost,
    /// The PersistentVolume is not bound to a claim.
    Available,
    /// The claim is deleted, and the volume exists.
    Released,
    /// The volume has neither a claim nor a PersistentVolume.
    Unclaimed,
}

impl VolumePhase {
    /// The state as kubectl would write it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            VolumePhase::Pending => "Pending",
            VolumePhase::Bound => "Bound",
            VolumePhase::Staged => "staged",
            VolumePhase::Published => "published",
            VolumePhase::Deleting => "Deleting",
            VolumePhase::Lost => "Lost",
            VolumePhase::Available => "Available",
            VolumePhase::Released => "Released",
            VolumePhase::Unclaimed => "unclaimed",
        }
    }
}

/// Why something does not go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Stuck {
    /// The reason in words: mostly the last warning.
    pub(crate) why: String,
    /// The time of that warning, or since when nothing happens.
    pub(crate) since_ns: Option<u64>,
}

/// How far a volume is, and why it does not go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) state: VolumePhase,
    pub(crate) stuck: Option<Stuck>,
    pub(crate) note: Option<String>,
}

impl Verdict {
    fn fine(state: VolumePhase) -> Verdict {
        Verdict {
            state,
            ..Verdict::default()
        }
    }

    fn noted(state: VolumePhase, note: impl Into<String>) -> Verdict {
        Verdict {
            note: Some(note.into()),
            ..Verdict::fine(state)
        }
    }

    fn stuck(state: VolumePhase, stuck: impl Into<Stuck>) -> Verdict {
        Verdict {
            stuck: Some(stuck.into()),
            ..Verdict::fine(state)
        }
    }
}

impl Stuck {
    fn new(why: impl Into<String>, since_ns: Option<u64>) -> Stuck {
        Stuck {
            why: why.into(),
            since_ns,
        }
    }
}

impl From<Warning> for Stuck {
    fn from(warning: Warning) -> Stuck {
        Stuck::new(warning.text, Some(warning.at_ns))
    }
}

fn is_overdue(since_ns: Option<u64>, now_ns: u64) -> bool {
    since_ns.is_some_and(|since| now_ns.saturating_sub(since) > PATIENCE_NS)
}
