//! Parts of the objects that several commands make.

use hostloop_api_objects::constants::SNAPSHOT_GROUP;
use serde_json::{Value, json};

/// The version of the snapshot API.
pub(super) const SNAPSHOT_API: &str = "snapshot.storage.k8s.io/v1";

/// The labels of an object: who made it, and one of its command with the name of the run.
pub(super) fn labels(of_command: &str, run: &str) -> Value {
    json!({"app.kubernetes.io/managed-by": "kubectl-hostloop", of_command: run})
}

/// A claim of this size. `spec` has its other fields.
pub(super) fn claim(metadata: Value, size_bytes: u64, mut spec: Value) -> Value {
    spec["resources"] = json!({"requests": {"storage": size_bytes.to_string()}});
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
}

/// A snapshot of a claim.
pub(super) fn snapshot(metadata: Value, class: &str, claim: &str) -> Value {
    json!({
        "apiVersion": SNAPSHOT_API,
        "kind": "VolumeSnapshot",
        "metadata": metadata,
        "spec": {
            "volumeSnapshotClassName": class,
            "source": {"persistentVolumeClaimName": claim},
        },
    })
}

/// The data source of a claim with the content of a snapshot.
pub(super) fn from_snapshot(name: &str) -> Value {
    json!({"apiGroup": SNAPSHOT_GROUP, "kind": "VolumeSnapshot", "name": name})
}
