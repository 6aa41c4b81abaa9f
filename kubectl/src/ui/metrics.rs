//! Some metrics of the pods, for small charts, through the API server's proxy (pods/proxy).

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use http::Request;
use tokio::time::{sleep, timeout};

use super::Out;
use super::message::{EventProcess, Message};
use super::pods::{self, WatchedPods};
use crate::api::{AT_ONCE, ApiError, Call};
use crate::cluster::Cluster;
use crate::node_pods::EventPod;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_secs(5);
/// How long one pod may take. Its network policy may drop what the API server sends.
const DEADLINE: Duration = Duration::from_secs(3);

/// The metrics for the page.
const CHOSEN: [&str; 7] = [
    "csi_plugin_operations_seconds_count",
    "csi_plugin_operations_seconds_sum",
    "hostloop_api_requests_total",
    "hostloop_pool_available_bytes",
    "leader_election_master_status",
    "workqueue_depth",
    "workqueue_retries_total",
];

/// Sends metrics until the task is dropped. A missing right is reported as a problem, but not a pod
/// that can't be reached: that would be too much for charts.
pub(super) async fn send(cluster: Cluster, mut pods: WatchedPods, out: Out) {
    const ABOUT: &str = "the metrics of hostloop's pods";
    let mut known: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    while let Some(pods) = pods::found(&mut pods).await {
        let reads: Vec<_> = pods.iter().map(|pod| read(&cluster, pod)).collect();
        let found: Vec<_> = futures::stream::iter(reads)
            .buffered(AT_ONCE)
            .collect()
            .await;
        for (pod, values) in pods.iter().zip(found) {
            match values {
                Some(Ok(values)) => {
                    out.problems.solved(ABOUT);
                    if known.get(&pod.pod.name) != Some(&values) {
                        let node = pod.pod.node.clone();
                        let source = EventProcess {
                            node,
                            process: pod.process.to_owned(),
                        };
                        out.history.add(Message::metrics(&source, &values));
                        known.insert(pod.pod.name.clone(), values);
                    }
                }
                Some(Err(error @ ApiError::Forbidden { .. })) => {
                    out.problems.found(ABOUT, &error.to_string());
                }
                Some(Err(_)) | None => {}
            }
        }
        sleep(PAUSE).await;
    }
}

/// The values of a pod. `None` if it has no port for metrics, or does not answer.
async fn read(
    cluster: &Cluster,
    pod: &EventPod,
) -> Option<Result<BTreeMap<String, f64>, ApiError>> {
    let (namespace, name) = (&cluster.system_namespace, &pod.pod.name);
    let port = pod.metrics_port?;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/metrics");
    let request = Request::get(path).body(Vec::new()).ok()?;
    let call = Call::new("get", "pods/proxy", Some(namespace), name);
    let answer = timeout(DEADLINE, cluster.client.request_text(request))
        .await
        .ok()?;
    Some(
        answer
            .map(|text| chosen(&text))
            .map_err(|error| ApiError::new(call, error)),
    )
}

/// The chosen metrics in an OpenMetrics text.
fn chosen(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let values = lines.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        let metric = name.split('{').next()?;
        let value: f64 = value.parse().ok()?;
        (CHOSEN.contains(&metric) && value.is_finite()).then(|| (name.to_owned(), value))
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_metrics_are_chosen() {
        let text = "# TYPE workqueue_depth gauge\n\
            workqueue_depth{name=\"claims\"} 3\n\
            workqueue_adds_total{name=\"claims\"} 9\n\
            csi_plugin_operations_seconds_count{a=\"b c\"} 2\n\
            csi_plugin_operations_seconds_bucket{le=\"0.1\"} 2\n\
            hostloop_pool_available_bytes{pool=\"p\"} NaN\n\
            odd\n# EOF\n";
        let expected = [
            ("csi_plugin_operations_seconds_count{a=\"b c\"}", 2.0),
            ("workqueue_depth{name=\"claims\"}", 3.0),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(chosen(text), BTreeMap::from(expected));
    }
}
