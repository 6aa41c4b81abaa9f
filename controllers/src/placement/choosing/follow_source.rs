//! Chooses the node of a claim with a source, as a restore or a clone: the source's node, or one of
//! those that reach the source.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use tokio::time::Instant;

use super::Choosing;
use super::unfit::Unfit;
use crate::api::node_fitness::UnfitNode;
use crate::api::pvc::{self, DataSource};
use crate::client::EventKind;
use crate::placement::metrics::AssignmentOutcome;
use crate::placement::source_location::SourceLocation;
use crate::queue::Outcome;

impl Choosing {
    /// Assigns a claim to the node of its source.
    pub(super) async fn follow(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        class: &Arc<StorageClass>,
        requested: &DataSource,
    ) -> Outcome {
        let selected = pvc::selected_node(claim);
        let delayed = pvc::is_delayed(class);
        match (self.shared.source(claim, requested), selected) {
            (SourceLocation::Unknown(why), _) => {
                let message = format!("waiting for the source of the claim: {why}");
                self.wait(
                    claim,
                    AssignmentOutcome::Waiting,
                    EventKind::Normal,
                    message,
                )
            }
            (SourceLocation::Gone(why), _) => {
                let message = format!(
                    "the source of the claim can't be reached: {why}; bring its node back, or \
                     name another source"
                );
                self.blocked(claim, message)
            }
            (SourceLocation::Node(node), _) => self.settle_at(claim, class, &node).await,
            (SourceLocation::Anywhere | SourceLocation::Several(_), Some(node)) => {
                self.label_claim(claim, node).await
            }
            (SourceLocation::Anywhere | SourceLocation::Several(_), None) if delayed => {
                self.mark_schedulable(claim.metadata.uid.as_deref().unwrap_or_default());
                Outcome::Done
            }
            (SourceLocation::Anywhere, None) => self.choose(claim, class, None).await,
            (SourceLocation::Several(nodes), None) => self.choose(claim, class, Some(&nodes)).await,
        }
    }

    /// Assigns a claim to the only node that has its source, if that node can take it.
    async fn settle_at(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        class: &Arc<StorageClass>,
        node: &str,
    ) -> Outcome {
        let uid = claim.uid().unwrap_or_default();
        let selected = pvc::selected_node(claim);
        if selected == Some(node) {
            return self.label_claim(claim, node).await;
        }
        if let Some(unfit) = self.unfit_for_copy(node, class) {
            let advice = match unfit {
                Unfit::Node(UnfitNode::NotAllowed) => {
                    "extend them in another class, or name another source"
                }
                Unfit::Node(UnfitNode::Cordoned) => "uncordon it, or name another source",
                _ => "bring it back, or name another source",
            };
            let message = format!(
                "the source of the claim is on node {node} alone, and that node {unfit}: {advice}"
            );
            return self.blocked(claim, message);
        }
        let version = self.shared.room(node, &class.name_any());
        let version = version.map_or(0, |room| room.version);
        let passed_over = self
            .reservations
            .lock()
            .passes_over(&uid, node, version, Instant::now());
        if let Some(left) = passed_over {
            let message = format!(
                "the source of the claim is on node {node} alone, and that node {}: make room \
                 there, or name another source",
                Unfit::Refused
            );
            self.blocked(claim, message);
            return Outcome::RetryAfter(left);
        }
        let bytes = pvc::requested(claim).unwrap_or_default();
        self.reservations
            .lock()
            .assign(&uid, node, bytes, Instant::now());
        self.assign(claim, node).await
    }

    /// Warns the claim's user about its source.
    fn blocked(&self, claim: &Arc<PersistentVolumeClaim>, message: String) -> Outcome {
        self.wait(
            claim,
            AssignmentOutcome::Blocked,
            EventKind::Warning,
            message,
        )
    }
}
