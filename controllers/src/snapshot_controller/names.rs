//! Annotations and finalizers that controllers, sidecars and users of snapshots share.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use crate::api::constants::GROUP_SNAPSHOT_GROUP;
use crate::api::hash::sha256;
use crate::snapshots::{VolumeGroupSnapshot, VolumeSnapshot};

/// Finalizer that keeps a snapshot until its content is gone.
pub(super) const SNAPSHOT_BOUND: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// Finalizer that keeps a snapshot while claims are restored from it.
pub(super) const SNAPSHOT_AS_SOURCE: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// Finalizer that keeps a member until its group is gone.
pub(super) const SNAPSHOT_IN_GROUP: &str =
    "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection";
/// Finalizer that keeps a claim while snapshots of it are taken.
pub(super) const CLAIM_AS_SOURCE: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
/// Finalizer that keeps a group until its content is gone.
pub(super) const GROUP_BOUND: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection";

/// Class annotation: with the value `true`, the class is the default of its driver.
pub(super) const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
/// Group class annotation: with the value `true`, the class is the default of its driver.
pub(super) const DEFAULT_GROUP_CLASS: &str = "groupsnapshot.storage.kubernetes.io/is-default-class";

pub(super) fn content_name(snapshot_uid: &str) -> String {
    format!("snapcontent-{snapshot_uid}")
}

pub(super) fn group_content_name(group_uid: &str) -> String {
    format!("groupsnapcontent-{group_uid}")
}

/// The name of a member's content, from that of its snapshot; `None` for a name of another form.
pub(super) fn member_content_name(snapshot: &str) -> Option<String> {
    snapshot.strip_prefix("snapshot-").map(content_name)
}

/// The name of the content that a snapshot names or would have.
pub(super) fn expected_content(snapshot: &VolumeSnapshot) -> Option<String> {
    let given = snapshot.spec.source.volume_snapshot_content_name.as_deref();
    if let Some(name) = given.or(snapshot.bound_content()) {
        return Some(name.to_owned());
    }
    if owning_group(snapshot).is_some() {
        return member_content_name(&snapshot.name_any());
    }
    snapshot.uid().map(|uid| content_name(&uid))
}

/// The names of a group's member for a volume: first the snapshot, then its content.
pub(super) fn member_names(group_uid: &str, volume_handle: &str) -> (String, String) {
    let hex = sha256(&[group_uid, volume_handle]);
    (format!("snapshot-{hex}"), content_name(&hex))
}

/// The group of a snapshot, according to its owner references.
pub(super) fn owning_group(snapshot: &VolumeSnapshot) -> Option<&OwnerReference> {
    snapshot.owner_references().iter().find(|owner| {
        let group = owner.api_version.split('/').next();
        owner.kind == "VolumeGroupSnapshot" && group == Some(GROUP_SNAPSHOT_GROUP)
    })
}

/// The owner reference from a member to its group.
pub(super) fn owner(group: &VolumeGroupSnapshot) -> OwnerReference {
    group.owner_ref(&()).unwrap_or_default()
}

/// `namespace/name`, for messages and indexes.
pub(super) fn path<K: ResourceExt>(object: &K) -> String {
    format!(
        "{}/{}",
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}

/// The relation of a content's reference to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BindState {
    /// The reference has the object's name and UID.
    Bound,
    /// The reference has the object's name and no UID.
    Free,
    /// The reference names another object.
    Other,
}

/// Compares a content's reference with an object.
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

/// The first of these names, for a message.
pub(super) fn some_of(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The finalizers plus `more`; `None` if the object has them all.
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

/// The finalizers minus `less`; `None` if the object has none of them.
pub(super) fn without<K: ResourceExt>(object: &K, less: &[&str]) -> Option<Vec<String>> {
    let (gone, kept): (Vec<String>, _) = object
        .finalizers()
        .iter()
        .cloned()
        .partition(|one| less.contains(&one.as_str()));
    (!gone.is_empty()).then_some(kept)
}
