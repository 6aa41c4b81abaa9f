//! Asks each node pod about its machine and its pools.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use hostloop_report::machine::MachineReport;
use hostloop_report::node_faults::NodeFaults;
use hostloop_report::status::PoolReport;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::Cluster;
use crate::api::AT_ONCE;
use crate::check::facts::{ClockOffset, Fact, Machine, Unknown};
use crate::node_pods::{self, NodeError, NodePod, NodeReport};

impl From<NodeError> for Unknown {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Api(error) => error.into(),
            NodeError::NotRunning(..) => Unknown::NotAsked(error.to_string()),
            error => Unknown::Failed(error.to_string()),
        }
    }
}

/// Asks all node pods, also for their reports of volumes. `ahead` is how far this machine's clock is
/// ahead of the API server's. Without the right to list pods there is no answer; another fact
/// reports that.
pub(super) async fn machines(
    cluster: &Cluster,
    ahead: SignedDuration,
) -> (BTreeMap<String, Machine>, Vec<NodeReport>) {
    let pods = node_pods::node_pods(cluster).await.unwrap_or_default();
    // A pod that does not run has a line of its own.
    let running = pods.iter().filter(|pod| pod.not_running.is_none());
    let asked = running.map(|pod| machine(cluster, pod, ahead));
    let (mut machines, mut reports) = (BTreeMap::new(), Vec::new());
    let mut asked = futures::stream::iter(asked).buffer_unordered(AT_ONCE);
    while let Some((node, machine, report)) = asked.next().await {
        machines.insert(node, machine);
        reports.extend(report);
    }
    (machines, reports)
}

async fn machine(
    cluster: &Cluster,
    pod: &NodePod,
    ahead: SignedDuration,
) -> (String, Machine, Option<NodeReport>) {
    let asked = node_pods::node_report(cluster, pod).await;
    let (pools, status): (Fact<Vec<PoolReport>>, _) = match asked.report {
        Ok(report) => (
            Ok(report.pools.clone()),
            Some(NodeReport {
                report: Ok(report),
                ..asked
            }),
        ),
        Err(error) => (Err(error.into()), None),
    };
    let before = Timestamp::now();
    let report = probe(cluster, pod, pools.as_deref().unwrap_or_default()).await;
    let took = before.duration_until(Timestamp::now());
    let clock = report.as_ref().ok().and_then(|report| {
        let node = Timestamp::from_nanosecond(i128::from(report.now_ns)).ok()?;
        Some(offset(node, before, took, ahead))
    });
    let faults = faults(cluster, pod).await;
    (
        pod.node.clone(),
        Machine {
            pools,
            report,
            faults,
            clock,
        },
        status,
    )
}

async fn faults(cluster: &Cluster, pod: &NodePod) -> Fact<NodeFaults> {
    let command = pod.command(&["pool-fault", "list"]);
    Ok(node_pods::ask(cluster, pod, &command).await?)
}

async fn probe(cluster: &Cluster, pod: &NodePod, pools: &[PoolReport]) -> Fact<MachineReport> {
    let roots = pools.iter().filter_map(|pool| pool.root.as_ref());
    let mut command = pod.command(&["probe", "machine"]);
    command.extend(roots.map(|root| format!("--pool-root={}", root.display())));
    Ok(node_pods::ask(cluster, pod, &command).await?)
}

/// The offset of a node's clock: the node read it at some time between `before` and `took` later.
fn offset(
    node: Timestamp,
    before: Timestamp,
    took: SignedDuration,
    ahead: SignedDuration,
) -> ClockOffset {
    let server = before + took / 2 - ahead;
    ClockOffset {
        seconds: node.duration_since(server).as_secs(),
        // The server's Date has whole seconds.
        error: took.unsigned_abs() / 2 + Duration::from_secs(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_against_the_servers_clock() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let before = at("2026-01-01T00:00:00Z");
        let took = SignedDuration::from_secs(4);
        // This machine is a minute ahead, so the server's time is about 23:59:02.
        let ahead = SignedDuration::from_secs(60);
        for (node, seconds) in [
            ("2025-12-31T23:59:02Z", 0),
            ("2025-12-31T23:59:12Z", 10),
            ("2025-12-31T23:58:52Z", -10),
        ] {
            let got = offset(at(node), before, took, ahead);
            assert_eq!(
                got,
                ClockOffset {
                    seconds,
                    error: Duration::from_secs(3)
                }
            );
        }
    }
}
