//! Gathers what decisions depend on from the caches.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use tokio::time::Instant;

use super::decide::Facts;
use super::most_room::Candidate;
use super::room::NodeRoom;
use super::source_location::{self, SourceLocation};
use super::unfit::{Unfit, lacks_driver};
use super::{Candidates, Placement};
use crate::api::capacity::keeper_of;
use crate::api::pvc::{self, DataSource};
use crate::api::{node_fitness, pv};
use crate::csi::pools::pool_of;
use crate::snapshots::VolumeSnapshotContent;
use crate::snapshots::content::Content;

/// How long to wait for the first capacity object of a class.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether nodes publish capacity objects for a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Publication {
    /// At least one node does.
    Yes,
    /// None yet, but nodes have this much time left to do so.
    Soon(Duration),
    /// None, and the time is over.
    No,
}

impl Placement {
    /// Gathers the facts about a claim.
    pub(super) fn gather(&self, claim: &Arc<PersistentVolumeClaim>) -> Facts {
        let facts = self.gather_without_node(claim);
        let volume = facts.volume.as_deref();
        let volume_node = volume.and_then(|volume| self.volume_node(volume));
        Facts {
            volume_node,
            ..facts
        }
    }

    /// Gathers the facts about a claim, except for the node of its volume: of many claims, that
    /// takes long.
    pub(super) fn gather_without_node(&self, claim: &Arc<PersistentVolumeClaim>) -> Facts {
        Facts {
            claim: claim.clone(),
            class: self.class(claim),
            volume: self.volume(claim),
            volume_node: None,
        }
    }

    /// A claim's volume: the one it is bound to, or the one made for it.
    fn volume(&self, claim: &PersistentVolumeClaim) -> Option<Arc<PersistentVolume>> {
        match pvc::volume_name(claim) {
            Some(name) => self.context.caches.volumes().get(name),
            None => self.volumes.get(&claim.uid()?).pop(),
        }
    }

    /// A claim's StorageClass, if the cache has it.
    fn class(&self, claim: &PersistentVolumeClaim) -> Option<Arc<StorageClass>> {
        self.context.caches.classes().get(pvc::class_name(claim)?)
    }

    /// Locates a volume by its node affinity and its handle.
    fn volume_location(&self, volume: &PersistentVolume) -> SourceLocation {
        let handle = pv::handle(volume, &self.context.driver.name);
        let by_handle = handle.and_then(|handle| self.pool_node(handle));
        source_location::of_volume_in(volume, by_handle, &self.context.caches.nodes().all())
    }

    /// The node of a volume, if it is on exactly one.
    pub(super) fn volume_node(&self, volume: &PersistentVolume) -> Option<String> {
        self.volume_location(volume).node().map(str::to_owned)
    }

    /// Locates the source of a claim.
    pub(super) fn source(
        &self,
        claim: &PersistentVolumeClaim,
        requested: &DataSource,
    ) -> SourceLocation {
        let namespace = claim.namespace().unwrap_or_default();
        let caches = &self.context.caches;
        match requested {
            DataSource::Nothing | DataSource::Other(_) => SourceLocation::Anywhere,
            DataSource::Claim(name) => {
                let source = caches.claims().get_in(&namespace, name);
                let bound = source.as_deref().and_then(pvc::volume_name);
                let volume = bound.and_then(|bound| caches.volumes().get(bound));
                let (source, volume) = (source.as_deref(), volume.as_deref());
                match source_location::volume_of(name, source, volume, &self.context.driver.name) {
                    Ok(volume) => self.volume_location(volume),
                    Err(location) => location,
                }
            }
            DataSource::Snapshot(_)
                if !(caches.snapshots().is_synced() && caches.contents().is_synced()) =>
            {
                SourceLocation::Unknown("snapshots have not been listed yet".to_owned())
            }
            DataSource::Snapshot(name) => {
                let snapshot = caches.snapshots().get_in(&namespace, name);
                let bound = match source_location::content_of(name, snapshot.as_deref()) {
                    Ok(bound) => bound,
                    Err(location) => return location,
                };
                match caches.contents().get(&bound) {
                    None => SourceLocation::Unknown(format!(
                        "VolumeSnapshotContent {bound} of VolumeSnapshot {name} does not exist"
                    )),
                    // The node that is to make the volume reports that it can't.
                    Some(content) if content.spec.driver != self.context.driver.name => {
                        SourceLocation::Anywhere
                    }
                    Some(content) => self.content_location(&content),
                }
            }
        }
    }

    /// Locates the snapshot of a VolumeSnapshotContent.
    pub(super) fn content_location(&self, content: &VolumeSnapshotContent) -> SourceLocation {
        let handle = content.view().snapshot();
        let by_handle = handle.and_then(|handle| self.pool_node(handle));
        let nodes = self.context.caches.nodes().all();
        source_location::of_content(
            content,
            || match &content.spec.source.volume_handle {
                Some(handle) => {
                    let namespace = content.spec.volume_snapshot_ref.namespace.as_deref();
                    self.bound_location(handle, namespace)
                }
                None => unlocated(handle.unwrap_or_default()),
            },
            by_handle,
            &nodes,
        )
    }

    /// Locates the volume with this handle that is bound in this namespace. A volume bound in
    /// another namespace may have the same handle, but users of this namespace must not snapshot
    /// it.
    pub(super) fn bound_location(&self, handle: &str, namespace: Option<&str>) -> SourceLocation {
        let context = &self.context;
        let volumes = context.caches.volumes_of(&context.driver.name, handle);
        let bound = volumes.iter().filter(|volume| {
            let claim = pv::claim(volume);
            namespace.is_some() && claim.and_then(|claim| claim.namespace.as_deref()) == namespace
        });
        let mut found: Vec<_> = bound
            .map(|volume| (self.volume_location(volume), volume))
            .collect();
        if found.len() > 1 {
            // A stolen node can make a volume for itself with the handle of another's.
            found.retain(|(location, volume)| {
                !matches!(location, SourceLocation::Unknown(_)) || self.is_used(volume)
            });
        }
        source_location::of_all(handle, found.into_iter().map(|(location, _)| location))
    }

    /// True if the claim that a volume names is bound to it.
    fn is_used(&self, volume: &PersistentVolume) -> bool {
        let Some(claim) = pv::claim(volume) else {
            return false;
        };
        let namespace = claim.namespace.as_deref().unwrap_or_default();
        let name = claim.name.as_deref().unwrap_or_default();
        let claim = self.context.caches.claims().get_in(namespace, name);
        claim.as_deref().and_then(pvc::volume_name) == volume.metadata.name.as_deref()
    }

    /// Locates the snapshot with this handle.
    pub(super) fn snapshot_location(&self, handle: &str) -> SourceLocation {
        match self.pool_node(handle) {
            Some(node) => SourceLocation::Node(node),
            None => unlocated(handle),
        }
    }

    /// The node that has the pool named in a handle, if exactly one has it.
    pub(super) fn pool_node(&self, handle: &str) -> Option<String> {
        let objects = self.capacities.as_ref()?.of_pool(pool_of(handle)?);
        let nodes = objects
            .into_iter()
            .filter_map(|object| self.keepers.get(keeper_of(&object)?).pop())
            .map(|node| node.name_any());
        let mut nodes: BTreeSet<String> = nodes.collect();
        match nodes.len() {
            1 => nodes.pop_first(),
            _ => None,
        }
    }

    /// The room in a node's capacity object for a class.
    pub(super) fn room(&self, node: &str, class: &str) -> Option<NodeRoom> {
        self.capacities.as_ref()?.room(node, class)
    }

    /// Whether nodes publish room for a class. For a new class, they do so shortly.
    pub(super) fn publication(&self, class: &str, now: Instant) -> Publication {
        let Some(capacities) = &self.capacities else {
            return Publication::No;
        };
        let mut unpublished = self.unpublished.lock();
        if capacities.has_class(class) {
            unpublished.remove(class);
            return Publication::Yes;
        }
        let since = *unpublished.entry(class.to_owned()).or_insert(now);
        let left = PATIENCE.saturating_sub(now.saturating_duration_since(since));
        if left.is_zero() {
            Publication::No
        } else {
            Publication::Soon(left)
        }
    }

    /// Why a node can't take claims of a class, whatever their size.
    fn unfit(&self, node: &Node, class: &StorageClass) -> Option<Unfit> {
        self.lacks_driver(node)
            .or_else(|| node_fitness::unfit(node, class).map(Unfit::from))
    }

    /// Why a node can't take a copy of a volume or snapshot that it has.
    pub(super) fn unfit_for_copy(&self, node: &str, class: &StorageClass) -> Option<Unfit> {
        let node = self.context.caches.nodes().get(node)?;
        self.lacks_driver(&node)
            .or_else(|| node_fitness::unfit_for_copy(&node, class).map(Unfit::from))
    }

    fn lacks_driver(&self, node: &Node) -> Option<Unfit> {
        let registered = self.context.caches.csi_nodes().get(&node.name_any());
        let driver = &self.context.driver.name;
        lacks_driver(registered.as_deref(), driver).then_some(Unfit::NoDriver)
    }

    /// True if no process makes volumes of a class on a node, and none did: the driver is not
    /// registered there, which may be for a moment, and the node has never published its room. The
    /// scheduler selects no such node.
    pub(super) fn is_deserted(&self, node: &str, class: &StorageClass) -> bool {
        let there = self.context.caches.nodes().get(node);
        there.is_some_and(|there| self.lacks_driver(&there).is_some())
            && self.publication(&class.name_any(), Instant::now()) == Publication::Yes
            && self.room(node, &class.name_any()).is_none()
    }

    /// All nodes, with their fitness and room for claims of a class. Collected again after a
    /// change.
    pub(super) fn candidates(&self, class: &StorageClass) -> Arc<[Candidate]> {
        // Read this first: changes made while collecting must outdate the result.
        let at = self.changes.load(Ordering::SeqCst);
        let name = class.name_any();
        if let Some(known) = self.candidates.lock().get(&name)
            && known.at == at
        {
            return known.nodes.clone();
        }
        let there = self.context.caches.nodes().all();
        let nodes: Arc<[Candidate]> = there
            .iter()
            .map(|node| Candidate {
                unfit: self.unfit(node, class),
                room: self.room(&node.name_any(), &name),
                node: node.name_any(),
            })
            .collect();
        let mut known = self.candidates.lock();
        known.retain(|_, known| known.at == at);
        let found = Candidates {
            at,
            nodes: nodes.clone(),
        };
        known.insert(name, found);
        nodes
    }
}
/// The location of a snapshot if no node, or more than one, has its pool.
fn unlocated(handle: &str) -> SourceLocation {
    SourceLocation::Unknown(format!(
        "no node, or more than one, is known to have the pool of snapshot handle {handle:?}; check \
         the handle, and that the node with its pool runs"
    ))
}
