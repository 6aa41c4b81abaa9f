//! What a claim's volume depends on besides its class: a source, a place, attributes.

use std::sync::Arc;

use hostloop_proto::csi::{TopologyRequirement, VolumeContentSource};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttributesClass};
use kube::ResourceExt;

use crate::runtime::{ApiError, Kube, Resource, Scope, Watch};
use crate::snapshots::{VolumeSnapshot, VolumeSnapshotContent};

use super::Provisioner;
use super::decide::Draft;
use super::error::Problem;
use super::finalizers;
use super::source::{self, Asked, SourceProblem, Target};
use crate::api::names::{CLONE_FINALIZER, SNAPSHOT_FINALIZER};
use crate::api::pvc;
use crate::api::topology::{self, Ask, Place};

/// A source that must not go while it is read.
pub(super) enum Guarded {
    Nothing,
    Snapshot(Box<VolumeSnapshot>),
    Claim(Arc<PersistentVolumeClaim>),
}

/// An object as it was seen, or else as the server has it.
async fn look_up<K: Resource>(
    kube: &Kube,
    watch: &Watch<K>,
    namespace: &str,
    name: &str,
) -> Result<Option<Arc<K>>, ApiError> {
    match watch.get_in(namespace, name) {
        Some(seen) => Ok(Some(seen)),
        None => Ok(kube.get::<K>(namespace, name).await?.map(Arc::new)),
    }
}

impl Provisioner {
    /// The source of a claim's volume.
    pub(super) async fn source(
        &self,
        draft: &Draft,
    ) -> Result<(Option<VolumeContentSource>, Guarded), Problem> {
        let target = Target {
            claim: &draft.claim,
            size: draft.size,
            driver: &self.context.driver.name,
            scope: &self.context.scope,
            pools: &self.context.pools,
        };
        let namespace = draft.claim.namespace().unwrap_or_default();
        match &draft.asked {
            Asked::Nothing | Asked::Other(_) => Ok((None, Guarded::Nothing)),
            Asked::Snapshot(name) => {
                let (snapshot, source) = self.snapshot(target, &namespace, name).await?;
                Ok((Some(source), Guarded::Snapshot(Box::new(snapshot))))
            }
            Asked::Claim(name) => {
                let caches = &self.context.caches;
                let of = look_up(&self.kube, &caches.claims(), &namespace, name).await?;
                let bound = of.as_deref().and_then(pvc::volume_name);
                let volume = match bound {
                    None => None,
                    Some(bound) => look_up(&self.kube, &caches.volumes(), "", bound).await?,
                };
                let source = source::from_claim(target, name, of.as_deref(), volume.as_deref())?;
                let guarded = of.map_or(Guarded::Nothing, Guarded::Claim);
                Ok((Some(source), guarded))
            }
        }
    }

    /// Snapshots are read as they are now: that one is ready may have been seen by nobody else.
    async fn snapshot(
        &self,
        target: Target<'_>,
        namespace: &str,
        name: &str,
    ) -> Result<(VolumeSnapshot, VolumeContentSource), Problem> {
        let snapshot = self.kube.get::<VolumeSnapshot>(namespace, name).await?;
        let status = snapshot.as_ref().and_then(|one| one.status.as_ref());
        let bound = status.and_then(|status| status.bound_volume_snapshot_content_name.clone());
        let content = match bound.filter(|bound| !bound.is_empty()) {
            None => None,
            Some(bound) => self.kube.get::<VolumeSnapshotContent>("", &bound).await?,
        };
        let prevent = self.options.prevent_volume_mode_conversion;
        let source =
            source::from_snapshot(target, name, snapshot.as_ref(), content.as_ref(), prevent)?;
        let missing = || SourceProblem::Missing {
            what: format!("VolumeSnapshot {namespace}/{name}"),
        };
        Ok((snapshot.ok_or_else(missing)?, source))
    }

    /// Keeps a source until the volume is made.
    pub(super) async fn guard(&self, guarded: Guarded) -> Result<(), ApiError> {
        match guarded {
            Guarded::Nothing => Ok(()),
            Guarded::Snapshot(snapshot) => {
                finalizers::add(&self.kube, None, &*snapshot, SNAPSHOT_FINALIZER).await
            }
            Guarded::Claim(claim) => {
                let watch = self.context.caches.claims();
                finalizers::add(&self.kube, Some(&watch), &*claim, CLONE_FINALIZER).await
            }
        }
    }

    /// Lets a snapshot go that nothing more is made from. What fails here, the sweep does later.
    ///
    /// A node does not: it sees its own claims only, and another's may wait for the same snapshot.
    /// The leader sees them all, and is told by this one's claim that it does not wait any more.
    pub(super) async fn release(&self, draft: &Draft) {
        let Some(protection) = &self.protection else {
            return;
        };
        let Asked::Snapshot(name) = &draft.asked else {
            return;
        };
        let namespace = draft.claim.namespace().unwrap_or_default();
        if protection.is_awaited(&namespace, &draft.asked, draft.claim.uid().as_deref()) {
            return;
        }
        let released = async {
            match self.kube.get::<VolumeSnapshot>(&namespace, name).await? {
                None => Ok(()),
                Some(snapshot) => {
                    finalizers::remove(&self.kube, None, &snapshot, SNAPSHOT_FINALIZER).await
                }
            }
        };
        if let Err(error) = released.await {
            tracing::info!(snapshot = %name, namespace, %error, "not released yet");
        }
    }

    /// Where a claim's volume may be.
    pub(super) async fn topology(
        &self,
        draft: &Draft,
    ) -> Result<Option<TopologyRequirement>, Problem> {
        if !self.context.driver.has_topology() {
            return Ok(None);
        }
        let uid = draft.claim.metadata.uid.as_deref().unwrap_or_default();
        let selected = pvc::selected_node(&draft.claim);
        // A node's own process makes volumes there and nowhere else.
        let selected = self.context.scope.node().or(selected);
        let before = self.kept.places(uid);
        let before = before.filter(|seen| seen.is_of(selected));
        let places = self.places(selected.filter(|_| before.is_none())).await?;
        let ask = Ask {
            claim: &draft.claim.name_any(),
            allowed: draft
                .class
                .allowed_topologies
                .as_deref()
                .unwrap_or_default(),
            selected,
            strict: self.options.strict_topology || self.context.scope.node().is_some(),
            immediate: self.options.immediate_topology,
            places: &places,
        };
        let (requirement, seen) = topology::requirement(ask, before.as_ref())?;
        self.kept.keep_places(uid, seen);
        Ok(requirement)
    }

    /// The nodes, as far as they are this process's business; `selected` for sure, if it exists.
    async fn places(&self, selected: Option<&str>) -> Result<Vec<Place>, ApiError> {
        if let Scope::Node { name, segments } = &self.context.scope {
            return Ok(vec![Place {
                node: name.clone(),
                labels: segments.clone(),
                is_registered: true,
                keys: segments.keys().cloned().collect(),
            }]);
        }
        let (nodes, drivers) = (self.context.caches.nodes(), self.context.caches.csi_nodes());
        let mut places: Vec<_> = nodes
            .all()
            .iter()
            .map(|node| self.place(node, drivers.get(&node.name_any()).as_deref()))
            .collect();
        // A node may be newer than what was seen.
        let Some(name) = selected else {
            return Ok(places);
        };
        let known = |place: &Place| place.node == name && !place.keys.is_empty();
        if !places.iter().any(known) {
            let node = self.kube.get::<Node>("", name).await?;
            let registered = self.kube.get::<CSINode>("", name).await?;
            places.retain(|place| place.node != name);
            places.extend(node.map(|node| self.place(&node, registered.as_ref())));
        }
        Ok(places)
    }

    fn place(&self, node: &Node, registered: Option<&CSINode>) -> Place {
        let drivers = registered.map(|node| node.spec.drivers.as_slice());
        let driver = drivers
            .unwrap_or_default()
            .iter()
            .find(|driver| driver.name == self.context.driver.name);
        let keys = driver.and_then(|driver| driver.topology_keys.clone());
        Place {
            node: node.name_any(),
            labels: node.labels().clone(),
            is_registered: registered.is_some(),
            keys: keys.unwrap_or_default().into_iter().collect(),
        }
    }

    /// The attributes class a claim names.
    pub(super) async fn attributes(
        &self,
        claim: &PersistentVolumeClaim,
    ) -> Result<Option<Arc<VolumeAttributesClass>>, ApiError> {
        match pvc::attributes_class(claim) {
            None => Ok(None),
            Some(name) => {
                let watch = self.context.caches.attributes_classes();
                look_up(&self.kube, &watch, "", name).await
            }
        }
    }
}
