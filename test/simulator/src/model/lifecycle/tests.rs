use hostloop_fake_api::FakeApi;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::model::scheduler::Scheduler;
use crate::model::view::run;

/// A cluster with two nodes, a pod on the first, and the controller.
struct Cluster {
    api: FakeApi,
    heartbeats: Heartbeats,
    _controller: JoinHandle<()>,
}

impl Cluster {
    fn new() -> Cluster {
        let (api, heartbeats) = (FakeApi::cluster(), Heartbeats::default());
        for node in ["n1", "n2"] {
            api.put(
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node},
                "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]},
                "status": {"conditions": [{"type": "Ready", "status": "True"},
                    {"type": "DiskPressure", "status": "False"}]}}),
            );
        }
        let client = api.connect("lifecycle").client();
        let controller = tokio::spawn(run(client, Lifecycle::new(heartbeats.clone())));
        let cluster = Cluster {
            api,
            heartbeats,
            _controller: controller,
        };
        cluster.put_pod("p", json!({"nodeName": "n1"}));
        cluster
    }

    fn put_pod(&self, name: &str, spec: Value) {
        self.api.put(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec,
            "status": {"phase": "Pending"}}));
    }

    /// The readiness of a node, and the effects of its taints.
    fn state(&self, node: &str) -> (String, Vec<String>) {
        let node = self.api.get(&format!("nodes/{node}")).expect("a node");
        let taints: Vec<&Value> = items(&node, "/spec/taints").collect();
        assert_eq!(taints[0]["key"], "other");
        assert_eq!(items(&node, "/status/conditions").count(), 2);
        let effects = taints[1..].iter().map(|taint| {
            assert_eq!(taint["key"], UNREACHABLE);
            text(taint, "/effect").to_owned()
        });
        (readiness(&node).to_owned(), effects.collect())
    }

    /// True if the pod is deleted, which its kubelet does not know yet.
    fn is_pod_deleted(&self) -> bool {
        is_deleting(&self.api.get("pods/p").expect("the pod"))
    }
}

fn known(readiness: &str, effects: &[&str]) -> (String, Vec<String>) {
    let effects = effects.iter().map(|&effect| effect.to_owned());
    (readiness.to_owned(), effects.collect())
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_away_loses_its_pods_and_heals_when_it_returns() {
    let cluster = Cluster::new();
    sleep(Duration::from_secs(60)).await;
    cluster.heartbeats.stop("n1");
    sleep(Duration::from_secs(39)).await;
    assert_eq!(cluster.state("n1"), known("True", &[]));
    sleep(Duration::from_secs(10)).await;
    let unreachable = known("Unknown", &["NoSchedule", "NoExecute"]);
    assert_eq!(cluster.state("n1"), unreachable);
    assert_eq!(cluster.state("n2"), known("True", &[]));
    sleep(Duration::from_secs(285)).await;
    assert!(!cluster.is_pod_deleted());
    sleep(Duration::from_secs(20)).await;
    assert!(cluster.is_pod_deleted());
    sleep(Duration::from_secs(3600)).await;
    assert!(cluster.is_pod_deleted());
    assert_eq!(cluster.state("n1"), unreachable);
    cluster.heartbeats.go_on("n1");
    let mut node = cluster.api.get("nodes/n1").expect("a node");
    for condition in node["status"]["conditions"]
        .as_array_mut()
        .expect("conditions")
    {
        if condition["type"] == "Ready" {
            condition["status"] = json!("True");
        }
    }
    cluster.api.put(node);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(cluster.state("n1"), known("True", &[]));
}

#[tokio::test(start_paused = true)]
async fn a_short_absence_changes_nothing() {
    let cluster = Cluster::new();
    sleep(Duration::from_secs(60)).await;
    cluster.heartbeats.stop("n1");
    sleep(Duration::from_secs(35)).await;
    cluster.heartbeats.go_on("n1");
    sleep(Duration::from_secs(600)).await;
    assert_eq!(cluster.state("n1"), known("True", &[]));
    assert!(!cluster.is_pod_deleted());
}

#[tokio::test(start_paused = true)]
async fn pods_stay_if_all_nodes_are_away() {
    let cluster = Cluster::new();
    sleep(Duration::from_secs(60)).await;
    for node in ["n1", "n2"] {
        cluster.heartbeats.stop(node);
    }
    sleep(Duration::from_secs(3600)).await;
    for node in ["n1", "n2"] {
        assert_eq!(cluster.state(node), known("Unknown", &["NoSchedule"]));
    }
    assert!(!cluster.is_pod_deleted());
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_sent_to_a_node_that_is_away() {
    let cluster = Cluster::new();
    let scheduler = cluster.api.connect("scheduler").client();
    tokio::spawn(run(scheduler, Scheduler::default()));
    cluster.put_pod("busy", json!({"nodeName": "n2"}));
    cluster.put_pod("busier", json!({"nodeName": "n2"}));
    for (name, is_away, expected) in [("a", false, "n1"), ("b", true, "n2")] {
        if is_away {
            cluster.heartbeats.stop("n1");
        }
        sleep(Duration::from_secs(60)).await;
        cluster.put_pod(
            name,
            json!({"tolerations": [{"key": "other", "operator": "Exists"}]}),
        );
        sleep(Duration::from_secs(60)).await;
        let pod = cluster.api.get(&format!("pods/{name}")).expect("a pod");
        assert_eq!(pod["spec"]["nodeName"], expected);
    }
}

#[tokio::test(start_paused = true)]
async fn pods_leave_a_node_that_is_out_of_service_at_once() {
    let cluster = Cluster::new();
    sleep(Duration::from_secs(60)).await;
    assert!(!cluster.is_pod_deleted());
    let mut node = cluster.api.get("nodes/n1").expect("a node");
    node["spec"]["taints"] = json!([{"key": crate::model::OUT_OF_SERVICE, "effect": "NoExecute"}]);
    cluster.put_pod(
        "patient",
        json!({"nodeName": "n1", "tolerations": [{"operator": "Exists"}]}),
    );
    cluster.api.put(node);
    sleep(Duration::from_secs(10)).await;
    assert!(cluster.is_pod_deleted());
    let patient = cluster.api.get("pods/patient").expect("the pod");
    assert!(!is_deleting(&patient));
}

#[test]
fn a_pod_says_how_long_it_stays() {
    for (tolerations, expected) in [
        (json!(null), Some(300)),
        (json!([{"key": "other", "operator": "Exists"}]), Some(300)),
        (
            json!([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"}]),
            Some(300),
        ),
        (
            json!([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": 5}]),
            Some(5),
        ),
        (json!([{"operator": "Exists"}]), None),
    ] {
        let pod = json!({"spec": {"tolerations": tolerations}});
        let expected = expected.map(Duration::from_secs);
        assert_eq!(patience(&pod), expected, "{pod}");
    }
}
