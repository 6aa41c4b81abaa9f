//! Gives a claim back to the scheduler or the leader: after RESOURCE_EXHAUSTED, and if the selected
//! node may not have the volume.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

use super::Provisioner;
use crate::api::scope::SELECTED_NODE;
use crate::client::ApiError;
use crate::queue::Outcome;

/// How long to wait for the capacity objects before another node is selected: with outdated ones,
/// the scheduler would select the same node again.
const TELLING: Duration = Duration::from_secs(5);

impl Provisioner {
    /// Clears the selected node as soon as the node's capacity objects show that it has no room.
    pub(super) async fn reschedule_once_published(&self, claim: &PersistentVolumeClaim) -> Outcome {
        self.context.room.change_and_wait(TELLING).await;
        self.reschedule(claim).await
    }

    /// Clears the selected node, so that the scheduler or the leader selects another one.
    pub(super) async fn reschedule(&self, claim: &PersistentVolumeClaim) -> Outcome {
        let patch = json!({"metadata": {
            "uid": claim.uid(),
            "resourceVersion": claim.resource_version(),
            "annotations": {SELECTED_NODE: null},
        }});
        match self.kube.merge(claim, patch).await {
            Ok(written) => {
                self.context.caches.claims().apply_write(written);
                Outcome::Done
            }
            Err(ApiError::NotFound { .. }) => Outcome::Done,
            // The claim has changed, so the decision is repeated.
            Err(error) => {
                tracing::info!(claim = %claim.name_any(), %error, "cannot reschedule a claim");
                Outcome::Failed
            }
        }
    }
}
