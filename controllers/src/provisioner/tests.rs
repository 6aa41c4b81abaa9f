//! Tests the provisioner against an API server and a driver that log their requests.

use std::sync::Arc;

use clap::Parser;
use hostloop_proto::csi;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::cache::Caches;
use crate::client::events::Event;
use crate::client::{Events, Leadership};
use crate::controller::context::Common;
use crate::csi::Driver;
use crate::csi::driver::Service;

use super::*;
use crate::api::names::{CLONE_FINALIZER, PROVISIONER, SNAPSHOT_FINALIZER};

mod deleting;
mod narrow;
mod placing;
mod world;
use world::World;

const PV: &str = "persistentvolumes/pvc-u-1";
const CLAIM: &str = "shop/persistentvolumeclaims/data";
const SECRET: &str = "shop/secrets/key";

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    options: Options,
}

struct Rig {
    world: World,
    at_work: Provisioner,
    events: mpsc::Receiver<Event>,
}

fn rig(scope: Scope, topology: bool) -> Rig {
    use ControllerCapability::*;
    let world = World::default();
    let mut services = vec![Service::ControllerService];
    services.extend(topology.then_some(Service::VolumeAccessibilityConstraints));
    let can = [
        CreateDeleteVolume,
        CreateDeleteSnapshot,
        CloneVolume,
        PublishUnpublishVolume,
        GetVolume,
    ];
    let metrics = Arc::new(crate::controller::Metrics::default());
    let (events, told) = Events::collected(metrics.clone());
    let context = Context {
        driver: Arc::new(Driver::with(world.csi(), "d", &services, &can, &[])),
        kube: Kube::new(world.client(), None, metrics.clone(), "test"),
        caches: Arc::new(Caches::unwatched()),
        events,
        metrics,
        scope,
        pools: Default::default(),
        leader: Leadership::always(),
        room: Arc::default(),
        stop: CancellationToken::new(),
        common: Common::default(),
    };
    let options = Flags::parse_from(["provisioner"]).options;
    let rig = Rig {
        at_work: Provisioner::new(context, options, Metrics::default()),
        world,
        events: told,
    };
    rig.class("c-1", json!({}));
    rig
}

/// The scope of the node n1.
fn here() -> Scope {
    Scope::Node {
        name: "n1".to_owned(),
        segments: [("zone".to_owned(), "n1".to_owned())].into(),
    }
}

fn central() -> Rig {
    rig(Scope::Cluster, false)
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).expect("an object")
}

fn claim_value(selected: Option<&str>, source: &Value) -> Value {
    let mut annotations = json!({PROVISIONER: "d"});
    if let Some(node) = selected {
        annotations[crate::cache::scope::SELECTED_NODE] = json!(node);
    }
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "shop", "uid": "u-1", "resourceVersion": "7",
                     "annotations": annotations},
        "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
                 "dataSource": source, "resources": {"requests": {"storage": "1Gi"}}},
    })
}

const SNAPSHOT: &str = "shop/volumesnapshots/snap";

fn from_snapshot() -> Value {
    json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"})
}

fn snapshot(finalizers: &[&str]) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "snap", "namespace": "shop", "uid": "s", "resourceVersion": "1",
                     "finalizers": finalizers},
        "spec": {"source": {}},
        "status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true},
    })
}

impl Rig {
    /// Stores a snapshot and its content on the server.
    fn put_snapshot(&self, finalizers: &[&str]) {
        let content = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "content"},
            "spec": {"driver": "d", "deletionPolicy": "Delete", "source": {},
                     "volumeSnapshotRef": {"name": "snap", "namespace": "shop", "uid": "s"}},
            "status": {"snapshotHandle": "handle-of-snap"},
        });
        let objects = &mut self.world.state().objects;
        objects.insert("volumesnapshotcontents/content".to_owned(), content);
        objects.insert(SNAPSHOT.to_owned(), snapshot(finalizers));
    }

    fn class(&self, uid: &str, parameters: Value) {
        let version = uid.trim_start_matches("c-");
        let class = json!({"metadata": {"name": "fast", "uid": uid, "resourceVersion": version},
                           "provisioner": "d",
                           "parameters": parameters});
        self.at_work
            .context
            .caches
            .classes()
            .apply_write(read(&class));
    }

    /// Adds a class with a secret for CreateVolume.
    fn secret_class(&self) {
        let names = json!({"csi.storage.k8s.io/provisioner-secret-name": "key",
                           "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}"});
        self.class("c-2", names);
    }

    fn put_secret(&self) {
        let secret = json!({"apiVersion": "v1", "kind": "Secret",
                            "metadata": {"name": "key", "namespace": "shop"},
                            "data": {"word": "b3BlbiBzZXNhbWU="}});
        let objects = &mut self.world.state().objects;
        objects.insert(SECRET.to_owned(), secret);
    }

    /// Adds a claim to both the watch and the server.
    fn put_claim(&self, value: &Value) {
        let objects = &mut self.world.state().objects;
        objects.insert(CLAIM.to_owned(), value.clone());
        self.at_work
            .context
            .caches
            .claims()
            .apply_write(read(value));
    }

    /// Deletes everything from the server. The cache then has another claim of the same name.
    fn replace_claim(&self) {
        self.world.state().objects.clear();
        let mut another = claim_value(None, &Value::Null);
        another["metadata"]["uid"] = json!("u-2");
        another["metadata"]["resourceVersion"] = json!("99");
        self.at_work
            .context
            .caches
            .claims()
            .apply_write(read(&another));
        assert!(self.at_work.claims.get("u-1").is_empty());
    }

    fn plain_claim(&self) {
        self.put_claim(&claim_value(None, &Value::Null));
    }

    fn put_volume(&self, handle: &str) {
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-u-1"},
            "spec": {"csi": {"driver": "d", "volumeHandle": handle}},
        });
        self.world.state().objects.insert(PV.to_owned(), volume);
    }

    fn reasons(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.events.try_recv().ok())
            .map(|event| event.reason)
            .collect()
    }

    fn last_message(&mut self) -> String {
        let messages = std::iter::from_fn(|| self.events.try_recv().ok());
        messages
            .last()
            .map(|event| event.message)
            .unwrap_or_default()
    }

    async fn work(&self) -> Outcome {
        self.at_work.claim("u-1").await
    }
}

#[tokio::test]
async fn one_call_and_one_write() {
    let mut rig = central();
    rig.plain_claim();
    assert_eq!(rig.work().await, Outcome::Done);
    let post = format!("POST {PV}");
    assert_eq!(rig.world.log(), ["CreateVolume pvc-u-1", &post]);
    assert_eq!(rig.reasons(), ["ProvisioningSucceeded"]);
    // The provisioner knows this at once, before the watch reports it.
    assert_eq!(rig.work().await, Outcome::Done);
    assert!(rig.world.log().is_empty());
}

#[tokio::test]
async fn an_answer_that_is_late() {
    let mut rig = central();
    rig.plain_claim();
    let late = Err(Status::deadline_exceeded("later"));
    rig.world.state().creations.push_back(late);
    assert_eq!(rig.work().await, Outcome::Failed);
    assert!(
        rig.last_message()
            .contains("code = DeadlineExceeded desc = later")
    );
    rig.world.log();
    // The claim is deleted, and another claim has its name. The volume must be found, to be
    // deleted.
    rig.replace_claim();
    assert_eq!(rig.work().await, Outcome::Done);
    let (claim, volume) = (format!("GET {CLAIM}"), format!("GET {PV}"));
    let expected = [
        "CreateVolume pvc-u-1",
        &claim,
        &volume,
        "DeleteVolume handle",
    ];
    assert_eq!(rig.world.log(), expected);
    let created = rig.world.state().created.clone();
    assert_eq!(created[0], created[1]);
    assert!(rig.at_work.in_flight.attempt("u-1").is_none());
}

/// The namespace is deleted with its claim and secret while CreateVolume has no answer.
#[tokio::test]
async fn a_late_volume_is_found_without_its_secret() {
    let rig = central();
    rig.secret_class();
    rig.plain_claim();
    rig.put_secret();
    let late = Err(Status::deadline_exceeded("later"));
    rig.world.state().creations.push_back(late);
    assert_eq!(rig.work().await, Outcome::Failed);
    rig.replace_claim();
    rig.world.log();
    assert_eq!(rig.work().await, Outcome::Done);
    assert!(rig.world.log().contains(&"DeleteVolume handle".to_owned()));
    assert!(rig.at_work.in_flight.attempt("u-1").is_none());
}

#[tokio::test]
async fn a_final_answer_is_forgotten() {
    let rig = central();
    rig.plain_claim();
    let statuses = [Status::aborted("busy"), Status::internal("broken")];
    rig.world.state().creations.extend(statuses.map(Err));
    assert_eq!(rig.work().await, Outcome::Failed);
    assert!(rig.at_work.in_flight.attempt("u-1").is_some());
    assert_eq!(rig.work().await, Outcome::Failed);
    assert!(rig.at_work.in_flight.attempt("u-1").is_none());
}

/// A repeated CreateVolume uses the class as it is now, not as it was at the first call.
#[tokio::test]
async fn a_class_corrected_meanwhile_counts() {
    let mut rig = central();
    rig.secret_class();
    rig.plain_claim();
    rig.put_secret();
    for _ in 0..2 {
        let busy = Err(Status::aborted("busy"));
        rig.world.state().creations.push_back(busy);
    }
    assert_eq!(rig.work().await, Outcome::Failed);
    rig.class("c-3", json!({"size": "large"}));
    rig.world.log();
    assert_eq!(rig.work().await, Outcome::Failed);
    assert_eq!(rig.world.log(), ["CreateVolume pvc-u-1"]);
    // An invalid class is an error. The provisioner must still remember the call that may be
    // running.
    rig.class("c-4", json!({"csi.storage.k8s.io/typo": "x"}));
    assert_eq!(rig.work().await, Outcome::Failed);
    assert!(rig.last_message().contains("csi.storage.k8s.io/typo"));
    assert!(rig.world.log().is_empty());
    assert!(rig.at_work.in_flight.attempt("u-1").is_some());
    rig.class("c-5", json!({"size": "small"}));
    assert_eq!(rig.work().await, Outcome::Done);
    let state = rig.world.state();
    let sizes: Vec<_> = state
        .created
        .iter()
        .map(|one| one.parameters.get("size"))
        .collect();
    let [large, small] = ["large", "small"].map(str::to_owned);
    assert_eq!(sizes, [None, Some(&large), Some(&small)]);
    assert!(state.created[1].secrets.is_empty());
}

#[tokio::test]
async fn an_object_that_cannot_be_written() {
    let mut rig = central();
    rig.plain_claim();
    rig.world.state().write_failures.extend([500, 422]);
    assert_eq!(rig.work().await, Outcome::Done);
    assert!(rig.last_message().contains("cannot be saved yet"));
    rig.world.log();
    // The claim waits for the write, without another call.
    assert_eq!(rig.work().await, Outcome::Done);
    assert!(rig.world.log().is_empty());
    assert_eq!(rig.at_work.pending_pv("pvc-u-1").await, Outcome::Failed);
    assert_eq!(rig.at_work.pending_pv("pvc-u-1").await, Outcome::Done);
    let (get, post) = (format!("GET {CLAIM}"), format!("POST {PV}"));
    assert_eq!(rig.world.log(), [&*get, &post, &get, &post]);
    assert!(rig.reasons().contains(&"ProvisioningSucceeded".to_owned()));
    assert!(rig.at_work.in_flight.pending_pv("pvc-u-1").is_none());
}

/// A missing secret does not keep an unneeded volume.
#[tokio::test]
async fn an_unwanted_volume_goes_without_its_secret() {
    let rig = central();
    rig.secret_class();
    rig.plain_claim();
    rig.put_secret();
    rig.world.state().write_failures.push_back(500);
    assert_eq!(rig.work().await, Outcome::Done);
    for path in [CLAIM, SECRET] {
        rig.world.state().objects.remove(path);
    }
    assert_eq!(rig.at_work.pending_pv("pvc-u-1").await, Outcome::Done);
    let deleted = "DeleteVolume handle".to_owned();
    assert!(rig.world.log().contains(&deleted));
}

#[tokio::test]
async fn an_object_there_is_already() {
    for (handle, deleted) in [("handle", false), ("another", true)] {
        let rig = central();
        rig.plain_claim();
        rig.put_volume(handle);
        assert_eq!(rig.work().await, Outcome::Done);
        let log = rig.world.log();
        let found = log.contains(&"DeleteVolume handle".to_owned());
        assert_eq!(found, deleted, "{log:?}");
    }
}

#[tokio::test]
async fn a_claim_that_went_to_another_node() {
    let rig = rig(here(), true);
    rig.put_claim(&claim_value(Some("n1"), &Value::Null));
    rig.at_work.in_flight.require_live_check(["u-1".to_owned()]);
    let moved = claim_value(Some("n2"), &Value::Null);
    rig.world.state().objects.insert(CLAIM.to_owned(), moved);
    assert_eq!(rig.work().await, Outcome::Done);
    let log = rig.world.log();
    assert_eq!(log.last().map(String::as_str), Some("DeleteVolume handle"));
    assert!(!log.contains(&format!("POST {PV}")));
    let required = rig.world.state().created[0]
        .accessibility_requirements
        .clone();
    let required = required.expect("a requirement").requisite;
    assert_eq!(required[0].segments["zone"], "n1");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_made_is_tried_rarely() {
    let rig = central();
    rig.plain_claim();
    for _ in 0..3 {
        let refused = Err(Status::invalid_argument("no"));
        rig.world.state().creations.push_back(refused);
    }
    let slow = Outcome::RetryAfter(in_flight::SLOW);
    assert_eq!(rig.work().await, slow);
    assert!(matches!(rig.work().await, Outcome::RetryAfter(_)));
    assert_eq!(rig.world.log(), ["CreateVolume pvc-u-1"]);
    // A new class of the same name ends the wait.
    rig.class("c-2", json!({}));
    assert_eq!(rig.work().await, slow);
    assert_eq!(rig.world.log(), ["CreateVolume pvc-u-1"]);
    tokio::time::advance(in_flight::SLOW).await;
    assert_eq!(rig.work().await, slow);
    assert_eq!(rig.world.log(), ["CreateVolume pvc-u-1"]);
}

#[tokio::test]
async fn no_room_on_the_selected_node() {
    let rig = rig(here(), true);
    rig.put_claim(&claim_value(Some("n1"), &Value::Null));
    let full = Err(Status::resource_exhausted("full"));
    rig.world.state().creations.push_back(full);
    assert_eq!(rig.work().await, Outcome::Done);
    let patch = rig.world.state().bodies.pop().expect("a patch");
    let expected = json!({"metadata": {
        "uid": "u-1", "resourceVersion": "7",
        "annotations": {"volume.kubernetes.io/selected-node": null},
    }});
    assert_eq!(patch, expected);
}

#[tokio::test]
async fn secrets_are_read_and_never_told() {
    let mut rig = central();
    rig.secret_class();
    rig.plain_claim();
    assert_eq!(rig.work().await, Outcome::Failed);
    assert!(
        rig.last_message()
            .contains("secret shop/key, named by parameters")
    );
    rig.put_secret();
    let told = Err(Status::internal("wrong word: open sesame"));
    rig.world.state().creations.push_back(told);
    assert_eq!(rig.work().await, Outcome::Failed);
    let message = rig.last_message();
    assert!(message.contains("wrong word: ***"), "{message}");
    assert_eq!(rig.world.state().created[0].secrets["word"], "open sesame");
}

/// This process loses its lead while it reads the secret. The new leader then makes the call.
#[tokio::test]
async fn a_lead_that_is_lost_on_the_way() {
    for (leads, calls) in [(true, 3), (false, 1)] {
        let mut rig = central();
        let (until, leader) = Leadership::elected();
        until.send_replace(Some(Instant::now() + Duration::from_secs(60)));
        rig.at_work.context.leader = leader;
        rig.secret_class();
        rig.plain_claim();
        rig.put_secret();
        rig.world.state().slow = (!leads).then(|| (SECRET.to_owned(), until));
        assert_eq!(rig.work().await, Outcome::Done);
        let (get, post) = (format!("GET {SECRET}"), format!("POST {PV}"));
        let all = [&*get, "CreateVolume pvc-u-1", &post];
        assert_eq!(rig.world.log(), all[..calls]);
        assert!(rig.at_work.in_flight.attempt("u-1").is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_too_small_is_deleted() {
    let mut rig = central();
    rig.plain_claim();
    let small = csi::Volume {
        volume_id: "small".to_owned(),
        capacity_bytes: 1,
        ..csi::Volume::default()
    };
    rig.world.state().creations.push_back(Ok(small));
    rig.world
        .state()
        .deletions
        .push_back(Status::aborted("busy"));
    assert_eq!(rig.work().await, Outcome::Failed);
    let expected = [
        "CreateVolume pvc-u-1",
        "DeleteVolume small",
        "DeleteVolume small",
    ];
    assert_eq!(rig.world.log(), expected);
    assert!(rig.last_message().contains("the volume was deleted"));
    assert!(rig.at_work.in_flight.attempt("u-1").is_some());
}

#[tokio::test]
async fn a_snapshot_is_kept_while_it_is_read() {
    let rig = central();
    rig.put_claim(&claim_value(None, &from_snapshot()));
    rig.put_snapshot(&[]);
    assert_eq!(rig.work().await, Outcome::Done);
    let log = rig.world.log();
    let (get, patch) = (format!("GET {SNAPSHOT}"), format!("PATCH {SNAPSHOT}"));
    let post = format!("POST {PV}");
    let expected = [
        &*get,
        "GET volumesnapshotcontents/content",
        &patch,
        "CreateVolume pvc-u-1",
        &post,
        &get,
        &patch,
    ];
    assert_eq!(log, expected);
    let state = rig.world.state();
    assert_eq!(
        state.bodies[0]["metadata"]["finalizers"],
        json!([SNAPSHOT_FINALIZER])
    );
    assert_eq!(state.objects[SNAPSHOT]["metadata"]["finalizers"], json!([]));
}

#[tokio::test]
async fn a_claim_is_kept_while_it_is_cloned() {
    let rig = central();
    let source = json!({"kind": "PersistentVolumeClaim", "name": "origin"});
    rig.put_claim(&claim_value(None, &source));
    let origin = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "origin", "namespace": "shop", "uid": "o", "resourceVersion": "3"},
        "spec": {"storageClassName": "fast", "volumeName": "pv",
                 "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    });
    let volume = json!({"metadata": {"name": "pv"}, "spec": {
        "csi": {"driver": "d", "volumeHandle": "old"},
        "claimRef": {"name": "origin", "namespace": "shop", "uid": "o"}},
        "status": {"phase": "Bound"}});
    let path = "shop/persistentvolumeclaims/origin";
    let caches = rig.at_work.context.caches.clone();
    caches.claims().apply_write(read(&origin));
    caches.volumes().apply_write(read(&volume));
    rig.world.state().objects.insert(path.to_owned(), origin);
    // The call has no final answer: the source keeps its finalizer.
    let busy = Err(Status::aborted("busy"));
    rig.world.state().creations.push_back(busy);
    assert_eq!(rig.work().await, Outcome::Failed);
    let patch = format!("PATCH {path}");
    assert_eq!(rig.world.log(), [&*patch, "CreateVolume pvc-u-1"]);
    let mut going = rig.world.state().objects[path].clone();
    assert_eq!(going["metadata"]["finalizers"], json!([CLONE_FINALIZER]));
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    going["metadata"]["resourceVersion"] = json!("4");
    caches.claims().apply_write(read(&going));
    let protection = rig.at_work.protection.clone().expect("it is central");
    assert_eq!(protection.cloned("shop", "origin").await, Outcome::Done);
    assert!(rig.world.log().is_empty());
    // Now the clone has its volume.
    assert_eq!(rig.work().await, Outcome::Done);
    rig.world.log();
    assert_eq!(protection.cloned("shop", "origin").await, Outcome::Done);
    assert_eq!(rig.world.log(), [patch]);
}
