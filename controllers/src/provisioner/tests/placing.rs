//! Tests of the topology of CreateVolume calls, and of a driver that is out of space.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;

use super::*;

const CLEARED: &str = "volume.kubernetes.io/selected-node";

fn on_node(extra: &[(&str, &str)]) -> Rig {
    let own = [("t/node", "n1")];
    let segments = own.iter().chain(extra);
    rig(
        Scope::Node {
            name: "n1".to_owned(),
            segments: segments
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        },
        true,
    )
}

impl Rig {
    /// Adds a class, and a claim of that class.
    fn asks(&self, mode: &str, selected: Option<&str>, allowed: Value, parameters: Value) {
        let class = json!({"metadata": {"name": "fast", "uid": "c", "resourceVersion": "9"},
                           "provisioner": "d", "volumeBindingMode": mode,
                           "allowedTopologies": allowed, "parameters": parameters});
        self.at_work
            .context
            .caches
            .classes()
            .apply_write(read(&class));
        self.put_claim(&claim_value(selected, &Value::Null));
    }

    fn node(&self, name: &str, zone: &str, version: u64) {
        let metadata = json!({"name": name, "labels": {"zone": zone},
                              "resourceVersion": version.to_string()});
        let caches = &self.at_work.context.caches;
        let node: Node = read(&json!({"metadata": metadata}));
        caches.nodes().apply_write(node);
        let drivers = json!([{"name": "d", "nodeID": name, "topologyKeys": ["zone"]}]);
        let node: CSINode =
            read(&json!({"metadata": {"name": name}, "spec": {"drivers": drivers}}));
        caches.csi_nodes().apply_write(node);
    }

    /// The requisite topologies of the CreateVolume calls.
    fn required(&self) -> Vec<Vec<String>> {
        let created = self.world.state().created.clone();
        let places = created.into_iter().map(|request| {
            let required = request.accessibility_requirements.unwrap_or_default();
            let zone = |place: csi::Topology| format!("{:?}", place.segments);
            required.requisite.into_iter().map(zone).collect()
        });
        places.collect()
    }

    fn is_cleared(&self) -> bool {
        let state = self.world.state();
        state.objects[CLAIM]["metadata"]["annotations"][CLEARED].is_null()
    }
}

const LATE: &str = "WaitForFirstConsumer";
const NOW: &str = "Immediate";

#[tokio::test]
async fn no_room_gives_the_node_back() {
    for (mode, node, selected, code, cleared) in [
        (
            LATE,
            true,
            Some("n1"),
            Status::resource_exhausted("full"),
            true,
        ),
        // The leader selected the node, so it selects another one.
        (
            NOW,
            true,
            Some("n1"),
            Status::resource_exhausted("full"),
            true,
        ),
        (
            LATE,
            false,
            Some("n1"),
            Status::resource_exhausted("full"),
            true,
        ),
        // No node was selected, so none is cleared.
        (NOW, false, None, Status::resource_exhausted("full"), false),
        // The driver may still be creating the volume, so the claim stays on this node.
        (LATE, true, Some("n1"), Status::unavailable("busy"), false),
        (LATE, true, Some("n1"), Status::internal("broken"), false),
    ] {
        let mut rig = match node {
            true => on_node(&[]),
            false => rig(Scope::Cluster, true),
        };
        rig.node("n1", "a", 1);
        rig.asks(mode, selected, Value::Null, json!({}));
        rig.world.state().creations.push_back(Err(code.clone()));
        let outcome = rig.work().await;
        let what = format!("{mode}, on a node {node}: {code}");
        assert_eq!(outcome == Outcome::Done, cleared, "{what}: {outcome:?}");
        if selected.is_some() {
            assert_eq!(rig.is_cleared(), cleared, "{what}");
        }
        let said = rig.last_message();
        assert!(said.contains(code.message()), "{what}: {said}");
        let another = said.contains("another node is to be selected");
        assert_eq!(another, cleared, "{what}: {said}");
        assert!(
            rig.at_work.in_flight.topology("u-1").is_none() || !cleared,
            "{what}"
        );
    }
}

#[tokio::test]
async fn the_scheduler_is_told_of_the_room_first() {
    let rig = on_node(&[]);
    rig.asks(LATE, Some("n1"), Value::Null, json!({}));
    let full = Err(Status::resource_exhausted("full"));
    rig.world.state().creations.push_back(full);
    let room = rig.at_work.context.room.clone();
    room.attend();
    let working = rig.work();
    let telling = async {
        room.changed().await;
        // A write that does not wait would happen within this time.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let before = rig.is_cleared();
        room.published(room.changes());
        before
    };
    let (outcome, before) = tokio::join!(working, telling);
    assert_eq!(
        (outcome, before, rig.is_cleared()),
        (Outcome::Done, false, true)
    );
}

#[tokio::test(start_paused = true)]
async fn telling_is_not_waited_for_for_ever() {
    let rig = on_node(&[]);
    rig.asks(LATE, Some("n1"), Value::Null, json!({}));
    let full = Err(Status::resource_exhausted("full"));
    rig.world.state().creations.push_back(full);
    rig.at_work.context.room.attend();
    assert_eq!(rig.work().await, Outcome::Done);
    assert!(rig.is_cleared());
}

#[tokio::test]
async fn a_node_asks_for_its_own_place() {
    let zone =
        |values: &[&str]| json!([{"matchLabelExpressions": [{"key": "zone", "values": values}]}]);
    let here = [r#"{"t/node": "n1", "zone": "a"}"#];
    for (allowed, created) in [
        (Value::Null, true),
        (zone(&["a", "b"]), true),
        (zone(&["b"]), false),
    ] {
        let mut rig = on_node(&[("zone", "a")]);
        rig.asks(LATE, Some("n1"), allowed.clone(), json!({}));
        rig.work().await;
        match created {
            true => assert_eq!(rig.required(), [here], "{allowed}"),
            false => {
                assert!(rig.required().is_empty());
                let said = rig.last_message();
                assert!(said.contains("is not in allowedTopologies"), "{said}");
            }
        }
    }
}

#[tokio::test]
async fn a_selected_node_that_is_gone_is_given_back() {
    for (registered, node) in [(false, false), (true, false), (false, true)] {
        let mut rig = rig(Scope::Cluster, true);
        rig.node("n2", "b", 1);
        let metadata = json!({"name": "n1", "labels": {"zone": "a"}});
        if node {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
            rig.world
                .state()
                .objects
                .insert("nodes/n1".to_owned(), node);
        }
        if registered {
            let drivers = json!([{"name": "d", "nodeID": "n1", "topologyKeys": ["zone"]}]);
            let node = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
                              "metadata": metadata, "spec": {"drivers": drivers}});
            rig.world
                .state()
                .objects
                .insert("csinodes/n1".to_owned(), node);
        }
        rig.asks(LATE, Some("n1"), Value::Null, json!({}));
        assert_eq!(rig.work().await, Outcome::Done);
        assert!(rig.is_cleared(), "CSINode {registered}, Node {node}");
        assert!(rig.required().is_empty());
        let said = rig.last_message();
        assert!(said.contains("another node is to be selected"), "{said}");
    }
}

#[tokio::test]
async fn the_same_is_asked_for_until_it_is_known_what_came_of_it() {
    let secret = json!({"csi.storage.k8s.io/provisioner-secret-name": "key",
                        "csi.storage.k8s.io/provisioner-secret-namespace": "shop"});
    let places = |zones: &[&str]| -> Vec<String> {
        zones
            .iter()
            .map(|zone| format!("{{\"zone\": {zone:?}}}"))
            .collect()
    };
    let rig = rig(Scope::Cluster, true);
    rig.node("n1", "a", 1);
    rig.node("n2", "b", 1);
    rig.asks(LATE, Some("n1"), Value::Null, secret);
    // The requirement is built, and then the secret is missing.
    assert_eq!(rig.work().await, Outcome::Failed);
    // The node's zone changes, and a node is added.
    rig.node("n1", "x", 2);
    rig.node("n3", "c", 1);
    rig.put_secret();
    // A running call is repeated with the same requirement. After its final error, the nodes are
    // read again.
    let answers = [Status::aborted("busy"), Status::internal("broken")];
    rig.world.state().creations.extend(answers.map(Err));
    assert_eq!(rig.work().await, Outcome::Failed);
    assert_eq!(rig.work().await, Outcome::Failed);
    assert_eq!(rig.required(), [places(&["a", "b"]), places(&["a", "b"])]);
    assert!(rig.at_work.in_flight.topology("u-1").is_none());
    let full = Err(Status::invalid_argument("wrong"));
    rig.world.state().creations.push_back(full);
    rig.work().await;
    assert_eq!(rig.required()[2], places(&["b", "c", "x"]));
    assert!(rig.at_work.in_flight.topology("u-1").is_none());
}

#[tokio::test]
async fn a_driver_that_is_nowhere_is_waited_for() {
    let mut rig = rig(Scope::Cluster, true);
    rig.asks(NOW, None, Value::Null, json!({}));
    assert_eq!(rig.work().await, Outcome::Failed);
    let said = rig.last_message();
    assert!(said.contains("on no node yet"), "{said}");
    assert!(rig.required().is_empty());
    rig.node("n1", "a", 1);
    assert_eq!(rig.work().await, Outcome::Done);
    assert_eq!(rig.required(), [[r#"{"zone": "a"}"#]]);
}
