use std::time::Duration;

use hostloop_fake_api::{FakeApi, Fault};
use serde_json::{Value, json};

use super::*;
use crate::check::decide::testing::marks;
use crate::check::line::Mark::*;
use crate::test_objects::{cluster_of, writes};

const NS: &str = "/api/v1/namespaces/demo";

/// A server with controllers. They give new objects the status that is waited for, and claims a
/// volume that goes with them. The object with this name is changed by a merge patch.
fn server_with(name: &'static str, change: Value) -> FakeApi {
    let server = FakeApi::with_snapshots();
    server.on_create(move |object| {
        object["status"] = json!({"phase": "Succeeded", "readyToUse": true});
        let mut volumes = Vec::new();
        match object["kind"].as_str() {
            Some("Pod") => object["spec"]["nodeName"] = json!("n1"),
            Some("PersistentVolumeClaim") => volumes.push(bind(object)),
            _ => {}
        }
        let objects = std::iter::once(object).chain(&mut volumes);
        let named = objects.filter(|object| object["metadata"]["name"] == name);
        named.for_each(|object| json_patch::merge(object, &change));
        volumes
    });
    server
}

fn server() -> FakeApi {
    server_with("", json!({}))
}

/// Binds a claim to the volume that is returned.
fn bind(claim: &mut Value) -> Value {
    let name = claim["metadata"]["name"].as_str().expect("a name");
    let (uid, volume) = (format!("uid-{name}"), format!("pv-{name}"));
    claim["metadata"]["uid"] = json!(uid);
    claim["spec"]["volumeName"] = json!(volume);
    json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": volume, "ownerReferences": [{"uid": uid}]}})
}

/// The kinds of what was created, in order.
fn created(server: &FakeApi) -> Vec<String> {
    let writes = writes(server).into_iter();
    let made = writes.filter_map(|line| Some(line.strip_prefix("POST demo/")?.to_owned()));
    made.filter_map(|object| Some(object.split_once('/')?.0.to_owned()))
        .collect()
}

/// The kinds of what exists.
fn left(server: &FakeApi) -> Vec<&'static str> {
    let kinds = [
        "persistentvolumes",
        "persistentvolumeclaims",
        "pods",
        "volumesnapshots",
    ];
    kinds
        .into_iter()
        .flat_map(|kind| vec![kind; server.all(kind).len()])
        .collect()
}

fn plan() -> LivePlan {
    LivePlan {
        name: "hostloop-check-x".into(),
        namespace: "demo".into(),
        class: "hostloop-ext4".into(),
        snapshot_class: Some("hostloop".into()),
        image: "i".into(),
        pull_policy: "Never".into(),
        program: None,
        timeout: Duration::from_millis(10),
        left_out: None,
    }
}

async fn lines(server: &FakeApi, plan: &LivePlan) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut progress = ProgressLine::new();
    run(&cluster_of(server), plan, &mut progress, &mut |line| {
        lines.push(line)
    })
    .await;
    lines
}

#[tokio::test]
async fn a_good_cluster() {
    let server = server();
    let lines = lines(&server, &plan()).await;
    assert_eq!(marks(&lines), [Passed; 4], "{lines:#?}");
    let (claim, pod, snapshot) = ("persistentvolumeclaims", "pods", "volumesnapshots");
    let made = [claim, pod, snapshot, claim, pod];
    assert_eq!(created(&server), made);
    assert_eq!(left(&server), [""; 0]);
}

#[tokio::test]
async fn without_snapshots_another_pod_reads_the_claim() {
    let server = server();
    let plan = LivePlan {
        snapshot_class: None,
        ..plan()
    };
    let lines = lines(&server, &plan).await;
    assert_eq!(marks(&lines), [Passed; 3]);
    assert_eq!(created(&server), ["persistentvolumeclaims", "pods", "pods"]);
    assert_eq!(left(&server), [""; 0]);
}

#[tokio::test]
async fn after_a_failure_everything_is_deleted() {
    let failed = json!({"status": {"phase": "Failed", "message": "it differs"}});
    let server = server_with("hostloop-check-x-verify", failed);
    let lines = lines(&server, &plan()).await;
    assert_eq!(
        marks(&lines),
        [Passed, Passed, Failed, Passed],
        "{lines:#?}"
    );
    assert!(
        lines[2].text.ends_with("on node n1 it failed: it differs"),
        "{lines:?}"
    );
    assert_eq!(left(&server), [""; 0]);
}

#[tokio::test]
async fn at_the_deadline_the_events_say_why() {
    let server = server_with(
        "hostloop-check-x-write",
        json!({"status": {"phase": "Pending"}}),
    );
    server.set(
        &format!("{NS}/events/e"),
        json!({"type": "Warning", "reason": "FailedMount", "message": "no loop",
            "involvedObject": {"name": "hostloop-check-x-write"}}),
    );
    let lines = lines(&server, &plan()).await;
    assert_eq!(marks(&lines), [Failed, Passed], "{lines:#?}");
    assert!(
        lines[0].text.ends_with("; FailedMount: no loop"),
        "{lines:?}"
    );
    assert_eq!(left(&server), [""; 0]);
}

#[tokio::test]
async fn what_can_not_be_deleted_is_named() {
    let kept = json!({"metadata": {"finalizers": ["test/kept"]}});
    let server = server_with("hostloop-check-x-restored", kept);
    let lines = lines(&server, &plan()).await;
    assert_eq!(marks(&lines), [Passed, Passed, Passed, Failed]);
    let text = "PersistentVolumeClaim hostloop-check-x-restored is still being deleted";
    assert!(lines[3].text.ends_with(text), "{lines:?}");
    assert_eq!(left(&server).len(), 2, "the claim and its volume");
}

#[tokio::test]
async fn a_volume_that_outlives_its_claim_is_named() {
    let without_owner = json!({"metadata": {"ownerReferences": null}});
    let server = server_with("pv-hostloop-check-x", without_owner);
    let lines = lines(&server, &plan()).await;
    assert_eq!(marks(&lines), [Passed, Passed, Passed, Failed]);
    assert!(
        lines[3]
            .text
            .ends_with("PersistentVolume pv-hostloop-check-x still exists")
    );
}

#[tokio::test]
async fn what_was_not_made_is_not_deleted() {
    let server = server();
    server.fault(
        &["POST"],
        "persistentvolumeclaims",
        None,
        Fault::Refuse(403),
    );
    let lines = lines(&server, &plan()).await;
    assert_eq!(marks(&lines), [Failed], "{lines:#?}");
    assert_eq!(
        writes(&server),
        ["POST demo/persistentvolumeclaims/hostloop-check-x"]
    );
}
