//! Tests of the topology of CreateVolume calls, and of a driver that is out of space.

use hostloop_proto::csi;

use super::*;

const LATE: &str = "WaitForFirstConsumer";
const NOW: &str = "Immediate";

fn on_node(segments: &[(&str, &str)]) -> Rig {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let scope = Scope::Node {
        name: "n1".to_owned(),
        segments: segments.iter().map(owned).collect(),
    };
    rig(scope, true)
}

fn in_cluster() -> Rig {
    rig(Scope::Cluster, true)
}

/// A rig on a node that is full, with a claim for the node.
fn on_full_node() -> Rig {
    let rig = on_node(&[("t/node", "n1")]);
    rig.put_class_and_claim(LATE, Some("n1"), Value::Null, json!({}));
    rig.fail([Status::resource_exhausted("full")]);
    rig
}

fn node(name: &str, zone: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
           "metadata": {"name": name, "labels": {"zone": zone}}})
}

fn csi_node(name: &str) -> Value {
    testing::csi_node(name, "d", "zone")
}

impl Rig {
    /// Adds a class, and a claim of that class.
    fn put_class_and_claim(
        &self,
        mode: &str,
        selected: Option<&str>,
        allowed: Value,
        parameters: Value,
    ) {
        let class = json!({"kind": "StorageClass", "metadata": {"name": "fast", "uid": "c"},
                           "provisioner": "d", "volumeBindingMode": mode,
                           "allowedTopologies": allowed, "parameters": parameters});
        let classes = self.world.context.caches.classes();
        self.world.add(&classes, class);
        self.put_claim(&claim_value(selected, &Value::Null));
    }

    fn node(&self, name: &str, zone: &str) {
        let caches = &self.world.context.caches;
        self.world.add(&caches.nodes(), node(name, zone));
        self.world.add(&caches.csi_nodes(), csi_node(name));
    }

    /// The requisite topologies of the CreateVolume calls.
    fn required(&self) -> Vec<Vec<String>> {
        let created = self.driver.state().created.clone();
        let places = created.into_iter().map(|request| {
            let required = request.accessibility_requirements.unwrap_or_default();
            let zone = |place: csi::Topology| format!("{:?}", place.segments);
            required.requisite.into_iter().map(zone).collect()
        });
        places.collect()
    }

    fn is_cleared(&self) -> bool {
        let claim = self.world.api.get(CLAIM).expect("the claim");
        claim["metadata"]["annotations"][SELECTED_NODE].is_null()
    }
}

#[tokio::test]
async fn a_full_node_is_cleared() {
    let full = || Status::resource_exhausted("full");
    for (mode, node, selected, status, cleared) in [
        (LATE, true, Some("n1"), full(), true),
        // The leader selected the node, so it selects another one.
        (NOW, true, Some("n1"), full(), true),
        (LATE, false, Some("n1"), full(), true),
        // No node was selected, so none is cleared.
        (NOW, false, None, full(), false),
        // The driver may still be creating the volume, so the claim stays on this node.
        (LATE, true, Some("n1"), Status::unavailable("busy"), false),
        (LATE, true, Some("n1"), Status::internal("broken"), false),
    ] {
        let mut rig = if node {
            on_node(&[("t/node", "n1")])
        } else {
            in_cluster()
        };
        rig.node("n1", "a");
        rig.put_class_and_claim(mode, selected, Value::Null, json!({}));
        rig.fail([status.clone()]);
        let outcome = rig.work().await;
        let what = format!("{mode}, on a node {node}: {status}");
        assert_eq!(outcome == Outcome::Done, cleared, "{what}: {outcome:?}");
        if selected.is_some() {
            assert_eq!(rig.is_cleared(), cleared, "{what}");
        }
        let message = rig.last_message();
        assert!(message.contains(status.message()), "{what}: {message}");
        let another = message.contains("another node will be selected");
        assert_eq!(another, cleared, "{what}: {message}");
        let topology = rig.at_work.in_flight.topology("u-1");
        assert!(topology.is_none() || !cleared, "{what}");
    }
}

#[tokio::test]
async fn capacity_is_published_before_the_node_is_cleared() {
    let rig = on_full_node();
    let room = rig.at_work.context.room.clone();
    room.attend();
    let publishing = async {
        room.changed().await;
        // A write that does not wait would happen within this time.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let before = rig.is_cleared();
        room.published(room.changes());
        before
    };
    let (outcome, before) = tokio::join!(rig.work(), publishing);
    let (expected, cleared) = (Outcome::Done, rig.is_cleared());
    assert_eq!((outcome, before, cleared), (expected, false, true));
}

#[tokio::test]
async fn a_node_requires_its_own_segment() {
    let zone =
        |values: &[&str]| json!([{"matchLabelExpressions": [{"key": "zone", "values": values}]}]);
    let here = [r#"{"t/node": "n1", "zone": "a"}"#];
    for (allowed, created) in [
        (Value::Null, true),
        (zone(&["a", "b"]), true),
        (zone(&["b"]), false),
    ] {
        let mut rig = on_node(&[("t/node", "n1"), ("zone", "a")]);
        rig.put_class_and_claim(LATE, Some("n1"), allowed.clone(), json!({}));
        rig.work().await;
        if created {
            assert_eq!(rig.required(), [here], "{allowed}");
        } else {
            assert!(rig.required().is_empty());
            let message = rig.last_message();
            assert!(message.contains("is not in allowedTopologies"), "{message}");
        }
    }
}

#[tokio::test]
async fn a_selected_node_that_does_not_exist_is_cleared() {
    for (registered, exists) in [(false, false), (true, false), (false, true)] {
        let mut rig = in_cluster();
        rig.node("n2", "b");
        if exists {
            rig.world.api.put(node("n1", "a"));
        }
        if registered {
            rig.world.api.put(csi_node("n1"));
        }
        rig.put_class_and_claim(LATE, Some("n1"), Value::Null, json!({}));
        assert_eq!(rig.work().await, Outcome::Done);
        assert!(rig.is_cleared(), "CSINode {registered}, Node {exists}");
        assert!(rig.required().is_empty());
        let message = rig.last_message();
        assert!(message.contains("another node will be selected"));
    }
}

#[tokio::test]
async fn a_repeated_call_has_the_same_requirement() {
    let secret = json!({"csi.storage.k8s.io/provisioner-secret-name": "key",
                        "csi.storage.k8s.io/provisioner-secret-namespace": "shop"});
    let zones = |zones: &[&str]| -> Vec<String> {
        let zones = zones.iter();
        zones
            .map(|zone| format!("{{\"zone\": {zone:?}}}"))
            .collect()
    };
    let rig = in_cluster();
    rig.node("n1", "a");
    rig.node("n2", "b");
    rig.put_class_and_claim(LATE, Some("n1"), Value::Null, secret);
    // The requirement is built, and then the secret is missing.
    assert_eq!(rig.work().await, Outcome::Failed);
    // The node's zone changes, and a node is added.
    rig.node("n1", "x");
    rig.node("n3", "c");
    rig.put_secret();
    // A running call is repeated with the same requirement. After its final error, the nodes are
    // read again.
    rig.fail([Status::aborted("busy"), Status::internal("broken")]);
    assert_eq!(rig.work().await, Outcome::Failed);
    assert_eq!(rig.work().await, Outcome::Failed);
    assert_eq!(rig.required(), [zones(&["a", "b"]), zones(&["a", "b"])]);
    assert!(rig.at_work.in_flight.topology("u-1").is_none());
    rig.fail([Status::invalid_argument("wrong")]);
    rig.work().await;
    assert_eq!(rig.required()[2], zones(&["b", "c", "x"]));
    assert!(rig.at_work.in_flight.topology("u-1").is_none());
}

/// A claim for several nodes gets one event that its volume is on one node. Controllers for the
/// whole cluster do not know whether a topology key means a node.
#[tokio::test]
async fn a_claim_for_several_nodes_gets_an_event_about_its_node() {
    for (node, mode, expected) in [
        (true, "ReadWriteMany", true),
        (true, "ReadOnlyMany", true),
        (true, "ReadWriteOnce", false),
        (false, "ReadWriteMany", false),
    ] {
        let mut rig = if node {
            on_node(&[("t/node", "n1")])
        } else {
            in_cluster()
        };
        rig.node("n1", "n1");
        rig.put_class_and_claim(LATE, Some("n1"), Value::Null, json!({}));
        let mut claim = claim_value(Some("n1"), &Value::Null);
        claim["spec"]["accessModes"] = json!([mode]);
        rig.put_claim(&claim);
        for _ in 0..2 {
            assert_eq!(rig.work().await, Outcome::Done);
        }
        let events = rig.world.take_events().into_iter();
        let emitted: Vec<bool> = events
            .filter(|event| event.reason == "AllPodsOnOneNode")
            .map(|event| event.shared && event.message.contains("run on node n1,"))
            .collect();
        assert_eq!(
            emitted,
            vec![true; usize::from(expected)],
            "on a node {node}: {mode}"
        );
    }
}
