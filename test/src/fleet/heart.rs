//! What a kubelet does for its node without a pod: says that it is alive.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// What marks nodes of fleets.
pub(super) const LABEL: &str = "fleet";
/// Where nodes' leases are.
pub(super) const NAMESPACE: &str = "kube-node-lease";

/// As often as a kubelet does.
const PACE: Duration = Duration::from_secs(10);

/// Renews the leases of these nodes, and says that they are ready if somebody doubts it, for ever.
/// With the API server away it tries again, like a kubelet.
pub(super) async fn beat(client: Client, names: Vec<String>) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let nodes: Api<Node> = Api::all(client.clone());
    loop {
        join_all(names.iter().map(|name| renew(&leases, name))).await;
        if let Ok(listed) = nodes.list(&ListParams::default().labels(LABEL)).await {
            let of_fleet = listed
                .items
                .iter()
                .filter(|n| names.contains(&n.name_any()));
            for node in of_fleet.filter(|node| !is_ready(node)) {
                ready(&client, &node.name_any()).await;
            }
        }
        tokio::time::sleep(PACE).await;
    }
}

async fn renew(leases: &Api<Lease>, name: &str) {
    let now = k8s_openapi::jiff::Timestamp::now();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {
            "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": format!("{now:.6}"),
        },
    });
    let params = PatchParams::apply("fleet").force();
    // One that fails is followed by the next.
    let _ = leases.patch(name, &params, &Patch::Apply(&lease)).await;
}

fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// Says that a node is ready.
pub(super) async fn ready(client: &Client, name: &str) {
    let now = k8s_openapi::jiff::Timestamp::now();
    let now = format!("{now:.0}");
    let status = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "Fleet", "message": "it is simulated",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    }]}});
    let nodes: Api<Node> = Api::all(client.clone());
    let params = PatchParams::default();
    // One that fails is followed by the next beat's.
    let _ = nodes
        .patch_status(name, &params, &Patch::Strategic(&status))
        .await;
}
