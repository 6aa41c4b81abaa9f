//! The names the snapshot kinds' controllers, sidecars and users agree on.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use sha2::{Digest, Sha256};

use crate::snapshots::{VolumeGroupSnapshot, VolumeSnapshot};

/// Holds a content until the driver's loop is done with it.
pub(super) const CONTENT_BOUND: &str =
    "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// Holds a snapshot until its content is gone.
pub(super) const SNAPSHOT_BOUND: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// Holds a snapshot while claims are restored from it.
pub(super) const SNAPSHOT_AS_SOURCE: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// Holds a member until its group is gone.
pub(super) const SNAPSHOT_IN_GROUP: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection";
/// Holds a claim while snapshots of it are taken.
pub(super) const CLAIM_AS_SOURCE: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
/// Holds a group content until the driver's loop is done with it.
pub(super) const GROUP_CONTENT_BOUND: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";
/// Holds a group until its content is gone.
pub(super) const GROUP_BOUND: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection";

/// Says that a class is the default one of its driver, with the value `true`.
pub(super) const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// The same, of a class for groups.
pub(super) const DEFAULT_GROUP_CLASS: &str = "groupsnapshot.storage.kubernetes.io/is-default-class";
/// Says on a content that its snapshot is being deleted.
pub(super) const BEING_DELETED: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// Says on a group content that its group is being deleted.
pub(super) const GROUP_BEING_DELETED: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
/// Says on a content which secret deletes its snapshot.
pub(super) const DELETION_SECRET_NAME: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
/// In which namespace.
pub(super) const DELETION_SECRET_NAMESPACE: &str =
    "snapshot.storage.kubernetes.io/deletion-secret-namespace";
/// Says on a group content which secret deletes its snapshots.
pub(super) const GROUP_DELETION_SECRET_NAME: &str =
    "groupsnapshot.storage.kubernetes.io/deletion-secret-name";
/// In which namespace.
pub(super) const GROUP_DELETION_SECRET_NAMESPACE: &str =
    "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace";
/// Says on a member's content which CSI group snapshot it is of.
pub(super) const GROUP_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

/// The group of the single kinds.
pub(super) const SNAPSHOT_API: &str = "snapshot.storage.k8s.io";
/// The group of the group kinds.
pub(super) const GROUP_API: &str = "groupsnapshot.storage.k8s.io";

/// The content a snapshot of this UID is given.
pub(super) fn content_name(snapshot_uid: &str) -> String {
    format!("snapcontent-{snapshot_uid}")
}

/// The content a group of this UID is given.
pub(super) fn group_content_name(group_uid: &str) -> String {
    format!("groupsnapcontent-{group_uid}")
}

/// A group's member for a volume: the names of its snapshot and of that one's content.
pub(super) fn member_names(group_uid: &str, volume_handle: &str) -> (String, String) {
    let digest = Sha256::digest(format!("{group_uid}{volume_handle}"));
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    (format!("snapshot-{hex}"), format!("snapcontent-{hex}"))
}

/// The group a snapshot is a member of, by its owner.
pub(super) fn owning_group(snapshot: &VolumeSnapshot) -> Option<&OwnerReference> {
    let is_group = |owner: &&OwnerReference| {
        let group = owner.api_version.split('/').next();
        owner.kind == "VolumeGroupSnapshot" && group == Some(GROUP_API)
    };
    snapshot.owner_references().iter().find(is_group)
}

/// How a member names its group as its owner.
pub(super) fn owner(group: &VolumeGroupSnapshot) -> OwnerReference {
    OwnerReference {
        api_version: format!("{GROUP_API}/v1"),
        kind: "VolumeGroupSnapshot".to_owned(),
        name: group.name_any(),
        uid: group.uid().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

/// `namespace/name`, as messages and indexes have it.
pub(super) fn path<K: ResourceExt>(object: &K) -> String {
    format!(
        "{}/{}",
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}

/// Whether a content's reference names an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BindState {
    /// It has the object's name and UID.
    Bound,
    /// It has the object's name and no UID.
    Free,
    /// It names another object.
    Other,
}

/// Whether a reference names an object.
pub(super) fn bind_state<K: ResourceExt>(reference: &ObjectReference, object: &K) -> BindState {
    let same_name =
        reference.name == object.meta().name && reference.namespace == object.meta().namespace;
    match reference.uid.as_deref().filter(|uid| !uid.is_empty()) {
        _ if !same_name => BindState::Other,
        None => BindState::Free,
        Some(uid) if object.meta().uid.as_deref() == Some(uid) => BindState::Bound,
        Some(_) => BindState::Other,
    }
}

/// Finalizers with some more, or `None` if they are all there.
pub(super) fn with<K: ResourceExt>(object: &K, more: &[&str]) -> Option<Vec<String>> {
    let mut all = object.finalizers().to_vec();
    let known = all.len();
    for finalizer in more {
        if !all.iter().any(|one| one == finalizer) {
            all.push((*finalizer).to_owned());
        }
    }
    (all.len() > known).then_some(all)
}

/// Finalizers with some less, or `None` if they have none of those.
pub(super) fn without<K: ResourceExt>(object: &K, less: &[&str]) -> Option<Vec<String>> {
    let (gone, kept): (Vec<String>, _) = object
        .finalizers()
        .iter()
        .cloned()
        .partition(|one| less.contains(&one.as_str()));
    (!gone.is_empty()).then_some(kept)
}

/// Whether an object is being deleted.
pub(super) fn is_deleting<K: ResourceExt>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Whether it has a finalizer.
pub(super) fn has<K: ResourceExt>(object: &K, finalizer: &str) -> bool {
    object.finalizers().iter().any(|one| one == finalizer)
}
