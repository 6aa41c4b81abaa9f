//! Objects that nodes leave behind.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::scope::{MANAGED_BY, NODE_LABEL, SELECTED_NODE};
use crate::client::Resource;
use crate::testing::{self, DRIVER};

pub(super) use crate::testing::with;

/// The topology key with the node's name as value.
pub(super) const KEY: &str = "t/node";
const DELETED: &str = "2026-01-01T00:00:00Z";

pub(super) fn object<K: Resource>(value: Value) -> Arc<K> {
    Arc::new(testing::read(value))
}

pub(super) fn deleted(object: Value) -> Value {
    with(object, json!({"metadata": {"deletionTimestamp": DELETED}}))
}

pub(super) fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {KEY: name}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

pub(super) fn csi_node(name: &str) -> Value {
    testing::csi_node(name, DRIVER, KEY)
}

/// A bound volume of the driver on a node, with policy Delete.
pub(super) fn volume(name: &str, node: &str) -> Value {
    let more = json!({
        "metadata": {"uid": format!("uid-of-{name}"), "finalizers": [
            "kubernetes.io/pv-protection",
            "external-provisioner.volume.kubernetes.io/finalizer",
            "external-attacher/csi-example",
        ]},
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "ns", "name": "claim", "uid": format!("claim-of-{name}")},
            "nodeAffinity": on(&[node]),
        },
        "status": {"phase": "Bound"},
    });
    with(
        testing::volume(name, DRIVER, &format!("handle-of-{name}")),
        more,
    )
}

/// A node affinity to nodes by name.
pub(super) fn on(nodes: &[&str]) -> Value {
    testing::affinity(KEY, nodes)
}

/// A volume that these nodes can use, with the label of one.
pub(super) fn shared(name: &str, owner: &str, nodes: &[&str]) -> Value {
    let labels = json!({"metadata": {"labels": {NODE_LABEL: owner}}});
    with(testing::shared(volume(name, owner), KEY, nodes), labels)
}

pub(super) fn released(name: &str, node: &str) -> Value {
    with(volume(name, node), json!({"status": {"phase": "Released"}}))
}

pub(super) fn attachment(name: &str, volume: &str, node: &str) -> Value {
    let finalizers = json!({"metadata": {"finalizers": ["external-attacher/csi-example"]}});
    with(testing::attachment(name, volume, node), finalizers)
}

/// A claim that waits for a volume on a node.
pub(super) fn claim(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "namespace": "ns", "name": name, "uid": format!("uid-of-{name}"),
            "annotations": {
                SELECTED_NODE: node, "volume.kubernetes.io/storage-provisioner": DRIVER,
            },
        },
        "spec": {},
        "status": {"phase": "Pending"},
    })
}

/// A content after the user has deleted its snapshot.
pub(super) fn content(name: &str, node: &str) -> Value {
    deleted(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {
            "name": name, "labels": {MANAGED_BY: node},
            "annotations": {
                "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes",
            },
            "finalizers": [
                "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection",
            ],
        },
        "spec": {
            "driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandle": "h"},
            "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "u"},
        },
    }))
}

pub(super) fn group_content(name: &str, node: &str) -> Value {
    deleted(json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent",
        "metadata": {
            "name": name, "labels": {MANAGED_BY: node},
            "annotations": {
                "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted": "yes",
            },
            "finalizers": [
                "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection",
            ],
        },
        "spec": {
            "driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandles": ["h"]},
            "volumeGroupSnapshotRef": {"namespace": "ns", "name": "s", "uid": "u"},
        },
    }))
}

pub(super) fn capacity(name: &str, managed_by: &str, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
        "metadata": {"namespace": "hostloop", "name": name, "labels": {
            "csi.storage.k8s.io/drivername": DRIVER,
            "csi.storage.k8s.io/managed-by": managed_by,
        }},
        "storageClassName": "c",
        "nodeTopology": {"matchLabels": {KEY: node}},
    })
}
