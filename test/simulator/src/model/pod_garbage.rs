//! The pod garbage collector: it deletes the pods of nodes that no longer exist, and those that are
//! being deleted on nodes that are out of service. No kubelet would ever do that.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::attach_detach::is_out_of_service;
use super::view::{Model, Step, View, has_ended, is_deleting, is_ready, text};

/// How long a node is missing before its pods are deleted.
const QUARANTINE: Duration = Duration::from_secs(40);

/// The pod garbage collector.
#[derive(Default)]
pub(crate) struct PodGarbage {
    /// Since when nodes that pods are on are missing, by name.
    missing: BTreeMap<String, Instant>,
}

impl Model for PodGarbage {
    const KINDS: &[&str] = &["nodes", "pods"];
    const PERIOD: Duration = Duration::from_secs(20);

    fn decide(&mut self, view: &View, now: Instant) -> Vec<Step> {
        let assigned = view.all("pods");
        let assigned = assigned.filter(|pod| !text(pod, "/spec/nodeName").is_empty());
        let (mut missing, mut steps) = (BTreeMap::new(), Vec::new());
        for pod in assigned {
            let name = text(pod, "/spec/nodeName");
            let is_garbage = match view.get("nodes", "", name) {
                Some(node) => is_deleting(pod) && !is_ready(node) && is_out_of_service(node),
                None => {
                    let since = self.missing.get(name).copied().unwrap_or(now);
                    missing.insert(name.to_owned(), since);
                    now - since >= QUARANTINE
                }
            };
            if is_garbage {
                steps.extend(remove(pod));
            }
        }
        self.missing = missing;
        steps
    }
}

/// Marks a pod as failed, and deletes it without its kubelet.
fn remove(pod: &Value) -> Vec<Step> {
    let mut delete = Step::delete("pods", pod);
    delete.body["gracePeriodSeconds"] = json!(0);
    if has_ended(pod) {
        return vec![delete];
    }
    vec![
        Step::status("pods", pod, json!({"phase": "Failed"})),
        delete,
    ]
}

#[cfg(test)]
mod tests {
    use hostloop_fake_api::FakeApi;
    use tokio::time::sleep;

    use super::*;
    use crate::model::view::run;

    fn put_node(api: &FakeApi, name: &str, ready: &str, taints: &Value) {
        api.put(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}),
        );
    }

    fn put_pod(api: &FakeApi, name: &str, node: &str, is_deleted: bool) {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": node}, "status": {"phase": "Running"}});
        if is_deleted {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        }
        api.put(pod);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_go_that_no_kubelet_can_end() {
        let api = FakeApi::cluster();
        let out = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
        put_node(&api, "n1", "True", &json!([]));
        put_node(&api, "n2", "Unknown", &out);
        put_node(&api, "n3", "True", &out);
        for (pod, node, is_deleted) in [
            ("here", "n1", false),
            ("here-deleted", "n1", true),
            ("out", "n2", false),
            ("out-deleted", "n2", true),
            ("back-deleted", "n3", true),
            ("lost", "n4", false),
            ("open", "", false),
        ] {
            put_pod(&api, pod, node, is_deleted);
        }
        let client = api.connect("pod-garbage").client();
        let _running = tokio::spawn(run(client, PodGarbage::default()));
        let left = || {
            let pods = api.all("pods").into_iter();
            let names = pods.map(|pod| text(&pod, "/metadata/name").to_owned());
            names.collect::<Vec<_>>()
        };
        let mut expected = vec![
            "back-deleted",
            "here",
            "here-deleted",
            "lost",
            "open",
            "out",
        ];
        sleep(Duration::from_secs(30)).await;
        assert_eq!(left(), expected);
        expected.retain(|pod| *pod != "lost");
        sleep(Duration::from_secs(40)).await;
        assert_eq!(left(), expected);
    }
}
