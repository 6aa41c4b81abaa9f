//! What contents of both kinds have in common, for the snapshotter and the controllers of the
//! cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::core::object::HasSpec;

use super::{DeletionPolicy, SnapshotError, VolumeGroupSnapshotContent, VolumeSnapshotContent};
use crate::client::Resource;

/// Annotation of a member's content: the ID of its CSI group snapshot. Members are never created or
/// deleted one by one.
pub(crate) const GROUP_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

/// Annotation of a group's content: the handles of its block volumes, as a JSON list. Its other
/// volumes have filesystems. Only administrators and the snapshot controller write it.
pub(crate) const BLOCK_VOLUMES: &str = "hostloop.csi.dev/block-volume-handles";

/// The annotations, the finalizer and the class parameters of contents of one kind. Users,
/// dashboards and other controllers rely on them.
#[derive(Debug)]
pub(crate) struct ContentKeys {
    /// The snapshotter's annotation: the driver was asked to take the snapshot, and its final
    /// answer is not known yet.
    pub(crate) being_created: &'static str,
    /// The snapshot-controller's annotation: the VolumeSnapshot or VolumeGroupSnapshot is being
    /// deleted.
    pub(crate) being_deleted: &'static str,
    /// The finalizer that keeps the content until the snapshot is gone.
    pub(crate) finalizer: &'static str,
    /// Annotation: the name of the secret for create and delete calls.
    pub(crate) secret_name: &'static str,
    /// Annotation: the namespace of that secret.
    pub(crate) secret_namespace: &'static str,
    /// The class parameters for that secret, without `csi.storage.k8s.io/` and `-name`.
    pub(crate) secret_key: &'static str,
    /// The kind of the user's object in class parameters.
    pub(crate) word: &'static str,
    /// The reason of the event that a snapshot can't be taken.
    pub(crate) failed: &'static str,
}

/// The keys of VolumeSnapshotContents.
pub(crate) const SINGLE: ContentKeys = ContentKeys {
    being_created: "snapshot.storage.kubernetes.io/volumesnapshot-being-created",
    being_deleted: "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted",
    finalizer: "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection",
    secret_name: "snapshot.storage.kubernetes.io/deletion-secret-name",
    secret_namespace: "snapshot.storage.kubernetes.io/deletion-secret-namespace",
    secret_key: "snapshotter-secret",
    word: "volumesnapshot",
    failed: "SnapshotCreationFailed",
};

/// The keys of VolumeGroupSnapshotContents.
pub(crate) const GROUP: ContentKeys = ContentKeys {
    being_created: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created",
    being_deleted: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted",
    finalizer: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection",
    secret_name: "groupsnapshot.storage.kubernetes.io/deletion-secret-name",
    secret_namespace: "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace",
    secret_key: "group-snapshotter-secret",
    word: "volumegroupsnapshot",
    failed: "GroupSnapshotCreationFailed",
};

/// A VolumeSnapshotContent or a VolumeGroupSnapshotContent.
pub(crate) trait Content: Resource + HasSpec<Spec: PartialEq> {
    const KEYS: &'static ContentKeys;

    fn view(&self) -> ContentView<'_>;

    /// True if a driver may have begun to take the snapshot, or the content was made for a given
    /// one. The snapshotter annotates a content before it asks the driver.
    fn has_begun(&self) -> bool {
        let annotations = self.annotations();
        annotations.contains_key(Self::KEYS.being_created) || self.view().snapshot().is_some()
    }

    /// True if the content is being deleted as its user wants. For an unbound content, a deletion
    /// timestamp is enough. A bound one also needs the snapshot-controller's annotation.
    fn is_unwanted(&self) -> bool {
        let annotations = self.annotations();
        self.is_deleting()
            && (self.view().is_unbound() || annotations.contains_key(Self::KEYS.being_deleted))
    }
}

/// A VolumeSnapshotClass or a VolumeGroupSnapshotClass.
pub(crate) trait SnapshotClass: Resource {
    fn driver(&self) -> &str;
    fn parameters(&self) -> Option<&BTreeMap<String, String>>;
}

/// The fields that contents of both kinds have.
pub(crate) struct ContentView<'a> {
    pub(crate) driver: &'a str,
    pub(crate) class: Option<&'a str>,
    /// The VolumeSnapshot or VolumeGroupSnapshot.
    pub(crate) user: &'a ObjectReference,
    pub(crate) policy: DeletionPolicy,
    /// The handles of the volumes to snapshot.
    pub(crate) volumes: &'a [String],
    /// The ID of a pre-provisioned snapshot.
    pub(crate) given: Option<&'a str>,
    /// True if the content is annotated as a member of a group.
    pub(crate) is_member: bool,
    pub(crate) has_status: bool,
    /// The snapshot's ID in the status.
    pub(crate) handle: Option<&'a str>,
    /// The group snapshot that the snapshot belongs to, by the status.
    pub(crate) group: Option<&'a str>,
    pub(crate) created: Option<Time>,
    pub(crate) ready: Option<bool>,
    pub(crate) error: Option<&'a SnapshotError>,
}

impl<'a> ContentView<'a> {
    pub(crate) fn is_ready(&self) -> bool {
        self.ready == Some(true)
    }

    /// The UID of the user's object, if the content is bound.
    pub(crate) fn user_uid(&self) -> Option<&'a str> {
        self.user.uid.as_deref().filter(|uid| !uid.is_empty())
    }

    /// True if the content is pre-provisioned and not bound.
    pub(crate) fn is_unbound(&self) -> bool {
        self.given.is_some() && self.user_uid().is_none()
    }

    /// The snapshot's ID, if it is known.
    pub(crate) fn snapshot(&self) -> Option<&'a str> {
        self.handle.or(self.given)
    }

    /// The handles that show the pools of the present or future snapshot.
    pub(crate) fn handles(&self) -> Vec<&'a str> {
        match self.snapshot() {
            Some(handle) => vec![handle],
            None => self.volumes.iter().map(String::as_str).collect(),
        }
    }
}

impl Content for VolumeSnapshotContent {
    const KEYS: &'static ContentKeys = &SINGLE;

    fn view(&self) -> ContentView<'_> {
        let (spec, status) = (&self.spec, self.status.as_ref());
        ContentView {
            driver: &spec.driver,
            class: spec.volume_snapshot_class_name.as_deref(),
            user: &spec.volume_snapshot_ref,
            policy: spec.deletion_policy,
            volumes: spec.source.volume_handle.as_slice(),
            given: spec.source.snapshot_handle.as_deref(),
            is_member: self.annotations().contains_key(GROUP_HANDLE),
            has_status: status.is_some(),
            handle: status.and_then(|it| it.snapshot_handle.as_deref()),
            group: status.and_then(|it| it.volume_group_snapshot_handle.as_deref()),
            created: status.and_then(|it| time(it.creation_time?)),
            ready: status.and_then(|it| it.ready_to_use),
            error: status.and_then(|it| it.error.as_ref()),
        }
    }
}

impl Content for VolumeGroupSnapshotContent {
    const KEYS: &'static ContentKeys = &GROUP;

    fn view(&self) -> ContentView<'_> {
        let (spec, status) = (&self.spec, self.status.as_ref());
        let given = spec.source.group_snapshot_handles.as_ref();
        ContentView {
            driver: &spec.driver,
            class: spec.volume_group_snapshot_class_name.as_deref(),
            user: &spec.volume_group_snapshot_ref,
            policy: spec.deletion_policy,
            volumes: spec.source.volume_handles.as_deref().unwrap_or_default(),
            given: given.map(|given| given.volume_group_snapshot_handle.as_str()),
            is_member: false,
            has_status: status.is_some(),
            handle: status.and_then(|it| it.volume_group_snapshot_handle.as_deref()),
            group: None,
            created: status.and_then(|it| it.creation_time.clone()),
            ready: status.and_then(|it| it.ready_to_use),
            error: status.and_then(|it| it.error.as_ref()),
        }
    }
}

/// Converts nanoseconds since 1970 to a time.
fn time(nanoseconds: i64) -> Option<Time> {
    let second = Timestamp::from_second(nanoseconds.div_euclid(1_000_000_000));
    second.ok().map(Time)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn handles_show_the_pools() {
        fn handles<K: Content>(source: &Value, status: Value) -> Vec<String> {
            let reference = json!({"name": "s"});
            let content = json!({"metadata": {"name": "c"}, "status": status, "spec": {
                "driver": "d", "deletionPolicy": "Delete", "source": source,
                "volumeSnapshotRef": reference, "volumeGroupSnapshotRef": reference}});
            let content: K = serde_json::from_value(content).unwrap();
            let handles = content.view().handles();
            handles.into_iter().map(str::to_owned).collect()
        }
        let volume = json!({"volumeHandle": "v"});
        let given = json!({"snapshotHandle": "s"});
        for (source, status, expected) in [
            (&volume, Value::Null, "v"),
            (&given, Value::Null, "s"),
            (&volume, json!({"snapshotHandle": "t"}), "t"),
            (&given, json!({"snapshotHandle": "t"}), "t"),
        ] {
            assert_eq!(handles::<VolumeSnapshotContent>(source, status), [expected]);
        }
        let volumes = json!({"volumeHandles": ["v", "w"]});
        let given = json!({"groupSnapshotHandles":
            {"volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["a"]}});
        let known = json!({"volumeGroupSnapshotHandle": "h"});
        for (source, status, expected) in [
            (&volumes, Value::Null, &["v", "w"][..]),
            (&json!({"volumeHandles": []}), Value::Null, &[]),
            (&given, Value::Null, &["g"]),
            (&volumes, known, &["h"]),
        ] {
            let found = handles::<VolumeGroupSnapshotContent>(source, status);
            assert_eq!(found, expected);
        }
    }
}
