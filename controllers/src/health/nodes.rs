//! Emits events on claims if their pods run on a node that is down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use kube::ResourceExt;
use tokio::time::Instant;

use super::decide::Volume;
use super::ticks;
use crate::api::node::is_ready;
use crate::api::pod::Pod;
use crate::client::{ApiError, EventKind};
use crate::controller::Context;

/// How long a node must be down before it is reported. Restarts of nodes take less time.
const DOWN: Duration = Duration::from_secs(300);

/// The interval of checks.
const LOOK: Duration = Duration::from_secs(30);

/// A node that is down.
#[derive(Clone, Debug, PartialEq)]
struct Down {
    /// When this process first saw the node down.
    since: Instant,
    /// The claims that received an event; `None` before the report.
    reported: Option<Vec<ObjectReference>>,
}

/// Claims by namespace and name.
type Claims = BTreeMap<(String, String), ObjectReference>;

/// A change of a node's state.
#[derive(Clone, Debug, PartialEq)]
enum NodeChange {
    /// The node has been down for at least [`DOWN`].
    Failed(String),
    /// The node is up again. These claims received an event when it failed.
    Recovered(String, Vec<ObjectReference>),
}

/// Checks the nodes while this process leads. Never returns.
pub(super) async fn run(context: &Context) {
    let caches = &context.caches;
    let (nodes, volumes) = (caches.nodes(), caches.volumes());
    tokio::join!(nodes.synced(), volumes.synced());
    let mut known = BTreeMap::new();
    let mut tick = ticks(LOOK);
    loop {
        tick.tick().await;
        if !context.leader.leads() {
            known.clear();
            continue;
        }
        let seen = nodes
            .all()
            .iter()
            .map(|node| (node.name_any(), is_ready(node)))
            .collect();
        for change in decide(&mut known, &seen, Instant::now()) {
            match change {
                NodeChange::Failed(node) => {
                    let bound = bound(volumes.each(), &context.driver.name);
                    let claims = match used_on(context, &node, bound).await {
                        Ok(claims) => claims,
                        // The next check finds the node failed again.
                        Err(error) => {
                            tracing::warn!(node, %error, "cannot list the pods of a failed node");
                            continue;
                        }
                    };
                    let message =
                        format!("Node {node}, on which pods use the volume, is not ready");
                    emit(context, EventKind::Warning, "NodeFailed", &claims, &message);
                    if let Some(down) = known.get_mut(&node) {
                        down.reported = Some(claims);
                    }
                }
                NodeChange::Recovered(node, claims) => {
                    let message = format!("Node {node} is ready again");
                    emit(
                        context,
                        EventKind::Normal,
                        "NodeRecovered",
                        &claims,
                        &message,
                    );
                }
            }
        }
    }
}

/// Of these claims, those that pods on this node use. The pods are listed when they are needed: a
/// cluster has many, and nodes rarely fail.
async fn used_on(
    context: &Context,
    node: &str,
    mut unused: Claims,
) -> Result<Vec<ObjectReference>, ApiError> {
    let mut used = Vec::new();
    context
        .kube
        .list_by_field(&format!("spec.nodeName={node}"), |pod: Pod| {
            used.extend(take_used(&mut unused, &pod))
        })
        .await?;
    Ok(used)
}

fn emit(
    context: &Context,
    kind: EventKind,
    reason: &str,
    claims: &[ObjectReference],
    message: &str,
) {
    for claim in claims {
        context
            .events
            .emit(claim.clone(), kind, reason, message.to_owned());
    }
}

/// Compares the nodes' readiness with `known`, and returns the changes.
fn decide(
    known: &mut BTreeMap<String, Down>,
    nodes: &BTreeMap<String, bool>,
    now: Instant,
) -> Vec<NodeChange> {
    // A node that was removed from the cluster has not recovered.
    known.retain(|node, _| nodes.contains_key(node));
    let mut changes = Vec::new();
    for (node, ready) in nodes {
        if *ready {
            if let Some(Down {
                reported: Some(claims),
                ..
            }) = known.remove(node)
            {
                changes.push(NodeChange::Recovered(node.clone(), claims));
            }
            continue;
        }
        let down = known.entry(node.clone()).or_insert(Down {
            since: now,
            reported: None,
        });
        if down.reported.is_none() && now.duration_since(down.since) >= DOWN {
            changes.push(NodeChange::Failed(node.clone()));
        }
    }
    changes
}

/// The claims that are bound to the driver's volumes.
fn bound(volumes: impl IntoIterator<Item = Arc<PersistentVolume>>, driver: &str) -> Claims {
    let bound = volumes
        .into_iter()
        .filter_map(|volume| Volume::bound(&volume, driver));
    bound
        .map(|volume| {
            let namespace = volume.claim.namespace.clone().unwrap_or_default();
            let name = volume.claim.name.clone().unwrap_or_default();
            ((namespace, name), volume.claim)
        })
        .collect()
}

/// Takes the claims that a pod uses from `unused`.
fn take_used(unused: &mut Claims, pod: &Pod) -> impl Iterator<Item = ObjectReference> {
    pod.claims().filter_map(|claim| unused.remove(&claim))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{self, DRIVER, Fault, World, read, with};

    fn seen(nodes: &[(&str, bool)]) -> BTreeMap<String, bool> {
        nodes
            .iter()
            .map(|(name, ready)| ((*name).to_owned(), *ready))
            .collect()
    }

    #[test]
    fn a_node_is_reported_after_five_minutes() {
        let start = Instant::now();
        let claims = vec![ObjectReference::default()];
        let failed = || vec![NodeChange::Failed("a".to_owned())];
        let recovered = || vec![NodeChange::Recovered("a".to_owned(), claims.clone())];
        type Step = (u64, &'static [(&'static str, bool)], Vec<NodeChange>);
        let steps: [Step; 11] = [
            (0, &[("a", true), ("b", false)], vec![]),
            (100, &[("a", false), ("b", true)], vec![]),
            (399, &[("a", false), ("b", true)], vec![]),
            // A short outage is not reported, and the next one starts from zero.
            (399, &[("a", true)], vec![]),
            (400, &[("a", false)], vec![]),
            (699, &[("a", false)], vec![]),
            (700, &[("a", false)], failed()),
            (800, &[("a", false)], vec![]),
            (900, &[("a", true)], recovered()),
            (901, &[("a", true)], vec![]),
            (902, &[], vec![]),
        ];
        let mut known = BTreeMap::new();
        for (at, nodes, expected) in steps {
            let changes = decide(&mut known, &seen(nodes), start + Duration::from_secs(at));
            assert_eq!(changes, expected, "after {at} s");
            for change in changes {
                if let NodeChange::Failed(node) = change {
                    known.get_mut(&node).unwrap().reported = Some(claims.clone());
                }
            }
        }
        // A node that is deleted while it is down is forgotten.
        decide(&mut known, &seen(&[("a", false)]), start);
        assert!(decide(&mut known, &seen(&[]), start + DOWN).is_empty());
        assert!(known.is_empty());
    }

    fn pod(name: &str, node: &str, volumes: Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"nodeName": node, "containers": [], "volumes": volumes},
        })
    }

    fn volume(claim: &str, driver: &str) -> Arc<PersistentVolume> {
        let more = json!({
            "metadata": {"uid": claim},
            "spec": {"claimRef": {"namespace": "ns", "name": claim}},
            "status": {"phase": "Bound"},
        });
        Arc::new(read(with(
            testing::volume(&format!("pv-{claim}"), driver, claim),
            more,
        )))
    }

    fn using(name: &str) -> Value {
        json!({"name": "v", "persistentVolumeClaim": {"claimName": name}})
    }

    #[test]
    fn claims_in_use_are_those_of_pods() {
        let volumes = ["one", "p-tmp", "two", "unused"].map(|claim| volume(claim, "d"));
        let volumes = volumes.into_iter().chain([volume("others", "else")]);
        let ephemeral = json!([using("one"), {"name": "tmp", "ephemeral": {}}, {"name": "e"}]);
        for (volumes_of_pods, expected) in [
            (
                vec![ephemeral, json!([using("one"), using("others")])],
                vec!["one", "p-tmp"],
            ),
            (vec![json!([using("two")])], vec!["two"]),
            (vec![], vec![]),
        ] {
            let pods = volumes_of_pods
                .into_iter()
                .map(|volumes| read(pod("p", "a", volumes)));
            let pods: Vec<Pod> = pods.collect();
            let mut unused = bound(volumes.clone(), "d");
            let claims = pods
                .iter()
                .flat_map(|pod| take_used(&mut unused, pod).collect::<Vec<_>>());
            let found: Vec<_> = claims.map(|claim| claim.name.unwrap()).collect();
            assert_eq!(found, expected);
        }
    }

    /// Only the failed node's pods are listed, and no pods are watched.
    #[tokio::test(start_paused = true)]
    async fn a_failed_nodes_pods_are_listed_when_it_fails() {
        let mut world = World::new(&[]);
        let (nodes, volumes) = (world.context.caches.nodes(), world.context.caches.volumes());
        let node = |name: &str, ready: &str| {
            let conditions = json!([{"type": "Ready", "status": ready}]);
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"conditions": conditions}})
        };
        world.add(&nodes, node("a", "False"));
        world.add(&nodes, node("b", "True"));
        for claim in ["one", "two"] {
            volumes.apply_write((*volume(claim, DRIVER)).clone());
        }
        nodes.note_synced();
        volumes.note_synced();
        for (name, on) in [("one", "a"), ("two", "b")] {
            world.api.put(pod(name, on, json!([using(name)])));
        }
        world
            .api
            .fault(&["GET"], "pods", Some(1), Fault::Refuse(500));
        let context = world.context.clone();
        let running = tokio::spawn(async move { run(&context).await });
        tokio::time::sleep(DOWN - LOOK / 2).await;
        assert!(world.api.lists().is_empty());
        let list = ["pods fieldSelector=spec.nodeName=a"];
        tokio::time::sleep(LOOK).await;
        assert_eq!(world.api.lists(), list);
        assert!(world.events().is_empty());
        tokio::time::sleep(LOOK).await;
        assert_eq!(world.api.lists(), list, "it is tried again");
        let message = "Warning NodeFailed: Node a, on which pods use the volume, is not ready";
        assert_eq!(world.events(), [message]);
        world.add(&nodes, node("a", "True"));
        tokio::time::sleep(10 * LOOK).await;
        assert_eq!(
            world.events(),
            ["Normal NodeRecovered: Node a is ready again"]
        );
        assert!(world.api.lists().is_empty());
        running.abort();
    }
}
