//! The objects of another driver. None of them is hostloop's business, whatever becomes of them.

use serde_json::{Value, json};

use crate::cluster::{OWN_NAMESPACE, PROVISIONER_FINALIZER};
use crate::model::view::{PROVISIONED_BY, SELECTED_NODE, namespace, text};

/// The name of the other driver.
pub(crate) const DRIVER: &str = "other.example";
/// The namespace of those who use it. No one else does.
pub(crate) const NAMESPACE: &str = "others";
/// The name of its classes, of each kind.
pub(crate) const CLASS: &str = "other";
/// What begins the names of its classes and of what its users make. The names of contents that the
/// snapshot controller makes for them begin with something else.
pub(crate) const PREFIX: &str = "other";
/// A claim that is bound to one of its volumes, and that volume.
pub(crate) const BOUND: &str = "other-bound";
/// A node that there was.
const GONE: &str = "gone";

const SNAPSHOTS: &str = "snapshot.storage.k8s.io/v1";
const STORAGE: &str = "storage.k8s.io/v1";
/// The label of a capacity with the name of its driver.
const OF_DRIVER: &str = "csi.storage.k8s.io/drivername";

/// True for an object of the other driver or of those who use it.
pub(crate) fn is_foreign(object: &Value) -> bool {
    const FIELDS: [&str; 6] = [
        "/provisioner",
        "/driver",
        "/driverName",
        "/spec/driver",
        "/spec/attacher",
        "/spec/csi/driver",
    ];
    namespace(object) == NAMESPACE
        || FIELDS.iter().any(|field| text(object, field) == DRIVER)
        || object["metadata"]["labels"][OF_DRIVER] == DRIVER
}

/// A claim for a volume of the other driver.
pub(crate) fn claim(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}}}})
}

/// A snapshot of a claim of the other driver.
pub(crate) fn snapshot(name: &str, claim: &str) -> Value {
    json!({"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"volumeSnapshotClassName": CLASS,
            "source": {"persistentVolumeClaimName": claim}}})
}

/// A volume of the other driver, with the phase that it is in, on the node with this name.
fn volume(name: &str, claim: &Value, phase: &str, node: &str) -> Value {
    let on_node = json!({"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]});
    json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name,
            "annotations": {PROVISIONED_BY: DRIVER},
            "finalizers": [PROVISIONER_FINALIZER]},
        "spec": {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem", "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Delete", "claimRef": claim,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [on_node]}},
            "csi": {"driver": DRIVER, "volumeHandle": format!("handle-of-{name}")}},
        "status": {"phase": phase}})
}

/// How a volume names its claim.
fn claim_ref(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name,
        "namespace": NAMESPACE, "uid": format!("uid-of-{name}")})
}

/// Claims as the other driver and Kubernetes have left them.
fn claims() -> [Value; 2] {
    let (mut bound, mut pending) = (claim(BOUND), claim("other-pending"));
    let provisioner = json!({"volume.kubernetes.io/storage-provisioner": DRIVER,
        "volume.beta.kubernetes.io/storage-provisioner": DRIVER});
    for claim in [&mut bound, &mut pending] {
        let uid = format!("uid-of-{}", text(claim, "/metadata/name"));
        claim["metadata"]["uid"] = json!(uid);
        claim["metadata"]["annotations"] = provisioner.clone();
    }
    bound["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
    bound["spec"]["volumeName"] = json!(BOUND);
    bound["status"] = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"}});
    pending["metadata"]["annotations"][SELECTED_NODE] = json!(GONE);
    pending["status"] = json!({"phase": "Pending"});
    [bound, pending]
}

/// A snapshot that is ready, with its content, and a content that waits for its snapshot.
fn snapshots() -> [Value; 3] {
    let (name, content) = ("other-taken", "snapcontent-uid-of-other-taken");
    let mut snapshot = snapshot(name, BOUND);
    snapshot["metadata"]["uid"] = json!("uid-of-other-taken");
    snapshot["metadata"]["finalizers"] = json!([
        "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection",
        "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection",
    ]);
    snapshot["status"] = json!({"boundVolumeSnapshotContentName": content, "readyToUse": true,
        "creationTime": "2026-01-01T00:00:00Z", "restoreSize": "1Gi"});
    let content = json!({"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshotContent",
        "metadata": {"name": content, "finalizers":
            ["snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"]},
        "spec": {"driver": DRIVER, "deletionPolicy": "Delete",
            "volumeSnapshotClassName": CLASS, "sourceVolumeMode": "Filesystem",
            "source": {"volumeHandle": format!("handle-of-{BOUND}")},
            "volumeSnapshotRef": {"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshot",
                "name": name, "namespace": NAMESPACE, "uid": "uid-of-other-taken"}},
        "status": {"snapshotHandle": "handle-of-other-taken", "readyToUse": true,
            "creationTime": 1_767_225_600_000_000_000_i64, "restoreSize": 1 << 30}});
    let existing = json!({"apiVersion": SNAPSHOTS, "kind": "VolumeSnapshotContent",
        "metadata": {"name": "other-existing"},
        "spec": {"driver": DRIVER, "deletionPolicy": "Retain",
            "source": {"snapshotHandle": "handle-of-other-existing"},
            "volumeSnapshotRef": {"name": "other-existing", "namespace": NAMESPACE}}});
    [snapshot, content, existing]
}

/// A class of this kind, which names its driver in this field.
fn class(version: &str, kind: &str, field: &str) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": CLASS}, field: DRIVER})
}

/// What there is of the other driver before users come.
pub(crate) fn objects() -> impl Iterator<Item = Value> {
    let mut of_volumes = class(STORAGE, "StorageClass", "provisioner");
    of_volumes["reclaimPolicy"] = json!("Delete");
    of_volumes["volumeBindingMode"] = json!("Immediate");
    let mut of_snapshots = class(SNAPSHOTS, "VolumeSnapshotClass", "driver");
    of_snapshots["deletionPolicy"] = json!("Delete");
    let mut of_attributes = class(STORAGE, "VolumeAttributesClass", "driverName");
    of_attributes["parameters"] = json!({"speed": "high"});
    let rest = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}),
        of_volumes,
        of_snapshots,
        of_attributes,
        volume(BOUND, &claim_ref(BOUND), "Bound", "n1"),
        volume(
            "other-released",
            &claim_ref("other-claim-of-before"),
            "Released",
            GONE,
        ),
        json!({"apiVersion": STORAGE, "kind": "VolumeAttachment",
            "metadata": {"name": "other-attachment",
                "finalizers": ["external-attacher/other-example"]},
            "spec": {"attacher": DRIVER, "nodeName": GONE,
                "source": {"persistentVolumeName": "other-released"}},
            "status": {"attached": true}}),
        json!({"apiVersion": STORAGE, "kind": "CSIStorageCapacity",
            "metadata": {"name": "csisc-other", "namespace": OWN_NAMESPACE,
                "labels": {OF_DRIVER: DRIVER,
                    "csi.storage.k8s.io/managed-by": format!("external-provisioner-{GONE}")}},
            "storageClassName": CLASS, "capacity": "1Gi",
            "nodeTopology": {"matchLabels": {"topology.other.example/node": GONE}}}),
    ];
    rest.into_iter().chain(claims()).chain(snapshots())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster;

    #[test]
    fn each_object_has_one_driver() {
        for object in objects().filter(|object| object["kind"] != "Namespace") {
            assert!(is_foreign(&object), "{object}");
        }
        for class in cluster::classes() {
            assert!(!is_foreign(&class), "{class}");
        }
    }
}
