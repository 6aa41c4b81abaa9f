//! The capacity controller against an API server and a driver in memory.

use std::collections::BTreeMap;

use hostloop_memory_driver::Handlers;
use hostloop_proto::csi;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tonic::Status;

use super::*;
use crate::api::scope::Scope;
use crate::client::Kube;
use crate::csi::driver::{ControllerCapability, Service};
use crate::csi::{Driver, Pools};
use crate::testing::{self, FakeApi, World, connect, options};

const LATE: &str = "WaitForFirstConsumer";
const NOW: &str = "Immediate";
const OBJECTS: &str = "ns/csistoragecapacities";

/// The room in a pool: the available bytes and the largest volume.
type PoolRoom = Result<(i64, Option<i64>), Status>;

/// The API server and the driver, which outlive a process.
#[derive(Clone, Default)]
struct Site {
    api: FakeApi,
    /// The room of classes, by their parameter `pool`.
    rooms: Arc<Mutex<BTreeMap<String, PoolRoom>>>,
    asked: Arc<Mutex<Vec<csi::GetCapacityRequest>>>,
}

impl Site {
    /// A site with a pod of a DaemonSet, and a pool with room.
    fn new() -> Self {
        let site = Site::default();
        site.put(
            "Pod",
            "p",
            "u-pod",
            json!([controller("DaemonSet", "hostloop", "u-set")]),
        );
        site.room("fast", Ok((100 << 30, Some(10 << 30))));
        site
    }

    fn put(&self, kind: &str, name: &str, uid: &str, owners: Value) {
        self.api.put(json!({"kind": kind, "metadata": {
            "name": name, "namespace": "ns", "uid": uid, "ownerReferences": owners}}));
    }

    fn room(&self, pool: &str, room: PoolRoom) {
        let mut rooms = self.rooms.lock();
        rooms.insert(pool.to_owned(), room);
    }

    /// The GetCapacity requests since the last look.
    fn asked(&self) -> Vec<csi::GetCapacityRequest> {
        std::mem::take(&mut *self.asked.lock())
    }

    /// The capacity objects.
    fn capacities(&self) -> Vec<Value> {
        self.api.all("csistoragecapacities")
    }

    /// The name of the object of a class.
    fn name(&self, class: &str) -> String {
        let objects = self.capacities();
        let object = objects.iter().find(|one| one["storageClassName"] == class);
        let name = object.and_then(|one| one["metadata"]["name"].as_str());
        name.expect("an object").to_owned()
    }

    /// The writes since the last look: `POST`, `PATCH csisc-00002`, …
    fn writes(&self) -> Vec<String> {
        let log = self.api.log().into_iter();
        let writes = log.filter_map(|entry| {
            let (verb, name) = entry.split_once(&format!(" {OBJECTS}"))?;
            Some(format!("{verb}{}", name.replace('/', " ")))
        });
        writes.collect()
    }

    fn driver(&self) -> Driver {
        let handlers = Handlers::default();
        let site = self.clone();
        handlers.on(move |request: csi::GetCapacityRequest| {
            let pool = request.parameters.get("pool").cloned().unwrap_or_default();
            site.asked.lock().push(request);
            let room = site.rooms.lock().get(&pool).cloned();
            let (available_capacity, maximum_volume_size) = room.unwrap_or(Ok((0, None)))?;
            Ok(csi::GetCapacityResponse {
                available_capacity,
                maximum_volume_size,
                minimum_volume_size: None,
            })
        });
        let services = [Service::VolumeAccessibilityConstraints];
        let can = [ControllerCapability::GetCapacity];
        Driver::with(connect(&handlers), "d", &services, &can, &[])
    }
}

/// A reference to an owner that is the controller.
fn controller(kind: &str, name: &str, uid: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": true,
           "blockOwnerDeletion": true})
}

/// The default options, without a rate limit.
fn defaults() -> Options {
    Options {
        kube_api_capacity_qps: 0.0,
        ..options()
    }
}

fn with_level(capacity_ownerref_level: i32) -> Options {
    Options {
        capacity_ownerref_level,
        ..defaults()
    }
}

/// A process that publishes room, for a node or for the cluster.
struct Rig {
    world: World,
    pass: Pass,
    metrics: Metrics,
}

fn here() -> Scope {
    testing::node_scope("n1", "t/node")
}

impl Rig {
    /// Creates a process on the node n1 with a class.
    fn on_node(site: &Site) -> Self {
        let rig = Rig::new(site, here(), defaults());
        rig.class("c", "fast", LATE);
        rig
    }

    fn new(site: &Site, scope: Scope, options: Options) -> Self {
        let mut world = World::new(&[]);
        world.context.kube = Kube::new(
            crate::testing::client(&site.api),
            None,
            world.context.metrics.clone(),
            "test",
        );
        world.context.driver = Arc::new(site.driver());
        if scope.node().is_some() {
            let pools = || vec!["p2".to_owned(), "p1".to_owned()];
            world.context.pools = Pools::reported(pools);
        }
        world.context.scope = scope;
        let (objects, metrics) = (Store::new(), Metrics::default());
        let level = u32::try_from(options.capacity_ownerref_level);
        let owner = level.ok().map(|level| Owner::above("ns", "p", level));
        // A successor starts with the existing objects.
        for object in site.capacities() {
            objects.apply_write(serde_json::from_value(object).expect("a capacity"));
        }
        let pass = Pass::new(
            world.context.clone(),
            &options,
            metrics.clone(),
            "ns".to_owned(),
            owner,
            objects,
        );
        Rig {
            world,
            pass,
            metrics,
        }
    }

    fn class(&self, name: &str, pool: &str, mode: &str) {
        let class = json!({
            "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": "d", "volumeBindingMode": mode,
            "parameters": {"pool": pool, "csi.storage.k8s.io/fstype": "xfs"},
        });
        let classes = self.world.context.caches.classes();
        self.world.add(&classes, class);
    }

    /// Adds a node that runs the driver.
    fn node(&self, name: &str) {
        let caches = &self.world.context.caches;
        let labels = json!({"t/node": name});
        let node = json!({"kind": "Node", "metadata": {"name": name, "labels": labels}});
        self.world.add(&caches.nodes(), node);
        self.world
            .add(&caches.csi_nodes(), testing::csi_node(name, "d", "t/node"));
    }

    async fn run(&self) {
        self.pass.run(Precision::Exact).await.expect("a pass");
    }

    /// Runs a pass that fails.
    async fn run_failing(&self) -> String {
        let failed = self.pass.run(Precision::Exact).await;
        failed.expect_err("a failure").to_string()
    }

    /// The goal, the current and the obsolete objects in the metrics.
    fn counts(&self) -> (i64, i64, i64) {
        let Metrics {
            goal,
            current,
            obsolete,
        } = &self.metrics;
        (goal.get(), current.get(), obsolete.get())
    }

    fn events(&mut self) -> Vec<String> {
        let events = self.world.take_events().into_iter();
        events
            .map(|event| format!("{} {}", event.about.name.unwrap_or_default(), event.message))
            .collect()
    }
}

#[tokio::test]
async fn an_object_as_upstream_makes_it() {
    let site = Site::new();
    let rig = Rig::on_node(&site);
    rig.run().await;
    let mut object = site.capacities().pop().expect("an object");
    let metadata = object["metadata"].as_object_mut().expect("metadata");
    for by_server in ["name", "uid", "resourceVersion", "creationTimestamp"] {
        metadata.remove(by_server);
    }
    let expected = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
        "metadata": {
            "generateName": "csisc-", "namespace": "ns",
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
    assert_eq!(object, expected);
    let asked = site.asked().pop().expect("a call");
    assert_eq!(asked.parameters["csi.storage.k8s.io/fstype"], "xfs");
    let topology = asked.accessible_topology.expect("a topology");
    assert_eq!(topology.segments["t/node"], "n1");
    assert_eq!(asked.volume_capabilities, []);
    assert_eq!(rig.counts(), (1, 1, 0));
}

#[tokio::test]
async fn binding_modes() {
    for (scope, immediate, published) in [
        (here(), None, 2),
        (here(), Some(false), 1),
        (Scope::Cluster, None, 1),
        (Scope::Cluster, Some(true), 2),
    ] {
        let site = Site::new();
        let options = Options {
            capacity_for_immediate_binding: immediate,
            ..defaults()
        };
        let rig = Rig::new(&site, scope.clone(), options);
        rig.node("n1");
        rig.class("late", "fast", LATE);
        rig.class("now", "fast", NOW);
        rig.run().await;
        assert_eq!(
            site.capacities().len(),
            published,
            "{scope:?} {immediate:?}"
        );
    }
}

#[tokio::test]
async fn only_changes_of_room_are_written() {
    let site = Site::new();
    let rig = Rig::on_node(&site);
    let pass = async || {
        rig.run().await;
        site.writes()
    };
    assert_eq!(pass().await, ["POST"]);
    assert!(pass().await.is_empty());
    let patch = format!("PATCH {}", site.name("c"));
    site.room("fast", Ok((1, None)));
    assert_eq!(pass().await, [&*patch]);
    let object = site.capacities().pop().expect("an object");
    assert_eq!(object["capacity"], "1");
    assert_eq!(object["maximumVolumeSize"], Value::Null);
    assert!(pass().await.is_empty());
    // Another client deletes the object. Until the watch reports that, a write to it succeeds.
    site.api.take(&site.name("c"));
    site.room("fast", Ok((2, None)));
    assert_eq!(pass().await, [patch]);
    let rig = Rig::on_node(&site);
    rig.run().await;
    assert_eq!(site.writes(), ["POST"]);
}

#[tokio::test]
async fn an_error_of_one_class_does_not_stop_the_others() {
    let site = Site::new();
    site.room("gone", Ok((7, None)));
    let wrong = Status::invalid_argument("no such thing");
    site.room("wrong", Err(wrong));
    let mut rig = Rig::new(&site, here(), defaults());
    for (name, pool) in [("a", "gone"), ("b", "fast"), ("c", "wrong")] {
        rig.class(name, pool, LATE);
    }
    rig.run().await;
    assert_eq!(rig.counts(), (2, 2, 0));
    // One event at the class reports it.
    let events = rig.events();
    assert_eq!(events.len(), 1, "{events:?}");
    let event = &events[0];
    assert!(event.starts_with("c ") && event.ends_with(": no such thing"));
    rig.run().await;
    assert!(rig.events().is_empty());
    site.writes();
    // If the room of a class is unknown at present, its object keeps its value. The pass updates
    // the other classes, then fails, so that it is retried.
    site.room("gone", Err(Status::unavailable("not now")));
    site.room("fast", Ok((1, None)));
    let failed = rig.run_failing().await;
    assert!(failed.contains("StorageClass a"), "{failed}");
    assert_eq!(site.writes(), [format!("PATCH {}", site.name("b"))]);
    assert_eq!(rig.counts(), (2, 2, 0));
    // The object of a class that the driver refuses from now on is deleted.
    let delete = format!("DELETE {}", site.name("a"));
    site.room("gone", Err(Status::invalid_argument("no longer")));
    rig.run().await;
    assert_eq!(site.writes(), [delete]);
}

/// A class without answers delays each pass by one call. Later passes still reach all its segments.
#[tokio::test]
async fn a_class_without_answers_does_not_block_the_others() {
    let site = Site::new();
    site.room("slow", Err(Status::deadline_exceeded("no answer")));
    let rig = Rig::new(&site, Scope::Cluster, with_level(-1));
    for name in ["n1", "n2", "n3"] {
        rig.node(name);
    }
    rig.class("a", "slow", LATE);
    rig.class("b", "fast", LATE);
    let mut asked = Vec::new();
    for _ in 0..3 {
        let room = &rig.world.context.room;
        let before = room.changes();
        rig.run_failing().await;
        assert_eq!(room.changes(), before);
        let all = site.asked();
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
async fn a_rejected_write_does_not_stop_the_others() {
    let site = Site::new();
    let rig = Rig::new(&site, here(), defaults());
    rig.class("a", "fast", LATE);
    rig.class("b", "fast", LATE);
    // After a server error, the other writes would fail too.
    for (code, writes) in [(403, 2), (500, 1)] {
        site.api.refuse("csistoragecapacities", code);
        rig.run_failing().await;
        assert_eq!(site.writes().len(), writes, "{code}");
        if code == 403 {
            assert_eq!(rig.counts(), (2, 1, 0));
        }
    }
    rig.run().await;
    assert_eq!(rig.counts(), (2, 2, 0));
}

#[tokio::test]
async fn owners_by_level() {
    let site = Site::new();
    let kube = Rig::new(&site, here(), defaults()).world.context.kube;
    let uid = async |level: u32| match Owner::above("ns", "p", level).get(&kube).await {
        Ok(owner) => owner.uid.clone(),
        Err(error) => error.to_string(),
    };
    assert_eq!(uid(0).await, "u-pod");
    assert_eq!(uid(1).await, "u-set");
    let missing = uid(2).await;
    assert!(missing.contains("DaemonSet ns/hostloop does not exist"));
    // In a Deployment, the ReplicaSet has the owner.
    let owned_by = |kind: &str, uid: &str| json!([controller(kind, "above", uid)]);
    let replicas = |owners| site.put("ReplicaSet", "above", "u", owners);
    site.put("Pod", "p", "u-pod", owned_by("ReplicaSet", "u-replicas"));
    replicas(owned_by("Deployment", "u-top"));
    assert_eq!(uid(1).await, "u-replicas");
    assert_eq!(uid(2).await, "u-top");
    let above = uid(3).await;
    assert!(above.contains("Deployment is not supported"), "{above}");
    replicas(json!([]));
    assert!(uid(2).await.contains("ReplicaSet above has no owner"));
    // Without the owner, no object is created: it would outlive the driver.
    let rig = Rig::new(&site, here(), with_level(2));
    rig.class("c", "fast", LATE);
    rig.run_failing().await;
    assert!(site.writes().is_empty());
    let rig = Rig::new(&site, here(), with_level(-1));
    rig.class("c", "fast", LATE);
    rig.run().await;
    let object = site.capacities().pop().expect("an object");
    assert_eq!(object["metadata"]["ownerReferences"], Value::Null);
}

#[tokio::test]
async fn a_wait_for_published_room_ends_after_an_exact_pass() {
    let site = Site::new();
    let rig = Rig::on_node(&site);
    let (room, limit) = (rig.world.context.room.clone(), Duration::from_secs(60));
    room.attend();
    let waiting = tokio::spawn({
        let room = room.clone();
        async move { room.change_and_wait(limit).await }
    });
    room.changed().await;
    // An approximate pass does not count as published.
    let pass = rig.pass.run(Precision::Approximate).await;
    pass.expect("a pass");
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    rig.run().await;
    waiting.await.expect("published");
    assert_eq!(site.capacities().len(), 1);
}

#[test]
fn passes_for_changes_of_room_keep_their_distance() {
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
fn intervals_of_nodes_differ() {
    let minute = Duration::from_secs(60);
    let times: std::collections::BTreeSet<_> = (0..50).map(|_| about(minute)).collect();
    assert!(times.len() > 40);
    let range = Duration::from_secs(54)..=Duration::from_secs(66);
    assert!(times.iter().all(|time| range.contains(time)));
}

/// The poll finds room that others freed: a program on the same disk, or a driver that announces
/// nothing.
#[test]
fn more_room_than_was_published() {
    let object = |capacity: Value| -> Arc<CSIStorageCapacity> {
        Arc::new(crate::testing::read(
            json!({"metadata": {"name": "c"}, "storageClassName": "fast", "capacity": capacity}),
        ))
    };
    for (old, new, more) in [
        (json!("1Gi"), json!("2Gi"), true),
        (json!("1Gi"), json!("1Gi"), false),
        (json!("2Gi"), json!("1Gi"), false),
        (json!("0"), json!("1"), true),
        (Value::Null, json!("1Gi"), true),
        (json!("1Gi"), Value::Null, false),
    ] {
        let what = format!("{old} {new}");
        let change = Change::Applied {
            old: Some(object(old)),
            new: object(new),
        };
        assert_eq!(is_more(&change), more, "{what}");
    }
    let first = Change::Applied {
        old: None,
        new: object(json!("1Gi")),
    };
    assert!(!is_more(&first), "no claim waited for the first look");
}
