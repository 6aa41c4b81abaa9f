//! Letting sources go when nothing is made from them any more: work that has to see all claims,
//! and so is done by one process for the cluster.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use crate::runtime::queue::Outcome;
use crate::snapshots::VolumeSnapshot;

use super::Provisioner;
use super::finalizers;
use super::names::{CLONE_FINALIZER, SNAPSHOT_FINALIZER};
use super::source::{self, Asked};

/// A key of what claims wait for, of those in this namespace.
pub(crate) fn key(namespace: &str, asked: &Asked) -> Option<String> {
    match asked {
        Asked::Snapshot(name) => Some(format!("snapshot/{namespace}/{name}")),
        Asked::Claim(name) => Some(format!("claim/{namespace}/{name}")),
        Asked::Nothing | Asked::Other(_) => None,
    }
}

/// The key of what a claim waits for, if it does.
pub(crate) fn awaited(claim: &PersistentVolumeClaim) -> Vec<String> {
    let namespace = claim.namespace().unwrap_or_default();
    let asked = source::waits_for(claim);
    asked
        .and_then(|asked| key(&namespace, &asked))
        .into_iter()
        .collect()
}

/// The claims (by namespace and name) whose protection may end with a change of this claim: itself,
/// and what it was cloned from.
pub(super) fn touched(claim: &PersistentVolumeClaim) -> Vec<(String, String)> {
    let namespace = claim.namespace().unwrap_or_default();
    let mut touched = Vec::new();
    if claim.metadata.deletion_timestamp.is_some() && finalizers::has(claim, CLONE_FINALIZER) {
        touched.push((namespace.clone(), claim.name_any()));
    }
    if let Ok(Asked::Claim(source)) = source::asked(claim) {
        touched.push((namespace, source));
    }
    touched
}

/// Whether a claim is kept for nobody any more.
fn is_idle(claim: &PersistentVolumeClaim, awaited: bool) -> bool {
    claim.metadata.deletion_timestamp.is_some()
        && finalizers::has(claim, CLONE_FINALIZER)
        && !awaited
}

impl Provisioner {
    /// Whether a claim, other than the one of this UID, waits for a volume from this source.
    pub(super) fn is_awaited(&self, namespace: &str, asked: &Asked, but: Option<&str>) -> bool {
        let Some(key) = key(namespace, asked) else {
            return false;
        };
        let others = |claim: &&Arc<PersistentVolumeClaim>| {
            but.is_none() || claim.metadata.uid.as_deref() != but
        };
        let waiting = self.awaited.get(&key);
        // One that has its volume may not be bound to it yet.
        waiting
            .iter()
            .filter(others)
            .any(|claim| !self.has_volume(claim))
    }

    /// Works on a claim that is a source, by its namespace and name.
    pub(super) async fn cloned(&self, namespace: &str, name: &str) -> Outcome {
        let watch = self.context.caches.claims();
        let Some(claim) = watch.get_in(namespace, name) else {
            return Outcome::Done;
        };
        let awaited = self.is_awaited(namespace, &Asked::Claim(name.to_owned()), None);
        if !is_idle(&claim, awaited) || !self.context.leader.leads() {
            return Outcome::Done;
        }
        match finalizers::remove(&self.kube, Some(&watch), &*claim, CLONE_FINALIZER).await {
            Ok(()) => Outcome::Done,
            Err(error) => {
                tracing::warn!(claim = name, namespace, %error, "the source of a clone is kept");
                Outcome::Failed
            }
        }
    }

    /// Lets snapshots go that nobody waits for: whoever was to do so may have died.
    pub(super) async fn sweep(&self) {
        for snapshot in self.context.caches.snapshots().all() {
            if !self.is_left_over(&snapshot) {
                continue;
            }
            if !self.context.leader.leads() {
                return;
            }
            let removed =
                finalizers::remove(&self.kube, None, &*snapshot, SNAPSHOT_FINALIZER).await;
            if let Err(error) = removed {
                let (name, namespace) = (snapshot.name_any(), snapshot.namespace());
                tracing::warn!(snapshot = %name, namespace, %error, "a snapshot is kept");
            }
        }
    }

    fn is_left_over(&self, snapshot: &VolumeSnapshot) -> bool {
        let namespace = snapshot.namespace().unwrap_or_default();
        finalizers::has(snapshot, SNAPSHOT_FINALIZER)
            && !self.is_awaited(&namespace, &Asked::Snapshot(snapshot.name_any()), None)
    }

    /// Sweeps, at once and every so often, while this process leads.
    pub(super) async fn sweeps(&self) {
        let mut leader = self.context.leader.clone();
        // Waited for only here: volumes are made without having seen all snapshots.
        self.context.caches.snapshots().synced().await;
        loop {
            leader.gained().await;
            if !leader.leads() {
                // Nobody will ever say that it does.
                return;
            }
            self.sweep().await;
            tokio::time::sleep(self.options.snapshot_orphan_sweep_interval).await;
        }
    }
}

#[cfg(test)]
mod tests;
