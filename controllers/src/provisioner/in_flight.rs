//! State of claims and volumes between attempts. All of it can be lost: after a restart, the
//! provisioner finds the same volume by its name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::decide::Plan;
use crate::api::topology::RequirementInputs;

/// The wait before a call that cannot succeed is repeated.
pub(crate) const SLOW: Duration = Duration::from_secs(300);

/// How the last attempt for a claim ended.
#[derive(Clone, Debug)]
pub(crate) enum PendingAttempt {
    /// The driver may still be creating a volume. CreateVolume is repeated until the driver gives a
    /// final answer, even if the claim is gone. Holds the plan of each request without a final answer,
    /// that of the last call at the end: a class may come back as another one between two calls, and
    /// what the driver says to the new request says nothing about the old one.
    Background(Vec<Arc<Plan>>),
    /// The call failed for good with this class. It is repeated after this instant.
    Slow {
        /// The UID of the claim's class.
        class: Option<String>,
        /// The time of the next attempt.
        until: Instant,
    },
}

/// A volume that still needs its PersistentVolume.
#[derive(Debug)]
pub(crate) struct PendingPv {
    pub(crate) plan: Arc<Plan>,
    /// The PersistentVolume to create.
    pub(crate) object: PersistentVolume,
    /// The start of the CreateVolume call.
    pub(crate) since: Instant,
}

#[derive(Default)]
struct InFlightState {
    attempts: HashMap<String, PendingAttempt>,
    pending_pvs: HashMap<String, Arc<PendingPv>>,
    /// The UIDs of the claims of these volumes.
    pending_uids: HashSet<String>,
    live_checks: HashSet<String>,
    topologies: HashMap<String, RequirementInputs>,
}

/// State by the UID of a claim or the name of a volume.
#[derive(Default)]
pub(crate) struct InFlight(Mutex<InFlightState>);

impl InFlight {
    /// How the last attempt for this claim (by UID) ended.
    pub(crate) fn attempt(&self, uid: &str) -> Option<PendingAttempt> {
        self.0.lock().attempts.get(uid).cloned()
    }

    /// Notes that the driver may be creating a volume by this plan.
    pub(crate) fn add_background(&self, uid: &str, plan: Arc<Plan>) {
        let mut inner = self.0.lock();
        let mut plans = match inner.attempts.remove(uid) {
            Some(PendingAttempt::Background(plans)) => plans,
            _ => Vec::new(),
        };
        plans.retain(|one| one.request != plan.request);
        plans.push(plan);
        let attempt = PendingAttempt::Background(plans);
        inner.attempts.insert(uid.to_owned(), attempt);
    }

    /// Notes the final answer to the request of this plan. Returns true if no other request for the
    /// claim lacks one.
    pub(crate) fn end_background(&self, uid: &str, plan: &Plan) -> bool {
        let mut inner = self.0.lock();
        let Some(PendingAttempt::Background(plans)) = inner.attempts.get_mut(uid) else {
            return true;
        };
        plans.retain(|one| one.request != plan.request);
        let is_over = plans.is_empty();
        if is_over {
            inner.attempts.remove(uid);
        }
        is_over
    }

    /// Notes that the call for a claim failed for good, and may be repeated after this instant.
    pub(crate) fn set_slow(&self, uid: &str, class: Option<String>, until: Instant) {
        let mut inner = self.0.lock();
        // The driver is not creating a volume, and the nodes may change before the next attempt.
        inner.topologies.remove(uid);
        let attempt = PendingAttempt::Slow { class, until };
        inner.attempts.insert(uid.to_owned(), attempt);
    }

    /// Forgets the attempts for a claim.
    pub(crate) fn forget(&self, uid: &str) {
        let mut inner = self.0.lock();
        inner.attempts.remove(uid);
        inner.live_checks.remove(uid);
        inner.topologies.remove(uid);
    }

    /// The inputs of the topology requirement in the last call for a claim (by UID).
    pub(crate) fn topology(&self, uid: &str) -> Option<RequirementInputs> {
        self.0.lock().topologies.get(uid).cloned()
    }

    /// Stores these inputs until the call for the claim has a final answer.
    pub(crate) fn set_topology(&self, uid: &str, topology: RequirementInputs) {
        self.0.lock().topologies.insert(uid.to_owned(), topology);
    }

    /// The remaining wait of a claim, if its class has this UID.
    pub(crate) fn wait(&self, uid: &str, class_uid: Option<&String>) -> Option<Duration> {
        match self.0.lock().attempts.get(uid)? {
            PendingAttempt::Slow { class, until } if class.as_ref() == class_uid => {
                let left = until.saturating_duration_since(Instant::now());
                (!left.is_zero()).then_some(left)
            }
            _ => None,
        }
    }

    /// Notes claims that an earlier process may have created volumes for. The provisioner reads
    /// them live before it creates their PersistentVolumes.
    pub(crate) fn require_live_check(&self, uids: impl IntoIterator<Item = String>) {
        self.0.lock().live_checks.extend(uids);
    }

    /// True if an earlier process may have created a volume for this claim.
    pub(crate) fn needs_live_check(&self, uid: &str) -> bool {
        self.0.lock().live_checks.contains(uid)
    }

    /// The volume of this name, if its PersistentVolume is still to be created.
    pub(crate) fn pending_pv(&self, name: &str) -> Option<Arc<PendingPv>> {
        self.0.lock().pending_pvs.get(name).cloned()
    }

    /// True if the PersistentVolume of a claim's volume is still to be created.
    pub(crate) fn has_pending_pv(&self, uid: &str) -> bool {
        self.0.lock().pending_uids.contains(uid)
    }

    /// Adds a volume that still needs its PersistentVolume.
    pub(crate) fn add_pending_pv(&self, pending: Arc<PendingPv>) {
        let name = pending.plan.draft.name.clone();
        let mut inner = self.0.lock();
        inner.pending_uids.insert(pending.plan.uid().to_owned());
        inner.pending_pvs.insert(name, pending);
    }

    /// Removes a volume that has its PersistentVolume or is deleted.
    pub(crate) fn remove_pending_pv(&self, name: &str) {
        let mut inner = self.0.lock();
        if let Some(pending) = inner.pending_pvs.remove(name) {
            inner.pending_uids.remove(pending.plan.uid());
        }
    }
}
