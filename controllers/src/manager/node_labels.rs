//! Reads labels of this node for a driver that does not talk to the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use tokio_util::sync::CancellationToken;

use crate::client::Kube;
use crate::queue::Backoff;

/// The waits between attempts to read the node.
const AGAIN: Backoff = Backoff {
    start: Duration::from_secs(1),
    max: Duration::from_secs(30),
};

/// Receives the labels. Returns the missing keys, or an error if the process can't continue with
/// these labels.
type Take = dyn Fn(&BTreeMap<String, String>) -> Result<Vec<String>, String> + Send + Sync;

/// Labels of this node that the driver needs.
#[derive(Clone)]
pub struct NodeLabels {
    node: String,
    keys: Vec<String>,
    take: Arc<Take>,
}

impl NodeLabels {
    /// Reads `keys` of the node with this name. `take` receives the present labels, repeatedly
    /// until it reports none missing. Its error ends the process.
    pub fn new(
        node: &str,
        keys: Vec<String>,
        take: impl Fn(&BTreeMap<String, String>) -> Result<Vec<String>, String> + Send + Sync + 'static,
    ) -> Self {
        NodeLabels {
            node: node.to_owned(),
            keys,
            take: Arc::new(take),
        }
    }

    /// Reads the labels, however long that takes, then waits for the stop.
    pub(super) async fn run(self, kube: Kube, stop: CancellationToken) -> Result<(), String> {
        let read = stop.run_until_cancelled(self.read(kube)).await;
        let read = read.unwrap_or(Ok(()));
        if read.is_ok() {
            stop.cancelled().await;
        }
        read
    }

    async fn read(&self, kube: Kube) -> Result<(), String> {
        let (mut tries, mut warned) = (0, String::new());
        loop {
            let why = match kube.get::<Node>("", &self.node).await {
                Ok(Some(node)) => {
                    let missing = (self.take)(&self.wanted(&node))?;
                    if missing.is_empty() {
                        tracing::info!(
                            node = self.node,
                            "the topology labels of the node are read"
                        );
                        return Ok(());
                    }
                    format!("it has no label {}: label it", missing.join(", "))
                }
                Ok(None) => "it does not exist (yet)".to_owned(),
                Err(error) => error.to_string(),
            };
            if why != warned {
                let node = &self.node;
                tracing::warn!(
                    node,
                    why,
                    "the topology labels of the node are not read yet"
                );
                warned = why;
            }
            tries += 1;
            tokio::time::sleep(AGAIN.delay(tries)).await;
        }
    }

    fn wanted(&self, node: &Node) -> BTreeMap<String, String> {
        self.keys
            .iter()
            .filter_map(|key| Some((key.clone(), node.labels().get(key)?.clone())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::metrics::Metrics;
    use crate::testing::{FakeApi, Fault};

    fn kube(api: &FakeApi) -> Kube {
        Kube::new(
            crate::testing::client(api),
            None,
            Arc::new(Metrics::default()),
            "test",
        )
    }

    fn node(labels: Value) -> Value {
        json!({"kind": "Node", "metadata": {"name": "n1", "labels": labels}})
    }

    #[tokio::test(start_paused = true)]
    async fn they_are_read_until_none_is_missing() {
        let api = FakeApi::default();
        for code in [500, 404] {
            api.fault(&["GET"], "/api/v1/nodes/n1", Some(1), Fault::Refuse(code));
        }
        api.put(node(json!({"other": "x"})));
        let taken = Arc::new(Mutex::new(Vec::new()));
        let take = {
            let (taken, api) = (taken.clone(), api.clone());
            move |labels: &BTreeMap<String, String>| {
                api.put(node(json!({"zone": "a", "other": "x"})));
                taken.lock().push(labels.clone());
                let missing = labels.is_empty().then(|| "zone".to_owned());
                Ok(missing.into_iter().collect())
            }
        };
        let labels = NodeLabels::new("n1", vec!["zone".to_owned()], take);
        let stop = CancellationToken::new();
        let running = tokio::spawn(labels.run(kube(&api), stop.clone()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let zone = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        assert_eq!(*taken.lock(), [BTreeMap::new(), zone]);
        // The task runs until the stop.
        assert!(!running.is_finished());
        stop.cancel();
        assert_eq!(running.await.expect("no panic"), Ok(()));
    }

    #[tokio::test]
    async fn what_cannot_be_gone_on_with_ends_it() {
        let take = |_: &BTreeMap<String, String>| Err("it moved".to_owned());
        let labels = NodeLabels::new("n1", vec!["zone".to_owned()], take);
        let api = FakeApi::default();
        api.put(node(json!({"zone": "a"})));
        let ended = labels.run(kube(&api), CancellationToken::new()).await;
        assert_eq!(ended, Err("it moved".to_owned()));
    }
}
