//! Finds and labels objects that belong to this node but lack its label. With the label, the node's
//! watches see them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::PartialObjectMeta;
use serde_json::json;

use crate::api::scope::{MANAGED_BY, NODE_LABEL, node_label};
use crate::api::{pv, pvc};
use crate::cache::store::fraction;
use crate::cache::{Store, WatchScope};
use crate::client::{ApiError, Kube, Resource};
use crate::controller::Context;
use crate::controller::owner::Ownership;
use crate::snapshots::content::Content;

/// Default interval of searches, on average.
const RESYNC: Duration = Duration::from_secs(15 * 60);
/// Default timeout of a CSI call about one volume.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most pages of each kind that one search reads. Other drivers' claims have no label either,
/// and a cluster may have any number of them.
const PAGES: usize = 20;

/// Repairs missing labels until `context.stop`. Snapshot contents are included only if `contents`
/// is set.
pub(super) async fn run(context: &Context, node: &str, contents: bool) {
    let search = Search {
        context,
        contents,
        kube: context.kube.managed_by("hostloop-labels"),
        node,
    };
    let every = context.common.resync_period.unwrap_or(RESYNC);
    let rounds = async {
        loop {
            // Jitter from half to one and a half intervals keeps nodes from searching at the same
            // time.
            tokio::time::sleep(every.mul_f64(0.5 + fraction())).await;
            search.round().await;
        }
    };
    context.stop.run_until_cancelled(rounds).await;
}

struct Search<'a> {
    context: &'a Context,
    contents: bool,
    kube: Kube,
    node: &'a str,
}

impl Search<'_> {
    async fn round(&self) {
        if self.context.caches.watch_scope() == WatchScope::Whole {
            // The watches see everything.
            return;
        }
        self.log("volumes", self.volumes().await);
        self.log("claims", self.claims().await);
        if !self.contents || self.context.pools.known().is_empty() {
            return;
        }
        let (driver, caches) = (&self.context.driver, &self.context.caches);
        if driver.takes_snapshots() {
            self.log("contents", self.contents(&caches.contents()).await);
        }
        if driver.takes_groups() {
            self.log(
                "group contents",
                self.contents(&caches.group_contents()).await,
            );
        }
    }

    /// Labels contents with handles of this node's pools.
    async fn contents<K: Content>(&self, watch: &Store<K>) -> Result<(), ApiError> {
        let own = self
            .unlabelled(MANAGED_BY, |content: &K| {
                let view = content.view();
                view.driver == self.context.driver.name && self.is_own(view.handles())
            })
            .await?;
        self.label(MANAGED_BY, watch, own).await
    }

    fn log(&self, what: &str, result: Result<(), ApiError>) {
        match result {
            // The cluster does not have this kind.
            Ok(()) | Err(ApiError::NotFound { .. }) => {}
            Err(error) => tracing::warn!(what, %error, "the search for unlabelled objects failed"),
        }
    }

    /// True if there are handles, and all belong to this node's pools.
    fn is_own<'h>(&self, handles: impl IntoIterator<Item = &'h str>) -> bool {
        let mut handles = handles.into_iter().peekable();
        let pools = &self.context.pools;
        handles.peek().is_some() && handles.all(|handle| pools.own(handle) == Some(true))
    }

    /// Labels this node's volumes. If the object does not show the owner, the driver is asked.
    async fn volumes(&self) -> Result<(), ApiError> {
        let watch = self.context.caches.volumes();
        let mut own = Vec::new();
        for volume in self.unlabelled(NODE_LABEL, |one| self.may_own(one)).await? {
            if self.owns(&volume).await {
                own.push(volume);
            }
        }
        self.label(NODE_LABEL, &watch, own).await
    }

    fn may_own(&self, volume: &PersistentVolume) -> bool {
        let driver = &self.context.driver.name;
        pv::handle(volume, driver).is_some() && self.context.may_have(volume)
    }

    async fn owns(&self, volume: &PersistentVolume) -> bool {
        match self.context.owner(volume) {
            Ownership::Local => true,
            Ownership::Remote => false,
            Ownership::Unknown => {
                let id = pv::csi(volume).map(|csi| csi.volume_handle.as_str());
                let timeout = self.context.common.timeout.unwrap_or(TIMEOUT);
                let has = self.context.driver_has(id.unwrap_or_default(), timeout);
                matches!(has.await, Ok(Some(true)))
            }
        }
    }

    /// Labels claims that are bound to this node's volumes, or that get volumes here. Other
    /// drivers' claims never have the label, so the list has only metadata. Claims that may be own
    /// are then read in full.
    async fn claims(&self) -> Result<(), ApiError> {
        let volumes = self.context.caches.volumes();
        let bound: HashSet<String> = volumes
            .each()
            .filter_map(|volume| pv::claim_uid(&volume).map(str::to_owned))
            .collect();
        let driver = &self.context.driver.name;
        let mut names = Vec::new();
        let all = self
            .kube
            .list_metadata(
                &format!("!{NODE_LABEL}"),
                PAGES,
                |found: PartialObjectMeta<PersistentVolumeClaim>| {
                    let claim = PersistentVolumeClaim {
                        metadata: found.metadata,
                        ..Default::default()
                    };
                    let is_bound = claim.uid().is_some_and(|uid| bound.contains(&uid));
                    if is_bound || pvc::is_assigned(&claim, driver, self.node) {
                        names.push((claim.namespace().unwrap_or_default(), claim.name_any()));
                    }
                },
            )
            .await?;
        note_limit::<PersistentVolumeClaim>(all);
        let mut own = Vec::new();
        for (namespace, name) in names {
            let claim = self
                .kube
                .get::<PersistentVolumeClaim>(&namespace, &name)
                .await?;
            own.extend(claim.filter(|claim| {
                let volume = pvc::volume_name(claim).and_then(|name| volumes.get(name));
                owns_claim(self.context, self.node, claim, volume)
            }));
        }
        self.label(NODE_LABEL, &self.context.caches.claims(), own)
            .await
    }

    /// Returns unlabelled objects that `is_own` accepts.
    async fn unlabelled<K: Resource>(
        &self,
        key: &str,
        is_own: impl Fn(&K) -> bool,
    ) -> Result<Vec<K>, ApiError> {
        let mut own = Vec::new();
        let all = self
            .kube
            .list(&format!("!{key}"), PAGES, |object: K| {
                if is_own(&object) {
                    own.push(object);
                }
            })
            .await?;
        note_limit::<K>(all);
        Ok(own)
    }

    async fn label<K: Resource>(
        &self,
        key: &str,
        watch: &Store<K>,
        own: Vec<K>,
    ) -> Result<(), ApiError> {
        for object in own {
            let patch = json!({"metadata": {
                "uid": object.uid(),
                "resourceVersion": object.resource_version(),
                "labels": {key: node_label(self.node)},
            }});
            match self.kube.merge(&object, patch).await {
                Ok(written) => {
                    let (namespace, name) = (object.namespace(), object.name_any());
                    tracing::info!(
                        kind = %K::kind(&()), namespace, name,
                        "labelled an object of this node"
                    );
                    watch.apply_write(written);
                }
                // The object has changed. The watch reports it, or the next search finds it.
                Err(ApiError::Conflict { .. } | ApiError::NotFound { .. }) => {}
                // An admission policy lets only the controller write this label.
                Err(error @ ApiError::Rejected { .. }) => {
                    tracing::debug!(name = object.name_any(), %error, "cannot label an object");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn note_limit<K: Resource>(all: bool) {
    if !all {
        tracing::debug!(kind = %K::kind(&()), "more objects lack the label than one search reads");
    }
}

/// True if a claim certainly has a volume of this driver and node, or is to get one.
fn owns_claim(
    context: &Context,
    node: &str,
    claim: &PersistentVolumeClaim,
    volume: Option<Arc<PersistentVolume>>,
) -> bool {
    match volume {
        Some(volume) => {
            pv::claim_uid(&volume) == claim.uid().as_deref()
                && pv::handle(&volume, &context.driver.name).is_some()
                && context.owner(&volume) == Ownership::Local
        }
        None => pvc::is_assigned(claim, &context.driver.name, node),
    }
}

#[cfg(test)]
mod tests;
