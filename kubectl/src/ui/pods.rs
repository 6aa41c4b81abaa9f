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

/// The pods of the last look; none before it.
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
                pods.send_replace(found);
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

fn no_pods(cluster: &Cluster) -> String {
    let namespace = &cluster.system_namespace;
    format!(
        "there are no pods of hostloop in namespace {namespace}; set --system-namespace, or install \
         hostloop with `kubectl hostloop install`"
    )
}
