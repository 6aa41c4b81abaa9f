//! Finds the objects that missing nodes left behind, and decides what to do with them once the
//! nodes are known to be gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, VolumeAttachment};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::node_resolver::NodeResolver;
use crate::api::constants::VOLUME_FINALIZER;
use crate::api::object_name::VolumeNaming;
use crate::api::scope::{MANAGED_BY, NODE_LABEL};
use crate::api::{node, pv, pvc};
use crate::attacher::decide::is_attached;
use crate::client::Resource;
use crate::snapshots::content::Content;
use crate::snapshots::{VolumeGroupSnapshotContent, VolumeSnapshotContent};

/// Settings that stay constant while the process runs.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) driver: String,
    /// The attacher's finalizer on attachments and volumes.
    pub(super) attached: String,
    pub(super) naming: VolumeNaming,
}

/// The objects of the cluster.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) volumes: Vec<Arc<PersistentVolume>>,
    pub(super) claims: Vec<Arc<PersistentVolumeClaim>>,
    pub(super) attachments: Vec<Arc<VolumeAttachment>>,
    /// The volumes of attachments that all nodes of a kernel can use, by name.
    pub(super) shared: BTreeMap<String, Arc<PersistentVolume>>,
    pub(super) contents: Vec<Arc<VolumeSnapshotContent>>,
    pub(super) groups: Vec<Arc<VolumeGroupSnapshotContent>>,
    pub(super) capacities: Vec<Arc<CSIStorageCapacity>>,
}

impl Facts {
    /// The volume of an attachment, if all nodes of a kernel can use it. The node that has it detaches
    /// it from all of them, also from one that is missing.
    fn shared_volume_of(&self, attachment: &VolumeAttachment) -> Option<&PersistentVolume> {
        let name = attachment.spec.source.persistent_volume_name.as_ref()?;
        self.shared.get(name).map(|volume| &**volume)
    }
}

/// What to do with a leftover object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Remove the finalizer of an attachment that waits for the node to detach it.
    ReleaseAttachment(Arc<VolumeAttachment>),
    /// Delete the PV. The data of its volume is gone with the node.
    DeleteVolume(Arc<PersistentVolume>),
    /// Remove our finalizers from a PV that is already being deleted.
    ReleaseVolume(Arc<PersistentVolume>),
    /// Report a bound volume. Only its user may give it up.
    ReportVolume(Arc<PersistentVolume>),
    /// Have another node selected for a claim that waits for a volume on the node.
    ClearClaim(Arc<PersistentVolumeClaim>),
    /// Delete the object that reports capacity of the node to the scheduler.
    DeleteCapacity(Arc<CSIStorageCapacity>),
    /// Remove the finalizer of a snapshot content. The snapshot is gone with the node.
    ReleaseContent(Arc<VolumeSnapshotContent>),
    /// The same for a group of snapshots.
    ReleaseGroup(Arc<VolumeGroupSnapshotContent>),
}

/// An object that names a missing node, and the step to take if the node is gone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leftover {
    pub(super) node: String,
    pub(super) step: Option<Step>,
}

/// An attachment that waits for the node that has its shared volume.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OwnerAway {
    pub(super) attachment: Arc<VolumeAttachment>,
    pub(super) volume: Arc<PersistentVolume>,
    /// The node, which is not ready.
    pub(super) owner: String,
}

/// An object with a step, if it names a missing node.
fn leftover(missing: Option<String>, step: Option<Step>) -> Option<Leftover> {
    Some(Leftover {
        node: missing?,
        step,
    })
}

impl Settings {
    /// Returns all objects that name missing nodes.
    pub(super) fn leftovers(&self, facts: &Facts, resolver: &NodeResolver) -> Vec<Leftover> {
        let mut found = Vec::new();
        for attachment in &facts.attachments {
            if attachment.spec.attacher == self.driver {
                let node = match facts.shared_volume_of(attachment) {
                    Some(volume) => resolver.of_volume(volume),
                    None => resolver.absent(&attachment.spec.node_name),
                };
                found.extend(leftover(node, self.attachment(attachment)));
            }
        }
        let attached = attached(&facts.attachments);
        let mut nodes_of_handles: BTreeMap<&str, String> = BTreeMap::new();
        for volume in &facts.volumes {
            let Some(handle) = pv::handle(volume, &self.driver) else {
                continue;
            };
            let is_attached = attached.contains(volume.name_any().as_str());
            let step = self.volume(volume, is_attached);
            let node = resolver.of_volume(volume);
            nodes_of_handles.extend(node.clone().map(|node| (handle, node)));
            found.extend(leftover(node, step));
        }
        let with_volume: BTreeSet<&str> = facts
            .volumes
            .iter()
            .filter_map(|volume| pv::claim_uid(volume))
            .collect();
        for claim in facts.claims.iter().filter(|claim| self.waits(claim)) {
            let node = pvc::selected_node(claim).and_then(|node| resolver.absent(node));
            found.extend(leftover(node, self.claim(claim, &with_volume)));
        }
        for content in &facts.contents {
            let node = self.content_node(&**content, resolver, &nodes_of_handles);
            found.extend(leftover(node, release(content, Step::ReleaseContent)));
        }
        for content in &facts.groups {
            let node = self.content_node(&**content, resolver, &nodes_of_handles);
            found.extend(leftover(node, release(content, Step::ReleaseGroup)));
        }
        for object in &facts.capacities {
            let step = Step::DeleteCapacity(object.clone());
            found.extend(leftover(resolver.of_capacity(object), Some(step)));
        }
        found
    }

    /// Returns attachments that wait for nodes with the out-of-service taint.
    pub(super) fn out_of_service(&self, facts: &Facts) -> Vec<Leftover> {
        let nodes = facts.nodes.iter().filter(|node| is_out_of_service(node));
        let nodes: BTreeSet<String> = nodes.map(|node| node.name_any()).collect();
        let ours = facts
            .attachments
            .iter()
            .filter(|attachment| attachment.spec.attacher == self.driver);
        ours.filter_map(|attachment| {
            let node = match facts.shared_volume_of(attachment) {
                Some(volume) => node::owner_of(volume, &facts.nodes)?,
                None => attachment.spec.node_name.clone(),
            };
            let step = self
                .attachment(attachment)
                .filter(|_| nodes.contains(&node))?;
            Some(Leftover {
                node,
                step: Some(step),
            })
        })
        .collect()
    }

    /// Returns attachments that are to be made or ended while the node that has their shared volume is
    /// not ready. No other node's process can do that.
    pub(super) fn waiting_for_owner(&self, facts: &Facts) -> Vec<OwnerAway> {
        let away = facts.nodes.iter().filter(|node| !node::is_ready(node));
        let away: BTreeSet<String> = away.map(|node| node.name_any()).collect();
        let ours = facts
            .attachments
            .iter()
            .filter(|attachment| attachment.spec.attacher == self.driver);
        ours.filter(|attachment| attachment.is_deleting() || !is_attached(attachment))
            .filter_map(|attachment| {
                let named = attachment.spec.source.persistent_volume_name.as_ref()?;
                let volume = facts.shared.get(named)?;
                let owner = node::owner_of(volume, &facts.nodes)?;
                away.contains(&owner).then(|| OwnerAway {
                    attachment: attachment.clone(),
                    volume: volume.clone(),
                    owner,
                })
            })
            .collect()
    }

    /// An attachment that is not being deleted may be wanted.
    fn attachment(&self, attachment: &Arc<VolumeAttachment>) -> Option<Step> {
        let waits = attachment.is_deleting() && attachment.has_finalizer(&self.attached);
        waits.then(|| Step::ReleaseAttachment(attachment.clone()))
    }

    /// A volume's node affinity as a key. Volumes with equal keys are on the same nodes. The key of a
    /// shared volume also has its label, which names the node that has it.
    pub(super) fn place(&self, volume: &PersistentVolume) -> Option<String> {
        let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
        let affinity = self
            .is_ours(volume)
            .then(|| serde_json::to_string(affinity).ok())??;
        let label = volume.labels().get(NODE_LABEL);
        Some(match label.filter(|_| pv::is_shared(volume)) {
            Some(label) => format!("{affinity} {label}"),
            None => affinity,
        })
    }

    /// The selected node of a claim that waits for a volume of this driver.
    pub(super) fn awaited(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let node = pvc::selected_node(claim).filter(|_| self.waits(claim))?;
        Some(node.to_owned())
    }

    fn is_ours(&self, volume: &PersistentVolume) -> bool {
        pv::handle(volume, &self.driver).is_some()
    }

    /// The step for a volume if its node is gone.
    pub(super) fn volume(&self, volume: &Arc<PersistentVolume>, is_attached: bool) -> Option<Step> {
        let spec = volume.spec.as_ref()?;
        let policy = spec.persistent_volume_reclaim_policy.as_deref();
        match (policy, pv::phase(volume)?) {
            (_, "Bound") => Some(Step::ReportVolume(volume.clone())),
            (Some("Delete"), "Released") if !is_attached => {
                if !volume.is_deleting() {
                    Some(Step::DeleteVolume(volume.clone()))
                } else if self.holds(volume).is_empty() {
                    None
                } else {
                    Some(Step::ReleaseVolume(volume.clone()))
                }
            }
            // A live node would have removed the finalizer when the reclaim policy changed.
            (Some("Retain" | "Recycle"), _)
                if !is_attached && volume.is_deleting() && !self.holds(volume).is_empty() =>
            {
                Some(Step::ReleaseVolume(volume.clone()))
            }
            _ => None,
        }
    }

    /// The positions of our finalizers on a PV, last first.
    fn holds(&self, volume: &PersistentVolume) -> Vec<usize> {
        let ours = [VOLUME_FINALIZER, &self.attached];
        let all = volume.finalizers().iter().enumerate().rev();
        all.filter(|(_, one)| ours.contains(&one.as_str()))
            .map(|(place, _)| place)
            .collect()
    }

    /// A JSON patch that removes our finalizers and keeps the others.
    pub(super) fn remove_finalizers(&self, volume: &PersistentVolume) -> Option<Value> {
        let mut patch = vec![json!({"op": "test", "path": "/metadata/uid", "value": volume.uid()})];
        for place in self.holds(volume) {
            let path = format!("/metadata/finalizers/{place}");
            let finalizer = &volume.finalizers()[place];
            patch.push(json!({"op": "test", "path": path, "value": finalizer}));
            patch.push(json!({"op": "remove", "path": path}));
        }
        (patch.len() > 1).then(|| json!(patch))
    }

    /// True if a claim waits for a volume of this driver.
    fn waits(&self, claim: &PersistentVolumeClaim) -> bool {
        pvc::is_for(claim, &self.driver) && pvc::is_pending(claim) && !claim.is_deleting()
    }

    fn claim(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        with_volume: &BTreeSet<&str>,
    ) -> Option<Step> {
        let uid = claim.metadata.uid.as_deref()?;
        (!with_volume.contains(uid)).then(|| Step::ClearClaim(claim.clone()))
    }

    /// The missing node that a content of this driver waits for. Its label decides. A node labels a
    /// content before it takes the snapshot: if a content has no label and no snapshot, no node has
    /// begun, and without the node of a source volume none can.
    fn content_node<K: Content>(
        &self,
        content: &K,
        resolver: &NodeResolver,
        nodes_of_handles: &BTreeMap<&str, String>,
    ) -> Option<String> {
        let view = content.view();
        if view.driver != self.driver {
            return None;
        }
        if let Some(label) = content.labels().get(MANAGED_BY) {
            return resolver.absent_by_label(label);
        }
        // A snapshotter for the whole cluster writes no label.
        if content.has_begun() {
            return None;
        }
        let mut volumes = view.volumes.iter();
        volumes.find_map(|handle| nodes_of_handles.get(handle.as_str()).cloned())
    }

    /// The name of the PV that is created for a claim.
    pub(super) fn volume_of(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        claim.uid().map(|uid| self.naming.volume(&uid))
    }
}

/// True if an administrator has set the out-of-service taint, and the node is not ready.
pub(super) fn is_out_of_service(node: &Node) -> bool {
    node::is_out_of_service(node) && !node::is_ready(node)
}

/// The PVs that attachments of any driver name.
fn attached(attachments: &[Arc<VolumeAttachment>]) -> BTreeSet<&str> {
    let sources = attachments.iter().map(|attachment| &attachment.spec.source);
    sources
        .filter_map(|source| source.persistent_volume_name.as_deref())
        .collect()
}

/// The step for a content if its node is gone. `None` unless the content is unwanted and has the
/// snapshotter's finalizer. A snapshot that the node was about to create no
/// longer matters. With policy Retain, the data is gone with the node all the same, and no other
/// process removes the finalizer.
fn release<K: Content>(content: &Arc<K>, step: fn(Arc<K>) -> Step) -> Option<Step> {
    let waits = content.is_unwanted() && content.has_finalizer(K::KEYS.finalizer);
    waits.then(|| step(content.clone()))
}

#[cfg(test)]
mod tests;
