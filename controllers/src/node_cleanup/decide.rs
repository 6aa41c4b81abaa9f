//! What nodes that are not there have left behind, and what is to be done about it once they are
//! known to be gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, VolumeAttachment};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::node_resolver::Places;
use crate::api::names::VOLUME_FINALIZER;
use crate::api::pvc;
use crate::provisioner::finalizers;
use crate::provisioner::naming::Naming;
use crate::runtime::Resource;
use crate::snapshots::{DeletionPolicy, VolumeGroupSnapshotContent, VolumeSnapshotContent};
use crate::snapshotter::names::{AnnotationKeys, GROUP, SINGLE};

/// The taint by which an administrator says that a node is down and will not come back as it was.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What does not change while the process runs.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// The driver's name.
    pub(super) driver: String,
    /// The attacher's finalizer, of attachments and volumes.
    pub(super) attached: String,
    /// What volumes are called.
    pub(super) naming: Naming,
}

/// What there is.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) volumes: Vec<Arc<PersistentVolume>>,
    pub(super) claims: Vec<Arc<PersistentVolumeClaim>>,
    pub(super) attachments: Vec<Arc<VolumeAttachment>>,
    pub(super) contents: Vec<Arc<VolumeSnapshotContent>>,
    pub(super) groups: Vec<Arc<VolumeGroupSnapshotContent>>,
    pub(super) capacities: Vec<Arc<CSIStorageCapacity>>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// The attachment waits for the node, to be detached.
    ReleaseAttachment(Arc<VolumeAttachment>),
    /// The volume was to be deleted, and is gone with its node: its object is to go, too.
    DeleteVolume(Arc<PersistentVolume>),
    /// Its object is going already, and waits for us.
    ReleaseVolume(Arc<PersistentVolume>),
    /// The volume is in use, or was: whether it is given up is its user's to say.
    TellOfVolume(Arc<PersistentVolume>),
    /// The claim waits for a volume on the node.
    ClearClaim(Arc<PersistentVolumeClaim>),
    /// The scheduler is told of room on the node.
    DeleteCapacity(Arc<CSIStorageCapacity>),
    /// The snapshot was to be deleted, and is gone with its node.
    ReleaseContent(Arc<VolumeSnapshotContent>),
    /// The same of several.
    ReleaseGroup(Arc<VolumeGroupSnapshotContent>),
}

/// An object that names a node which is not there, and what is to be done if that is gone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leftover {
    pub(super) node: String,
    pub(super) action: Option<Action>,
}

impl Rules {
    /// All that names nodes which are not there.
    pub(super) fn leftovers(&self, seen: &Seen, places: &Places) -> Vec<Leftover> {
        let mut found = Vec::new();
        let mut note = |node: Option<String>, action: Option<Action>| {
            found.extend(node.map(|node| Leftover { node, action }));
        };
        for attachment in &seen.attachments {
            if attachment.spec.attacher == self.driver {
                let node = places.absent(&attachment.spec.node_name);
                note(node, self.attachment(attachment));
            }
        }
        let attached = attached(&seen.attachments);
        for volume in seen.volumes.iter().filter(|volume| self.is_ours(volume)) {
            let is_attached = attached.contains(volume.name_any().as_str());
            note(places.of_volume(volume), self.volume(volume, is_attached));
        }
        let with_volume = self.with_volume(&seen.volumes);
        for claim in seen.claims.iter().filter(|claim| self.waits(claim)) {
            let node = pvc::selected_node(claim).and_then(|node| places.absent(node));
            note(node, self.claim(claim, &with_volume));
        }
        for content in &seen.contents {
            if content.spec.driver == self.driver {
                note(managed_by(places, &**content), single(content));
            }
        }
        for content in &seen.groups {
            if content.spec.driver == self.driver {
                note(managed_by(places, &**content), group(content));
            }
        }
        for object in &seen.capacities {
            let action = Action::DeleteCapacity(object.clone());
            note(places.of_capacity(object), Some(action));
        }
        found
    }

    /// Attachments that wait for nodes which are out of service, with these nodes.
    pub(super) fn out_of_service(&self, seen: &Seen) -> Vec<Leftover> {
        let nodes = seen.nodes.iter().filter(|node| is_out_of_service(node));
        let nodes: BTreeSet<String> = nodes.map(|node| node.name_any()).collect();
        let ours = seen.attachments.iter().filter(|attachment| {
            attachment.spec.attacher == self.driver && nodes.contains(&attachment.spec.node_name)
        });
        ours.filter_map(|attachment| {
            Some(Leftover {
                node: attachment.spec.node_name.clone(),
                action: Some(self.attachment(attachment)?),
            })
        })
        .collect()
    }

    /// One that is not being deleted may be somebody's who means it.
    fn attachment(&self, attachment: &Arc<VolumeAttachment>) -> Option<Action> {
        let waits = is_going(&**attachment) && finalizers::has(&**attachment, &self.attached);
        waits.then(|| Action::ReleaseAttachment(attachment.clone()))
    }

    /// Where a volume of the driver's is: what is so of one is so of all that say the same.
    pub(super) fn place(&self, volume: &PersistentVolume) -> Option<String> {
        let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
        let text = || serde_json::to_string(affinity).ok();
        self.is_ours(volume).then(text)?
    }

    /// The node of a claim that waits for a volume of the driver's.
    pub(super) fn awaited(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let node = pvc::selected_node(claim).filter(|_| self.waits(claim))?;
        Some(node.to_owned())
    }

    fn is_ours(&self, volume: &PersistentVolume) -> bool {
        let spec = volume.spec.as_ref();
        let csi = spec.and_then(|spec| spec.csi.as_ref());
        csi.is_some_and(|csi| csi.driver == self.driver)
    }

    /// What becomes of a volume whose node is gone.
    pub(super) fn volume(
        &self,
        volume: &Arc<PersistentVolume>,
        is_attached: bool,
    ) -> Option<Action> {
        let spec = volume.spec.as_ref()?;
        let policy = spec.persistent_volume_reclaim_policy.as_deref();
        match (policy, volume.status.as_ref()?.phase.as_deref()?) {
            (_, "Bound") => Some(Action::TellOfVolume(volume.clone())),
            (Some("Delete"), "Released") if !is_attached => match is_going(&**volume) {
                false => Some(Action::DeleteVolume(volume.clone())),
                true if self.holds(volume).is_empty() => None,
                true => Some(Action::ReleaseVolume(volume.clone())),
            },
            // A live node would have removed the finalizer when the reclaim policy changed.
            (Some("Retain" | "Recycle"), _)
                if !is_attached && is_going(&**volume) && !self.holds(volume).is_empty() =>
            {
                Some(Action::ReleaseVolume(volume.clone()))
            }
            _ => None,
        }
    }

    /// Where our finalizers of a volume are among its finalizers, the last first.
    fn holds(&self, volume: &PersistentVolume) -> Vec<usize> {
        let ours = [VOLUME_FINALIZER, &self.attached];
        let all = volume.finalizers().iter().enumerate().rev();
        all.filter(|(_, one)| ours.contains(&one.as_str()))
            .map(|(place, _)| place)
            .collect()
    }

    /// Takes them off, all others staying as they are.
    pub(super) fn let_go(&self, volume: &PersistentVolume) -> Option<Value> {
        let mut patch = vec![json!({"op": "test", "path": "/metadata/uid", "value": volume.uid()})];
        for place in self.holds(volume) {
            let path = format!("/metadata/finalizers/{place}");
            let finalizer = &volume.finalizers()[place];
            patch.push(json!({"op": "test", "path": path, "value": finalizer}));
            patch.push(json!({"op": "remove", "path": path}));
        }
        (patch.len() > 1).then(|| json!(patch))
    }

    /// Whether a claim waits for a volume of the driver's.
    fn waits(&self, claim: &PersistentVolumeClaim) -> bool {
        pvc::is_for(claim, &self.driver) && pvc::is_pending(claim) && !is_going(claim)
    }

    fn claim(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        with_volume: &BTreeSet<String>,
    ) -> Option<Action> {
        let uid = claim.uid()?;
        (!with_volume.contains(&uid)).then(|| Action::ClearClaim(claim.clone()))
    }

    /// The name of the volume of a claim.
    pub(super) fn volume_of(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        claim.uid().map(|uid| self.naming.volume(&uid))
    }

    /// The UIDs of claims that volumes name.
    fn with_volume(&self, volumes: &[Arc<PersistentVolume>]) -> BTreeSet<String> {
        volumes
            .iter()
            .filter_map(|volume| claim_of(volume))
            .collect()
    }
}

/// The UID of the claim a volume names.
pub(super) fn claim_of(volume: &PersistentVolume) -> Option<String> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.clone()
}

/// Whether an administrator has given a node up, and it is as down as they say.
pub(super) fn is_out_of_service(node: &Node) -> bool {
    let taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    let is_ready = ready.any(|condition| condition.status == "True");
    let mut taints = taints.filter(|taint| taint.key == OUT_OF_SERVICE);
    taints.next().is_some() && !is_ready
}

/// The volumes attachments name, whosever they are.
fn attached(attachments: &[Arc<VolumeAttachment>]) -> BTreeSet<&str> {
    let sources = attachments.iter().map(|attachment| &attachment.spec.source);
    sources
        .filter_map(|source| source.persistent_volume_name.as_deref())
        .collect()
}

fn managed_by<K: Resource>(places: &Places, content: &K) -> Option<String> {
    let node = content.labels().get(crate::runtime::scope::MANAGED_BY)?;
    places.absent_by_label(node)
}

fn single(content: &Arc<VolumeSnapshotContent>) -> Option<Action> {
    let bound = is_set(content.spec.volume_snapshot_ref.uid.as_deref());
    let unbound = content.spec.source.snapshot_handle.is_some() && !bound;
    let to_go = content.spec.deletion_policy == DeletionPolicy::Delete
        && waits_for_us(&**content, &SINGLE, unbound);
    to_go.then(|| Action::ReleaseContent(content.clone()))
}

fn group(content: &Arc<VolumeGroupSnapshotContent>) -> Option<Action> {
    let bound = is_set(content.spec.volume_group_snapshot_ref.uid.as_deref());
    let unbound = content.spec.source.group_snapshot_handles.is_some() && !bound;
    let to_go = content.spec.deletion_policy == DeletionPolicy::Delete
        && waits_for_us(&**content, &GROUP, unbound);
    to_go.then(|| Action::ReleaseGroup(content.clone()))
}

/// Whether a content is to go as its user wants, and nothing but the node holds it. That the node
/// was about to make the snapshot does not matter any more.
fn waits_for_us<K: Resource>(content: &K, marks: &AnnotationKeys, unbound: bool) -> bool {
    let asked = unbound || content.annotations().contains_key(marks.being_deleted);
    is_going(content) && asked && finalizers::has(content, marks.finalizer)
}

fn is_set(uid: Option<&str>) -> bool {
    uid.is_some_and(|uid| !uid.is_empty())
}

fn is_going<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

#[cfg(test)]
mod tests;
