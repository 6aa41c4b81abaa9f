//! What users of another driver do.

use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::foreign::{BOUND, NAMESPACE, claim, snapshot};
use crate::history::ForeignStep;
use crate::users::{Refused, content_path, path_in, send, volume_path};

/// Does one thing.
pub(super) async fn act(client: &Client, step: &ForeignStep) -> Result<(), Refused> {
    let (method, path, body) = request(step);
    send(client, method, &path, &body).await.map(drop)
}

/// The request that does it.
fn request(step: &ForeignStep) -> (Method, String, Value) {
    let (claims, pods, snapshots) = ("persistentvolumeclaims", "pods", "volumesnapshots");
    let none = json!({});
    match step {
        ForeignStep::Claim { name } => (Method::POST, at(claims, ""), claim(name)),
        ForeignStep::DeleteClaim { name } => (Method::DELETE, at(claims, name), none),
        ForeignStep::Pod { name, claim } => (Method::POST, at(pods, ""), pod(name, claim)),
        ForeignStep::DeletePod { name } => (Method::DELETE, at(pods, name), none),
        ForeignStep::Snapshot { name, claim } => {
            (Method::POST, at(snapshots, ""), snapshot(name, claim))
        }
        ForeignStep::DeleteSnapshot { name } => (Method::DELETE, at(snapshots, name), none),
        ForeignStep::DeleteContent => {
            let path = content_path("snapcontent-uid-of-other-taken");
            (Method::DELETE, path, none)
        }
        ForeignStep::DeleteVolume => (Method::DELETE, volume_path(BOUND), none),
    }
}

/// The path of an object, or without a name of all objects of a kind (by plural).
fn at(plural: &str, name: &str) -> String {
    path_in(NAMESPACE, plural, name)
}

/// A pod on the node with the volumes. No kubelet mounts them, so it never runs.
fn pod(name: &str, claim: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v0", "persistentVolumeClaim": {"claimName": claim}}]}})
}
