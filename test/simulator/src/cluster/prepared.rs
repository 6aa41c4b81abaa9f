//! What an administrator and kubelets have made before users come.

use serde_json::{Value, json};

use crate::cluster::{DRIVER, GREEDY, NAMESPACE, OWN_NAMESPACE, TOPOLOGY};

/// The driver of a class that users of hostloop name by mistake. It is not that of `foreign`: what
/// is made with this class is judged as hostloop's, and not left alone.
const NOT_OURS: &str = "other.csi.dev";

fn class(name: &str, parameters: Value, immediate: bool, policy: &str) -> Value {
    let mode = if immediate {
        "Immediate"
    } else {
        "WaitForFirstConsumer"
    };
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": name}, "provisioner": DRIVER, "volumeBindingMode": mode,
        "reclaimPolicy": policy, "allowVolumeExpansion": true, "parameters": parameters})
}

fn group_class(name: &str, driver: &str, policy: &str) -> Value {
    json!({"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotClass",
        "metadata": {"name": name}, "driver": driver, "deletionPolicy": policy})
}

/// What kubelet makes of the node with this name.
pub(crate) fn node_objects(name: &str) -> [Value; 2] {
    [
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
                "labels": {"kubernetes.io/hostname": name, TOPOLOGY: name}}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"kubeletVersion": "v1.36.0"}}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": [TOPOLOGY]}]}}),
    ]
}

/// The class of volumes with this name, as the administrator has made it.
pub(crate) fn storage_class(name: &str) -> Option<Value> {
    classes().find(|class| class["kind"] == "StorageClass" && class["metadata"]["name"] == *name)
}

/// The classes that an administrator has made.
pub(crate) fn classes() -> impl Iterator<Item = Value> {
    let kinds = [
        "StorageClass",
        "VolumeAttributesClass",
        "VolumeSnapshotClass",
        "VolumeGroupSnapshotClass",
    ];
    objects(&[], false).filter(move |object| kinds.iter().any(|kind| object["kind"] == **kind))
}

/// What an administrator and kubelets have made in a cluster with these nodes. Volumes may have to be
/// attached.
pub(super) fn objects(nodes: &[&str], attach: bool) -> impl Iterator<Item = Value> {
    let fs = |fs: &str| json!({"csi.storage.k8s.io/fstype": fs});
    let thick = json!({"csi.storage.k8s.io/fstype": "ext4", "provisioning": "thick"});
    let attributes = |name: &str, parameters: Value| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
            "metadata": {"name": name}, "driverName": DRIVER, "parameters": parameters})
    };
    let snapshots = |name: &str, policy: &str| {
        json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": name}, "driver": DRIVER, "deletionPolicy": policy})
    };
    let namespaces = [OWN_NAMESPACE, NAMESPACE, GREEDY].map(|name| {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
    });
    let rest = [
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": attach, "podInfoOnMount": true, "storageCapacity": true,
                "volumeLifecycleModes": ["Persistent", "Ephemeral"], "fsGroupPolicy": "File"}}),
        class("ext4", fs("ext4"), false, "Delete"),
        class("ext4-now", fs("ext4"), true, "Delete"),
        class("xfs", fs("xfs"), false, "Delete"),
        class("btrfs-now", fs("btrfs"), true, "Delete"),
        class("thick-now", thick, true, "Delete"),
        class("kept-now", fs("ext4"), true, "Retain"),
        class("kept", fs("ext4"), false, "Retain"),
        class("wrong-now", json!({"unknown": "parameter"}), true, "Delete"),
        attributes("direct", json!({"directIO": "true", "readAheadKiB": "128"})),
        attributes(
            "buffered",
            json!({"directIO": "false", "readAheadKiB": "128"}),
        ),
        attributes(
            "streaming",
            json!({"directIO": "true", "readAheadKiB": "4096"}),
        ),
        attributes("thick", json!({"provisioning": "thick"})),
        attributes("wrong", json!({"unknown": "parameter"})),
        snapshots("deleted", "Delete"),
        snapshots("kept", "Retain"),
        group_class("deleted", DRIVER, "Delete"),
        group_class("kept", DRIVER, "Retain"),
        group_class("foreign", NOT_OURS, "Delete"),
    ];
    namespaces
        .into_iter()
        .chain(rest)
        .chain(nodes.iter().flat_map(|name| node_objects(name)))
}
