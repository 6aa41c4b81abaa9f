//! What `hostloop status` reports on each node, whenever it differs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::Out;
use super::message::Message;
use crate::inspect::inventory::Survey;
use crate::inspect::status::{Report, image_map};
use crate::inspect::{Error, NO_IMAGE};
use crate::kernel::linux::Linux;
use crate::kubectl::cluster::Cluster;
use crate::kubectl::node_pods::{self, NodeError, NodePod};
use crate::storage::PoolSpec;

/// The pause between two looks. A report costs the node some milliseconds for each volume.
const PAUSE: Duration = Duration::from_secs(3);

/// The pools of this machine, for a driver without a cluster.
#[derive(Clone, Debug)]
pub(super) struct LocalPools {
    pub(super) specs: Vec<PoolSpec>,
    pub(super) state_dir: PathBuf,
}

/// Where reports come from.
#[derive(Clone)]
pub(super) enum Nodes {
    /// From the node pods of a cluster.
    Cluster(Cluster),
    /// From this machine.
    Local(LocalPools),
    /// From nowhere: a recording has its reports, and a socket alone has none.
    None,
}

/// Why there is no map of an image.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExtentsError {
    /// The pods can't be listed.
    #[error(transparent)]
    Api(#[from] crate::kubectl::api::ApiError),
    /// The node has no answer.
    #[error(transparent)]
    Node(#[from] node_pods::NodeError),
    /// The node is unknown.
    #[error("node {0} has no pod of hostloop")]
    NoNode(String),
    /// The answer is no JSON.
    #[error("the answer is unreadable: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// The node has no such image.
    #[error("{NO_IMAGE} {0}")]
    NoImage(String),
    /// The image can't be read.
    #[error("{0}")]
    Local(String),
}

/// Sends reports until the task is dropped.
pub(super) async fn send(nodes: Nodes, out: Out) {
    let mut known = Known::default();
    loop {
        match &nodes {
            Nodes::Cluster(cluster) => of_cluster(cluster, &out, &mut known).await,
            Nodes::Local(pools) => of_machine(pools.clone(), &out, &mut known).await,
            Nodes::None => return,
        }
        sleep(PAUSE).await;
    }
}

/// The last reports by node.
#[derive(Default)]
struct Known(BTreeMap<String, Value>);

impl Known {
    /// Sends a report if it is new.
    fn send(&mut self, out: &Out, node: &str, report: &Report) {
        let Ok(report) = serde_json::to_value(report) else { return };
        let report = without_options(report);
        if self.0.get(node) != Some(&report) {
            out.history.add(Message::report(node, &report));
            self.0.insert(node.to_owned(), report);
        }
    }
}

/// The report without mount options, which may be secret.
fn without_options(mut report: Value) -> Value {
    let mounts = report.get_mut("mounts").and_then(Value::as_array_mut);
    for mount in mounts.into_iter().flatten() {
        if let Some(fields) = mount.as_object_mut() {
            fields.remove("options");
        }
    }
    report
}

async fn of_cluster(cluster: &Cluster, out: &Out, known: &mut Known) {
    // Without the list of pods, their events are missing too, which is reported there.
    let Ok(pods) = node_pods::node_pods(cluster).await else { return };
    for report in node_pods::reports(cluster, &pods).await {
        let about = format!("the report of node {}", report.node);
        match report.report {
            Ok(found) => {
                out.problems.solved(&about);
                known.send(out, &report.node, &found);
            }
            Err(error) => out.problems.found(&about, &error.to_string()),
        }
    }
}

async fn of_machine(pools: LocalPools, out: &Out, known: &mut Known) {
    const ABOUT: &str = "the report of this machine";
    let surveyed = tokio::task::spawn_blocking(move || {
        Survey::take(&pools.specs, &pools.state_dir, &Linux::new()).map(|s| Report::of(&s))
    });
    match surveyed.await {
        Ok(Ok(report)) => {
            out.problems.solved(ABOUT);
            let node = out.node.get().map_or("", String::as_str);
            known.send(out, node, &report);
        }
        Ok(Err(error)) => out.problems.found(ABOUT, &error.to_string()),
        Err(panicked) => out.problems.found(ABOUT, &panicked.to_string()),
    }
}

impl Nodes {
    /// Where the blocks of a volume's or snapshot's image are, as JSON.
    pub(super) async fn extents(&self, node: &str, volume: &str) -> Result<Value, ExtentsError> {
        match self {
            Nodes::Cluster(cluster) => {
                let pods = node_pods::node_pods(cluster).await?;
                let pod: Option<&NodePod> = pods.iter().find(|pod| pod.node == node);
                let pod = pod.ok_or_else(|| ExtentsError::NoNode(node.to_owned()))?;
                let command = pod.extents_command(volume).map_err(node_pods::NodeError::from)?;
                let output = match node_pods::run(cluster, pod, &command).await {
                    Err(NodeError::Failed { message, .. }) if message.contains(NO_IMAGE) => {
                        return Err(ExtentsError::NoImage(volume.to_owned()));
                    }
                    output => output?,
                };
                Ok(serde_json::from_str(&output.stdout)?)
            }
            Nodes::Local(pools) => {
                let (pools, volume) = (pools.clone(), volume.to_owned());
                let read = tokio::task::spawn_blocking(move || {
                    let found = image_map(&pools.specs, &pools.state_dir, &volume);
                    found.map_err(|error| match error {
                        Error::NoImage(id) => ExtentsError::NoImage(id),
                        other => ExtentsError::Local(other.to_string()),
                    })
                });
                let read = read.await.map_err(|error| ExtentsError::Local(error.to_string()))?;
                Ok(serde_json::to_value(read?)?)
            }
            Nodes::None => Err(ExtentsError::Local("there are no pools: add --pool".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mount_options_are_not_passed_on() {
        let report = json!({"pools": [], "mounts": [{"path": "/p", "options": ["password=x"]}]});
        assert_eq!(without_options(report), json!({"pools": [], "mounts": [{"path": "/p"}]}));
        assert_eq!(without_options(json!({})), json!({}));
    }
}
