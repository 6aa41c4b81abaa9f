//! Group snapshots.

use hostloop_proto::csi;
use hostloop_test::front::FrontSpec;
use hostloop_test::memory::Step;
use serde_json::{Value, json};
use tonic::Code;

use crate::Rig;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn ready(object: &Value) -> bool {
    object["status"]["readyToUse"] == true
}

fn spec(name: &str) -> FrontSpec {
    let quick = [
        "--timeout=1s",
        "--retry-interval-start=200ms",
        "--retry-interval-max=1s",
    ];
    FrontSpec::new(name, "provisioner,snapshotter").args(&quick)
}

/// Classes, two claims of an application, and a group snapshot of it.
async fn group(rig: &Rig) -> Value {
    group_in(rig, "groupsnapshot.storage.k8s.io/v1").await
}

/// [`group`] with a client that uses this version of the group kinds.
async fn group_in(rig: &Rig, group_api: &str) -> Value {
    let labels = json!({"front": rig.name});
    for (api, kind) in [
        ("snapshot.storage.k8s.io/v1", "VolumeSnapshotClass"),
        (group_api, "VolumeGroupSnapshotClass"),
    ] {
        rig.objects
            .create(json!({
                "apiVersion": api, "kind": kind,
                "metadata": {"name": rig.name, "labels": labels},
                "driver": rig.driver_name, "deletionPolicy": "Delete",
            }))
            .await;
    }
    for name in ["logs", "data"] {
        rig.claim(name, json!({"metadata": {"labels": {"app": "shop"}}}))
            .await;
        rig.bound(name).await;
    }
    rig.claim("other", json!({})).await;
    rig.bound("other").await;
    rig.objects
        .create(json!({
            "apiVersion": group_api, "kind": "VolumeGroupSnapshot",
            "metadata": {"name": "shop", "namespace": rig.namespace},
            "spec": {
                "volumeGroupSnapshotClassName": rig.name,
                "source": {"selector": {"matchLabels": {"app": "shop"}}},
            },
        }))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_taken_restored_and_deleted() {
    let rig = Rig::with_snapshots(spec("group").driver(|o| o.ready_after_polls = 2)).await;
    let made = group(&rig).await;
    let at = rig.at("VolumeGroupSnapshot", "shop");
    let seen = rig.until(&at, "ready", ready).await;
    let uid = text(&made["metadata"]["uid"]);
    let request = rig
        .driver
        .requests::<csi::CreateVolumeGroupSnapshotRequest>()
        .remove(0);
    assert_eq!(request.name, format!("groupsnapshot-{uid}"));
    assert_eq!(request.source_volume_ids.len(), 2, "{request:?}");
    let content = text(&seen["status"]["boundVolumeGroupSnapshotContentName"]).to_owned();
    let content_at = rig.at("VolumeGroupSnapshotContent", &content);
    let content = rig.objects.get(&content_at).await.expect("it is there");
    let there = rig.driver.groups().remove(0);
    assert_eq!(
        content["status"]["volumeGroupSnapshotHandle"],
        there.id.as_str()
    );
    let infos = content["status"]["volumeSnapshotInfoList"]
        .as_array()
        .map_or(0, Vec::len);
    assert_eq!(infos, 2, "{content:#}");

    let members = rig.objects.list("VolumeSnapshot", &rig.namespace).await;
    assert_eq!(members.len(), 2, "{members:#?}");
    for (i, member) in members.iter().enumerate() {
        let name = text(&member["metadata"]["name"]);
        let member = rig
            .until(&rig.at("VolumeSnapshot", name), "ready", ready)
            .await;
        assert_eq!(
            member["status"]["volumeGroupSnapshotName"], "shop",
            "{member:#}"
        );
        let source = json!({"spec": {"dataSource": {
            "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name,
        }}});
        rig.claim(&format!("copy-{i}"), source).await;
        rig.bound(&format!("copy-{i}")).await;
    }
    rig.delete(at).await;
    rig.until_gone(&content_at).await;
    let request = rig
        .driver
        .requests::<csi::DeleteVolumeGroupSnapshotRequest>()
        .remove(0);
    assert_eq!(request.group_snapshot_id, there.id);
    let mut ids = request.snapshot_ids;
    ids.sort();
    assert_eq!(ids, there.members);
    assert_eq!(
        rig.driver.count("DeleteSnapshot"),
        0,
        "the group deletes its members"
    );
    rig.down().await;
}

/// A client that only knows v1beta2 creates, reads and deletes a group.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_the_beta_version_is_served() {
    let rig = Rig::with_snapshots(spec("group-beta")).await;
    group_in(&rig, "groupsnapshot.storage.k8s.io/v1beta2").await;
    let at = rig.at("VolumeGroupSnapshot", "shop");
    let seen = rig.until(&at, "ready", ready).await;
    let beta_at = at.clone().in_version("v1beta2");
    let mut beta = rig.objects.get(&beta_at).await.expect("it is there");
    assert_eq!(beta["apiVersion"], "groupsnapshot.storage.k8s.io/v1beta2");
    beta["apiVersion"] = seen["apiVersion"].clone();
    let ours = |mut object: Value| {
        object["metadata"]["managedFields"] = Value::Null;
        object
    };
    assert_eq!(ours(beta), ours(seen.clone()));
    let content = text(&seen["status"]["boundVolumeGroupSnapshotContentName"]).to_owned();
    let content = rig.at("VolumeGroupSnapshotContent", &content);
    let beta_content = content.clone().in_version("v1beta2");
    let beta = rig.objects.get(&beta_content).await.expect("it is there");
    let members = beta["status"]["volumeSnapshotInfoList"].as_array();
    assert_eq!(members.map(Vec::len), Some(2), "{beta:#}");
    rig.delete(beta_at).await;
    rig.until_gone(&content).await;
    rig.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_told_and_tried_again() {
    let rig = Rig::with_snapshots(spec("group-errors")).await;
    let steps = [
        Step::Fail(Code::Internal),
        Step::DoneBut(Code::DeadlineExceeded),
        Step::Fail(Code::Aborted),
    ];
    rig.driver.script("CreateVolumeGroupSnapshot", steps);
    group(&rig).await;
    let at = rig.at("VolumeGroupSnapshot", "shop");
    let seen = rig.until(&at, "ready", ready).await;
    assert_eq!(rig.driver.left().groups, 1);
    let content = text(&seen["status"]["boundVolumeGroupSnapshotContentName"]).to_owned();
    let content = rig.at("VolumeGroupSnapshotContent", &content);
    rig.until_event(
        &content,
        "Warning",
        "GroupSnapshotCreationFailed",
        &["scripted"],
    )
    .await;
    rig.driver
        .script("DeleteVolumeGroupSnapshot", [Step::Fail(Code::Internal)]);
    rig.delete(at).await;
    rig.down().await;
}

/// An empty group, and a group of a driver without group snapshots, end in an error on the object.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_nothing_is_told_so() {
    let rig = Rig::with_snapshots(spec("group-none")).await;
    rig.objects
        .create(json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotClass",
            "metadata": {"name": rig.name, "labels": {"front": rig.name}},
            "driver": rig.driver_name, "deletionPolicy": "Delete",
        }))
        .await;
    rig.objects
        .create(json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
            "metadata": {"name": "none", "namespace": rig.namespace},
            "spec": {
                "volumeGroupSnapshotClassName": rig.name,
                "source": {"selector": {"matchLabels": {"app": "nobody"}}},
            },
        }))
        .await;
    let at = rig.at("VolumeGroupSnapshot", "none");
    let told = |g: &Value| !text(&g["status"]["error"]["message"]).is_empty();
    rig.until(&at, "told", told).await;
    rig.down().await;
}
