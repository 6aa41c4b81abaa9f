//! The members of a group. Each snapshot that the driver lists needs a VolumeSnapshot and a
//! content, bound to each other.
//!
//! Another controller may create them in another order, so each object is checked separately.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::{Facts, GroupStep, SnapshotFailure, source_modes};
use crate::api::node::owner_of;
use crate::api::pv;
use crate::api::scope::{MANAGED_BY, node_label};
use crate::cache::Store;
use crate::queue::yield_sometimes;
use crate::snapshot_controller::names::{self, BindState};
use crate::snapshot_controller::watches::Watches;
use crate::snapshots::content::{GROUP, GROUP_HANDLE, SINGLE};
use crate::snapshots::{
    ContentSource, DeletionPolicy, SnapshotInfo, SnapshotSource, VolumeGroupSnapshot,
    VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotContentSpec,
    VolumeSnapshotSpec,
};

/// The existing objects of a member.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// The driver's report of the member.
    pub(super) info: SnapshotInfo,
    /// The member's VolumeSnapshot, if it exists.
    pub(super) snapshot: Option<Arc<VolumeSnapshot>>,
    /// The member's content, if it exists.
    pub(super) content: Option<Arc<VolumeSnapshotContent>>,
    /// True if one of these objects is too large to be kept, or may be.
    pub(super) is_left_out: bool,
    /// The member's source volume, if exactly one volume on the group's node has that handle, and
    /// an object of the member has to be made.
    pub(super) volume: Option<Arc<PersistentVolume>>,
}

/// The members that a group's content lists.
pub(super) async fn listed(
    all: &Watches,
    group: &VolumeGroupSnapshot,
    content: Option<&VolumeGroupSnapshotContent>,
) -> Vec<Member> {
    let uid = group.uid().unwrap_or_default();
    let namespace = group.namespace().unwrap_or_default();
    let Some(content) = content else {
        return Vec::new();
    };
    let status = content.status.clone().unwrap_or_default();
    let infos = status.volume_snapshot_info_list.unwrap_or_default();
    let nodes = all.nodes.as_ref().map(Store::all);
    let place = nodes.as_deref().zip(content.labels().get(MANAGED_BY));
    let mut members = Vec::new();
    for (number, info) in infos.into_iter().enumerate() {
        yield_sometimes(number).await;
        let (Some(volume_handle), Some(_)) = (&info.volume_handle, &info.snapshot_handle) else {
            continue;
        };
        let (snapshot, member_content) = names::member_names(&uid, volume_handle);
        let is_left_out = all.snapshots.leaves_out(&namespace, &snapshot)
            || all.contents.leaves_out("", &member_content);
        let snapshot = all.snapshots.get_in(&namespace, &snapshot);
        let member_content = all.contents.get(&member_content);
        let is_made = snapshot.is_some() && member_content.is_some();
        let mut volumes = if is_made {
            Vec::new()
        } else {
            all.caches.volumes_of(&content.spec.driver, volume_handle)
        };
        volumes.retain(|volume| place.is_none_or(|place| may_be_on(volume, place)));
        let volume = match &volumes[..] {
            [volume] => Some(volume.clone()),
            _ => None,
        };
        members.push(Member {
            info,
            snapshot,
            content: member_content,
            is_left_out,
            volume,
        });
    }
    members
}

/// True if a volume may be on the node with this label. A stolen node can make a volume with the
/// handle of another's, but only for itself.
fn may_be_on(volume: &PersistentVolume, (nodes, label): (&[Arc<Node>], &String)) -> bool {
    owner_of(volume, nodes).is_none_or(|node| node_label(&node) == *label)
}

/// Decides the next step for the members of a group; `None` if they are complete.
pub(super) fn next(
    facts: &Facts,
    group_content: &VolumeGroupSnapshotContent,
) -> Result<Option<GroupStep>, SnapshotFailure> {
    let status = group_content.status.as_ref();
    let handle = status.and_then(|status| status.volume_group_snapshot_handle.as_deref());
    let Some(handle) = handle else {
        return Ok(None);
    };
    for member in &facts.own.members {
        let whole = Whole {
            facts,
            group_content,
            handle,
            member,
        };
        if let Some(step) = whole.next()? {
            return Ok(Some(step));
        }
    }
    Ok(None)
}

/// A member together with its group.
struct Whole<'a> {
    facts: &'a Facts,
    group_content: &'a VolumeGroupSnapshotContent,
    handle: &'a str,
    member: &'a Member,
}

impl Whole<'_> {
    fn next(&self) -> Result<Option<GroupStep>, SnapshotFailure> {
        let Some(snapshot) = &self.member.snapshot else {
            return Ok(Some(GroupStep::CreateMember(Box::new(self.snapshot()))));
        };
        let Some(content) = &self.member.content else {
            let content = Box::new(self.content(snapshot));
            return Ok(Some(GroupStep::CreateMemberContent(content)));
        };
        match names::bind_state(&content.spec.volume_snapshot_ref, &**snapshot) {
            BindState::Bound => {}
            BindState::Free => {
                let uid = snapshot.uid().unwrap_or_default();
                return Ok(Some(GroupStep::BindMemberContent(content.clone(), uid)));
            }
            BindState::Other => {
                let name = content.name_any();
                let message = format!(
                    "VolumeSnapshotContent {name} of a member is bound to another snapshot"
                );
                return Err(SnapshotFailure::new(
                    "GroupSnapshotContentCreationFailed",
                    message,
                ));
            }
        }
        // This step precedes binding: the first status of a member must contain its group.
        if let Some(status) = self.content_status(content) {
            return Ok(Some(GroupStep::MemberContentStatus(
                content.clone(),
                status,
            )));
        }
        if snapshot.bound_content().is_none() {
            let name = content.name_any();
            return Ok(Some(GroupStep::BindMember(snapshot.clone(), name)));
        }
        Ok(None)
    }

    fn names(&self) -> (String, String) {
        let group = self.facts.snapshot.uid().unwrap_or_default();
        let volume = self.member.info.volume_handle.as_deref();
        names::member_names(&group, volume.unwrap_or_default())
    }

    fn deletion_policy(&self) -> DeletionPolicy {
        self.group_content.spec.deletion_policy
    }

    fn snapshot(&self) -> VolumeSnapshot {
        let group = &*self.facts.snapshot;
        let mut finalizers = vec![names::SNAPSHOT_IN_GROUP, names::SNAPSHOT_AS_SOURCE];
        if self.deletion_policy() == DeletionPolicy::Delete {
            finalizers.push(names::SNAPSHOT_BOUND);
        }
        let claim = self.member.volume.as_deref().and_then(pv::claim);
        let metadata = ObjectMeta {
            name: Some(self.names().0),
            namespace: group.namespace(),
            owner_references: Some(vec![names::owner(group)]),
            finalizers: Some(finalizers.into_iter().map(str::to_owned).collect()),
            ..ObjectMeta::default()
        };
        // A snapshot needs a source. If the volume is gone, the source is a claim without a name.
        let claim = claim
            .and_then(|claim| claim.name.clone())
            .unwrap_or_default();
        VolumeSnapshot {
            metadata,
            spec: VolumeSnapshotSpec {
                source: SnapshotSource {
                    persistent_volume_claim_name: Some(claim),
                    volume_snapshot_content_name: None,
                },
                volume_snapshot_class_name: None,
            },
            status: None,
        }
    }

    fn content(&self, snapshot: &VolumeSnapshot) -> VolumeSnapshotContent {
        let group_content = self.group_content;
        let mut annotations = BTreeMap::from([(GROUP_HANDLE.to_owned(), self.handle.to_owned())]);
        // The secrets were resolved for the group's content, so they are copied from there.
        for (from, to) in [
            (GROUP.secret_name, SINGLE.secret_name),
            (GROUP.secret_namespace, SINGLE.secret_namespace),
        ] {
            if let Some(value) = group_content.annotations().get(from) {
                annotations.insert(to.to_owned(), value.clone());
            }
        }
        let node = group_content.labels().get(MANAGED_BY);
        let metadata = ObjectMeta {
            name: Some(self.names().1),
            annotations: Some(annotations),
            labels: node.map(|node| BTreeMap::from([(MANAGED_BY.to_owned(), node.clone())])),
            finalizers: Some(vec![SINGLE.finalizer.to_owned()]),
            ..ObjectMeta::default()
        };
        let spec = VolumeSnapshotContentSpec {
            volume_snapshot_ref: snapshot.object_ref(&()),
            deletion_policy: self.deletion_policy(),
            driver: group_content.spec.driver.clone(),
            volume_snapshot_class_name: None,
            source: ContentSource {
                volume_handle: self.member.info.volume_handle.clone(),
                snapshot_handle: None,
            },
            source_volume_mode: self.volume_mode().map(str::to_owned),
        };
        VolumeSnapshotContent {
            metadata,
            spec,
            status: None,
        }
    }

    /// The mode of the member's volume when the group was taken, or the volume's mode now: its object
    /// may be gone since.
    fn volume_mode(&self) -> Option<&str> {
        let handle = self.member.info.volume_handle.as_deref();
        let then = handle.and_then(|handle| source_modes::of(self.group_content, handle));
        then.or_else(|| self.member.volume.as_deref().map(pv::volume_mode))
    }

    /// The missing fields of a content's status. The snapshotter changes existing fields.
    fn content_status(&self, content: &VolumeSnapshotContent) -> Option<Value> {
        let known = content.status.clone().unwrap_or_default();
        if known.snapshot_handle.is_some() && known.volume_group_snapshot_handle.is_some() {
            return None;
        }
        let info = &self.member.info;
        let mut status = json!({
            "snapshotHandle": info.snapshot_handle,
            "volumeGroupSnapshotHandle": self.handle,
            "creationTime": info.creation_time,
            "readyToUse": info.ready_to_use.unwrap_or(false),
        });
        if let Some(size) = info.restore_size.filter(|size| *size > 0) {
            status["restoreSize"] = json!(size);
        }
        Some(status)
    }
}
