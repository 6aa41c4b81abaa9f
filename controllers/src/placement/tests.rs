//! Placement against an API server in memory.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::api::constants::{PROVISIONED_BY, PROVISIONER};
use crate::api::scope::{MANAGED_BY, NODE_LABEL, SELECTED_NODE};
use crate::client::Leadership;
use crate::csi::Driver;
use crate::csi::driver::{GroupCapability, Service};
use crate::queue::Outcome;
use crate::testing::{DRIVER, World, affinity, csi_node, volume, with};

mod fitness;
mod labels;
mod live;
mod many;
mod sources;
mod table;

const LATE: &str = "WaitForFirstConsumer";

/// A cluster of nodes with one class per binding mode: `now` and `late`.
struct Rig {
    world: World,
    options: Options,
    capacities: Store<CSIStorageCapacity>,
    choosing: Arc<Choosing>,
    labelling: Arc<Labelling>,
}

impl Rig {
    fn new(nodes: &[&str]) -> Self {
        use ControllerCapability::*;
        let capabilities = [CreateDeleteVolume, CreateDeleteSnapshot, CloneVolume];
        let mut world = World::new(&capabilities);
        let services = [Service::ControllerService, Service::GroupControllerService];
        let groups = [GroupCapability::CreateDeleteGetVolumeGroupSnapshot];
        let csi = world.script.serve();
        let driver = Driver::with(csi, DRIVER, &services, &capabilities, &groups);
        world.context.driver = Arc::new(driver);
        let options = Options {
            capacity: true,
            attachments: true,
            naming: crate::testing::options(),
            table: None,
            metrics: Metrics::default(),
        };
        let capacities = Store::new();
        let (choosing, labelling) = placement(&world.context, &options, &capacities);
        let rig = Rig {
            world,
            options,
            capacities,
            choosing,
            labelling,
        };
        let caches = &rig.world.context.caches;
        caches.snapshots().note_synced();
        caches.contents().note_synced();
        for node in nodes {
            rig.node(node, json!({}));
        }
        rig.class("now", "Immediate");
        rig.class("late", LATE);
        rig
    }

    /// A rig in which every node has this room for claims of the class `now`.
    fn with_room(rooms: &[(&str, i64)]) -> Self {
        let nodes: Vec<_> = rooms.iter().map(|(node, _)| *node).collect();
        let rig = Rig::new(&nodes);
        for (node, room) in rooms {
            rig.room(node, "now", *room);
        }
        rig
    }

    /// Starts placement again, with a changed context.
    fn restart(&mut self) {
        (self.choosing, self.labelling) =
            placement(&self.world.context, &self.options, &self.capacities);
    }

    /// Makes this process a follower.
    fn follow(&mut self) {
        self.world.context.leader = Leadership::elected().1;
        self.restart();
    }

    fn class(&self, name: &str, mode: &str) {
        let class = json!({"kind": "StorageClass", "metadata": {"name": name},
            "provisioner": DRIVER, "volumeBindingMode": mode});
        let classes = self.world.context.caches.classes();
        self.world.add(&classes, class);
    }

    /// Adds a node with this spec, without a CSINode.
    fn bare_node(&self, name: &str, spec: Value) {
        let node = json!({"kind": "Node", "metadata": {"name": name, "labels": {"t/node": name}},
            "spec": spec, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        self.world.add(&self.world.context.caches.nodes(), node);
    }

    /// Adds a node that runs the driver.
    fn node(&self, name: &str, spec: Value) {
        self.bare_node(name, spec);
        let caches = &self.world.context.caches;
        self.world
            .add(&caches.csi_nodes(), csi_node(name, DRIVER, "t/node"));
    }

    /// Sets a node's capacity object for a class, in bytes.
    fn room(&self, node: &str, class: &str, available: i64) {
        self.room_in(&format!("pool{node}"), node, class, available);
    }

    /// Sets a node's capacity object for a class, with these pools.
    fn room_in(&self, pools: &str, node: &str, class: &str, available: i64) {
        let object = json!({"kind": "CSIStorageCapacity",
            "metadata": {"name": format!("{node}-{class}"), "namespace": "ns",
                "annotations": {"hostloop.csi.dev/pools": pools},
                "labels": {"csi.storage.k8s.io/drivername": DRIVER,
                    "csi.storage.k8s.io/managed-by": crate::api::capacity::managed_by(Some(node))}},
            "storageClassName": class, "capacity": available.to_string()});
        self.world.add(&self.capacities, object);
    }

    /// Adds a claim of a class, patched with `more`.
    fn claim(&self, name: &str, class: &str, more: Value) {
        let claim = json!({"kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "shop", "uid": name,
                "annotations": {PROVISIONER: DRIVER}},
            "spec": {"storageClassName": class, "resources": {"requests": {"storage": "10"}}}});
        self.world
            .add(&self.world.context.caches.claims(), with(claim, more));
    }

    /// Adds a claim with a selected node.
    fn claim_on(&self, name: &str, class: &str, node: &str) {
        let selected = json!({"metadata": {"annotations": {SELECTED_NODE: node}}});
        self.claim(name, class, selected);
    }

    /// Adds a volume on a node, with this handle, for a claim.
    fn volume(&self, name: &str, node: &str, handle: &str, claim: &str) {
        let more = json!({"spec": {
            "claimRef": {"name": claim, "namespace": "shop", "uid": claim},
            "nodeAffinity": affinity("t/node", &[node])}});
        let volume = with(volume(name, DRIVER, handle), more);
        self.world.add(&self.world.context.caches.volumes(), volume);
    }

    async fn work(&self, claim: &str) -> Outcome {
        self.choosing.claim(claim).await
    }

    /// The selected node and the node label of a claim.
    fn placed(&self, claim: &str) -> (Option<String>, Option<String>) {
        let path = format!("persistentvolumeclaims/{claim}");
        let claim = self.world.api.get(&path).expect("the claim");
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let metadata = &claim["metadata"];
        let node = text(&metadata["annotations"][SELECTED_NODE]);
        (node, text(&metadata["labels"][NODE_LABEL]))
    }

    fn labels(&self, path: &str) -> Value {
        self.world.api.get(path).expect(path)["metadata"]["labels"].clone()
    }

    fn node_of(&self, claim: &str) -> Option<String> {
        self.placed(claim).0
    }

    /// Removes the selected node from the claim, as a node without room does.
    fn refuse(&self, claim: &str) {
        self.claim(
            claim,
            "now",
            json!({"metadata": {"annotations": {SELECTED_NODE: null}}}),
        );
    }

    fn reserved(&self, node: &str) -> i64 {
        self.choosing
            .reservations
            .lock()
            .sum(node, None, Instant::now())
            .bytes
    }
}

fn placement(
    context: &Context,
    options: &Options,
    capacities: &Store<CSIStorageCapacity>,
) -> (Arc<Choosing>, Arc<Labelling>) {
    let capacities = Some(capacities.clone());
    let shared = PlacementContext::new(context.clone(), options.clone(), capacities);
    let shared = Arc::new(shared);
    (
        Arc::new(Choosing::new(shared.clone())),
        Arc::new(Labelling::new(shared)),
    )
}

fn on(node: &str) -> (Option<String>, Option<String>) {
    (Some(node.to_owned()), Some(node.to_owned()))
}

#[tokio::test]
async fn an_immediate_claim_gets_its_node_in_one_write() {
    let rig = Rig::with_room(&[("n1", 100), ("n2", 200)]);
    rig.claim("a", "now", json!({}));
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.world.api.writes(), ["a"]);
    assert_eq!(rig.placed("a"), on("n2"));
    assert_eq!(rig.reserved("n2"), 10);
    // Another reconcile writes nothing.
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert!(rig.world.api.writes().is_empty());
}

#[tokio::test]
async fn the_scheduler_s_choice_gets_its_label_and_counts() {
    let rig = Rig::with_room(&[("n1", 25), ("n2", 20)]);
    rig.claim_on("a", "late", "n1");
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.placed("a"), on("n1"));
    rig.claim("b", "now", json!({}));
    assert_eq!(rig.work("b").await, Outcome::Done);
    assert_eq!(rig.placed("b"), on("n2"));
}

#[tokio::test]
async fn after_a_failed_write_nothing_is_reserved() {
    let rig = Rig::with_room(&[("n1", 100)]);
    rig.claim("a", "now", json!({}));
    for code in [409, 500] {
        rig.world.api.refuse("/a", code);
        assert_eq!(rig.work("a").await, Outcome::Failed);
        assert_eq!(rig.reserved("n1"), 0);
    }
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.reserved("n1"), 10);
}

#[tokio::test]
async fn a_follower_writes_nothing() {
    let mut rig = Rig::with_room(&[("n1", 100)]);
    rig.claim("a", "now", json!({}));
    rig.claim_on("b", "now", "n1");
    rig.follow();
    for claim in ["a", "b"] {
        assert_eq!(rig.work(claim).await, Outcome::Done);
    }
    assert!(rig.world.api.writes().is_empty());
    // A claim placed by the scheduler still counts.
    assert_eq!(rig.reserved("n1"), 10);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_fits_nowhere_gets_one_event_and_waits() {
    let mut rig = Rig::with_room(&[("n1", 9), ("n2", 100)]);
    rig.node("n2", json!({"unschedulable": true}));
    rig.claim("a", "now", json!({}));
    for _ in 0..3 {
        assert_eq!(rig.work("a").await, Outcome::Failed);
    }
    let event = "Warning ProvisioningFailed: failed to provision volume with StorageClass \"now\": \
                 no node has room for 10: n1 has 9 left, n2 is cordoned; it is tried again when \
                 one has more room";
    assert_eq!(rig.world.events(), [event]);
    assert!(rig.choosing.unschedulable.lock().contains("a"));
    rig.room("n1", "now", 10);
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.node_of("a").as_deref(), Some("n1"));
    assert!(rig.choosing.unschedulable.lock().is_empty());
    assert!(rig.world.events().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_refused_is_not_chosen_again_at_once() {
    let rig = Rig::with_room(&[("n1", 100), ("n2", 50)]);
    rig.claim("a", "now", json!({}));
    rig.work("a").await;
    assert_eq!(rig.node_of("a").as_deref(), Some("n1"));
    rig.refuse("a");
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.node_of("a").as_deref(), Some("n2"));
    assert_eq!((rig.reserved("n1"), rig.reserved("n2")), (0, 10));
    rig.refuse("a");
    assert_eq!(rig.work("a").await, Outcome::Failed);
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.node_of("a").as_deref(), Some("n1"));
}

#[tokio::test(start_paused = true)]
async fn without_capacity_objects_nodes_take_turns() {
    let rig = Rig::new(&["n1", "n2"]);
    rig.node("n3", json!({"unschedulable": true}));
    rig.claim("a", "now", json!({}));
    // The class may be new, so placement waits for capacity objects.
    assert!(matches!(rig.work("a").await, Outcome::RequeueAfter(_)));
    tokio::time::advance(Duration::from_secs(11)).await;
    for (claim, node) in [("a", "n1"), ("b", "n2"), ("c", "n1")] {
        rig.claim(claim, "now", json!({}));
        assert_eq!(rig.work(claim).await, Outcome::Done);
        assert_eq!(rig.node_of(claim).as_deref(), Some(node));
    }
}

#[tokio::test]
async fn a_deleted_claim_releases_its_reservation() {
    let rig = Rig::with_room(&[("n1", 100)]);
    rig.claim("a", "now", json!({}));
    rig.work("a").await;
    assert_eq!(rig.reserved("n1"), 10);
    rig.claim("a", "now", json!({"metadata": {"uid": "another"}}));
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.reserved("n1"), 0);
}

#[tokio::test]
async fn assignments_of_an_earlier_leader_count() {
    let rig = Rig::with_room(&[("n1", 25), ("n2", 14)]);
    rig.claim("a", "now", json!({}));
    rig.claim_on("y", "now", "n1");
    rig.claim_on("z", "late", "n1");
    rig.claim_on("other", "elsewhere", "n2");
    rig.choosing.rebuild().await;
    assert_eq!((rig.reserved("n1"), rig.reserved("n2")), (20, 0));
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.node_of("a").as_deref(), Some("n2"));
}
