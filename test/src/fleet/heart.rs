//! Reports nodes as alive, as a kubelet does without pods.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// The label of fleets' nodes.
pub(super) const LABEL: &str = "fleet";
pub(super) const NAMESPACE: &str = "kube-node-lease";

/// The interval of a kubelet's lease renewals.
const PACE: Duration = Duration::from_secs(10);

/// Renews the leases of these nodes forever, and reports them ready again if their status has
/// changed. If the API server is away, it retries like a kubelet.
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
    // The next renewal follows a failed one.
    let _ = leases.patch(name, &params, &Patch::Apply(&lease)).await;
}

fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// Reports that a node is ready.
pub(super) async fn ready(client: &Client, name: &str) {
    let now = k8s_openapi::jiff::Timestamp::now();
    let now = format!("{now:.0}");
    let status = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "Fleet", "message": "it is simulated",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    }]}});
    let nodes: Api<Node> = Api::all(client.clone());
    let params = PatchParams::default();
    // The next beat repeats a failed update.
    let _ = nodes
        .patch_status(name, &params, &Patch::Strategic(&status))
        .await;
}
