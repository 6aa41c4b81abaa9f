//! Writes a claim's node: its label, and the annotation if the leader selected the node.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

use super::Choosing;
use crate::api::pvc;
use crate::api::scope::{NODE_LABEL, SELECTED_NODE, node_label};
use crate::client::ApiError;
use crate::placement::metrics::AssignmentOutcome;
use crate::placement::placement_context::is_labelled;
use crate::queue::Outcome;

const MOVED: &str = "NodeReselected";

impl Choosing {
    /// Selects a node for a claim that has its reservation there already. One write sets both the
    /// annotation and the label.
    pub(super) async fn assign(&self, claim: &Arc<PersistentVolumeClaim>, node: &str) -> Outcome {
        let uid = claim.uid().unwrap_or_default();
        if !self.shared.context.leader.leads() {
            self.reservations.lock().release(&uid);
            return Outcome::Done;
        }
        let (name, namespace) = (claim.name_any(), claim.namespace());
        let before = pvc::selected_node(claim);
        let patch = json!({"metadata": {
            "uid": uid,
            "resourceVersion": claim.resource_version(),
            "annotations": {SELECTED_NODE: node},
            "labels": {NODE_LABEL: node_label(node)},
        }});
        match self.shared.kube.merge(&**claim, patch).await {
            Ok(written) => {
                self.shared.context.caches.claims().apply_write(written);
                self.mark_schedulable(&uid);
                let count =
                    before.map_or(AssignmentOutcome::Assigned, |_| AssignmentOutcome::Moved);
                self.shared.options.metrics.assigned(count);
                tracing::info!(claim = %name, namespace, node, before, "selected the claim's node");
                if let Some(before) = before {
                    let message = format!(
                        "node {node} has the source of the claim and is selected instead of {before}"
                    );
                    self.shared.context.events.normal(&**claim, MOVED, message);
                }
                Outcome::Done
            }
            Err(error) => {
                self.reservations.lock().release(&uid);
                let count = match &error {
                    ApiError::NotFound { .. } => return Outcome::Done,
                    ApiError::Conflict { .. } => AssignmentOutcome::Conflict,
                    _ => AssignmentOutcome::Failed,
                };
                self.shared.options.metrics.assigned(count);
                tracing::info!(
                    claim = %name, namespace, node, %error,
                    "cannot write the selected node to a claim"
                );
                Outcome::Failed
            }
        }
    }

    /// Labels a claim with its node. The write is unguarded: only watches use the label, and a
    /// change of the claim's node queues the claim again.
    pub(super) async fn label_claim(&self, claim: &PersistentVolumeClaim, node: &str) -> Outcome {
        self.mark_schedulable(claim.metadata.uid.as_deref().unwrap_or_default());
        if is_labelled(claim.labels(), node) {
            return Outcome::Done;
        }
        let watch = self.shared.context.caches.claims();
        self.shared
            .label(&watch, claim, NODE_LABEL, &node_label(node))
            .await
    }
}
