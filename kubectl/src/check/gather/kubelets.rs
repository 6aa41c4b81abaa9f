//! How often kubelet reports the status of its node, which says what it uses.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use hostloop_api_objects::duration;
use http::Request;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::ResourceExt;
use serde_json::Value;

use crate::Cluster;
use crate::api::{AT_ONCE, Call, timely};
use crate::check::facts::{Fact, Unknown, shared_nodes};

/// The period of each node that shares a kernel. No other node is asked.
pub(super) async fn status_periods(
    cluster: &Cluster,
    kernels: &Fact<Option<ConfigMap>>,
    nodes: &Fact<Vec<Node>>,
) -> BTreeMap<String, Fact<Duration>> {
    let (Ok(Some(kernels)), Ok(nodes)) = (kernels, nodes) else {
        return BTreeMap::new();
    };
    let listed = shared_nodes(kernels);
    let sharing = nodes
        .iter()
        .map(ResourceExt::name_any)
        .filter(|node| listed.values().any(|nodes| nodes.contains(node.as_str())));
    let asked: Vec<_> = sharing.map(|node| asked(cluster, node)).collect();
    futures::stream::iter(asked)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await
}

async fn asked(cluster: &Cluster, node: String) -> (String, Fact<Duration>) {
    let period = status_period(cluster, &node).await;
    (node, period)
}

async fn status_period(cluster: &Cluster, node: &str) -> Fact<Duration> {
    let request = Request::get(format!("/api/v1/nodes/{node}/proxy/configz"))
        .body(Vec::new())
        .map_err(|error| Unknown::Failed(error.to_string()))?;
    let call = Call::new("get", "nodes/proxy", None, node);
    let answer = timely(call, cluster.client.request::<Value>(request)).await?;
    period(&answer)
}

/// The period in kubelet's configuration.
fn period(configuration: &Value) -> Fact<Duration> {
    let period = &configuration["kubeletconfig"]["nodeStatusUpdateFrequency"];
    let period = period.as_str().map(duration::parse);
    period
        .unwrap_or_else(|| Err("kubelet does not say how often it reports".to_owned()))
        .map_err(Unknown::Failed)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::usual(json!({"kubeletconfig": {"nodeStatusUpdateFrequency": "10s"}}), Some(10))]
    #[case::long(json!({"kubeletconfig": {"nodeStatusUpdateFrequency": "1m0s"}}), Some(60))]
    #[case::odd(json!({"kubeletconfig": {"nodeStatusUpdateFrequency": "often"}}), None)]
    #[case::none(json!({}), None)]
    fn the_period_is_in_the_configuration(
        #[case] configuration: Value,
        #[case] seconds: Option<u64>,
    ) {
        let found = period(&configuration).ok();
        assert_eq!(found, seconds.map(Duration::from_secs));
    }
}
