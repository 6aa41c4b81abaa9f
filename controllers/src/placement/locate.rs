//! Where volumes and snapshots are, by affinities, labels and the pools in handles.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::placement_context::PlacementContext;
use super::source_location::{self, SourceLocation};
use crate::api::capacity::keeper_of;
use crate::api::pv;
use crate::api::pvc::{self, DataSource};
use crate::csi::pools::pool_of;
use crate::snapshots::VolumeSnapshotContent;
use crate::snapshots::content::Content;

impl PlacementContext {
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
    fn pool_node(&self, handle: &str) -> Option<String> {
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
}

/// The location of a snapshot if no node, or more than one, has its pool.
fn unlocated(handle: &str) -> SourceLocation {
    SourceLocation::Unknown(format!(
        "no node, or more than one, is known to have the pool of snapshot handle {handle:?}; check \
         the handle, and that the node with its pool runs"
    ))
}
