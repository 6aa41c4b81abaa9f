//! The watched kinds, and their indexes, which find the objects of a decision.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::group::{self, ClaimsByLabel};
use super::names::{self, BindState};
use crate::api::constants::{SNAPSHOT_FINALIZER, SNAPSHOT_GROUP};
use crate::api::{pv, pvc};
use crate::cache::{Caches, Index, Store};
use crate::client::Resource;
use crate::snapshots::{
    VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotClass, VolumeSnapshotContent,
};

/// The watched kinds, and their indexes.
#[derive(Clone)]
pub(super) struct Watches {
    pub(super) caches: Arc<Caches>,
    pub(super) snapshots: Store<VolumeSnapshot>,
    pub(super) contents: Store<VolumeSnapshotContent>,
    pub(super) classes: Store<VolumeSnapshotClass>,
    pub(super) groups: Store<VolumeGroupSnapshot>,
    pub(super) group_contents: Store<VolumeGroupSnapshotContent>,
    pub(super) group_classes: Store<VolumeGroupSnapshotClass>,
    pub(super) claims: Store<PersistentVolumeClaim>,
    pub(super) volumes: Store<PersistentVolume>,
    /// Nodes, if contents are labelled with their node.
    pub(super) nodes: Option<Store<Node>>,
    /// Claims that are being restored, by their source snapshot.
    restoring: Index<PersistentVolumeClaim>,
    /// Claims with the snapshot source finalizer, all under one key.
    protected: Index<PersistentVolumeClaim>,
    /// Snapshots that are not ready, by their source claim.
    pub(super) unready_of_claim: Index<VolumeSnapshot>,
    /// Snapshots by the group in their owner references or status.
    pub(super) of_group: Index<VolumeSnapshot>,
    /// Groups that are not ready, by the labels of the claims that they wait for.
    pub(super) unready_of_label: Index<VolumeGroupSnapshot>,
    /// The labels of claims, for groups.
    pub(super) claims_by_label: ClaimsByLabel,
    /// Group contents by driver and the CSI group snapshot's ID.
    pub(super) by_group_handle: Index<VolumeGroupSnapshotContent>,
}

/// The key of an index: a namespace and a name, or a driver and an ID.
pub(super) fn at(one: &str, other: &str) -> String {
    format!("{one}/{other}")
}

impl Watches {
    pub(super) fn new(caches: Arc<Caches>, with_nodes: bool) -> Self {
        let (snapshots, claims) = (caches.snapshots(), caches.claims());
        let (groups, group_contents) = (caches.groups(), caches.group_contents());
        Watches {
            restoring: claims.index(restored_from),
            protected: claims.index(protection),
            unready_of_claim: snapshots.index(claim_of_unready),
            of_group: snapshots.index(groups_of),
            unready_of_label: groups.index(group::awaited_labels),
            claims_by_label: ClaimsByLabel::new(claims.clone()),
            by_group_handle: group_contents.index(group_handle),
            snapshots,
            contents: caches.contents(),
            classes: caches.snapshot_classes(),
            groups,
            group_contents,
            group_classes: caches.group_classes(),
            claims,
            volumes: caches.volumes(),
            nodes: with_nodes.then(|| caches.nodes()),
            caches,
        }
    }

    /// Waits until all kinds that single snapshots depend on have been listed once.
    pub(super) async fn synced(&self) {
        self.snapshots.synced().await;
        self.contents.synced().await;
        self.classes.synced().await;
        self.claims.synced().await;
        self.volumes.synced().await;
        if let Some(nodes) = &self.nodes {
            nodes.synced().await;
        }
    }

    /// True if all kinds that groups depend on have been listed once.
    pub(super) fn has_groups(&self) -> bool {
        self.groups.is_synced() && self.group_contents.is_synced() && self.group_classes.is_synced()
    }

    /// Claims with the snapshot source finalizer.
    pub(super) fn protected(&self) -> impl Iterator<Item = Arc<PersistentVolumeClaim>> + use<> {
        self.protected.each(PROTECTED)
    }

    /// A claim's finalizers without the source finalizer. `None` if it has none, or if another
    /// snapshot needs it.
    pub(super) fn released(
        &self,
        claim: &PersistentVolumeClaim,
        but: Option<&VolumeSnapshot>,
    ) -> Option<Vec<String>> {
        let finalizers = names::without(claim, &[names::CLAIM_AS_SOURCE])?;
        self.keepers(claim, but)
            .next()
            .is_none()
            .then_some(finalizers)
    }

    /// True if a claim may be restored from the snapshot of this name, of which nothing else is
    /// known.
    pub(super) fn may_be_restored(&self, namespace: &str, name: &str) -> bool {
        let snapshot = format!("{namespace}/{name}");
        self.restoring.each(&snapshot).next().is_some()
    }

    /// True if a snapshot of the claim of this name may not be taken yet. Nothing else is known of
    /// the claim.
    pub(super) fn may_be_read(&self, namespace: &str, name: &str) -> bool {
        let claim = format!("{namespace}/{name}");
        let mut snapshots = self.unready_of_claim.each(&claim);
        snapshots.any(|snapshot| !is_settled(&snapshot))
    }

    /// The claims that keep a snapshot, because they are, or may yet be, restored from it. Only a
    /// ready snapshot can be a source, and a deleted one only for earlier claims. The finalizer
    /// says that a provisioner reads the snapshot now. There may be thousands.
    pub(super) fn restoring_from(
        &self,
        snapshot: &VolumeSnapshot,
    ) -> impl Iterator<Item = Arc<PersistentVolumeClaim>> {
        let is_ready = is_ready(snapshot);
        let is_read = snapshot.has_finalizer(SNAPSHOT_FINALIZER);
        self.restoring
            .each(&names::path(snapshot))
            .filter(move |claim| {
                is_read || is_ready && pvc::precedes_deletion(claim, &snapshot.metadata)
            })
    }

    /// The content that a snapshot has, if the cache shows it.
    fn content_of(&self, snapshot: &VolumeSnapshot) -> Option<Arc<VolumeSnapshotContent>> {
        let name = names::expected_content(snapshot)?;
        self.contents.get(&name).filter(|content| {
            names::bind_state(&content.spec.volume_snapshot_ref, snapshot) != BindState::Other
        })
    }

    /// The names of the snapshots that keep a claim, but for one.
    pub(super) fn keeping(
        &self,
        claim: &PersistentVolumeClaim,
        but: Option<&VolumeSnapshot>,
    ) -> Vec<String> {
        self.keepers(claim, but)
            .map(|snapshot| snapshot.name_any())
            .collect()
    }

    /// The snapshots that keep a claim, but for one. A claim may have thousands of snapshots, and each
    /// of them asks, so only those that are not taken yet are looked up.
    fn keepers(
        &self,
        claim: &PersistentVolumeClaim,
        but: Option<&VolumeSnapshot>,
    ) -> impl Iterator<Item = Arc<VolumeSnapshot>> {
        let volume = self.volume_of(claim);
        let handle = volume
            .as_deref()
            .and_then(pv::csi)
            .map(|csi| csi.volume_handle.clone());
        let but = but.and_then(|but| but.uid());
        let snapshots = self.unready_of_claim.each(&names::path(claim));
        snapshots
            .filter(move |one| but.is_none() || one.uid() != but)
            .filter(|one| !is_settled(one))
            .filter(move |one| needs_claim(one, self.content_of(one).as_deref(), handle.as_deref()))
    }

    /// The volume that a claim names, if it exists.
    pub(super) fn volume_of(&self, claim: &PersistentVolumeClaim) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(pvc::volume_name(claim)?)
    }
}

/// True if the snapshot may still be taken of the volume with this handle, so its claim must stay.
/// Without a content, the snapshotter takes nothing. Then a snapshot with an error is broken: it
/// lacks a class, for example. If it is repaired, it asks for its claim again. A content of another
/// volume was made for an earlier claim of the same name.
pub(super) fn needs_claim(
    snapshot: &VolumeSnapshot,
    content: Option<&VolumeSnapshotContent>,
    volume: Option<&str>,
) -> bool {
    let may_be_taken = match content {
        None => snapshot
            .status
            .as_ref()
            .is_none_or(|status| status.error.is_none()),
        Some(content) => {
            let taken_of = content.spec.source.volume_handle.as_deref();
            taken_of.is_none_or(|handle| volume.is_none_or(|volume| volume == handle))
        }
    };
    !is_settled(snapshot) && may_be_taken
}

fn is_ready(snapshot: &VolumeSnapshot) -> bool {
    let status = snapshot.status.as_ref();
    status.is_some_and(|status| status.ready_to_use == Some(true))
}

/// True if the snapshot was taken, or was deleted before that.
fn is_settled(snapshot: &VolumeSnapshot) -> bool {
    is_ready(snapshot)
        || snapshot.is_deleting() && !snapshot.has_finalizer(names::SNAPSHOT_AS_SOURCE)
}

/// The only key of [`Watches::protected`].
const PROTECTED: &str = "";

fn protection(claim: &PersistentVolumeClaim) -> Vec<String> {
    let is_protected = claim.has_finalizer(names::CLAIM_AS_SOURCE);
    is_protected
        .then(|| PROTECTED.to_owned())
        .into_iter()
        .collect()
}

fn is_snapshot(group: Option<&String>, kind: &str) -> bool {
    kind == "VolumeSnapshot" && group.is_some_and(|group| group == SNAPSHOT_GROUP)
}

/// The snapshots that a claim is being restored from.
fn restored_from(claim: &PersistentVolumeClaim) -> Vec<String> {
    let Some(spec) = claim
        .spec
        .as_ref()
        .filter(|_| pvc::phase(claim) == Some("Pending"))
    else {
        return Vec::new();
    };
    let own = claim.namespace().unwrap_or_default();
    let mut snapshots = Vec::new();
    if let Some(source) = &spec.data_source
        && is_snapshot(source.api_group.as_ref(), &source.kind)
    {
        snapshots.push(at(&own, &source.name));
    }
    if let Some(source) = &spec.data_source_ref
        && is_snapshot(source.api_group.as_ref(), &source.kind)
        && is_within(source.namespace.as_deref(), &own)
    {
        snapshots.push(at(&own, &source.name));
    }
    snapshots.dedup();
    snapshots
}

/// The snapshots that this claim may protect from deletion.
pub(super) fn sources(claim: &PersistentVolumeClaim) -> Vec<(String, String)> {
    let spec = claim.spec.clone().unwrap_or_default();
    let own = claim.namespace().unwrap_or_default();
    let plain = spec
        .data_source
        .into_iter()
        .map(|it| (own.clone(), it.name));
    let other = spec.data_source_ref.into_iter();
    let other = other
        .filter(|it| is_within(it.namespace.as_deref(), &own))
        .map(|it| (own.clone(), it.name));
    let mut all: Vec<_> = plain.chain(other).collect();
    all.dedup();
    all
}

/// True if a source is in the claim's own namespace. A source in another namespace is never used,
/// so such a claim must not block the snapshot's deletion.
fn is_within(source: Option<&str>, own: &str) -> bool {
    source.is_none_or(|namespace| namespace == own)
}

fn claim_of_unready(snapshot: &VolumeSnapshot) -> Vec<String> {
    if is_ready(snapshot) {
        return Vec::new();
    }
    let namespace = snapshot.namespace().unwrap_or_default();
    let claim = &snapshot.spec.source.persistent_volume_claim_name;
    claim.iter().map(|claim| at(&namespace, claim)).collect()
}

/// The groups that a snapshot belongs to.
pub(super) fn groups_of(snapshot: &VolumeSnapshot) -> Vec<String> {
    let namespace = snapshot.namespace().unwrap_or_default();
    let owner = names::owning_group(snapshot).map(|owner| owner.name.clone());
    let status = snapshot.status.as_ref();
    let named = status.and_then(|status| status.volume_group_snapshot_name.clone());
    let mut groups: Vec<String> = owner.into_iter().chain(named).collect();
    groups.dedup();
    groups.iter().map(|group| at(&namespace, group)).collect()
}

fn group_handle(content: &VolumeGroupSnapshotContent) -> Vec<String> {
    let status = content.status.as_ref();
    let handle = status.and_then(|status| status.volume_group_snapshot_handle.as_ref());
    handle
        .iter()
        .map(|handle| at(&content.spec.driver, handle))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[tokio::test]
    async fn single_snapshots_do_not_wait_for_groups() {
        let caches = Arc::new(Caches::unwatched());
        let watches = Watches::new(caches.clone(), false);
        caches.snapshots().note_synced();
        caches.contents().note_synced();
        caches.snapshot_classes().note_synced();
        caches.claims().note_synced();
        caches.volumes().note_synced();
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), watches.synced());
        waited.await.expect("all that single snapshots depend on");
        assert!(!watches.has_groups());
        caches.groups().note_synced();
        caches.group_contents().note_synced();
        caches.group_classes().note_synced();
        assert!(watches.has_groups());
    }

    #[test]
    fn snapshots_that_wait_for_a_claim() {
        let source = |namespace: Value| {
            json!({"apiGroup": SNAPSHOT_GROUP, "kind": "VolumeSnapshot", "name": "snap",
                "namespace": namespace})
        };
        let plain = source(Value::Null);
        let claim = json!({"kind": "PersistentVolumeClaim", "name": "snap"});
        for (spec, phase, expected) in [
            (json!({"dataSource": plain}), "Pending", &["team/snap"][..]),
            (json!({"dataSource": plain}), "Bound", &[]),
            (json!({"dataSourceRef": plain}), "Pending", &["team/snap"]),
            (
                json!({"dataSource": plain, "dataSourceRef": plain}),
                "Pending",
                &["team/snap"],
            ),
            (
                json!({"dataSourceRef": source(json!("team"))}),
                "Pending",
                &["team/snap"],
            ),
            // Otherwise, any user could block the deletion of snapshots in other namespaces.
            (
                json!({"dataSourceRef": source(json!("other"))}),
                "Pending",
                &[],
            ),
            (json!({"dataSource": claim}), "Pending", &[]),
        ] {
            let label = spec.to_string();
            let claim = json!({"metadata": {"name": "copy", "namespace": "team"}, "spec": spec,
                "status": {"phase": phase}});
            let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
            assert_eq!(restored_from(&claim), expected, "{label}");
            if label.contains("other") {
                assert_eq!(sources(&claim), [], "{label}");
            }
        }
    }
}
