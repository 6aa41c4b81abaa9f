//! Checks that a claim without a source may have its volume on this node.
//!
//! A user who may write a claim may also write the annotation of its selected node, and no other
//! process is sure to see that before this one. So this process asks of its node what the leader asks
//! of nodes for claims with immediate binding. With late binding, a pod counts more: the scheduler
//! selects the node for a pod that is still pending, and may do so against a taint that the pod
//! tolerates.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::api::node_fitness::{self, UnfitNode};
use crate::api::pod::Pod;
use crate::api::pvc::{self, DataSource};
use crate::client::{ApiError, Kube};

use super::decide::Draft;

/// How long a node counts as it was read, for claims that it is fit for.
const RECENT: Duration = Duration::from_secs(10);

/// How many lists of pods are read at once. Each has up to one page of large pods in memory.
const LISTS: usize = 4;

/// Pods that the scheduler is at work on, or that wait for their volumes.
const PENDING: &str = "status.phase=Pending";

/// The claims of a namespace that pending pods use, if the pods are on this node or can be
/// scheduled here.
#[derive(Debug)]
struct Used {
    /// When the list began.
    since: Instant,
    /// Hashes of their names, because there can be many long names.
    claims: HashSet<u64>,
}

/// What the last list of a namespace's pods had. Held while they are listed: a namespace can have
/// thousands of large ones, and many claims that ask for them at the same time.
type Last = Arc<tokio::sync::Mutex<Option<Used>>>;

/// Forgets what a namespace's pods use, unless another claim waits for it.
struct Forgetting<'a> {
    used: &'a Mutex<HashMap<String, Last>>,
    namespace: &'a str,
}

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        let mut used = self.used.lock();
        let last = used.get(self.namespace);
        if last.is_some_and(|last| Arc::strong_count(last) == 1) {
            used.remove(self.namespace);
        }
    }
}

/// Limits how many lists are read at once.
#[derive(Debug)]
struct Lists(Semaphore);

impl Default for Lists {
    fn default() -> Self {
        Lists(Semaphore::new(LISTS))
    }
}

/// The Node of this process, as it was last read.
#[derive(Debug, Default)]
pub(super) struct OwnNode {
    last: Mutex<Option<(Arc<Node>, Instant)>>,
    /// Of each namespace that claims ask for: no claim waits for another namespace's list.
    used: Mutex<HashMap<String, Last>>,
    lists: Lists,
    /// Hashes names with a random key, so no user can find two names with one hash.
    hasher: RandomState,
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
        let is_scheduled = may_be_scheduled && self.is_used(&node, &draft.claim, kube).await?;
        Ok((!is_scheduled).then_some(unfit))
    }

    /// True if a pending pod uses the claim, and is on this node or can be scheduled there. A list
    /// that began after this call has the answer, too.
    async fn is_used(
        &self,
        node: &Node,
        claim: &PersistentVolumeClaim,
        kube: &Kube,
    ) -> Result<bool, ApiError> {
        let asked = Instant::now();
        let namespace = claim.namespace().unwrap_or_default();
        let number = self.hasher.hash_one((&namespace, &claim.name_any()));
        // Dropped after the claim's own part of what was listed.
        let _forgetting = Forgetting {
            used: &self.used,
            namespace: &namespace,
        };
        let last = self
            .used
            .lock()
            .entry(namespace.clone())
            .or_default()
            .clone();
        let mut last = last.lock().await;
        // A list that began at the same instant may have begun before the call.
        if let Some(known) = &*last
            && known.since > asked
        {
            return Ok(known.claims.contains(&number));
        }
        // The semaphore is never closed.
        let _permit = self.lists.0.acquire().await.ok();
        let (since, mut claims) = (Instant::now(), HashSet::new());
        kube.list_in_by_field(&namespace, PENDING, |pod: Pod| {
            if node_fitness::can_run(&pod, node) {
                claims.extend(pod.claims().map(|used| self.hasher.hash_one(used)));
            }
            true
        })
        .await?;
        let is_used = claims.contains(&number);
        *last = Some(Used { since, claims });
        Ok(is_used)
    }

    fn recent(&self) -> Option<Arc<Node>> {
        let known = self.last.lock();
        let (node, _) = known.as_ref().filter(|(_, at)| at.elapsed() < RECENT)?;
        Some(node.clone())
    }
}
