//! Snapshots, and volumes restored from them.

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type as Source};
use hostloop_test::client::map;
use hostloop_test::front::fields::{handle, is_ready_to_use, text};
use hostloop_test::front::objects::{self, Place, restored, sized, with};
use hostloop_test::front::{FrontSpec, SECRET};
use hostloop_test::memory::Step;
use serde_json::{Value, json};
use tonic::Code;

use crate::{Rig, annotation, quick, without};

/// The error on a snapshot.
fn error(snapshot: &Value) -> &str {
    text(&snapshot["status"]["error"]["message"])
}

fn spec(name: &str) -> FrontSpec {
    quick(name, "provisioner,snapshotter")
}

/// A class of this kind with the front's name, and with this change.
pub(crate) async fn class(rig: &Rig, kind: &str, change: Value) {
    let mut class = objects::snapshot_class(kind, &rig.name, &rig.driver_name, change);
    class["metadata"]["labels"]["front"] = json!(rig.name);
    rig.create(class).await;
}

/// The class, and a claim to take snapshots of.
async fn with_claim(rig: &Rig, parameters: Value) -> Value {
    class(
        rig,
        "VolumeSnapshotClass",
        json!({"parameters": parameters}),
    )
    .await;
    rig.volume("data").await
}

/// Parameters of a class with this secret.
fn secret(rig: &Rig, name: &str) -> Value {
    let key = "csi.storage.k8s.io/snapshotter-secret";
    json!({
        "colour": "blue",
        format!("{key}-name"): name, format!("{key}-namespace"): rig.namespace,
    })
}

/// The content that a snapshot or a group is bound to.
pub(crate) fn content_of(rig: &Rig, snapshot: &Value) -> Place {
    let kind = text(&snapshot["kind"]);
    let content = &snapshot["status"][format!("bound{kind}ContentName")];
    rig.at(&format!("{kind}Content"), text(content))
}

async fn snapshot(rig: &Rig, name: &str, claim: &str) -> Value {
    rig.create(objects::snapshot(&rig.namespace, name, &rig.name, claim))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_taken_restored_and_deleted() {
    let args = ["--extra-create-metadata"];
    let rig = Rig::with_snapshots(spec("snap").args(&args)).await;
    rig.secret("taking").await;
    let volume = with_claim(&rig, secret(&rig, "taking")).await;
    let made = snapshot(&rig, "first", "data").await;
    let at = rig.at("VolumeSnapshot", "first");
    let seen = rig.until(&at, "ready", is_ready_to_use).await;
    assert_eq!(seen["status"]["restoreSize"], "1Gi");
    let created = text(&seen["status"]["creationTime"]);
    assert!(!created.is_empty(), "{seen:#}");

    let uid = text(&made["metadata"]["uid"]);
    let content_name = format!("snapcontent-{uid}");
    let content_at = content_of(&rig, &seen);
    assert_eq!(content_at.name, content_name);
    let content = rig.get(&content_at).await;
    let there = rig.driver.snapshots().remove(0);
    assert_eq!(content["status"]["snapshotHandle"], there.id.as_str());
    assert_eq!(content["status"]["restoreSize"], 1 << 30);
    let nanos = there.created.seconds * 1_000_000_000 + i64::from(there.created.nanos);
    assert_eq!(content["status"]["creationTime"], nanos);
    let deletion = "snapshot.storage.kubernetes.io/deletion-secret-name";
    assert_eq!(*annotation(&content, deletion), "taking");
    // It goes after the status is there.
    let creating = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
    rig.until(&content_at, "created", |content| {
        annotation(content, creating).is_null()
    })
    .await;
    let request = rig.request::<csi::CreateSnapshotRequest>();
    assert_eq!(request.name, format!("snapshot-{uid}"));
    assert_eq!(request.source_volume_id, handle(&volume));
    assert_eq!(request.secrets, map(&[("password", SECRET)]));
    let key = |what: &str| format!("csi.storage.k8s.io/{what}");
    let expected = map(&[
        ("colour", "blue"),
        (&key("volumesnapshot/name"), "first"),
        (&key("volumesnapshot/namespace"), &rig.namespace),
        (&key("volumesnapshotcontent/name"), &content_name),
    ]);
    assert_eq!(request.parameters, expected);

    let of_size = |size: &str| with(restored("first"), sized(size));
    let (_, volume) = rig.bound_claim("larger", of_size("3Gi")).await;
    let source = rig.made(handle(&volume)).source.and_then(|s| s.r#type);
    let snapshot_id = there.id.clone();
    assert_eq!(
        source,
        Some(Source::Snapshot(SnapshotSource { snapshot_id }))
    );
    // A claim smaller than the snapshot is rejected with the reason.
    rig.claim("smaller", of_size("512Mi")).await;
    let smaller = rig.claim_at("smaller");
    rig.warned(&smaller, "ProvisioningFailed", &["first"]).await;
    rig.delete(smaller).await;

    rig.delete(at).await;
    rig.until_gone(&content_at).await;
    let request = rig.request::<csi::DeleteSnapshotRequest>();
    assert_eq!(request.snapshot_id, there.id);
    assert_eq!(request.secrets, map(&[("password", SECRET)]));
    rig.down().await;
}

/// An unready snapshot is polled until it is ready, and a claim waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn an_unready_snapshot_is_asked_for_again() {
    let spec = spec("snap-slow").driver(|o| o.ready_after_polls = u32::MAX);
    let rig = Rig::with_snapshots(spec).await;
    with_claim(&rig, json!({})).await;
    snapshot(&rig, "slow", "data").await;
    rig.claim("copy", restored("slow")).await;
    let at = rig.at("VolumeSnapshot", "slow");
    // Only with this time has the driver answered.
    let unready =
        |s: &Value| s["status"]["readyToUse"] == false && s["status"]["creationTime"].is_string();
    rig.until(&at, "taken and unready", unready).await;
    rig.driver.make_ready();
    rig.until(&at, "ready", is_ready_to_use).await;
    rig.bound("copy").await;
    assert_eq!(rig.driver.snapshots().len(), 1);
    rig.down().await;
}

/// Each failure of CreateSnapshot is reported and retried, and never makes a second snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn failures_are_reported_and_tried_again() {
    let rig = Rig::with_snapshots(spec("snap-errors")).await;
    with_claim(&rig, json!({})).await;
    let cases = [
        Code::Internal,
        Code::DeadlineExceeded,
        Code::ResourceExhausted,
        Code::Aborted,
    ];
    for (i, code) in cases.into_iter().enumerate() {
        let name = format!("{code:?}").to_lowercase();
        let steps = [Step::DoneBut(code), Step::Fail(code)];
        rig.driver.script("CreateSnapshot", steps);
        snapshot(&rig, &name, "data").await;
        let at = rig.at("VolumeSnapshot", &name);
        let seen = rig.until(&at, "ready", is_ready_to_use).await;
        assert!(seen["status"]["error"].is_null(), "{seen:#}");
        let content = content_of(&rig, &seen);
        rig.warned(&content, "SnapshotCreationFailed", &["scripted"])
            .await;
        assert_eq!(rig.driver.snapshots().len(), i + 1, "{code:?}");
    }
    // A failed deletion is reported and retried.
    let internal = Step::Fail(Code::Internal);
    rig.driver.script("DeleteSnapshot", [internal]);
    rig.delete(rig.at("VolumeSnapshot", "internal")).await;
    rig.down().await;
}

/// Pre-provisioned snapshots: ready as the driver reports, and kept or deleted by policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_made_beforehand_can_be_restored() {
    let listed = spec("snap-static");
    let rpcs = [ControllerRpc::ListSnapshots, ControllerRpc::GetSnapshot];
    let unlisted = without(spec("snap-blind"), &rpcs);
    for spec in [listed, unlisted] {
        let rig = Rig::with_snapshots(spec).await;
        with_claim(&rig, json!({})).await;
        snapshot(&rig, "taken", "data").await;
        let at = rig.at("VolumeSnapshot", "taken");
        rig.until(&at, "ready", is_ready_to_use).await;
        let handle = rig.driver.snapshots().remove(0).id;
        let content = format!("by-hand-{}", rig.name);
        rig.create(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": content},
            "spec": {
                "driver": rig.driver_name, "deletionPolicy": "Retain",
                "source": {"snapshotHandle": handle}, "sourceVolumeMode": "Filesystem",
                "volumeSnapshotClassName": rig.name,
                "volumeSnapshotRef": {"name": "by-hand", "namespace": rig.namespace},
            },
        }))
        .await;
        let source = json!({
            "persistentVolumeClaimName": null, "volumeSnapshotContentName": content,
        });
        let by_hand = objects::snapshot(&rig.namespace, "by-hand", &rig.name, "none");
        rig.create(with(by_hand, json!({"spec": {"source": source}})))
            .await;
        let at = rig.at("VolumeSnapshot", "by-hand");
        rig.until(&at, "ready", is_ready_to_use).await;
        rig.bound_claim("copy", restored("by-hand")).await;
        rig.delete(at).await;
        assert_eq!(rig.driver.count("DeleteSnapshot"), 0, "it is to be kept");
        rig.delete(rig.at("VolumeSnapshotContent", &content)).await;
        assert_eq!(rig.driver.count("DeleteSnapshot"), 0, "it is to be kept");
        rig.down().await;
    }
}

/// Impossible snapshots: the user sees the reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_snapshot_ends_in_an_event() {
    let rig = Rig::with_snapshots(spec("snap-bad")).await;
    with_claim(&rig, secret(&rig, "nowhere")).await;
    // Neither the claim of the first nor the secret of the class exists.
    for (name, claim, words) in [
        ("no-claim", "never", "never"),
        ("no-secret", "data", "nowhere"),
    ] {
        snapshot(&rig, name, claim).await;
        let failed = |snapshot: &Value| error(snapshot).contains(words);
        let at = rig.at("VolumeSnapshot", name);
        rig.until(&at, "with an error", failed).await;
    }
    assert_eq!(rig.driver.count("CreateSnapshot"), 0);
    rig.secret("nowhere").await;
    let at = rig.at("VolumeSnapshot", "no-secret");
    rig.until(&at, "ready", is_ready_to_use).await;
    rig.down().await;
}
