//! What users do with snapshots.

use kube::Client;
use serde_json::{Value, json};

use crate::cluster::NAMESPACE;
use crate::users::claims::{ENOUGH, enough_of};
use crate::users::{Refused, content_path, delete, get, path, post};

/// A snapshot with this specification.
pub(super) fn object(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
}

/// Takes a snapshot of a claim. It notes which size is enough for copies.
pub(super) async fn create(
    client: &Client,
    name: &str,
    claim: &str,
    class: &str,
) -> Result<(), Refused> {
    let spec = json!({"volumeSnapshotClassName": class,
        "source": {"persistentVolumeClaimName": claim}});
    let mut object = object(name, &spec);
    let claim = get(client, &path("persistentvolumeclaims", claim)).await;
    let enough = enough_of(&claim.unwrap_or_default());
    if enough.is_string() {
        object["metadata"]["annotations"] = json!({ENOUGH: enough});
    }
    post(client, &path("volumesnapshots", ""), &object).await
}

/// Deletes the content of a snapshot.
pub(super) async fn delete_content(client: &Client, snapshot: &str) -> Result<(), Refused> {
    let snapshot = get(client, &path("volumesnapshots", snapshot)).await?;
    let content = &snapshot["status"]["boundVolumeSnapshotContentName"];
    delete(client, &content_path(content.as_str().unwrap_or("none"))).await
}
