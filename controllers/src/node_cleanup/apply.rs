//! Takes the steps, and reports each with an event on its object.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::NodeCleanup;
use super::decide::{Leftover, OwnerAway, Step, is_out_of_service};
use crate::api::pv;
use crate::api::scope::{NODE_LABEL, SELECTED_NODE};
use crate::client::{ApiError, EventKind, Resource, unless_gone};
use crate::controller::finalizers;
use crate::snapshots::content::Content;

/// The event reason for deleted nodes.
const GONE: &str = "NodeGone";
/// The event reason for nodes with the out-of-service taint.
const OUT: &str = "NodeOutOfService";
/// The event reason for attachments that wait for the node that has their volume.
const AWAY: &str = "OwnerAway";
/// How long an attachment waits before that is reported. Restarts of nodes take less time.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long until a bound volume, or an attachment that waits, is reported again.
const AGAIN: Duration = Duration::from_secs(3600);
/// The most bound volumes that one pass reports. Later passes report the others.
const REPORTS_PER_PASS: usize = 100;

/// Why a node can't clean up after itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeLoss {
    /// No node of this name exists.
    Gone,
    /// The node has the out-of-service taint.
    OutOfService,
}

impl NodeCleanup {
    /// Confirms a node's fate with a live GET on the API server. False if the request fails.
    pub(super) async fn is_proven(&self, node: &str, loss: NodeLoss) -> bool {
        match (self.kube.get::<Node>("", node).await, loss) {
            (Ok(None), NodeLoss::Gone) => true,
            (Ok(Some(node)), NodeLoss::OutOfService) => is_out_of_service(&node),
            (Ok(_), _) => false,
            (Err(error), _) => {
                tracing::warn!(node, %error, "cannot read a node");
                false
            }
        }
    }

    /// Performs one step. False if the pass must stop.
    pub(super) async fn perform(&mut self, leftover: Leftover, loss: NodeLoss) -> bool {
        let Leftover { node, step } = leftover;
        let Some(step) = step else { return true };
        if !self.context.leader.leads() || self.context.stop.is_cancelled() {
            return false;
        }
        let is_there = self.context.caches.nodes().get(&node).is_some();
        if is_there == (loss == NodeLoss::Gone) {
            tracing::info!(node, "the node has changed: nothing is deleted");
            return true;
        }
        if let Err(error) = self.apply(&node, loss, step).await {
            tracing::warn!(node, %error, "cannot clean up after a node");
        }
        true
    }

    async fn apply(&mut self, node: &str, loss: NodeLoss, step: Step) -> Result<(), ApiError> {
        let caches = self.context.caches.clone();
        match step {
            Step::ReleaseAttachment(attachment) => {
                let watch = caches.attachments();
                let finalizer = &self.settings.attached;
                finalizers::remove(&self.kube, Some(&watch), &*attachment, finalizer).await?;
                let (reason, why) = match loss {
                    NodeLoss::Gone => (GONE, "is gone"),
                    NodeLoss::OutOfService => (OUT, "is out of service"),
                };
                self.emit(
                    &*attachment,
                    reason,
                    format!("Node {node} {why}: the volume counts as detached"),
                );
            }
            Step::DeleteVolume(volume) => self.delete(node, &volume).await?,
            Step::ReleaseVolume(volume) => {
                self.release(&volume).await?;
                self.emit(
                    &*volume,
                    GONE,
                    format!("Node {node} is gone, and the volume with it: finalizers removed"),
                );
            }
            Step::ReportVolume(volume) => self.report_bound(node, &volume),
            Step::ClearClaim(claim) => self.clear(node, &claim).await?,
            Step::DeleteCapacity(object) => {
                self.kube.delete(&*object).await?;
                self.emit(
                    &*object,
                    GONE,
                    format!("Node {node} is gone: its capacity object is deleted"),
                );
            }
            Step::ReleaseContent(content) => {
                self.release_snapshot(node, &caches.contents(), &*content)
                    .await?;
            }
            Step::ReleaseGroup(content) => {
                self.release_snapshot(node, &caches.group_contents(), &*content)
                    .await?;
            }
        }
        Ok(())
    }

    /// Deletes a PV, if it still is as it was seen. Its policy or claim may have changed since.
    async fn delete(&self, node: &str, seen: &PersistentVolume) -> Result<(), ApiError> {
        let Some(volume) = self.kube.again(seen).await? else {
            return Ok(());
        };
        let volume = std::sync::Arc::new(volume);
        let same = self.resolver.of_volume(&volume).as_deref() == Some(node);
        let still = matches!(
            self.settings.volume(&volume, false),
            Some(Step::DeleteVolume(_))
        );
        if !same || !still || !self.context.leader.leads() {
            return Ok(());
        }
        self.kube.delete_unchanged(&*volume).await?;
        self.emit(
            &*volume,
            GONE,
            format!("Node {node} is gone, and the volume with it: its object is deleted"),
        );
        self.release(&volume).await
    }

    /// Removes our finalizers from a PV that is being deleted.
    async fn release(&self, volume: &PersistentVolume) -> Result<(), ApiError> {
        let Some(patch) = self.settings.remove_finalizers(volume) else {
            return Ok(());
        };
        if !self.context.leader.leads() {
            return Ok(());
        }
        let written = unless_gone(self.kube.json(volume, patch).await)?;
        if let Some(written) = written.filter(|written| !written.finalizers().is_empty()) {
            self.context.caches.volumes().apply_write(written);
        }
        Ok(())
    }

    async fn release_snapshot<K: Content>(
        &self,
        node: &str,
        watch: &crate::cache::Store<K>,
        content: &K,
    ) -> Result<(), ApiError> {
        finalizers::remove(&self.kube, Some(watch), content, K::KEYS.finalizer).await?;
        self.emit(
            content,
            GONE,
            format!("Node {node} is gone, and the snapshot with it: finalizer removed"),
        );
        Ok(())
    }

    /// Removes the selected node from a claim, so that the scheduler selects another.
    async fn clear(&self, node: &str, claim: &PersistentVolumeClaim) -> Result<(), ApiError> {
        let Some(volume) = self.settings.volume_of(claim) else {
            return Ok(());
        };
        let made = self.kube.get::<PersistentVolume>("", &volume).await?;
        if made.is_some() || !self.context.leader.leads() {
            return Ok(());
        }
        let mut metadata = json!({
            "uid": claim.uid(),
            "resourceVersion": claim.resource_version(),
            "annotations": {SELECTED_NODE: null},
        });
        if claim.labels().contains_key(NODE_LABEL) {
            metadata["labels"] = json!({NODE_LABEL: null});
        }
        let patch = json!({"metadata": metadata});
        match self.kube.merge(claim, patch).await {
            Ok(written) => self.context.caches.claims().apply_write(written),
            // The claim has changed; the next pass reads the new version.
            Err(error) if error.is_conflict() || error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        }
        self.emit(
            claim,
            GONE,
            format!("The selected node {node} is gone: the scheduler can select another"),
        );
        Ok(())
    }

    /// Emits an event on a bound volume and its claim, rate-limited.
    fn report_bound(&mut self, node: &str, volume: &PersistentVolume) {
        let Some(uid) = volume.uid() else { return };
        let now = Instant::now();
        if self.reported_now >= REPORTS_PER_PASS
            || self.reported.get(&uid).is_some_and(|at| now - *at < AGAIN)
        {
            return;
        }
        self.reported_now += 1;
        self.reported.insert(uid, now);
        let message = format!(
            "Node {node} is gone, and the data of the volume with it. Bring the node back, or \
             delete the claim to give up the data"
        );
        let events = &self.context.events;
        events.warning(volume, GONE, message.clone());
        self.warn_claim(volume, GONE, message);
    }

    /// Emits events on the claims of attachments that wait for the node that has their volume,
    /// rate-limited.
    pub(super) fn report_waiting(&mut self, waiting: &[OwnerAway], now: Instant) {
        let names = waiting.iter().map(|one| one.attachment.name_any());
        let names: BTreeSet<String> = names.collect();
        self.reported_away
            .retain(|name, at| names.contains(name) && now - *at < AGAIN);
        let due = self.away.due(names, now, PATIENCE);
        for one in waiting {
            let name = one.attachment.name_any();
            if !due.contains(&name) || self.reported_away.contains_key(&name) {
                continue;
            }
            self.reported_away.insert(name, now);
            let (owner, user) = (&one.owner, &one.attachment.spec.node_name);
            let to_do = if one.attachment.is_deleting() {
                format!("detached from node {user}")
            } else {
                format!("attached to node {user}")
            };
            let message = format!(
                "The volume waits to be {to_do}: node {owner}, which has it, is not ready. Bring node \
                 {owner} back"
            );
            self.warn_claim(&one.volume, AWAY, message);
        }
    }

    /// Emits a warning on the claim of a volume.
    fn warn_claim(&self, volume: &PersistentVolume, reason: &str, message: String) {
        let Some(mut claim) = pv::claim(volume).cloned() else {
            return;
        };
        claim.kind = Some("PersistentVolumeClaim".to_owned());
        claim.api_version = Some("v1".to_owned());
        self.context
            .events
            .emit(claim, EventKind::Warning, reason, message);
    }

    fn emit<K: Resource>(&self, about: &K, reason: &str, message: String) {
        tracing::info!(
            kind = %K::kind(&()), name = %about.name_any(), namespace = about.namespace(),
            "{message}"
        );
        self.context.events.normal(about, reason, message);
    }
}
