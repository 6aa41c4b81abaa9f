//! What is remembered of claims and volumes between attempts. All of it can be lost: a restart
//! finds the same volume by its name.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use tokio::time::Instant;

use super::decide::Plan;
use crate::api::topology::RequirementInputs;

/// The time until a call that cannot succeed is repeated.
pub(crate) const SLOW: Duration = Duration::from_secs(300);

/// How the last attempt for a claim ended.
#[derive(Clone, Debug)]
pub(crate) enum PendingAttempt {
    /// The driver may still be making a volume. CreateVolume is repeated until the driver gives a
    /// final answer, even if the claim is gone. Holds the plan of the last call.
    Background(Arc<Plan>),
    /// The call failed for good with this class. It is repeated after this instant.
    Slow {
        /// The class's UID.
        class: Option<String>,
        /// When to try again.
        until: Instant,
    },
}

/// A volume that was made and has no PersistentVolume yet.
#[derive(Debug)]
pub(crate) struct PendingPv {
    /// What it was made for.
    pub(crate) plan: Arc<Plan>,
    /// The PersistentVolume to create.
    pub(crate) object: PersistentVolume,
    /// The start of the CreateVolume call.
    pub(crate) since: Instant,
}

#[derive(Default)]
struct Inner {
    attempts: HashMap<String, PendingAttempt>,
    pending_pvs: HashMap<String, Arc<PendingPv>>,
    live_checks: HashSet<String>,
    topologies: HashMap<String, RequirementInputs>,
}

/// What is remembered, by UIDs of claims and names of volumes.
#[derive(Default)]
pub(crate) struct InFlight(Mutex<Inner>);

impl InFlight {
    /// How the last attempt for this claim (by UID) ended.
    pub(crate) fn attempt(&self, uid: &str) -> Option<PendingAttempt> {
        self.lock().attempts.get(uid).cloned()
    }

    /// Records how an attempt ended.
    pub(crate) fn set_attempt(&self, uid: &str, attempt: PendingAttempt) {
        let mut inner = self.lock();
        // The driver makes nothing, and the nodes may have changed before the next attempt.
        if matches!(attempt, PendingAttempt::Slow { .. }) {
            inner.topologies.remove(uid);
        }
        inner.attempts.insert(uid.to_owned(), attempt);
    }

    /// Forgets the attempts for a claim.
    pub(crate) fn forget(&self, uid: &str) {
        let mut inner = self.lock();
        inner.attempts.remove(uid);
        inner.live_checks.remove(uid);
        inner.topologies.remove(uid);
    }

    /// What the requirement of the last call for a claim (by UID) was made from.
    pub(crate) fn topology(&self, uid: &str) -> Option<RequirementInputs> {
        self.lock().topologies.get(uid).cloned()
    }

    /// Keeps it until the call for the claim has a final answer.
    pub(crate) fn set_topology(&self, uid: &str, topology: RequirementInputs) {
        self.lock().topologies.insert(uid.to_owned(), topology);
    }

    /// How long a claim must still wait, with a class of this UID.
    pub(crate) fn wait(&self, uid: &str, class_uid: Option<&String>) -> Option<Duration> {
        match self.lock().attempts.get(uid)? {
            PendingAttempt::Slow { class, until } if class.as_ref() == class_uid => {
                let left = until.saturating_duration_since(Instant::now());
                (!left.is_zero()).then_some(left)
            }
            _ => None,
        }
    }

    /// Notes claims that an earlier process may have made volumes for. They are read live before
    /// their PersistentVolumes are created.
    pub(crate) fn require_live_check(&self, uids: impl IntoIterator<Item = String>) {
        self.lock().live_checks.extend(uids);
    }

    /// True if an earlier process may have made a volume for this claim.
    pub(crate) fn needs_live_check(&self, uid: &str) -> bool {
        self.lock().live_checks.contains(uid)
    }

    /// The volume of this name, if its PersistentVolume is still to be created.
    pub(crate) fn pending_pv(&self, name: &str) -> Option<Arc<PendingPv>> {
        self.lock().pending_pvs.get(name).cloned()
    }

    /// True if the PersistentVolume of a claim's volume is still to be created.
    pub(crate) fn has_pending_pv(&self, uid: &str) -> bool {
        let is_for = |one: &Arc<PendingPv>| one.plan.uid() == uid;
        self.lock().pending_pvs.values().any(is_for)
    }

    /// Adds a volume whose PersistentVolume is still to be created.
    pub(crate) fn add_pending_pv(&self, pending: Arc<PendingPv>) {
        let name = pending.plan.draft.name.clone();
        self.lock().pending_pvs.insert(name, pending);
    }

    /// Removes a volume that has its PersistentVolume, or is gone.
    pub(crate) fn remove_pending_pv(&self, name: &str) {
        self.lock().pending_pvs.remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
