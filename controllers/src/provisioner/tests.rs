//! Tests the provisioner against an API server and a driver with one log of their requests.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Status;

use super::*;
use crate::api::constants::{CLASS_BETA, PROVISIONER, SNAPSHOT_FINALIZER};
use crate::api::scope::SELECTED_NODE;
use crate::client::Leadership;
use crate::csi::Driver;
use crate::csi::driver::Service;
use crate::queue::Outcome;
use crate::testing::{self, Fault, World, node_scope, options};

mod deleting;
mod driver;
mod fitness;
mod narrow;
mod placing;
mod waking;
use driver::TestDriver;

const PV: &str = "persistentvolumes/pvc-u-1";
const CLAIM: &str = "shop/persistentvolumeclaims/data";
const SECRET: &str = "shop/secrets/key";
const SNAPSHOT: &str = "shop/volumesnapshots/snap";
const CREATE: &str = "CreateVolume pvc-u-1";
const DELETE: &str = "DeleteVolume handle";

struct Rig {
    world: World,
    driver: TestDriver,
    at_work: Provisioner,
}

fn rig(scope: Scope, topology: bool) -> Rig {
    use ControllerCapability::*;
    let mut services = vec![Service::ControllerService];
    services.extend(topology.then_some(Service::VolumeAccessibilityConstraints));
    let can = [
        CreateDeleteVolume,
        CreateDeleteSnapshot,
        CloneVolume,
        PublishUnpublishVolume,
        GetVolume,
        ModifyVolume,
    ];
    let (mut world, driver) = (World::new(&[]), TestDriver::default());
    let csi = driver.serve(&world.api);
    world.context.driver = Arc::new(Driver::with(csi, "d", &services, &can, &[]));
    world.context.scope = scope;
    let context = world.context.clone();
    let at_work = Provisioner::new(context, options(), Metrics::default());
    let rig = Rig {
        world,
        driver,
        at_work,
    };
    rig.class("c-1", json!({}));
    rig
}

/// The scope of the node n1.
fn here() -> Scope {
    node_scope("n1", "zone")
}

fn central() -> Rig {
    rig(Scope::Cluster, false)
}

fn with_claim() -> Rig {
    let rig = central();
    rig.put_claim(&claim_value(None, &Value::Null));
    rig
}

/// A rig with a claim, a class with a secret for CreateVolume, and the secret.
fn with_secret() -> Rig {
    let rig = with_claim();
    rig.secret_class();
    rig.put_secret();
    rig
}

fn claim_value(selected: Option<&str>, source: &Value) -> Value {
    let mut annotations = json!({PROVISIONER: "d"});
    if let Some(node) = selected {
        annotations[SELECTED_NODE] = json!(node);
    }
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "shop", "uid": "u-1",
                     "annotations": annotations},
        "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
                 "dataSource": source, "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn from_snapshot() -> Value {
    json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"})
}

fn snapshot(finalizers: &[&str]) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "snap", "namespace": "shop", "uid": "s", "finalizers": finalizers},
        "spec": {"source": {}},
        "status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true},
    })
}

impl Rig {
    /// Stores a snapshot and its content on the server.
    fn put_snapshot(&self, finalizers: &[&str]) {
        self.world.api.put(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "content"},
            "spec": {"driver": "d", "deletionPolicy": "Delete", "source": {},
                     "sourceVolumeMode": "Filesystem",
                     "volumeSnapshotRef": {"name": "snap", "namespace": "shop", "uid": "s"}},
            "status": {"snapshotHandle": "handle-of-snap"},
        }));
        self.world.api.put(snapshot(finalizers));
    }

    fn class(&self, uid: &str, parameters: Value) {
        let class = json!({"kind": "StorageClass", "metadata": {"name": "fast", "uid": uid},
                           "provisioner": "d", "parameters": parameters});
        let classes = self.world.context.caches.classes();
        self.world.add(&classes, class);
    }

    /// Adds a class with a secret for CreateVolume.
    fn secret_class(&self) {
        let names = json!({"csi.storage.k8s.io/provisioner-secret-name": "key",
                           "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}"});
        self.class("c-2", names);
    }

    fn put_secret(&self) {
        self.world
            .api
            .put(testing::secret("shop", "key", "word", "open sesame"));
    }

    /// Adds a claim to both the cache and the server.
    fn put_claim(&self, value: &Value) {
        let claims = self.world.context.caches.claims();
        self.world.add(&claims, value.clone());
    }

    /// Deletes everything from the server. The cache then has another claim of the same name.
    fn replace_claim(&self) {
        self.world.api.take("");
        let mut another = claim_value(None, &Value::Null);
        another["metadata"]["uid"] = json!("u-2");
        self.put_claim(&another);
        self.world.api.take("");
        assert!(self.at_work.claims.get("u-1").is_empty());
    }

    /// Stores the claim's PersistentVolume with this handle on the server.
    fn put_volume(&self, handle: &str) {
        self.world.api.put(testing::volume("pvc-u-1", "d", handle));
    }

    /// Makes the next CreateVolume calls fail.
    fn fail(&self, statuses: impl IntoIterator<Item = Status>) {
        self.driver.state().failures.extend(statuses);
    }

    fn reasons(&mut self) -> Vec<String> {
        let events = self.world.take_events().into_iter();
        events.map(|event| event.reason).collect()
    }

    fn last_message(&mut self) -> String {
        let last = self.world.take_events().pop();
        last.map(|event| event.message).unwrap_or_default()
    }

    fn log(&self) -> Vec<String> {
        self.world.api.log()
    }

    async fn work(&self) -> Outcome {
        self.at_work.claim("u-1").await
    }

    /// True if the state of the last attempt for the claim is kept.
    fn has_attempt(&self) -> bool {
        self.at_work.in_flight.attempt("u-1").is_some()
    }
}

fn get(path: &str) -> String {
    format!("GET {path}")
}

fn post(path: &str) -> String {
    format!("POST {path}")
}

#[tokio::test]
async fn one_call_and_one_write() {
    let mut rig = with_claim();
    assert_eq!(rig.work().await, Outcome::Done);
    assert_eq!(rig.log(), [CREATE, &post(PV)]);
    assert_eq!(rig.reasons(), ["ProvisioningSucceeded"]);
    // The provisioner knows this at once, before the watch reports it.
    assert_eq!(rig.work().await, Outcome::Done);
    assert!(rig.log().is_empty());
}

/// A user may name any class and any source in a claim.
#[tokio::test]
async fn what_users_name_adds_no_series_of_metrics() {
    let rig = central();
    for number in 0..1_000 {
        let kind = format!("Kind{number}");
        let source = json!({"apiGroup": "example.com", "kind": kind, "name": "x"});
        let class = json!({"metadata": {"annotations": {CLASS_BETA: format!("none-{number}")}}});
        rig.put_claim(&testing::with(claim_value(None, &source), class));
        assert_eq!(rig.work().await, Outcome::Failed);
    }
    let (mut registry, mut text) = (Registry::default(), String::new());
    rig.at_work.metrics.register(&mut registry);
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("into a string");
    let series = text.lines().filter(|line| line.contains("{class="));
    let expected =
        r#"controller_persistentvolumeclaim_provision_failed_total{class="",source="other"} 1000"#;
    assert_eq!(series.collect::<Vec<_>>(), [expected]);
}

/// The namespace is deleted with its claim and secret while CreateVolume has no answer.
#[tokio::test]
async fn a_late_volume_is_found_without_its_secret() {
    let rig = with_secret();
    rig.fail([Status::deadline_exceeded("later")]);
    assert_eq!(rig.work().await, Outcome::Failed);
    rig.replace_claim();
    rig.log();
    assert_eq!(rig.work().await, Outcome::Done);
    assert!(rig.log().contains(&DELETE.to_owned()));
    assert!(!rig.has_attempt());
}

/// The driver may refuse a call for lack of its secret, although the volume exists.
#[tokio::test]
async fn a_failure_without_the_secret_is_final_if_it_is_not_about_the_secret() {
    for (failure, is_final) in [
        (Status::not_found("no source"), true),
        (Status::already_exists("another"), true),
        (Status::failed_precondition("not now"), true),
        (Status::invalid_argument("no key"), false),
        (Status::unauthenticated("no key"), false),
        (Status::permission_denied("no key"), false),
        (Status::internal("no key"), false),
        (Status::unknown("no key"), false),
    ] {
        let mut rig = with_secret();
        rig.fail([Status::deadline_exceeded("later"), failure.clone()]);
        assert_eq!(rig.work().await, Outcome::Failed);
        rig.replace_claim();
        assert_eq!(rig.work().await, Outcome::Failed, "{failure}");
        assert_eq!(rig.has_attempt(), !is_final, "{failure}");
        if is_final {
            continue;
        }
        let message = rig.last_message();
        assert!(message.contains("secret shop/key, named by"), "{message}");
        rig.log();
        assert_eq!(rig.work().await, Outcome::Done, "{failure}");
        assert!(rig.log().contains(&DELETE.to_owned()), "{failure}");
        assert!(!rig.has_attempt());
    }
}

/// A repeated CreateVolume uses the class as it is now, not as it was at the first call.
#[tokio::test]
async fn a_class_corrected_meanwhile_counts() {
    let mut rig = with_secret();
    rig.fail([Status::aborted("busy"), Status::aborted("busy")]);
    assert_eq!(rig.work().await, Outcome::Failed);
    rig.class("c-3", json!({"size": "large"}));
    rig.log();
    assert_eq!(rig.work().await, Outcome::Failed);
    assert_eq!(rig.log(), [CREATE]);
    // An invalid class is an error. The provisioner must still remember the call that may be
    // running.
    rig.class("c-4", json!({"csi.storage.k8s.io/typo": "x"}));
    assert_eq!(rig.work().await, Outcome::Failed);
    assert!(rig.last_message().contains("csi.storage.k8s.io/typo"));
    assert!(rig.log().is_empty());
    assert!(rig.has_attempt());
    rig.class("c-5", json!({"size": "small"}));
    assert_eq!(rig.work().await, Outcome::Done);
    let created = rig.driver.state().created.clone();
    let sizes = created.iter().map(|one| one.parameters.get("size"));
    let [large, small] = ["large", "small"].map(str::to_owned);
    assert!(sizes.eq([None, Some(&large), Some(&small)]));
    assert!(created[1].secrets.is_empty());
}

/// The class comes back as another one, and the claim goes, after a call that the driver has not
/// answered. What it says to the new request says nothing about the volume of the old one.
#[tokio::test]
async fn a_volume_of_the_class_before_is_found() {
    for failures in [
        vec![Status::already_exists("it differs")],
        vec![Status::invalid_argument("no")],
        vec![Status::resource_exhausted("full")],
        vec![
            Status::aborted("busy"),
            Status::already_exists("it differs"),
        ],
    ] {
        let rig = with_claim();
        let repeated = failures.len();
        rig.fail([Status::deadline_exceeded("later")]);
        assert_eq!(rig.work().await, Outcome::Failed);
        rig.class("c-2", json!({"size": "large"}));
        rig.fail(failures.clone());
        for _ in 0..repeated {
            rig.work().await;
        }
        assert!(rig.has_attempt(), "{failures:?}");
        rig.replace_claim();
        rig.log();
        assert_eq!(rig.work().await, Outcome::Done, "{failures:?}");
        assert!(rig.log().contains(&DELETE.to_owned()), "{failures:?}");
        assert!(!rig.has_attempt(), "{failures:?}");
        let created = rig.driver.state().created.clone();
        let are_new = created
            .iter()
            .map(|one| one.parameters.contains_key("size"));
        let mut expected = vec![true; repeated];
        expected.insert(0, false);
        expected.push(false);
        assert_eq!(are_new.collect::<Vec<_>>(), expected, "{failures:?}");
    }
}

/// The driver takes the request of the old class with the secret of that one alone.
#[tokio::test]
async fn a_volume_of_the_class_before_is_found_with_its_secret() {
    let rig = with_secret();
    rig.fail([Status::deadline_exceeded("later")]);
    assert_eq!(rig.work().await, Outcome::Failed);
    rig.class("c-3", json!({"size": "large"}));
    rig.replace_claim();
    rig.put_secret();
    rig.log();
    assert_eq!(rig.work().await, Outcome::Done);
    assert!(rig.log().contains(&DELETE.to_owned()));
    let created = rig.driver.state().created.clone();
    assert_eq!(created[0].secrets["word"], "open sesame");
    assert_eq!(created[1..], created[..1]);
}

/// A missing secret does not keep an unneeded volume.
#[tokio::test]
async fn an_unwanted_volume_goes_without_its_secret() {
    let rig = with_secret();
    rig.world.api.refuse("persistentvolumes", 500);
    assert_eq!(rig.work().await, Outcome::Done);
    for path in [CLAIM, SECRET] {
        rig.world.api.take(path);
    }
    assert_eq!(rig.at_work.pending_pv("pvc-u-1").await, Outcome::Done);
    assert!(rig.log().contains(&DELETE.to_owned()));
}

#[tokio::test]
async fn a_volume_is_deleted_if_another_has_its_object() {
    for (handle, deleted) in [("handle", false), ("another", true)] {
        let rig = with_claim();
        rig.put_volume(handle);
        assert_eq!(rig.work().await, Outcome::Done);
        let log = rig.log();
        assert_eq!(log.contains(&DELETE.to_owned()), deleted, "{log:?}");
    }
}

#[tokio::test]
async fn a_volume_is_deleted_if_its_claim_moved_to_another_node() {
    let rig = rig(here(), true);
    rig.put_claim(&claim_value(Some("n1"), &Value::Null));
    rig.at_work.in_flight.require_live_check(["u-1".to_owned()]);
    rig.world.api.put(claim_value(Some("n2"), &Value::Null));
    assert_eq!(rig.work().await, Outcome::Done);
    let log = rig.log();
    assert_eq!(log.last().map(String::as_str), Some(DELETE));
    assert!(!log.contains(&post(PV)));
    let created = rig.driver.state().created[0].clone();
    let required = created.accessibility_requirements.expect("a requirement");
    assert_eq!(required.requisite[0].segments["zone"], "n1");
}

#[tokio::test(start_paused = true)]
async fn an_infeasible_volume_is_tried_rarely() {
    let rig = with_claim();
    rig.fail((0..3).map(|_| Status::invalid_argument("no")));
    let slow = Outcome::RetryAfter(in_flight::SLOW);
    assert_eq!(rig.work().await, slow);
    assert!(matches!(rig.work().await, Outcome::RetryAfter(_)));
    assert_eq!(rig.log(), [CREATE]);
    // A new class of the same name ends the wait.
    rig.class("c-2", json!({}));
    assert_eq!(rig.work().await, slow);
    assert_eq!(rig.log(), [CREATE]);
    tokio::time::advance(in_flight::SLOW).await;
    assert_eq!(rig.work().await, slow);
    assert_eq!(rig.log(), [CREATE]);
}

#[tokio::test]
async fn the_selected_node_is_cleared_unless_the_claim_has_changed() {
    for (changed, outcome, left) in [
        (false, Outcome::Done, Value::Null),
        (true, Outcome::Failed, json!("n1")),
    ] {
        let rig = rig(here(), true);
        let claim = claim_value(Some("n1"), &Value::Null);
        rig.put_claim(&claim);
        if changed {
            rig.world.api.put(claim);
        }
        rig.fail([Status::resource_exhausted("full")]);
        assert_eq!(rig.work().await, outcome);
        assert_eq!(rig.world.api.writes(), ["data"]);
        let claim = rig
            .world
            .api
            .get("persistentvolumeclaims/data")
            .expect("the claim");
        assert_eq!(claim["metadata"]["annotations"][SELECTED_NODE], left);
    }
}

#[tokio::test]
async fn secrets_are_sent_and_masked_in_messages() {
    let mut rig = with_claim();
    rig.secret_class();
    assert_eq!(rig.work().await, Outcome::Failed);
    let message = rig.last_message();
    assert!(message.contains("secret shop/key, named by parameters"));
    rig.put_secret();
    rig.fail([Status::internal("wrong word: open sesame")]);
    assert_eq!(rig.work().await, Outcome::Failed);
    let message = rig.last_message();
    assert!(message.contains("wrong word: ***"), "{message}");
    assert_eq!(rig.driver.state().created[0].secrets["word"], "open sesame");
}

/// Caches have no annotations but the known ones, so those that a template names are read.
#[tokio::test]
async fn a_secret_is_named_by_an_annotation_of_the_claim() {
    for (secret, outcome) in [("key", Outcome::Done), ("other", Outcome::Failed)] {
        let rig = central();
        let annotations = json!({"team/key": secret, "team/text": "x".repeat(200_000)});
        let claim = claim_value(None, &Value::Null);
        rig.put_claim(&testing::with(
            claim,
            json!({"metadata": {"annotations": annotations}}),
        ));
        rig.class(
            "c-3",
            json!({"csi.storage.k8s.io/provisioner-secret-name": "${pvc.annotations['team/key']}",
                   "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}"}),
        );
        rig.put_secret();
        assert_eq!(rig.work().await, outcome, "{secret}");
        let cached = rig
            .world
            .context
            .caches
            .claims()
            .get_in("shop", "data")
            .expect("the claim");
        assert_eq!(cached.annotations().len(), 1, "only who provisions it");
    }
}

/// This process loses its lead while it reads the secret. The new leader then makes the call.
#[tokio::test(start_paused = true)]
async fn without_the_lead_no_call_is_made() {
    for (leads, calls) in [(true, 3), (false, 1)] {
        let mut rig = with_secret();
        let (until, leader) = Leadership::elected();
        until.send_replace(Some(Instant::now() + Duration::from_secs(5)));
        rig.at_work.context.leader = leader;
        if !leads {
            let late = Fault::Delay(Duration::from_secs(10));
            rig.world.api.fault(&["GET"], SECRET, Some(1), late);
        }
        assert_eq!(rig.work().await, Outcome::Done);
        let all = [get(SECRET), CREATE.to_owned(), post(PV)];
        assert_eq!(rig.log(), all[..calls]);
        assert!(!rig.has_attempt());
    }
}

#[tokio::test]
async fn a_snapshot_is_kept_while_it_is_read() {
    let rig = central();
    rig.put_claim(&claim_value(None, &from_snapshot()));
    rig.put_snapshot(&[]);
    assert_eq!(rig.work().await, Outcome::Done);
    let patch = format!("PATCH {SNAPSHOT}");
    let expected = [
        &*get(SNAPSHOT),
        "GET volumesnapshotcontents/content",
        &patch,
        CREATE,
        &post(PV),
        &get(SNAPSHOT),
        &patch,
    ];
    assert_eq!(rig.log(), expected);
    let snapshot = rig.world.api.get(SNAPSHOT).expect("the snapshot");
    assert_eq!(snapshot["metadata"]["finalizers"], json!([]));
}
