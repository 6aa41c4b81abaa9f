//! How far a volume or a snapshot is, and why it does not go on. `status`, `describe` and `check`
//! call the same things stuck.

use serde::Serialize;

mod volume;

pub(super) use volume::{OnNode, VolumeFacts, attachment_stuck, judge, snapshot_stuck};

/// How far a volume is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
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

impl State {
    /// The state as kubectl would write it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            State::Pending => "Pending",
            State::Bound => "Bound",
            State::Staged => "staged",
            State::Published => "published",
            State::Deleting => "Deleting",
            State::Lost => "Lost",
            State::Available => "Available",
            State::Released => "Released",
            State::Unclaimed => "unclaimed",
        }
    }
}

/// Why something does not go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Stuck {
    /// The reason in words: mostly the last warning.
    pub(crate) why: String,
    /// The time of that warning, or since when nothing happens.
    pub(crate) since_ns: Option<u64>,
}
