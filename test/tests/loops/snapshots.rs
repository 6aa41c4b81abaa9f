//! Snapshots, and volumes restored from them.

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::volume_content_source::Type as Source;
use hostloop_test::client::map;
use hostloop_test::front::{FrontSpec, SECRET};
use hostloop_test::memory::Step;
use serde_json::{Value, json};
use tonic::Code;

use crate::Rig;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn ready(snapshot: &Value) -> bool {
    snapshot["status"]["readyToUse"] == true
}

fn spec(name: &str) -> FrontSpec {
    let quick = [
        "--timeout=1s",
        "--retry-interval-start=200ms",
        "--retry-interval-max=1s",
    ];
    FrontSpec::new(name, "provisioner,snapshotter").args(&quick)
}

/// A class with the front's name and these parameters.
async fn class(rig: &Rig, policy: &str, parameters: Value) {
    rig.objects
        .create(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": rig.name, "labels": {"front": rig.name}},
            "driver": rig.driver_name, "deletionPolicy": policy, "parameters": parameters,
        }))
        .await;
}

async fn snapshot(rig: &Rig, name: &str, claim: &str) -> Value {
    rig.objects
        .create(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": name, "namespace": rig.namespace},
            "spec": {
                "volumeSnapshotClassName": rig.name,
                "source": {"persistentVolumeClaimName": claim},
            },
        }))
        .await
}

fn restored(name: &str) -> Value {
    json!({"spec": {"dataSource": {
        "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name,
    }}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_taken_restored_and_deleted() {
    let args = ["--extra-create-metadata"];
    let rig = Rig::with_snapshots(spec("snap").args(&args)).await;
    rig.secret("taking").await;
    let key = "csi.storage.k8s.io/snapshotter-secret";
    let parameters = json!({
        "colour": "blue", format!("{key}-name"): "taking", format!("{key}-namespace"): rig.namespace,
    });
    class(&rig, "Delete", parameters).await;
    rig.claim("data", json!({})).await;
    let (_, volume) = rig.bound("data").await;
    let made = snapshot(&rig, "first", "data").await;
    let at = rig.at("VolumeSnapshot", "first");
    let seen = rig.until(&at, "ready", ready).await;
    assert_eq!(seen["status"]["restoreSize"], "1Gi");
    assert!(
        !text(&seen["status"]["creationTime"]).is_empty(),
        "{seen:#}"
    );

    let uid = text(&made["metadata"]["uid"]);
    let content_name = format!("snapcontent-{uid}");
    assert_eq!(
        seen["status"]["boundVolumeSnapshotContentName"],
        content_name.as_str()
    );
    let content_at = rig.at("VolumeSnapshotContent", &content_name);
    let content = rig.objects.get(&content_at).await.expect("it is there");
    let there = rig.driver.snapshots().remove(0);
    assert_eq!(content["status"]["snapshotHandle"], there.id.as_str());
    assert_eq!(content["status"]["restoreSize"], 1 << 30);
    let nanos = there.created.seconds * 1_000_000_000 + i64::from(there.created.nanos);
    assert_eq!(content["status"]["creationTime"], nanos);
    let annotations = &content["metadata"]["annotations"];
    let deletion = "snapshot.storage.kubernetes.io/deletion-secret";
    assert_eq!(annotations[format!("{deletion}-name")], "taking");
    let creating = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
    assert!(annotations[creating].is_null(), "{content:#}");
    let handle = text(&volume["spec"]["csi"]["volumeHandle"]);
    let request = rig
        .driver
        .requests::<csi::CreateSnapshotRequest>()
        .remove(0);
    assert_eq!(request.name, format!("snapshot-{uid}"));
    assert_eq!(request.source_volume_id, handle);
    assert_eq!(request.secrets, map(&[("password", SECRET)]));
    let prefix = "csi.storage.k8s.io";
    let expected = map(&[
        ("colour", "blue"),
        (&format!("{prefix}/volumesnapshot/name"), "first"),
        (
            &format!("{prefix}/volumesnapshot/namespace"),
            &rig.namespace,
        ),
        (
            &format!("{prefix}/volumesnapshotcontent/name"),
            &content_name,
        ),
    ]);
    assert_eq!(request.parameters, expected);

    let mut larger = restored("first");
    larger["spec"]["resources"] = json!({"requests": {"storage": "3Gi"}});
    rig.claim("larger", larger).await;
    let (_, volume) = rig.bound("larger").await;
    let made = rig
        .driver
        .volume(text(&volume["spec"]["csi"]["volumeHandle"]))
        .expect("there");
    let source = made.source.and_then(|s| s.r#type);
    assert!(
        matches!(&source, Some(Source::Snapshot(s)) if s.snapshot_id == there.id),
        "{source:?}"
    );
    // A claim smaller than the snapshot is rejected with the reason.
    let mut smaller = restored("first");
    smaller["spec"]["resources"] = json!({"requests": {"storage": "512Mi"}});
    rig.claim("smaller", smaller).await;
    let smaller = rig.claim_at("smaller");
    rig.until_event(&smaller, "Warning", "ProvisioningFailed", &["first"])
        .await;
    rig.delete(smaller).await;

    rig.delete(at).await;
    rig.until_gone(&content_at).await;
    let request = rig
        .driver
        .requests::<csi::DeleteSnapshotRequest>()
        .remove(0);
    assert_eq!(request.snapshot_id, there.id);
    assert_eq!(request.secrets, map(&[("password", SECRET)]));
    rig.down().await;
}

/// An unready snapshot is polled until it is ready, and a claim waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn an_unready_snapshot_is_asked_for_again() {
    let rig = Rig::with_snapshots(spec("snap-slow").driver(|o| o.ready_after_polls = 4)).await;
    class(&rig, "Delete", json!({})).await;
    rig.claim("data", json!({})).await;
    rig.bound("data").await;
    snapshot(&rig, "slow", "data").await;
    rig.claim("copy", restored("slow")).await;
    let at = rig.at("VolumeSnapshot", "slow");
    rig.until(&at, "unready", |s| s["status"]["readyToUse"] == false)
        .await;
    rig.until(&at, "ready", ready).await;
    rig.bound("copy").await;
    assert_eq!(rig.driver.snapshots().len(), 1);
    rig.down().await;
}

/// Each failure of CreateSnapshot is reported and retried, and never makes a second snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn failures_are_told_and_tried_again() {
    let rig = Rig::with_snapshots(spec("snap-errors")).await;
    class(&rig, "Delete", json!({})).await;
    rig.claim("data", json!({})).await;
    rig.bound("data").await;
    let cases = [
        Code::Internal,
        Code::DeadlineExceeded,
        Code::ResourceExhausted,
        Code::Aborted,
    ];
    for (i, code) in cases.into_iter().enumerate() {
        let name = format!("{code:?}").to_lowercase();
        rig.driver
            .script("CreateSnapshot", [Step::DoneBut(code), Step::Fail(code)]);
        snapshot(&rig, &name, "data").await;
        let at = rig.at("VolumeSnapshot", &name);
        let seen = rig.until(&at, "ready", ready).await;
        assert!(seen["status"]["error"].is_null(), "{seen:#}");
        let content = text(&seen["status"]["boundVolumeSnapshotContentName"]).to_owned();
        let content = rig.at("VolumeSnapshotContent", &content);
        rig.until_event(&content, "Warning", "SnapshotCreationFailed", &["scripted"])
            .await;
        assert_eq!(rig.driver.snapshots().len(), i + 1, "{code:?}");
    }
    // The snapshot is deleted while CreateSnapshot may be running: it is found and deleted.
    rig.driver
        .always("CreateSnapshot", Step::DoneBut(Code::DeadlineExceeded));
    snapshot(&rig, "gone", "data").await;
    rig.until_so("made", || rig.driver.snapshots().len() == cases.len() + 1)
        .await;
    rig.objects.delete(&rig.at("VolumeSnapshot", "gone")).await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    rig.driver.unscript("CreateSnapshot");
    rig.until_so("deleted", || rig.driver.snapshots().len() == cases.len())
        .await;
    // A failed deletion is reported and retried.
    rig.driver
        .script("DeleteSnapshot", [Step::Fail(Code::Internal)]);
    rig.delete(rig.at("VolumeSnapshot", "internal")).await;
    rig.down().await;
}

/// Pre-provisioned snapshots: ready as the driver reports, and kept or deleted by policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_made_beforehand_can_be_restored() {
    let listed = spec("snap-static");
    let unlisted = spec("snap-blind").driver(|o| {
        o.capabilities
            .controller
            .remove(&ControllerRpc::ListSnapshots);
        o.capabilities
            .controller
            .remove(&ControllerRpc::GetSnapshot);
    });
    for spec in [listed, unlisted] {
        let rig = Rig::with_snapshots(spec).await;
        class(&rig, "Delete", json!({})).await;
        rig.claim("data", json!({})).await;
        rig.bound("data").await;
        snapshot(&rig, "taken", "data").await;
        rig.until(&rig.at("VolumeSnapshot", "taken"), "ready", ready)
            .await;
        let handle = rig.driver.snapshots().remove(0).id;
        let content = format!("by-hand-{}", rig.name);
        rig.objects
            .create(json!({
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
        rig.objects
            .create(json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                "metadata": {"name": "by-hand", "namespace": rig.namespace},
                "spec": {
                    "volumeSnapshotClassName": rig.name,
                    "source": {"volumeSnapshotContentName": content},
                },
            }))
            .await;
        let at = rig.at("VolumeSnapshot", "by-hand");
        rig.until(&at, "ready", ready).await;
        rig.claim("copy", restored("by-hand")).await;
        rig.bound("copy").await;
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
    let key = "csi.storage.k8s.io/snapshotter-secret";
    let parameters = json!({
        format!("{key}-name"): "nowhere", format!("{key}-namespace"): rig.namespace,
    });
    class(&rig, "Delete", parameters).await;
    snapshot(&rig, "no-claim", "never").await;
    let at = rig.at("VolumeSnapshot", "no-claim");
    let told = |snapshot: &Value| text(&snapshot["status"]["error"]["message"]).contains("never");
    rig.until(&at, "told of its claim", told).await;
    rig.claim("data", json!({})).await;
    rig.bound("data").await;
    snapshot(&rig, "no-secret", "data").await;
    let at = rig.at("VolumeSnapshot", "no-secret");
    let told = |snapshot: &Value| text(&snapshot["status"]["error"]["message"]).contains("nowhere");
    rig.until(&at, "told of its secret", told).await;
    assert_eq!(rig.driver.count("CreateSnapshot"), 0);
    rig.secret("nowhere").await;
    rig.until(&at, "ready", ready).await;
    rig.down().await;
}
