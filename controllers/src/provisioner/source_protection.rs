//! Removes the finalizers of data sources that no claim waits for. This requires a view of all
//! claims, so one process does it for the cluster.
//!
//! A source is checked when a claim stops waiting for it. A sweep checks all sources, because the
//! process that should have removed a finalizer may have died.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::cache::{Change, Index, Store};
use crate::client::{Kube, Resource};
use crate::controller::{Context, Controller, finalizers};
use crate::csi::driver::ControllerCapability;
use crate::queue::{Outcome, Queue, yield_sometimes};
use crate::snapshots::VolumeSnapshot;

use super::{Named, Options};
use crate::api::constants::{CLONE_FINALIZER, SNAPSHOT_FINALIZER};
use crate::api::pvc::{self, DataSource};

/// The wait before a snapshot's finalizer is removed. Within it, this process sees new claims for
/// the snapshot that a node may have seen already.
const SETTLED: Duration = Duration::from_secs(5);

/// The index key of a data source in this namespace.
pub(crate) fn key(namespace: &str, requested: &DataSource) -> Option<String> {
    match requested {
        DataSource::Snapshot(name) => Some(format!("snapshot/{namespace}/{name}")),
        DataSource::Claim(name) => Some(format!("claim/{namespace}/{name}")),
        DataSource::Nothing | DataSource::Other(_) => None,
    }
}

/// The snapshot or claim that a claim's volume needs as its source, while the claim has no volume.
fn awaited_source(claim: &PersistentVolumeClaim) -> Option<DataSource> {
    if !pvc::is_pending(claim) {
        return None;
    }
    match pvc::data_source(claim) {
        Ok(source @ (DataSource::Snapshot(_) | DataSource::Claim(_))) => Some(source),
        _ => None,
    }
}

/// The index key of the source that a claim waits for.
pub(crate) fn awaited(claim: &PersistentVolumeClaim) -> Vec<String> {
    let namespace = claim.namespace().unwrap_or_default();
    awaited_source(claim)
        .and_then(|source| key(&namespace, &source))
        .into_iter()
        .collect()
}

/// The claims (by namespace and name) that may no longer need a finalizer after a change of this
/// claim: itself and the source of its clone.
fn touched(claim: &PersistentVolumeClaim) -> Vec<Named> {
    let namespace = claim.namespace().unwrap_or_default();
    let mut touched = Vec::new();
    if claim.is_deleting() && claim.has_finalizer(CLONE_FINALIZER) {
        touched.push((namespace.clone(), claim.name_any()));
    }
    if let Ok(DataSource::Claim(source)) = pvc::data_source(claim) {
        touched.push((namespace, source));
    }
    touched
}

/// The snapshot (by namespace and name) that a changed claim no longer waits for.
fn left(change: &Change<PersistentVolumeClaim>) -> Option<Named> {
    let claim = change.object();
    let waits = matches!(change, Change::Applied { .. }) && pvc::is_pending(claim);
    match pvc::data_source(claim) {
        Ok(DataSource::Snapshot(name)) if !waits => {
            Some((claim.namespace().unwrap_or_default(), name))
        }
        _ => None,
    }
}

/// A snapshot (by namespace and name) that may wait for the finalizer alone to be deleted.
fn in_deletion(change: &Change<VolumeSnapshot>) -> Option<Named> {
    match change {
        Change::Applied { new, .. }
            if new.is_deleting() && new.has_finalizer(SNAPSHOT_FINALIZER) =>
        {
            Some((new.namespace().unwrap_or_default(), new.name_any()))
        }
        _ => None,
    }
}

/// True if only the finalizer keeps a deleted claim, and no clone waits for the claim.
fn is_idle(claim: &PersistentVolumeClaim, awaited: bool) -> bool {
    claim.is_deleting() && claim.has_finalizer(CLONE_FINALIZER) && !awaited
}

/// Source protection, which uses caches of all claims and volumes.
pub(super) struct Protection {
    context: Context,
    kube: Kube,
    options: Options,
    /// Claims by the source that they wait for.
    awaited: Index<PersistentVolumeClaim>,
    /// Claims that are the source of a clone.
    clones: Queue<Named>,
    /// Snapshots that are the source of a volume.
    snapshots: Queue<Named>,
}

impl Protection {
    pub(super) fn new(context: Context, options: Options) -> Self {
        Protection {
            kube: context.kube.managed_by("hostloop-provisioner"),
            awaited: context.caches.claims().index(awaited),
            clones: context.queue(),
            snapshots: context.queue(),
            options,
            context,
        }
    }

    fn has_snapshots(&self) -> bool {
        let driver = &self.context.driver;
        driver.can(ControllerCapability::CreateDeleteSnapshot)
    }

    /// Runs until `context.stop`.
    pub(super) async fn run(self: Arc<Self>) {
        let claims = self.context.caches.claims();
        let threads = self.options.cloning_protection_threads;
        let with_snapshots = self.has_snapshots();
        let mut controller = Controller::new(&self.context, self.clone());
        if with_snapshots {
            let snapshots = self.context.caches.snapshots();
            controller = controller.feed_after(SETTLED, &snapshots, &self.snapshots, in_deletion);
        }
        controller
            .after(|this| async move {
                this.context.caches.claims().synced().await;
                this.context.caches.volumes().synced().await;
            })
            .feed(&claims, &self.clones, |change| touched(change.object()))
            .feed_after(SETTLED, &claims, &self.snapshots, move |change| {
                left(change).filter(|_| with_snapshots)
            })
            .work(
                "clone",
                &self.clones,
                threads,
                |this, claim: Named| async move {
                    let (namespace, name) = claim;
                    this.cloned(&namespace, &name).await
                },
            )
            .work(
                "restored",
                &self.snapshots,
                1,
                |this, snapshot| async move { this.restored(&snapshot).await },
            )
            .beside(|this| async move { this.sweeps().await })
            .run()
            .await;
    }

    /// True if the PersistentVolume of a claim exists.
    fn has_volume(&self, claim: &PersistentVolumeClaim) -> bool {
        let name = self.options.naming.volume_of(claim);
        self.context.caches.volumes().get(&name).is_some()
    }

    /// The metadata of a source, if the caches show it.
    fn metadata_of(&self, namespace: &str, requested: &DataSource) -> Option<ObjectMeta> {
        let caches = &self.context.caches;
        match requested {
            DataSource::Snapshot(name) if self.has_snapshots() => caches
                .snapshots()
                .get_in(namespace, name)
                .map(|it| it.metadata.clone()),
            DataSource::Claim(name) => caches
                .claims()
                .get_in(namespace, name)
                .map(|it| it.metadata.clone()),
            _ => None,
        }
    }

    /// True if a claim, other than the one of this UID, waits for a volume from this source.
    pub(super) fn is_awaited(
        &self,
        namespace: &str,
        requested: &DataSource,
        but: Option<&str>,
    ) -> bool {
        let Some(key) = key(namespace, requested) else {
            return false;
        };
        let source = self.metadata_of(namespace, requested);
        // A claim with a PersistentVolume may not be bound to it yet.
        self.awaited
            .each(&key)
            .filter(|claim| {
                // Claims that came after the deletion of their source do not get it.
                (but.is_none() || claim.metadata.uid.as_deref() != but)
                    && source
                        .as_ref()
                        .is_none_or(|it| pvc::precedes_deletion(claim, it))
            })
            .any(|claim| !self.has_volume(&claim))
    }

    /// Reconciles a claim that is a source, by its namespace and name.
    pub(super) async fn cloned(&self, namespace: &str, name: &str) -> Outcome {
        let watch = self.context.caches.claims();
        let source = DataSource::Claim(name.to_owned());
        let Some(claim) = watch.get_in(namespace, name) else {
            return self
                .let_go(&watch, namespace, name, &source, CLONE_FINALIZER)
                .await;
        };
        let awaited = self.is_awaited(namespace, &source, None);
        if !is_idle(&claim, awaited) || !self.context.leader.leads() {
            return Outcome::Done;
        }
        match finalizers::remove(&self.kube, Some(&watch), &*claim, CLONE_FINALIZER).await {
            Ok(_) => Outcome::Done,
            Err(error) => {
                tracing::warn!(
                    claim = name, namespace, %error,
                    "cannot remove the finalizer of a clone's source"
                );
                Outcome::Failed
            }
        }
    }

    /// Reconciles a snapshot that is a source, by its namespace and name.
    async fn restored(&self, (namespace, name): &Named) -> Outcome {
        let watch = self.context.caches.snapshots();
        let Some(snapshot) = watch.get_in(namespace, name) else {
            let source = DataSource::Snapshot(name.clone());
            return self
                .let_go(&watch, namespace, name, &source, SNAPSHOT_FINALIZER)
                .await;
        };
        if !self.is_left_over(&snapshot) || !self.context.leader.leads() {
            return Outcome::Done;
        }
        match finalizers::remove(&self.kube, None, &*snapshot, SNAPSHOT_FINALIZER).await {
            Ok(_) => Outcome::Done,
            Err(error) => {
                tracing::warn!(snapshot = name, namespace, %error, "cannot remove the finalizer");
                Outcome::Failed
            }
        }
    }

    /// Lets a source go that is being deleted and that the caches leave out, unless a claim waits
    /// for it: others may use up the room for it at any time.
    async fn let_go<K: Resource>(
        &self,
        watch: &Store<K>,
        namespace: &str,
        name: &str,
        source: &DataSource,
        finalizer: &str,
    ) -> Outcome {
        if !watch.leaves_out(namespace, name)
            || self.is_awaited(namespace, source, None)
            || !self.context.leader.leads()
        {
            return Outcome::Done;
        }
        match finalizers::let_go::<K>(&self.kube, namespace, name, &[finalizer]).await {
            Ok(_) => Outcome::Done,
            Err(error) => {
                tracing::warn!(source = name, namespace, %error, "cannot remove the finalizer");
                Outcome::Failed
            }
        }
    }

    fn is_left_over(&self, snapshot: &VolumeSnapshot) -> bool {
        let namespace = snapshot.namespace().unwrap_or_default();
        snapshot.has_finalizer(SNAPSHOT_FINALIZER)
            && !self.is_awaited(&namespace, &DataSource::Snapshot(snapshot.name_any()), None)
    }

    /// Checks all sources for leftover finalizers, at once and then periodically, while this
    /// process leads. Claims do not wait for snapshots, which the API server may not serve.
    async fn sweeps(&self) {
        let caches = &self.context.caches;
        let every = self.options.snapshot_orphan_sweep_interval;
        let clones = async {
            while self.leads().await {
                let claims = caches.claims().each();
                self.clones
                    .add_each(claims.flat_map(|claim| touched(&claim)))
                    .await;
                self.clones.add_each(caches.claims().left_out()).await;
                tokio::time::sleep(every).await;
            }
        };
        let snapshots = async {
            if self.has_snapshots() {
                caches.snapshots().synced().await;
                while self.leads().await {
                    self.add_left_over().await;
                    tokio::time::sleep(every).await;
                }
            }
        };
        tokio::join!(clones, snapshots);
    }

    /// Waits until this process leads. False if it is stopping.
    async fn leads(&self) -> bool {
        let mut leader = self.context.leader.clone();
        leader.gained().await;
        leader.leads()
    }

    async fn add_left_over(&self) {
        for (number, snapshot) in self.context.caches.snapshots().each().enumerate() {
            if self.is_left_over(&snapshot) {
                let namespace = snapshot.namespace().unwrap_or_default();
                self.snapshots.add((namespace, snapshot.name_any()));
            }
            yield_sometimes(number).await;
        }
        self.snapshots
            .add_each(self.context.caches.snapshots().left_out())
            .await;
    }
}

#[cfg(test)]
mod tests;
