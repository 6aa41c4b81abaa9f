//! A claim or snapshot beside many of another namespace, over the controllers of a node and of the
//! leader, with an API server and a CSI driver in memory.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hostloop_memory_driver::Handlers;
use hostloop_proto::csi;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{
    DRIVER, FakeApi, Fault, World, affinity, connect, csi_node, node_scope, options, volume, with,
};
use crate::api::constants::PROVISIONER;
use crate::api::scope::{NODE_LABEL, SELECTED_NODE, Scope};
use crate::cache::Caches;
use crate::controller::Context;
use crate::csi::Driver;
use crate::csi::driver::{ControllerCapability, Service};
use crate::{placement, provisioner, snapshot_controller, snapshotter};

const NODE: &str = "n1";
const KEY: &str = "t/node";
/// How long the API server takes for each request.
const LATENCY: Duration = Duration::from_millis(5);

/// How many of each a benchmark makes.
const RUNS: usize = 15;

/// What a namespace's user makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// A claim that the leader places.
    Immediate,
    /// A claim with a selected node.
    Selected,
    /// A snapshot of a bound claim.
    Snapshot,
}

pub(super) const ALL: [Made; 3] = [Made::Immediate, Made::Selected, Made::Snapshot];

/// The claims of its namespace that a group selects.
#[derive(Clone, Copy, Debug)]
enum Selects {
    /// Those with the label of its name.
    Own,
    All,
}

/// The objects that are done, in order, as `namespace/name`.
#[derive(Default)]
pub(super) struct Done {
    order: Mutex<Vec<String>>,
    known: Mutex<HashSet<String>>,
    more: Notify,
}

impl Done {
    fn add(&self, namespace: &str, name: &str) {
        let object = format!("{namespace}/{name}");
        if self.known.lock().insert(object.clone()) {
            self.order.lock().push(object);
            self.more.notify_one();
        }
    }

    fn count(&self) -> usize {
        self.order.lock().len()
    }

    pub(super) async fn has(&self, object: &str) {
        while !self.known.lock().contains(object) {
            self.more.notified().await;
        }
    }
}

/// The controllers, and what they are done with.
pub(super) struct Cluster {
    pub(super) api: FakeApi,
    context: Context,
    pub(super) done: Arc<Done>,
}

fn driver() -> Driver {
    let handlers = Handlers::default();
    handlers.on(|request: csi::CreateVolumeRequest| {
        let required = request.accessibility_requirements.unwrap_or_default();
        let volume = csi::Volume {
            volume_id: request.name,
            accessible_topology: required.requisite.into_iter().take(1).collect(),
            ..csi::Volume::default()
        };
        Ok(csi::CreateVolumeResponse {
            volume: Some(volume),
        })
    });
    handlers.on(|request: csi::CreateSnapshotRequest| {
        let snapshot = csi::Snapshot {
            snapshot_id: request.name,
            source_volume_id: request.source_volume_id,
            creation_time: Some(std::time::SystemTime::now().into()),
            ready_to_use: true,
            ..csi::Snapshot::default()
        };
        Ok(csi::CreateSnapshotResponse {
            snapshot: Some(snapshot),
        })
    });
    let services = [
        Service::ControllerService,
        Service::VolumeAccessibilityConstraints,
    ];
    let can = [
        ControllerCapability::CreateDeleteVolume,
        ControllerCapability::CreateDeleteSnapshot,
    ];
    Driver::with(connect(&handlers), DRIVER, &services, &can, &[])
}

impl Cluster {
    pub(super) fn begin() -> Cluster {
        let world = World::new(&[]);
        let api = world.api.clone();
        let caches = Caches::new(api.client(), world.context.stop.clone());
        let node = Context {
            driver: Arc::new(driver()),
            caches: Arc::new(caches),
            scope: node_scope(NODE, KEY),
            ..world.context
        };
        let caches = Arc::new(Caches::new(api.client(), node.stop.clone()));
        let leader = Context {
            caches,
            scope: Scope::Leader,
            ..node.clone()
        };
        let cluster = Cluster {
            api,
            context: node.clone(),
            done: Arc::default(),
        };
        cluster.fill();
        cluster.api.fault(&[], "", None, Fault::Delay(LATENCY));
        cluster.listen();
        let place = placement::Options {
            capacity: false,
            attachments: false,
            naming: options(),
            table: None,
            metrics: placement::Metrics::default(),
        };
        tokio::spawn(placement::run(leader.clone(), place, None));
        let flags = options::<snapshot_controller::Options>();
        let flags = snapshot_controller::Options {
            ensure_snapshot_crds: false,
            ..flags
        };
        tokio::spawn(snapshot_controller::run(leader, flags, Default::default()));
        tokio::spawn(provisioner::run(
            node.clone(),
            options(),
            Default::default(),
        ));
        tokio::spawn(snapshotter::run(node, options()));
        cluster
    }

    /// Makes the node, the classes, and for each namespace a bound claim to be snapshotted.
    fn fill(&self) {
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        self.api.put(
            json!({"kind": "Node", "metadata": {"name": NODE, "labels": {KEY: NODE}},
            "status": ready}),
        );
        self.api.put(csi_node(NODE, DRIVER, KEY));
        for (name, mode) in [("now", "Immediate"), ("late", "WaitForFirstConsumer")] {
            self.api
                .put(json!({"kind": "StorageClass", "metadata": {"name": name},
                "provisioner": DRIVER, "volumeBindingMode": mode}));
        }
        self.api.put(
            json!({"kind": "VolumeSnapshotClass", "metadata": {"name": "fast"},
            "apiVersion": "snapshot.storage.k8s.io/v1", "driver": DRIVER,
            "deletionPolicy": "Delete"}),
        );
        self.api.put(
            json!({"kind": "VolumeGroupSnapshotClass", "metadata": {"name": "fast"},
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "driver": DRIVER,
            "deletionPolicy": "Delete"}),
        );
        for namespace in ["a", "b"] {
            let pv = format!("pv-{namespace}");
            self.api.put(json!({"kind": "PersistentVolumeClaim",
                "metadata": {"name": "data", "namespace": namespace, "uid": namespace,
                    "labels": {NODE_LABEL: NODE}},
                "spec": {"volumeName": pv}, "status": {"phase": "Bound"}}));
            let claim = json!({"namespace": namespace, "name": "data", "uid": namespace});
            let of = json!({"metadata": {"labels": {NODE_LABEL: NODE}}, "spec": {
                "claimRef": claim, "nodeAffinity": affinity(KEY, &[NODE])}});
            self.api
                .put(with(volume(&pv, DRIVER, &format!("vol-{namespace}")), of));
        }
    }

    /// Notes volumes that are created, and snapshots that are ready.
    fn listen(&self) {
        let done = self.done.clone();
        self.context.caches.volumes().on_change(move |change| {
            if let Some(claim) = crate::api::pv::claim(change.object()) {
                let name = claim.name.as_deref().unwrap_or_default();
                done.add(claim.namespace.as_deref().unwrap_or_default(), name);
            }
        });
        let done = self.done.clone();
        self.context.caches.snapshots().on_change(move |change| {
            let snapshot = change.object();
            let status = snapshot.status.as_ref();
            if status.is_some_and(|status| status.ready_to_use == Some(true)) {
                done.add(
                    &snapshot.namespace().unwrap_or_default(),
                    &snapshot.name_any(),
                );
            }
        });
    }

    /// Makes a bound claim with a label in the namespace `a`.
    fn add_claim(&self, name: &str, app: &str) {
        let of = json!({"namespace": "a", "name": name, "uid": name});
        let pv = format!("pv-{name}");
        let more = json!({"spec": {"claimRef": of, "nodeAffinity": affinity(KEY, &[NODE])}});
        self.api
            .put(with(volume(&pv, DRIVER, &format!("vol-{name}")), more));
        self.api.put(json!({"kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "a", "uid": name, "labels": {"app": app}},
            "spec": {"volumeName": pv}, "status": {"phase": "Bound"}}));
    }

    fn add_group(&self, name: &str, selects: Selects) {
        let selector = match selects {
            Selects::Own => json!({"matchLabels": {"app": name}}),
            Selects::All => json!({}),
        };
        self.api
            .put(json!({"apiVersion": "groupsnapshot.storage.k8s.io/v1",
            "kind": "VolumeGroupSnapshot",
            "metadata": {"name": name, "namespace": "a", "uid": name},
            "spec": {"volumeGroupSnapshotClassName": "fast",
                "source": {"selector": selector}}}));
    }

    pub(super) fn make(&self, made: Made, namespace: &str, name: &str) {
        let uid = format!("{namespace}-{name}");
        let created = Timestamp::now().to_string();
        let metadata = json!({"name": name, "namespace": namespace, "uid": uid,
            "creationTimestamp": created, "annotations": {PROVISIONER: DRIVER}});
        let claim = |class: &str, more| {
            let spec = json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}});
            let claim = json!({"kind": "PersistentVolumeClaim", "metadata": metadata.clone(),
                "spec": spec, "status": {"phase": "Pending"}});
            self.api.put(with(claim, json!({"metadata": more})));
        };
        match made {
            Made::Immediate => claim("now", json!({})),
            Made::Selected => claim(
                "late",
                json!({"annotations": {SELECTED_NODE: NODE}, "labels": {NODE_LABEL: NODE}}),
            ),
            Made::Snapshot => {
                self.api
                    .put(json!({"apiVersion": "snapshot.storage.k8s.io/v1",
                    "kind": "VolumeSnapshot", "metadata": metadata,
                    "spec": {"volumeSnapshotClassName": "fast",
                        "source": {"persistentVolumeClaimName": "data"}}}));
            }
        }
    }

    /// Makes one for the namespace `b`, and waits until it is done. Returns how long it took, and how
    /// many others were done meanwhile.
    pub(super) async fn one(&self, made: Made, name: &str) -> (Duration, usize) {
        let (begun, before) = (Instant::now(), self.done.count());
        self.make(made, "b", name);
        self.done.has(&format!("b/{name}")).await;
        (begun.elapsed(), self.done.count() - before - 1)
    }

    /// Waits until the controllers have nothing to do.
    async fn rest(&self) {
        let stats = || self.context.metrics.all_queues();
        let mut before = stats();
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = stats();
            if now == before && now.ready == 0 {
                return;
            }
            before = now;
        }
    }

    /// Makes this many for the namespace `a`, and waits until the controllers know them.
    async fn many(&self, made: Made, number: usize) {
        for number in 0..number {
            self.make(made, "a", &format!("c{number}"));
        }
        let caches = &self.context.caches;
        let known = || match made {
            Made::Snapshot => caches.snapshots().each_in("a").count(),
            _ => caches.claims().each_in("a").count() - 1,
        };
        while known() < number {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.context.stop.cancel();
    }
}

/// What waits in each queue holds up another namespace's object by no more than what was under way.
#[tokio::test(start_paused = true)]
async fn one_is_done_before_the_many_of_another_namespace() {
    const MANY: usize = 600;
    // Each queue may be at work on so many for `a`, and has one more of `a` in its turn.
    const UNDER_WAY: usize = 2 * 32;
    for made in ALL {
        let cluster = Cluster::begin();
        cluster.one(made, "first").await;
        cluster.many(made, MANY).await;
        let (_, others) = cluster.one(made, "second").await;
        assert!(
            others <= UNDER_WAY,
            "{made:?}: {others} others were done before it"
        );
        let left = MANY.saturating_sub(cluster.done.count());
        assert!(left > UNDER_WAY, "{made:?}: {left} others wait");
    }
}

/// How late a task runs that wants to run every millisecond, at worst.
async fn watch_delays(worst: Arc<Mutex<Duration>>) {
    const PAUSE: Duration = Duration::from_millis(1);
    loop {
        let begun = Instant::now();
        tokio::time::sleep(PAUSE).await;
        let late = begun.elapsed().saturating_sub(PAUSE);
        let mut worst = worst.lock();
        *worst = late.max(*worst);
    }
}

/// Runs a benchmark on one thread, where whatever takes long holds up all other tasks.
fn on_one_thread<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(work)
}

/// The longest time for which groups may keep other tasks from running.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Prints how long the groups of one namespace hold up everything else, and fails if no task ran
/// for too long.
#[test]
#[ignore = "a benchmark: scripts/bench neighbours"]
fn bench_groups() {
    let cases = [
        (1_500, 120, Selects::Own),
        (15_000, 1_200, Selects::Own),
        (1_500, 120, Selects::All),
        // The contents of more groups would take most of the memory of a small machine.
        (15_000, 50, Selects::All),
    ];
    let pauses = cases.map(|(claims, groups, selects)| {
        on_one_thread(pause_beside_groups(claims, groups, selects))
    });
    assert!(
        pauses.iter().all(|pause| *pause < LONGEST_PAUSE),
        "of {cases:?}, a task was late by {pauses:.1?}, and at most {LONGEST_PAUSE:?} are allowed"
    );
}

/// How late a task was at worst while the controllers served groups of one namespace.
async fn pause_beside_groups(claims: usize, groups: usize, selects: Selects) -> Duration {
    let cluster = Cluster::begin();
    cluster.one(Made::Snapshot, "first").await;
    for number in 0..claims {
        cluster.add_claim(&format!("d{number}"), &format!("g{}", number % groups));
        // What a user makes takes the time of the API server, not of the controllers.
        tokio::task::yield_now().await;
    }
    let caches = &cluster.context.caches;
    while caches.claims().each_in("a").count() < claims {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.rest().await;
    let mut alone = Vec::new();
    for run in 0..RUNS {
        alone.push(cluster.one(Made::Snapshot, &format!("alone-{run}")).await.0);
    }
    let worst = Arc::new(Mutex::new(Duration::ZERO));
    let watching = tokio::spawn(watch_delays(worst.clone()));
    let begun = Instant::now();
    for number in 0..groups {
        cluster.add_group(&format!("g{number}"), selects);
        tokio::task::yield_now().await;
    }
    let mut beside = Vec::new();
    for run in 0..RUNS {
        let (took, _) = cluster.one(Made::Snapshot, &format!("beside-{run}")).await;
        beside.push(took);
    }
    let left = groups - caches.group_contents().each().count();
    while caches.group_contents().each().count() < groups {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    watching.abort();
    let (alone, beside, worst) = (median(alone), median(beside), *worst.lock());
    println!(
        "{groups} groups ({selects:?}) beside {claims} claims: done after {:.1?}, a task was late \
         by {worst:.1?} at worst; a snapshot of another namespace took {beside:.1?}, alone \
         {alone:.1?}: {:.2} times; {left} groups were left then",
        begun.elapsed(),
        beside.as_secs_f64() / alone.as_secs_f64(),
    );
    worst
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// How many times longer one object may take beside many of another namespace than alone.
const MOST: f64 = 2.0;

/// Prints how long one takes alone, and beside ten thousand of another namespace. Fails if it takes
/// more than twice as long.
#[test]
#[ignore = "a benchmark: scripts/bench neighbours"]
fn bench() {
    let wanted = std::env::var("HOSTLOOP_NEIGHBOURS")
        .ok()
        .and_then(|text| text.parse().ok());
    let many: usize = wanted.unwrap_or(10_000);
    let ratios = ALL.map(|made| (made, on_one_thread(ratio_beside(made, many))));
    assert!(
        ratios.iter().all(|(_, ratio)| *ratio <= MOST),
        "beside {many} of another namespace, one takes {ratios:.2?} times as long, and at most \
         {MOST} are allowed"
    );
}

/// How many times longer one takes beside many of another namespace than alone.
async fn ratio_beside(made: Made, many: usize) -> f64 {
    let cluster = Cluster::begin();
    cluster.one(made, "first").await;
    let (mut alone, mut beside, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..RUNS {
        alone.push(cluster.one(made, &format!("alone-{run}")).await.0);
    }
    cluster.many(made, many).await;
    for run in 0..RUNS {
        let (took, meanwhile) = cluster.one(made, &format!("beside-{run}")).await;
        beside.push(took);
        others.push(meanwhile);
    }
    let left = many.saturating_sub(cluster.done.count() - 2 * RUNS - 1);
    let (alone, beside) = (median(alone), median(beside));
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    println!(
        "{made:?}: alone {alone:.1?}, beside {many} {beside:.1?}: {ratio:.2} times; {left} others \
         left, {others:?} done meanwhile"
    );
    ratio
}
