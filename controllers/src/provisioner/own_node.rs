//! Checks that a claim without a source may have its volume on this node.
//!
//! A user who may write a claim may also write the annotation of its selected node, and no other
//! process is sure to see that before this one. So this process asks of its node what the leader asks
//! of nodes for claims with immediate binding. With late binding, a pod counts more: the scheduler
//! selects the node for a pod that is still pending, and may do so against a taint that the pod
//! tolerates.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::node_fitness::{self, UnfitNode};
use crate::api::pvc::{self, DataSource};
use crate::client::{ApiError, Kube};

use super::decide::Draft;

/// How long a node counts as it was read, for claims that it is fit for.
const RECENT: Duration = Duration::from_secs(10);

/// Pods that the scheduler is at work on, or that wait for their volumes.
const PENDING: &str = "status.phase=Pending";

/// The Node of this process, as it was last read.
#[derive(Debug, Default)]
pub(super) struct OwnNode {
    last: Mutex<Option<(Arc<Node>, Instant)>>,
    /// Set once the missing right is in the log.
    warned: OnceLock<()>,
}

impl OwnNode {
    /// Why this node may not make the volume of a claim, if so. The copy of a volume or snapshot can
    /// be made nowhere else, so it may be made on any node.
    pub(super) async fn unfit_for(
        &self,
        draft: &Draft,
        name: &str,
        kube: &Kube,
    ) -> Result<Option<UnfitNode>, ApiError> {
        if draft.source != DataSource::Nothing {
            return Ok(None);
        }
        match self.unfit(draft, name, kube).await {
            // The role is that of a provisioner which selects by the annotation alone.
            Err(error @ ApiError::Rejected { code: 403, .. }) => {
                if self.warned.set(()).is_ok() {
                    tracing::warn!(
                        %error,
                        "claims get volumes on this node whether or not their pods may run here: \
                         allow the account to get nodes and to list pods"
                    );
                }
                Ok(None)
            }
            answer => answer,
        }
    }

    async fn unfit(
        &self,
        draft: &Draft,
        name: &str,
        kube: &Kube,
    ) -> Result<Option<UnfitNode>, ApiError> {
        if self
            .recent()
            .is_some_and(|node| node_fitness::unfit(&node, &draft.class).is_none())
        {
            return Ok(None);
        }
        let Some(node) = kube.get::<Node>("", name).await?.map(Arc::new) else {
            return Ok(None);
        };
        *self.last.lock() = Some((node.clone(), Instant::now()));
        let Some(unfit) = node_fitness::unfit(&node, &draft.class) else {
            return Ok(None);
        };
        let may_be_scheduled = pvc::is_delayed(&draft.class) && unfit != UnfitNode::NotAllowed;
        let is_scheduled = may_be_scheduled && is_used_on(&node, &draft.claim, kube).await?;
        Ok((!is_scheduled).then_some(unfit))
    }

    fn recent(&self) -> Option<Arc<Node>> {
        let known = self.last.lock();
        let (node, _) = known.as_ref().filter(|(_, at)| at.elapsed() < RECENT)?;
        Some(node.clone())
    }
}

/// True if a pending pod uses the claim, and is on this node or can be scheduled there.
async fn is_used_on(
    node: &Node,
    claim: &PersistentVolumeClaim,
    kube: &Kube,
) -> Result<bool, ApiError> {
    let namespace = claim.namespace().unwrap_or_default();
    let key = (namespace.clone(), claim.name_any());
    let mut is_used = false;
    kube.list_in_by_field(&namespace, PENDING, |pod: Pod| {
        is_used = pvc::of_pod(&pod).any(|used| used == key) && node_fitness::can_run(&pod, node);
        !is_used
    })
    .await?;
    Ok(is_used)
}
