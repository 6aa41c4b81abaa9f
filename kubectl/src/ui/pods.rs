//! The list of hostloop's pods, which the events, the charts and the reports share.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::Out;
use crate::cluster::Cluster;
use crate::node_pods::{self, EventPod};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_secs(3);
const ABOUT: &str = "hostloop's pods";

/// The scheduled pods of the last look; none before it.
pub(super) type WatchedPods = watch::Receiver<Vec<EventPod>>;

/// Lists the pods until the task is dropped.
pub(super) async fn list(cluster: Cluster, out: Out, pods: watch::Sender<Vec<EventPod>>) {
    loop {
        match node_pods::event_pods(&cluster).await {
            Ok(found) => {
                if found.is_empty() {
                    out.problems.found(ABOUT, &no_pods(&cluster));
                } else {
                    out.problems.solved(ABOUT);
                }
                pods.send_replace(scheduled(found));
            }
            Err(error) => out.problems.found(ABOUT, &error.to_string()),
        }
        sleep(PAUSE).await;
    }
}

/// The pods of the last look, once there are any. `None` after the last look.
pub(super) async fn found(pods: &mut WatchedPods) -> Option<Vec<EventPod>> {
    pods.wait_for(|pods| !pods.is_empty())
        .await
        .ok()
        .map(|pods| pods.clone())
}

/// The pods with a node. What is wrong with another one would be a problem of no node, which no later
/// look solves.
fn scheduled(mut pods: Vec<EventPod>) -> Vec<EventPod> {
    pods.retain(|pod| !pod.pod.node.is_empty());
    pods
}

fn no_pods(cluster: &Cluster) -> String {
    let namespace = &cluster.system_namespace;
    format!(
        "there are no pods of hostloop in namespace {namespace}; set --system-namespace, or install \
         hostloop with `kubectl hostloop install`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_pods::NodePod;

    #[test]
    fn a_pod_is_known_once_it_has_a_node() {
        let pods = ["", "n1"].map(|node| EventPod {
            pod: NodePod {
                node: node.to_owned(),
                name: format!("pod-on-{node}"),
                container: "hostloop".to_owned(),
                not_running: Some("Pending".to_owned()),
                program: "hostloop".to_owned(),
            },
            process: "node",
            metrics_port: None,
        });
        let known = scheduled(pods.to_vec()).into_iter().map(|pod| pod.pod.node);
        assert_eq!(known.collect::<Vec<_>>(), ["n1"]);
    }
}
