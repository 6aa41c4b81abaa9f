//! Notices that the cluster has lost what kubelet wrote when it registered the driver: the driver's
//! entry in the CSINode, and the topology labels of the Node.
//!
//! Kubelet writes both only when it registers a driver. Without a label, no pod with a volume of the
//! node is scheduled, and the scheduler reports that there is not enough free storage. Another
//! registration writes them again, and needs no right in the cluster. A label with another value is
//! only reported: kubelet would refuse the registration.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use tokio_util::sync::CancellationToken;

use super::Health;
use crate::api::node::node_reference;
use crate::client::Kube;
use crate::client::events::{EventKind, Events};
use crate::client::kube::ApiError;
use crate::queue::Backoff;

mod decide;

use decide::{Lost, decide};

/// The wait between two looks. It grows while the same is lost again after each registration.
const AGAIN: Backoff = Backoff {
    start: Duration::from_secs(60),
    max: Duration::from_secs(1800),
};

/// The registration of a driver on its node.
pub(crate) struct Registration {
    pub(crate) driver: String,
    pub(crate) node: String,
    /// The topology that the driver reports.
    pub(crate) segments: BTreeMap<String, String>,
    pub(crate) health: Health,
    pub(crate) kube: Kube,
    pub(crate) events: Events,
}

impl Registration {
    /// Looks until the stop, and has kubelet register the driver again where that helps.
    pub(crate) async fn keep(self, stop: CancellationToken) {
        let (mut tries, mut last) = (1, None);
        while stop
            .run_until_cancelled(tokio::time::sleep(AGAIN.delay(tries)))
            .await
            .is_some()
        {
            // Before the first registration, nothing can be lost.
            if !self.health.is_registered() {
                continue;
            }
            match self.look().await {
                Ok(lost) => {
                    lost.iter().for_each(|lost| self.mend(lost));
                    tries = if lost.is_some() && lost == last {
                        tries + 1
                    } else {
                        1
                    };
                    last = lost;
                }
                Err(error) => tracing::debug!(%error, "cannot look at the driver's registration"),
            }
        }
    }

    async fn look(&self) -> Result<Option<Lost>, ApiError> {
        let Some(node) = self.kube.get::<Node>("", &self.node).await? else {
            return Ok(None);
        };
        let csi_node = self.kube.get::<CSINode>("", &self.node).await?;
        Ok(decide(
            &self.driver,
            &self.segments,
            &node,
            csi_node.as_ref(),
        ))
    }

    fn mend(&self, lost: &Lost) {
        let Registration { driver, node, .. } = self;
        let what = match lost {
            Lost::Registration => format!("CSINode {node} has no whole entry of driver {driver}"),
            Lost::Labels(keys) => format!("node {node} has lost its label {}", keys.join(", ")),
            Lost::Changed {
                key,
                registered,
                now,
            } => {
                let why = format!(
                    "label {key} of node {node} is {now}, and driver {driver} is registered with \
                     {registered}: pods with its volumes can't be scheduled. Restart its pod if the \
                     new value is right (--topology-from-node-labels), or set it back: kubectl \
                     label node {node} {key}={registered} --overwrite"
                );
                tracing::warn!(why);
                self.events.emit(
                    node_reference(node),
                    EventKind::Warning,
                    "TopologyChanged",
                    why,
                );
                return;
            }
        };
        let why = format!("{what}: kubelet registers the driver again");
        tracing::warn!(why);
        self.events.emit(
            node_reference(node),
            EventKind::Warning,
            "RegistrationLost",
            why,
        );
        self.health.register_again();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::metrics::Metrics;
    use crate::testing::FakeApi;

    pub(super) const DRIVER: &str = "memory.csi.dev";

    pub(super) fn node(labels: Value) -> Value {
        json!({"kind": "Node", "metadata": {"name": "n1", "labels": labels}})
    }

    pub(super) fn csi_node(drivers: Value) -> Value {
        json!({"kind": "CSINode", "metadata": {"name": "n1"}, "spec": {"drivers": drivers}})
    }

    pub(super) fn entry(keys: &[&str]) -> Value {
        json!([{"name": DRIVER, "nodeID": "n1", "topologyKeys": keys}])
    }

    pub(super) fn segments() -> BTreeMap<String, String> {
        [("key", "n1"), ("zone", "a")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    #[tokio::test(start_paused = true)]
    async fn kubelet_registers_it_again_and_not_without_end() {
        let api = FakeApi::default();
        let metrics = Arc::new(Metrics::default());
        let (events, mut emitted) = Events::collected(metrics.clone());
        let health = Health::default();
        let registration = Registration {
            driver: DRIVER.to_owned(),
            node: "n1".to_owned(),
            segments: segments(),
            health: health.clone(),
            kube: Kube::new(crate::testing::client(&api), None, metrics, "test"),
            events,
        };
        api.put(node(json!({"zone": "a"})));
        api.put(csi_node(entry(&["key", "zone"])));
        let stop = CancellationToken::new();
        let kept = tokio::spawn(registration.keep(stop.clone()));
        // Nothing is lost before kubelet has registered the driver once.
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(emitted.drain().is_empty());
        health.registered();
        tokio::time::timeout(Duration::from_secs(61), health.asked_again())
            .await
            .unwrap();
        assert_eq!(emitted.drain()[0].reason, "RegistrationLost");
        // The next registration does not help: each wait is longer.
        for waits in [60, 120, 240] {
            health.registered();
            let early = Duration::from_secs(waits - 2);
            tokio::time::timeout(early, health.asked_again())
                .await
                .unwrap_err();
            tokio::time::timeout(Duration::from_secs(4), health.asked_again())
                .await
                .unwrap();
        }
        // A changed label is only reported.
        health.registered();
        api.put(node(json!({"zone": "a", "key": "n7"})));
        emitted.drain();
        tokio::time::timeout(Duration::from_secs(4000), health.asked_again())
            .await
            .unwrap_err();
        let event = emitted.drain().remove(0);
        assert_eq!(event.reason, "TopologyChanged");
        assert!(
            event
                .message
                .ends_with("kubectl label node n1 key=n1 --overwrite"),
            "{event:?}"
        );
        stop.cancel();
        kept.await.unwrap();
    }
}
