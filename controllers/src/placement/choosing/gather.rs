//! Gathers what decisions depend on from the caches.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use tokio::time::Instant;

use super::decide::Facts;
use super::most_room::Candidate;
use super::unfit::{Unfit, lacks_driver};
use super::{Candidates, Choosing};
use crate::api::{node_fitness, pvc};

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

impl Choosing {
    /// Gathers the facts about a claim.
    pub(super) fn gather(&self, claim: &Arc<PersistentVolumeClaim>) -> Facts {
        let facts = self.gather_without_node(claim);
        let volume = facts.volume.as_deref();
        let volume_node = volume.and_then(|volume| self.shared.volume_node(volume));
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
            Some(name) => self.shared.context.caches.volumes().get(name),
            None => self.volumes.get(&claim.uid()?).pop(),
        }
    }

    /// A claim's StorageClass, if the cache has it.
    fn class(&self, claim: &PersistentVolumeClaim) -> Option<Arc<StorageClass>> {
        self.shared
            .context
            .caches
            .classes()
            .get(pvc::class_name(claim)?)
    }

    /// Whether nodes publish room for a class. For a new class, they do so shortly.
    pub(super) fn publication(&self, class: &str, now: Instant) -> Publication {
        let Some(capacities) = &self.shared.capacities else {
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
        let node = self.shared.context.caches.nodes().get(node)?;
        self.lacks_driver(&node)
            .or_else(|| node_fitness::unfit_for_copy(&node, class).map(Unfit::from))
    }

    fn lacks_driver(&self, node: &Node) -> Option<Unfit> {
        let registered = self.shared.context.caches.csi_nodes().get(&node.name_any());
        let driver = &self.shared.context.driver.name;
        lacks_driver(registered.as_deref(), driver).then_some(Unfit::NoDriver)
    }

    /// True if no process makes volumes of a class on a node, and none did: the driver is not
    /// registered there, which may be for a moment, and the node has never published its room. The
    /// scheduler selects no such node.
    pub(super) fn is_deserted(&self, node: &str, class: &StorageClass) -> bool {
        let there = self.shared.context.caches.nodes().get(node);
        there.is_some_and(|there| self.lacks_driver(&there).is_some())
            && self.publication(&class.name_any(), Instant::now()) == Publication::Yes
            && self.shared.room(node, &class.name_any()).is_none()
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
        let there = self.shared.context.caches.nodes().all();
        let nodes: Arc<[Candidate]> = there
            .iter()
            .map(|node| Candidate {
                unfit: self.unfit(node, class),
                room: self.shared.room(&node.name_any(), &name),
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
