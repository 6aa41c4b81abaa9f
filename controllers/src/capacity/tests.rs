//! The capacity loop against an API server in memory.

use clap::Parser;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::*;
use crate::cache::{Caches, Scope};
use crate::client::events::Event;
use crate::client::{Events, Kube, Leadership};
use crate::controller::context::Common;
use crate::csi::driver::{ControllerCapability, Service};
use crate::csi::{Driver, Pools};

mod world;
use world::World;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    options: Options,
}

/// A process that publishes room, for a node or for the cluster.
struct Rig {
    context: Context,
    objects: Store<CSIStorageCapacity>,
    pass: Pass,
    events: mpsc::Receiver<Event>,
    metrics: Metrics,
}

fn here() -> Scope {
    Scope::Node {
        name: "n1".to_owned(),
        segments: [("t/node".to_owned(), "n1".to_owned())].into(),
    }
}

impl Rig {
    fn new(world: &World, scope: Scope, flags: &[&str]) -> Self {
        let counted = Arc::new(crate::controller::Metrics::default());
        let (events, told) = Events::collected(counted.clone());
        let services = [Service::VolumeAccessibilityConstraints];
        let can = [ControllerCapability::GetCapacity];
        let driver = Driver::with(world.csi(), "d", &services, &can, &[]);
        let context = Context {
            driver: Arc::new(driver),
            kube: Kube::new(world.client(), None, counted.clone(), "test"),
            caches: Arc::new(Caches::unwatched()),
            events,
            metrics: counted,
            pools: match &scope {
                Scope::Node { .. } => Pools::reported(|| vec!["p2".to_owned(), "p1".to_owned()]),
                Scope::Cluster | Scope::Leader => Pools::default(),
            },
            scope,
            leader: Leadership::always(),
            room: Arc::default(),
            stop: CancellationToken::new(),
            common: Common::default(),
        };
        let flags = ["capacity", "--kube-api-capacity-qps=0"]
            .iter()
            .chain(flags);
        let options = Flags::parse_from(flags).options;
        let (objects, metrics) = (Store::new(), Metrics::default());
        let level = u32::try_from(options.capacity_ownerref_level);
        let owner = level.map_or_else(|_| Owner::nobody(), |level| Owner::above("ns", "p", level));
        // A successor starts with the existing objects.
        for object in world.capacities() {
            objects.apply_write(serde_json::from_value(object).expect("a capacity"));
        }
        let pass = Pass::new(
            context.clone(),
            &options,
            metrics.clone(),
            "ns".to_owned(),
            owner,
            objects.clone(),
        );
        Rig {
            context,
            objects,
            pass,
            events: told,
            metrics,
        }
    }

    fn class(&self, name: &str, pool: &str, mode: &str) {
        let class = json!({
            "metadata": {"name": name, "uid": format!("uid of {name}")},
            "provisioner": "d", "volumeBindingMode": mode,
            "parameters": {"pool": pool, "csi.storage.k8s.io/fstype": "xfs"},
        });
        let class = serde_json::from_value(class).expect("a class");
        self.context.caches.classes().apply_write(class);
    }

    fn counts(&self) -> (i64, i64, i64) {
        let Metrics {
            goal,
            current,
            obsolete,
        } = &self.metrics;
        (goal.get(), current.get(), obsolete.get())
    }

    fn told(&mut self) -> Vec<String> {
        let events = std::iter::from_fn(|| self.events.try_recv().ok());
        events
            .map(|event| format!("{} {}", event.about.name.unwrap_or_default(), event.message))
            .collect()
    }
}

const LATE: &str = "WaitForFirstConsumer";
const NOW: &str = "Immediate";

/// A world with a pod of a DaemonSet, and a pool with room.
fn world() -> World {
    let world = World::default();
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "hostloop",
                       "uid": "u-set", "controller": true, "blockOwnerDeletion": true});
    world.put(
        "pods/p",
        json!({"apiVersion": "v1", "kind": "Pod",
               "metadata": {"name": "p", "uid": "u-pod", "ownerReferences": [owner]}}),
    );
    room(&world, "fast", Ok((100 << 30, Some(10 << 30))));
    world
}

fn room(world: &World, pool: &str, room: Result<(i64, Option<i64>), Status>) {
    world.state().rooms.insert(pool.to_owned(), room);
}

#[tokio::test]
async fn an_object_as_upstream_makes_it() {
    let world = world();
    let rig = Rig::new(&world, here(), &[]);
    rig.class("c", "fast", LATE);
    rig.pass.run(Precision::Exact).await.expect("a pass");
    let expected = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
        "metadata": {
            "generateName": "csisc-", "name": "csisc-1", "namespace": "ns",
            "uid": "uid of csisc-1", "resourceVersion": "1",
            "labels": {"csi.storage.k8s.io/drivername": "d",
                       "csi.storage.k8s.io/managed-by": "external-provisioner-n1"},
            "annotations": {"hostloop.csi.dev/pools": "p1,p2"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet",
                                 "name": "hostloop", "uid": "u-set", "controller": true}],
        },
        "storageClassName": "c",
        "nodeTopology": {"matchLabels": {"t/node": "n1"}},
        "capacity": "100Gi", "maximumVolumeSize": "10Gi",
    });
    assert_eq!(world.capacities(), [expected]);
    let asked = world.state().asked.pop().expect("a call");
    assert_eq!(asked.parameters["csi.storage.k8s.io/fstype"], "xfs");
    assert_eq!(
        asked.accessible_topology.expect("a place").segments["t/node"],
        "n1"
    );
    assert_eq!(asked.volume_capabilities, []);
    assert_eq!(rig.counts(), (1, 1, 0));
}

#[tokio::test]
async fn binding_modes() {
    for (scope, flags, told) in [
        (here(), &[][..], 2),
        (here(), &["--capacity-for-immediate-binding=false"], 1),
        (Scope::Cluster, &[], 1),
        (Scope::Cluster, &["--capacity-for-immediate-binding"], 2),
    ] {
        let world = world();
        let rig = Rig::new(&world, scope.clone(), flags);
        let keys = json!([{"name": "d", "nodeID": "n1", "topologyKeys": ["t/node"]}]);
        let node = json!({"metadata": {"name": "n1", "labels": {"t/node": "n1"}}});
        let caches = &rig.context.caches;
        caches
            .nodes()
            .apply_write(serde_json::from_value(node).expect("a node"));
        let node = json!({"metadata": {"name": "n1"}, "spec": {"drivers": keys}});
        caches
            .csi_nodes()
            .apply_write(serde_json::from_value(node).expect("a CSINode"));
        rig.class("late", "fast", LATE);
        rig.class("now", "fast", NOW);
        rig.pass.run(Precision::Exact).await.expect("a pass");
        assert_eq!(world.capacities().len(), told, "{scope:?} {flags:?}");
    }
}

#[tokio::test]
async fn room_that_changes_is_told_and_nothing_else_is_written() {
    let world = world();
    let rig = Rig::new(&world, here(), &[]);
    rig.class("c", "fast", LATE);
    let pass = async || {
        rig.pass.run(Precision::Exact).await.expect("a pass");
        world.log()
    };
    assert_eq!(pass().await, ["POST "]);
    assert!(pass().await.is_empty());
    room(&world, "fast", Ok((1, None)));
    assert_eq!(pass().await, ["PATCH csisc-1"]);
    let object = world.capacities().pop().expect("an object");
    assert_eq!(
        (&object["capacity"], &object["maximumVolumeSize"]),
        (&json!("1"), &Value::Null)
    );
    assert!(pass().await.is_empty());
    // An object that others delete is created again.
    let object = rig.objects.all().pop().expect("an object");
    world.state().objects.remove("csistoragecapacities/csisc-1");
    room(&world, "fast", Ok((2, None)));
    assert_eq!(
        pass().await,
        ["PATCH csisc-1"],
        "it is not known yet that it is gone"
    );
    drop(object);
    let rig = Rig::new(&world, here(), &[]);
    rig.class("c", "fast", LATE);
    rig.pass.run(Precision::Exact).await.expect("a pass");
    assert_eq!(world.log(), ["POST "]);
}

#[tokio::test]
async fn a_successor_takes_over_without_a_gap() {
    let world = world();
    let before = Rig::new(&world, here(), &[]);
    before.class("c", "fast", LATE);
    before.pass.run(Precision::Exact).await.expect("a pass");
    world.log();
    let had = world.capacities();
    // The next pod of the same DaemonSet takes over.
    let pod = world.state().objects["pods/p"].clone();
    let mut next = pod.clone();
    next["metadata"]["uid"] = json!("u-pod-2");
    world.put("pods/p", next);
    let after = Rig::new(&world, here(), &[]);
    after.class("c", "fast", LATE);
    after.pass.run(Precision::Exact).await.expect("a pass");
    assert!(world.log().is_empty());
    assert_eq!(world.capacities(), had);
    // A pod of another DaemonSet keeps the object, and replaces the owner.
    let mut other = pod;
    other["metadata"]["ownerReferences"][0]["uid"] = json!("u-set-2");
    world.put("pods/p", other);
    let after = Rig::new(&world, here(), &[]);
    after.class("c", "fast", LATE);
    after.pass.run(Precision::Exact).await.expect("a pass");
    assert_eq!(world.log(), ["PATCH csisc-1"]);
    let owners = world.capacities()[0]["metadata"]["ownerReferences"].clone();
    assert_eq!(owners.as_array().map(Vec::len), Some(1));
    assert_eq!(owners[0]["uid"], "u-set-2");
}

#[tokio::test]
async fn what_is_obsolete_goes_when_the_new_is_there() {
    let world = world();
    let rig = Rig::new(&world, here(), &[]);
    rig.class("c", "fast", LATE);
    rig.pass.run(Precision::Exact).await.expect("a pass");
    world.log();
    // The node has one more topology key.
    let scope = Scope::Node {
        name: "n1".to_owned(),
        segments: [("t/node", "n1"), ("zone", "a")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    };
    let rig = Rig::new(&world, scope, &[]);
    rig.class("c", "fast", LATE);
    rig.pass.run(Precision::Exact).await.expect("a pass");
    assert_eq!(world.log(), ["POST ", "DELETE csisc-1"]);
    let told = world.capacities().pop().expect("an object");
    assert_eq!(
        told["nodeTopology"]["matchLabels"],
        json!({"t/node": "n1", "zone": "a"})
    );
}

#[tokio::test]
async fn trouble_with_one_class_is_not_the_others() {
    let world = world();
    room(&world, "gone", Ok((7, None)));
    let mut rig = Rig::new(&world, here(), &[]);
    for (name, pool) in [("a", "gone"), ("b", "fast"), ("c", "wrong")] {
        rig.class(name, pool, LATE);
    }
    room(
        &world,
        "wrong",
        Err(Status::invalid_argument("no such thing")),
    );
    rig.pass.run(Precision::Exact).await.expect("a pass");
    assert_eq!(rig.counts(), (2, 2, 0));
    // One event at the class reports it.
    let said = rig.told();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].starts_with("c ") && said[0].ends_with(": no such thing"),
        "{said:?}"
    );
    rig.pass.run(Precision::Exact).await.expect("a pass");
    assert!(rig.told().is_empty());
    world.log();
    // If the room of a class is unknown at present, its object keeps its value. The pass updates
    // the other classes, then fails, so that it is retried.
    room(&world, "gone", Err(Status::unavailable("not now")));
    room(&world, "fast", Ok((1, None)));
    let failed = rig
        .pass
        .run(Precision::Exact)
        .await
        .expect_err("not all was told");
    assert!(failed.to_string().contains("of class a"), "{failed}");
    assert_eq!(world.log(), ["PATCH csisc-2"]);
    assert_eq!(rig.counts(), (2, 2, 0));
    // The object of a class that the driver refuses from now on is deleted.
    room(&world, "gone", Err(Status::invalid_argument("no longer")));
    rig.pass.run(Precision::Exact).await.expect("a pass");
    assert_eq!(world.log(), ["DELETE csisc-1"]);
}

/// A class without answers delays each pass by one call. Later passes still reach all its segments.
#[tokio::test]
async fn a_silent_class_does_not_starve_the_others() {
    let world = world();
    room(&world, "slow", Err(Status::deadline_exceeded("no answer")));
    let rig = Rig::new(&world, Scope::Cluster, &["--capacity-ownerref-level=-1"]);
    for name in ["n1", "n2", "n3"] {
        let node = json!({"metadata": {"name": name, "labels": {"t/node": name}}});
        let drivers = json!([{"name": "d", "nodeID": name, "topologyKeys": ["t/node"]}]);
        let csi_node = json!({"metadata": {"name": name}, "spec": {"drivers": drivers}});
        let caches = &rig.context.caches;
        caches
            .nodes()
            .apply_write(serde_json::from_value(node).expect("a node"));
        let csi_node = serde_json::from_value(csi_node).expect("a CSINode");
        caches.csi_nodes().apply_write(csi_node);
    }
    rig.class("a", "slow", LATE);
    rig.class("b", "fast", LATE);
    let mut asked = Vec::new();
    for _ in 0..3 {
        let before = rig.context.room.changes();
        rig.pass.run(Precision::Exact).await.expect_err("no answer");
        assert_eq!(rig.context.room.changes(), before);
        let all = std::mem::take(&mut world.state().asked);
        let slow = all.iter().filter(|one| one.parameters["pool"] == "slow");
        assert_eq!((all.len(), slow.clone().count()), (4, 1));
        let places = slow.filter_map(|one| one.accessible_topology.clone());
        asked.extend(places.map(|place| place.segments["t/node"].clone()));
    }
    assert_eq!(rig.counts(), (6, 3, 0));
    asked.sort();
    assert_eq!(asked, ["n1", "n2", "n3"]);
}

#[tokio::test]
async fn a_write_that_fails_does_not_stop_the_others() {
    let world = world();
    let rig = Rig::new(&world, here(), &[]);
    rig.class("a", "fast", LATE);
    rig.class("b", "fast", LATE);
    for (refusal, writes) in [(403, 2), (500, 1)] {
        world.state().refusals.push(refusal);
        rig.pass.run(Precision::Exact).await.expect_err("a refusal");
        assert_eq!(world.log().len(), writes, "{refusal}");
        if refusal == 403 {
            assert_eq!(rig.counts(), (2, 1, 0));
        }
    }
    rig.pass.run(Precision::Exact).await.expect("a pass");
    assert_eq!(rig.counts(), (2, 2, 0));
}

#[tokio::test]
async fn owners_by_level() {
    let world = world();
    let reference = |kind: &str, uid: &str| {
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": "above", "uid": uid,
                "controller": true}])
    };
    let of = |kind: &str, owners: Value| {
        json!({"apiVersion": "apps/v1", "kind": kind,
               "metadata": {"name": "above", "uid": "u", "ownerReferences": owners}})
    };
    let kube = Rig::new(&world, here(), &[]).context.kube;
    let uid = async |level: u32| {
        let owner = Owner::above("ns", "p", level).get(&kube).await;
        owner
            .map(|owner| owner.expect("an owner").uid)
            .map_err(|error| error.to_string())
    };
    assert_eq!(uid(0).await.as_deref(), Ok("u-pod"));
    assert_eq!(uid(1).await.as_deref(), Ok("u-set"));
    let refused = uid(2).await.expect_err("there is no such object");
    assert!(
        refused.contains("DaemonSet ns/hostloop does not exist"),
        "{refused}"
    );
    // In a Deployment, the ReplicaSet has the owner.
    let mut pod = world.state().objects["pods/p"].clone();
    pod["metadata"]["ownerReferences"] = reference("ReplicaSet", "u-replicas");
    world.put("pods/p", pod.clone());
    world.put(
        "replicasets/above",
        of("ReplicaSet", reference("Deployment", "u-top")),
    );
    assert_eq!(uid(1).await.as_deref(), Ok("u-replicas"));
    assert_eq!(uid(2).await.as_deref(), Ok("u-top"));
    let refused = uid(3).await.expect_err("a Deployment is the end");
    assert!(refused.contains("Deployment is not looked up"), "{refused}");
    world.put("replicasets/above", of("ReplicaSet", json!([])));
    assert!(
        uid(2)
            .await
            .expect_err("nobody")
            .contains("ReplicaSet above has no owner")
    );
    // Without the owner, no object is created: it would outlive the driver.
    let rig = Rig::new(&world, here(), &["--capacity-ownerref-level=2"]);
    rig.class("c", "fast", LATE);
    rig.pass.run(Precision::Exact).await.expect_err("no owner");
    assert!(world.log().is_empty());
    let rig = Rig::new(&world, here(), &["--capacity-ownerref-level=-1"]);
    rig.class("c", "fast", LATE);
    rig.pass.run(Precision::Exact).await.expect("a pass");
    let told = world.capacities().pop().expect("an object");
    assert_eq!(told["metadata"]["ownerReferences"], Value::Null);
}

#[tokio::test]
async fn who_waits_for_the_room_to_be_told_goes_on_then() {
    let world = world();
    let rig = Rig::new(&world, here(), &[]);
    rig.class("c", "fast", LATE);
    rig.context.room.attend();
    let (room, limit) = (rig.context.room.clone(), Duration::from_secs(60));
    let waiting = tokio::spawn(async move { room.change_and_wait(limit).await });
    rig.context.room.changed().await;
    // An approximate pass does not count as published.
    rig.pass.run(Precision::Approximate).await.expect("a pass");
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    rig.pass.run(Precision::Exact).await.expect("a pass");
    waiting.await.expect("told");
    assert_eq!(world.capacities().len(), 1);
}

#[test]
fn many_changes_of_the_room_are_one() {
    let now = Instant::now();
    let second = Duration::from_secs(1);
    for (last, at) in [
        (None, now),
        (Some(now - PACE - second), now),
        (Some(now - PACE + second), now + second),
        (Some(now), now + PACE),
        // A pass is already planned for that time.
        (Some(now + second), now + second),
    ] {
        assert_eq!(next(last, now), at, "{last:?}");
    }
}

#[test]
fn nodes_do_not_keep_step() {
    let minute = Duration::from_secs(60);
    let times: std::collections::BTreeSet<_> = (0..50).map(|_| about(minute)).collect();
    assert!(times.len() > 40);
    let range = Duration::from_secs(54)..=Duration::from_secs(66);
    assert!(times.iter().all(|time| range.contains(time)));
}
