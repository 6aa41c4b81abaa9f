//! What the controller asks of the driver, and what it says.

use std::collections::BTreeSet;

use futures::FutureExt;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tonic::Status;

use super::*;
use crate::testing::{DRIVER, World, affinity, node_scope, with};

/// A driver that notes what it is asked for, and gives the answers of a test.
#[derive(Clone, Default)]
struct FakeDriver(Arc<Mutex<FakeDriverState>>);

#[derive(Default)]
struct FakeDriverState {
    requests: Vec<String>,
    answers: Vec<Result<FaultReport, Status>>,
    faulty: Vec<String>,
}

impl FakeDriver {
    fn volume_faults(&self, is_enabled: bool) -> VolumeFaults {
        let (asked, listed) = (self.clone(), self.clone());
        VolumeFaults::within(
            is_enabled,
            move |request| {
                let mut state = asked.0.lock();
                let fault = request.fault.map(|fault| fault.to_string());
                let fault = fault.unwrap_or_default();
                let FaultRequest {
                    volume, namespace, ..
                } = request;
                state.requests.push(format!("{namespace} {volume} {fault}"));
                std::future::ready(state.answers.remove(0)).boxed()
            },
            move || listed.0.lock().faulty.clone(),
        )
    }

    fn answers(&self, answer: Result<FaultReport, Status>) {
        self.0.lock().answers.push(answer);
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().requests)
    }
}

/// The key of the volume.
fn key() -> VolumeKey {
    ("ns".to_owned(), "pv".to_owned())
}

struct Rig {
    world: World,
    driver: FakeDriver,
    faults: ClaimFaults,
}

fn claim(annotation: Option<&str>, uid: &str) -> Value {
    let annotations = annotation.map(|fault| json!({"hostloop.csi.dev/fault": fault}));
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "ns", "uid": uid, "annotations": annotations},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
    })
}

fn volume() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv", "uid": "v"},
        "spec": {
            "claimRef": {"namespace": "ns", "name": "data", "uid": "c"},
            "csi": {"driver": DRIVER, "volumeHandle": "h"},
        },
    })
}

/// A controller with a claim of this annotation, and its volume.
fn rig(is_enabled: bool, annotation: Option<&str>) -> Rig {
    let (world, driver) = (World::new(&[]), FakeDriver::default());
    let asked = driver.volume_faults(is_enabled);
    let faults = ClaimFaults::new(world.context.clone(), asked, Metrics::default());
    world.add(&faults.claims, claim(annotation, "c"));
    world.add(&faults.volumes, volume());
    Rig {
        world,
        driver,
        faults,
    }
}

fn report(state: FaultState, message: &str, seconds: Option<u64>) -> FaultReport {
    FaultReport {
        state,
        message: message.to_owned(),
        again: seconds.map(Duration::from_secs),
    }
}

#[tokio::test]
async fn a_fault_begins_and_ends_with_the_annotation() {
    let mut rig = rig(true, Some("gone"));
    for (message, events) in [("bad", &["Warning FaultInjected: bad"][..]), ("bad", &[])] {
        rig.driver
            .answers(Ok(report(FaultState::Active, message, Some(5))));
        let outcome = rig.faults.reconcile(&key()).await;
        assert_eq!(outcome, Outcome::RequeueAfter(Duration::from_secs(5)));
        assert_eq!(rig.driver.requests(), ["ns h gone,for=600s"]);
        assert_eq!(rig.world.events(), events);
    }
    rig.world.add(&rig.faults.claims, claim(None, "c"));
    rig.driver
        .answers(Ok(report(FaultState::Healed, "good", None)));
    assert_eq!(rig.faults.reconcile(&key()).await, Outcome::Done);
    assert_eq!(rig.driver.requests(), ["ns h "]);
    assert_eq!(rig.world.events(), ["Normal FaultHealed: good"]);
}

/// A user may have thousands of claims, with a fault that waits for a pod.
#[tokio::test]
async fn volumes_are_counted_only_after_a_fault_has_begun_or_ended() {
    let rig = rig(true, Some("gone"));
    for (state, expected) in [
        (FaultState::Waiting, 7),
        (FaultState::Active, 1),
        (FaultState::Active, 7),
        (FaultState::Healed, 0),
        (FaultState::Absent, 7),
    ] {
        rig.faults.metrics.active(7);
        rig.driver.answers(Ok(report(state, "m", None)));
        rig.faults.reconcile(&key()).await;
        let mut registry = Registry::default();
        rig.faults.metrics.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).expect("into a string");
        let shown = format!("hostloop_claim_faults_active {expected}\n");
        assert!(text.contains(&shown), "{state:?}: {text}");
    }
}

#[tokio::test]
async fn a_fault_is_refused_by_name_without_the_flag_and_with_a_mistake() {
    for (is_enabled, annotation, why) in [
        (false, "gone", "the driver runs without --enable-faults"),
        (
            true,
            "gone,for=1y",
            "for: \"1y\" is not a duration such as 30s or 5m",
        ),
    ] {
        let mut rig = rig(is_enabled, Some(annotation));
        for expected in [1, 0] {
            rig.driver.answers(Ok(FaultReport::none()));
            assert_eq!(rig.faults.reconcile(&key()).await, Outcome::Done);
            assert_eq!(rig.driver.requests(), ["ns h "], "none is left");
            let events = rig.world.events();
            assert_eq!(events.len(), expected, "{events:?}");
            let all = events
                .iter()
                .all(|event| event.starts_with("Warning FaultRefused: ") && event.ends_with(why));
            assert!(all, "{events:?}");
        }
    }
}

/// Adds the class of the claim, with this fault.
fn add_class(rig: &Rig, provisioner: &str, fault: &str) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "bad"},
        "provisioner": provisioner, "parameters": {"fault": fault},
    });
    rig.world.add(&rig.world.context.caches.classes(), class);
}

/// The claim, of that class.
fn claim_of_class(annotation: Option<&str>) -> Value {
    with(
        claim(annotation, "c"),
        json!({"spec": {"storageClassName": "bad"}}),
    )
}

#[tokio::test]
async fn a_class_has_a_fault_for_claims_without_one() {
    let mut rig = rig(true, None);
    add_class(&rig, DRIVER, "full,for=5m");
    for (annotation, asked) in [
        (None, "ns h full,for=300s"),
        (Some("gone"), "ns h gone,for=600s"),
        (Some("none"), "ns h "),
    ] {
        rig.world
            .add(&rig.faults.claims, claim_of_class(annotation));
        rig.driver.answers(Ok(FaultReport::none()));
        assert_eq!(rig.faults.reconcile(&key()).await, Outcome::Done);
        assert_eq!(rig.driver.requests(), [asked]);
    }
    assert!(rig.world.events().is_empty());
    rig.world.add(&rig.faults.claims, claim_of_class(Some("x")));
    rig.driver.answers(Ok(FaultReport::none()));
    rig.faults.reconcile(&key()).await;
    assert_eq!(rig.driver.requests(), ["ns h "], "nor that of the class");
    assert_eq!(rig.world.events().len(), 1);
}

#[tokio::test]
async fn a_fault_of_a_class_is_refused_by_name_without_the_flag() {
    let mut rig = rig(false, None);
    add_class(&rig, DRIVER, "full");
    rig.world.add(&rig.faults.claims, claim_of_class(None));
    rig.driver.answers(Ok(FaultReport::none()));
    assert_eq!(rig.faults.reconcile(&key()).await, Outcome::Done);
    assert_eq!(rig.driver.requests(), ["ns h "]);
    let expected = "Warning FaultRefused: The parameter fault of its class has no effect: the driver \
                    runs without --enable-faults";
    assert_eq!(rig.world.events(), [expected]);
}

#[tokio::test]
async fn claims_of_a_class_with_a_fault_are_worked_on_once_they_are_bound() {
    for (provisioner, has_fault) in [(DRIVER, true), ("another", false)] {
        let rig = rig(true, None);
        add_class(&rig, provisioner, "full");
        let read = |value: Value| -> Arc<PersistentVolumeClaim> {
            Arc::new(serde_json::from_value(value).expect("a claim"))
        };
        let bound = || read(claim_of_class(None));
        let phase = json!({"status": {"phase": "Pending"}});
        let pending = || read(with(claim_of_class(None), phase.clone()));
        for (change, is_queued) in [
            (applied(None, bound()), has_fault),
            (applied(Some(pending()), bound()), has_fault),
            (applied(None, pending()), false),
            (applied(Some(bound()), bound()), false),
            (Change::Deleted(bound()), has_fault),
            (Change::Deleted(pending()), false),
        ] {
            let expected = is_queued.then(key);
            assert_eq!(changed_volume(&change, &rig.faults.presets), expected);
        }
    }
}

fn applied(
    old: Option<Arc<PersistentVolumeClaim>>,
    new: Arc<PersistentVolumeClaim>,
) -> Change<PersistentVolumeClaim> {
    Change::Applied { old, new }
}

/// A claim of the same name may ask for a fault of its own volume only.
#[tokio::test]
async fn only_the_volumes_own_claim_counts() {
    let mut rig = rig(true, None);
    rig.world
        .add(&rig.faults.claims, claim(Some("gone"), "another"));
    rig.driver.answers(Ok(FaultReport::none()));
    assert_eq!(rig.faults.reconcile(&key()).await, Outcome::Done);
    assert_eq!(rig.driver.requests(), ["ns h "]);
    assert!(rig.world.events().is_empty());
    let foreign = json!({"spec": {"csi": {"driver": "another"}}});
    rig.world.add(&rig.faults.volumes, with(volume(), foreign));
    assert_eq!(rig.faults.reconcile(&key()).await, Outcome::Done);
    assert!(rig.driver.requests().is_empty());
}

#[tokio::test]
async fn a_failure_is_said_and_a_busy_volume_is_not() {
    let mut rig = rig(true, Some("gone"));
    rig.driver.answers(Err(Status::aborted("busy")));
    assert_eq!(
        rig.faults.reconcile(&key()).await,
        Outcome::RequeueAfter(BUSY)
    );
    assert!(rig.world.events().is_empty());
    rig.driver.answers(Err(Status::internal("broken")));
    assert_eq!(rig.faults.reconcile(&key()).await, Outcome::Failed);
    let expected =
        "Warning FaultFailed: rpc error: code = Internal desc = broken; it is tried again";
    assert_eq!(rig.world.events(), [expected]);
}

/// The annotation may have gone while no process ran.
#[tokio::test]
async fn volumes_with_a_recorded_fault_are_looked_at() {
    let rig = rig(true, None);
    let none = (Vec::new(), BTreeSet::new());
    assert_eq!(rig.faults.faulty_volumes(), none);
    rig.driver.0.lock().faulty = vec!["other".to_owned(), "h".to_owned()];
    let expected = (vec![key()], BTreeSet::from(["other".to_owned()]));
    assert_eq!(rig.faults.faulty_volumes(), expected);
}

/// It would last until the volume is deleted.
#[tokio::test]
async fn a_fault_ends_whose_persistent_volume_has_gone_while_no_process_ran() {
    let rig = rig(true, None);
    rig.driver.0.lock().faulty = vec!["h".to_owned()];
    // The cache lacks it, and the API server has it.
    rig.faults.volumes.note_deleted("", "pv");
    assert_eq!(rig.faults.look_again().await, RESYNC);
    assert!(rig.driver.requests().is_empty());

    rig.world.api.take("/pv");
    rig.driver.answers(Err(Status::aborted("busy")));
    assert_eq!(rig.faults.look_again().await, LOOK_RETRY);
    rig.driver
        .answers(Ok(report(FaultState::Healed, "good", None)));
    assert_eq!(rig.faults.look_again().await, RESYNC);
    assert_eq!(rig.driver.requests(), [" h ", " h "]);
}

/// A stolen node can make one with any handle.
#[tokio::test]
async fn a_persistent_volume_of_another_node_keeps_no_fault() {
    for (node, is_cached, requests) in [
        ("n1", true, vec![]),
        ("n1", false, vec![]),
        ("n2", true, vec![" h "]),
        ("n2", false, vec![" h "]),
    ] {
        let (mut world, driver) = (World::new(&[]), FakeDriver::default());
        world.context.scope = node_scope("n1", "t/node");
        let asked = driver.volume_faults(true);
        let faults = ClaimFaults::new(world.context.clone(), asked, Metrics::default());
        driver.0.lock().faulty = vec!["h".to_owned()];
        let on_node = json!({"spec": {"nodeAffinity": affinity("t/node", &[node])}});
        world.add(&faults.volumes, with(volume(), on_node));
        if !is_cached {
            faults.volumes.note_deleted("", "pv");
        }
        driver.answers(Ok(report(FaultState::Healed, "good", None)));
        assert_eq!(faults.look_again().await, RESYNC);
        assert_eq!(driver.requests(), requests, "{node}, {is_cached}");
    }
}

/// It could be one of a stolen node, and no other fault would end either.
#[tokio::test]
async fn a_persistent_volume_that_is_too_large_keeps_no_fault() {
    let rig = rig(true, None);
    rig.driver.0.lock().faulty = vec!["h".to_owned()];
    rig.faults.volumes.note_deleted("", "pv");
    let large = json!({"spec": {"csi": {"fsType": "x".repeat(1 << 19)}}});
    rig.world.api.put(with(volume(), large));
    rig.driver
        .answers(Ok(report(FaultState::Healed, "good", None)));
    assert_eq!(rig.faults.look_again().await, RESYNC);
    assert_eq!(rig.driver.requests(), [" h "]);
}

#[tokio::test]
async fn only_changes_of_the_annotation_are_worked_on() {
    let rig = rig(true, None);
    let changed_volume =
        |change: &Change<PersistentVolumeClaim>| super::changed_volume(change, &rig.faults.presets);
    let read = |value: Value| -> Arc<PersistentVolumeClaim> {
        Arc::new(serde_json::from_value(value).expect("a claim"))
    };
    let bound = |annotation| read(claim(annotation, "c"));
    let in_phase = |annotation, phase: &str| {
        let patch = json!({"status": {"phase": phase}});
        read(with(claim(annotation, "c"), patch))
    };
    let pending = |annotation| in_phase(annotation, "Pending");
    let lost = |annotation| in_phase(annotation, "Lost");
    for (old, new, is_queued) in [
        (None, bound(None), false),
        (None, bound(Some("gone")), true),
        (Some(bound(Some("gone"))), bound(Some("gone")), false),
        (Some(bound(Some("gone"))), bound(Some("frozen")), true),
        (Some(bound(Some("gone"))), bound(None), true),
        (Some(bound(None)), bound(None), false),
        (Some(pending(Some("gone"))), bound(Some("gone")), true),
        (Some(bound(Some("gone"))), lost(Some("gone")), true),
        (Some(lost(Some("gone"))), lost(Some("full")), false),
        // Such a claim may name the volume of anyone.
        (None, pending(Some("gone")), false),
        (Some(pending(None)), pending(Some("gone")), false),
    ] {
        let change = Change::Applied { old, new };
        let expected = is_queued.then(key);
        assert_eq!(changed_volume(&change), expected, "{change:?}");
    }
    let change = Change::Deleted(pending(Some("gone")));
    assert_eq!(changed_volume(&change), None);
    for (annotation, is_queued) in [(None, false), (Some("gone"), true)] {
        let change = Change::Deleted(bound(annotation));
        assert_eq!(changed_volume(&change).is_some(), is_queued);
    }
}

/// A user of one namespace may name any volume in a claim.
#[tokio::test]
async fn a_claim_of_another_namespace_does_not_reach_the_driver() {
    let rig = rig(true, Some("gone"));
    let theirs = ("other".to_owned(), "pv".to_owned());
    assert_eq!(rig.faults.reconcile(&theirs).await, Outcome::Done);
    assert!(rig.driver.requests().is_empty());
}

/// A frozen volume would block sync(2) of its node until the next start of the driver.
#[tokio::test]
async fn a_fault_ends_with_its_persistent_volume() {
    let mut rig = rig(true, Some("frozen"));
    rig.driver
        .answers(Ok(report(FaultState::Active, "bad", Some(5))));
    rig.faults.reconcile(&key()).await;
    assert_eq!(rig.driver.requests(), ["ns h frozen,for=30s"]);
    rig.world.events();
    rig.world.api.take("/pv");
    rig.faults.volumes.note_deleted("", "pv");
    rig.driver
        .answers(Ok(report(FaultState::Healed, "good", None)));
    assert_eq!(rig.faults.reconcile(&key()).await, Outcome::Done);
    assert_eq!(rig.driver.requests(), [" h "]);
    assert_eq!(rig.faults.reconcile(&key()).await, Outcome::Done);
    assert!(rig.driver.requests().is_empty(), "it is forgotten");
}

/// Its users could otherwise keep a volume frozen, and with it sync(2) of the node.
#[tokio::test]
async fn a_fault_ends_once_its_claim_is_too_large_to_be_read() {
    let rig = rig(true, Some("frozen"));
    let labels = json!({"metadata": {"labels": {"large": "x".repeat(1 << 15)}}});
    rig.world.api.put(with(claim(Some("frozen"), "c"), labels));
    rig.faults.claims.note_left_out("ns", "data");
    rig.driver
        .answers(Ok(report(FaultState::Healed, "good", None)));
    assert_eq!(rig.faults.reconcile(&key()).await, Outcome::Done);
    assert_eq!(rig.driver.requests(), ["ns h "]);
}

/// Its users could have thousands, and each look would read one from the API server. A fault that has
/// begun is another matter: a power cut would be repeated once there is room for the claim again.
#[tokio::test]
async fn a_claim_that_the_cache_leaves_out_waits_for_no_fault() {
    for (state, asked) in [
        (FaultState::Waiting, "ns h "),
        (FaultState::Active, "ns h powercut"),
        (FaultState::Over, "ns h powercut"),
    ] {
        let rig = rig(true, Some("powercut"));
        rig.driver.answers(Ok(report(state, "m", None)));
        rig.faults.reconcile(&key()).await;
        assert_eq!(rig.driver.requests(), ["ns h powercut"]);
        rig.faults.claims.note_left_out("ns", "data");
        rig.driver.answers(Ok(report(state, "m", None)));
        rig.faults.reconcile(&key()).await;
        assert_eq!(rig.driver.requests(), [asked]);
    }
}

/// Otherwise the fault would begin again at once, and a power cut would be repeated.
#[tokio::test]
async fn a_second_persistent_volume_of_a_handle_ends_no_fault() {
    let rig = rig(true, Some("powercut"));
    rig.driver
        .answers(Ok(report(FaultState::Active, "bad", None)));
    rig.faults.reconcile(&key()).await;
    assert_eq!(rig.driver.requests(), ["ns h powercut"]);
    let second = json!({"metadata": {"name": "pv2", "uid": "v2"}, "spec": {"claimRef": null}});
    rig.world.add(&rig.faults.volumes, with(volume(), second));
    let second = (String::new(), "pv2".to_owned());
    assert_eq!(rig.faults.reconcile(&second).await, Outcome::Done);
    assert!(rig.driver.requests().is_empty());
}
