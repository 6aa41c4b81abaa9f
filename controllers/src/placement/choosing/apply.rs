//! Takes the steps for claims.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::Choosing;
use super::decide::{Facts, Step, decide};
use super::gather::Publication;
use super::most_room::{Request, choose};
use crate::api::constants::is_name;
use crate::api::message;
use crate::api::pvc;
use crate::api::scope::{MAX_LABEL, NODE_LABEL, SELECTED_NODE};
use crate::cache::store;
use crate::client::EventKind;
use crate::controller::ObjectKey;
use crate::placement::metrics::AssignmentOutcome;
use crate::queue::Outcome;

const PROVISIONING: &str = "Provisioning";
const FAILED: &str = "ProvisioningFailed";
const WAITING: &str = "WaitingForSource";
/// Room changes all the time. A message that differs only in numbers is repeated after this time.
const QUIET: Duration = Duration::from_secs(60);
/// A message that stays the same is repeated after this time. The API server keeps an event for an
/// hour, and has lost it if it went back to a backup from before the event.
const AGAIN: Duration = Duration::from_secs(20 * 60);

/// The last event of a claim.
#[derive(Clone, Debug)]
pub(super) struct LastEvent {
    count: AssignmentOutcome,
    message: String,
    at: Instant,
}

/// When to emit an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    /// After this time, if the message still applies.
    Later(Duration),
    /// Not yet: the message equals the last one.
    Known,
}

fn due(last: Option<&LastEvent>, count: AssignmentOutcome, message: &str, now: Instant) -> Due {
    let Some(last) = last.filter(|last| last.count == count) else {
        return Due::Now;
    };
    let is_known = last.message == message;
    let pause = if is_known { AGAIN } else { QUIET };
    let left = pause.saturating_sub(now.saturating_duration_since(last.at));
    if left.is_zero() {
        Due::Now
    } else if is_known {
        Due::Known
    } else {
        Due::Later(left)
    }
}

impl Choosing {
    /// Reconciles a claim, by its UID.
    pub(in crate::placement) async fn claim(&self, uid: &str) -> Outcome {
        let Some(claim) = self.claims.get(uid).pop() else {
            self.forget(uid);
            return Outcome::Done;
        };
        let facts = self.gather(&claim);
        let step = decide(&facts, self.settings());
        if step == Step::NotOurs {
            self.forget(uid);
            return Outcome::Done;
        }
        self.account(uid, &facts);
        if let Some(message) = self.impossible(&facts) {
            return self.give_back(&claim, message).await;
        }
        match (step, &facts.class) {
            (Step::Follow(requested), Some(class)) => self.follow(&claim, class, &requested).await,
            (Step::Choose, Some(class)) => self.choose(&claim, class, None).await,
            (Step::Label(node), _) => self.label_claim(&claim, &node).await,
            (Step::Foreign(kind), _) => {
                let message = format!(
                    "the claim's source is a {kind}: an external populator has to make the volume"
                );
                self.shared
                    .context
                    .events
                    .normal(&*claim, PROVISIONING, message);
                Outcome::Done
            }
            _ => {
                self.mark_schedulable(uid);
                Outcome::Done
            }
        }
    }

    /// Rebuilds the reservations from the assignments of an earlier leader and of the scheduler.
    /// This must happen before the first assignment.
    pub(in crate::placement) async fn rebuild(&self) {
        for claim in self.shared.context.caches.claims().each() {
            // There may be many claims.
            tokio::task::yield_now().await;
            let facts = self.gather_without_node(&claim);
            let ours = decide(&facts, self.settings()) != Step::NotOurs;
            if let Some(uid) = claim.metadata.uid.as_deref().filter(|_| ours) {
                self.account(uid, &facts);
            }
        }
    }

    /// Updates the reservations from the state of a claim.
    fn account(&self, uid: &str, facts: &Facts) {
        let now = Instant::now();
        let claim = &*facts.claim;
        let class = pvc::class_name(claim).unwrap_or_default();
        let known = self.reservations.lock().node(uid).map(str::to_owned);
        let version = known.and_then(|node| self.shared.room(&node, class));
        let version = version.map_or(0, |room| room.version);
        let selected = pvc::selected_node(claim);
        let nodes = self.shared.context.caches.nodes();
        // A user may write any text there, and a new one each second.
        let is_there = selected.is_some_and(|node| nodes.get(node).is_some());
        let mut reservations = self.reservations.lock();
        match (facts.volume.as_deref(), selected) {
            (Some(volume), _) => reservations.made(uid, store::version(volume), now),
            // The claim is bound to a volume that is not in the cache yet.
            (None, _) if pvc::volume_name(claim).is_some() => {}
            (None, Some(node)) if is_there => {
                let bytes = pvc::requested(claim).unwrap_or_default();
                reservations.assign(uid, node, bytes, now);
            }
            (None, Some(_)) => reservations.release(uid),
            (None, None) => reservations.refused(uid, version, now),
        }
    }

    /// A message for the user if the selected node of a claim can't make its volume, and no process
    /// there says so. Node cleanup looks after nodes that do not exist.
    fn impossible(&self, facts: &Facts) -> Option<String> {
        let claim = &*facts.claim;
        let waits = pvc::is_for(claim, &self.shared.context.driver.name) && facts.volume.is_none();
        let node = pvc::selected_node(claim).filter(|_| waits)?;
        let named: String = node.chars().take(MAX_LABEL).collect();
        let why = if !is_name(node) {
            "which can't be a node's name"
        } else if self.is_deserted(node, facts.class.as_deref()?) {
            "a node that does not run the CSI driver"
        } else {
            return None;
        };
        Some(format!(
            "the claim's annotation {SELECTED_NODE} is {named:?}, {why}: it is removed. Leave it to \
             the scheduler and the controllers"
        ))
    }

    /// Removes the selected node from a claim, with a warning for its user.
    async fn give_back(&self, claim: &PersistentVolumeClaim, message: String) -> Outcome {
        if !self.shared.context.leader.leads() {
            return Outcome::Done;
        }
        let (name, namespace) = (claim.name_any(), claim.namespace());
        let patch = json!({"metadata": {
            "uid": claim.uid(),
            "resourceVersion": claim.resource_version(),
            "annotations": {SELECTED_NODE: null},
            "labels": {NODE_LABEL: null},
        }});
        match self.shared.kube.merge(claim, patch).await {
            Ok(written) => {
                self.shared.context.caches.claims().apply_write(written);
                tracing::info!(claim = %name, namespace, "{message}");
                self.shared.context.events.warning(claim, FAILED, message);
                Outcome::Done
            }
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => {
                tracing::info!(
                    claim = %name, namespace, %error,
                    "cannot remove the selected node from a claim"
                );
                Outcome::Failed
            }
        }
    }

    /// Assigns a claim to the node with the most room, among the nodes that have its source.
    pub(super) async fn choose(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        class: &Arc<StorageClass>,
        among: Option<&BTreeSet<String>>,
    ) -> Outcome {
        let uid = claim.uid().unwrap_or_default();
        let now = Instant::now();
        let is_published = match self.publication(&class.name_any(), now) {
            Publication::Yes => true,
            Publication::No => false,
            Publication::Soon(left) => {
                self.mark_unschedulable(claim);
                return Outcome::RequeueAfter(left);
            }
        };
        // The node that makes the volume reports an invalid size.
        let bytes = pvc::requested(claim).unwrap_or_default();
        let candidates = self.candidates(class);
        let ask = Request {
            uid: &uid,
            bytes,
            among,
            is_published,
        };
        let chosen = {
            // Choose and reserve under one lock, so that the next claim sees this reservation.
            let mut reservations = self.reservations.lock();
            let chosen = choose(ask, &candidates, &reservations, now);
            if let Ok(node) = &chosen {
                reservations.assign(&uid, node, bytes, now);
                reservations.set_last(node);
            }
            chosen
        };
        match chosen {
            Ok(node) => self.assign(claim, &node).await,
            Err(nowhere) => {
                let name = class.name_any();
                let message = format!(
                    "failed to provision volume with StorageClass {name:?}: {nowhere}; it is \
                     tried again when one has more room"
                );
                self.wait(
                    claim,
                    AssignmentOutcome::Nowhere,
                    EventKind::Warning,
                    message,
                )
            }
        }
    }

    /// Leaves a claim pending. Emits an event if its message is new, or may be lost by now.
    pub(super) fn wait(
        &self,
        claim: &PersistentVolumeClaim,
        count: AssignmentOutcome,
        kind: EventKind,
        message: String,
    ) -> Outcome {
        let uid = claim.uid().unwrap_or_default();
        // It has what a user wrote, and is kept for each claim that waits.
        let message = message::cut(&message, message::MAX_EVENT);
        self.mark_unschedulable(claim);
        self.shared.options.metrics.assigned(count);
        let now = Instant::now();
        let mut last_events = self.last_events.lock();
        match due(last_events.get(&uid), count, &message, now) {
            Due::Known => return Outcome::Failed,
            // Without a retry, the claim might stay unqueued for long, with an outdated event.
            Due::Later(left) => return Outcome::RetryAfter(left),
            Due::Now => {}
        }
        let (name, namespace) = (claim.name_any(), claim.namespace());
        tracing::info!(claim = %name, namespace, "{message}");
        let (events, text) = (&self.shared.context.events, message.clone());
        match kind {
            EventKind::Normal => events.normal(claim, WAITING, text),
            EventKind::Warning => events.warning(claim, FAILED, text),
        }
        let at = now;
        last_events.insert(uid, LastEvent { count, message, at });
        Outcome::Failed
    }

    fn mark_unschedulable(&self, claim: &PersistentVolumeClaim) {
        self.unschedulable.lock().extend(ObjectKey::of_claim(claim));
    }

    pub(super) fn mark_schedulable(&self, uid: &str) {
        self.unschedulable.lock().remove(uid);
        self.last_events.lock().remove(uid);
    }

    fn forget(&self, uid: &str) {
        self.reservations.lock().forget(uid);
        self.mark_schedulable(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_and_when() {
        let began = Instant::now();
        let last = LastEvent {
            count: AssignmentOutcome::Nowhere,
            message: "a has 1Gi left".to_owned(),
            at: began,
        };
        let after = |seconds| began + Duration::from_secs(seconds);
        let later = |seconds| Due::Later(Duration::from_secs(seconds));
        for (last, count, message, now, expected) in [
            (None, AssignmentOutcome::Nowhere, "a", after(0), Due::Now),
            (
                Some(&last),
                AssignmentOutcome::Nowhere,
                "a has 1Gi left",
                after(1),
                Due::Known,
            ),
            (
                Some(&last),
                AssignmentOutcome::Nowhere,
                "a has 1Gi left",
                after(99),
                Due::Known,
            ),
            (
                Some(&last),
                AssignmentOutcome::Nowhere,
                "a has 1Gi left",
                began + AGAIN,
                Due::Now,
            ),
            (
                Some(&last),
                AssignmentOutcome::Nowhere,
                "a has 2Gi left",
                after(20),
                later(40),
            ),
            (
                Some(&last),
                AssignmentOutcome::Nowhere,
                "a has 2Gi left",
                after(60),
                Due::Now,
            ),
            (
                Some(&last),
                AssignmentOutcome::Blocked,
                "a",
                after(1),
                Due::Now,
            ),
        ] {
            assert_eq!(
                due(last, count, message, now),
                expected,
                "{message} at {now:?}"
            );
        }
    }
}
