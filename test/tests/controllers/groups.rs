//! Group snapshots.

use hostloop_proto::csi;
use hostloop_test::PATIENCE;
use hostloop_test::front::FrontSpec;
use hostloop_test::front::fields::{handle, is_ready_to_use, name, text};
use hostloop_test::front::objects::{self, restored, with};
use hostloop_test::front::wait::until;
use hostloop_test::memory::Step;
use serde_json::{Value, json};
use tonic::Code;

use crate::snapshots::{class, content_of};
use crate::{Rig, quick};

const API: &str = "groupsnapshot.storage.k8s.io/v1";

fn spec(name: &str) -> FrontSpec {
    quick(name, "provisioner,snapshotter")
}

/// Classes, two claims of an application, and a group snapshot of it.
async fn group(rig: &Rig) -> Value {
    group_in(rig, API).await
}

/// [`group`] with a client that uses this version of the group kinds.
async fn group_in(rig: &Rig, api: &str) -> Value {
    class(rig, "VolumeSnapshotClass", json!({})).await;
    class(rig, "VolumeGroupSnapshotClass", json!({"apiVersion": api})).await;
    let labels = json!({"metadata": {"labels": {"app": "shop"}}});
    for name in ["logs", "data"] {
        rig.bound_claim(name, labels.clone()).await;
    }
    rig.volume("other").await;
    group_of(rig, api, "shop").await
}

/// A group snapshot of the claims of an application.
async fn group_of(rig: &Rig, api: &str, app: &str) -> Value {
    let group = objects::group_snapshot(&rig.namespace, "shop", &rig.name, ("app", app));
    rig.create(with(group, json!({"apiVersion": api}))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_taken_restored_and_deleted() {
    let rig = Rig::with_snapshots(spec("group").driver(|o| o.ready_after_polls = 2)).await;
    let made = group(&rig).await;
    let at = rig.at("VolumeGroupSnapshot", "shop");
    let seen = rig.until(&at, "ready", is_ready_to_use).await;
    let uid = text(&made["metadata"]["uid"]);
    let request = rig.request::<csi::CreateVolumeGroupSnapshotRequest>();
    assert_eq!(request.name, format!("groupsnapshot-{uid}"));
    assert_eq!(request.source_volume_ids.len(), 2, "{request:?}");
    let content_at = content_of(&rig, &seen);
    let content = rig.get(&content_at).await;
    let there = rig.driver.groups().remove(0);
    let status = &content["status"];
    assert_eq!(status["volumeGroupSnapshotHandle"], there.id.as_str());
    let infos = status["volumeSnapshotInfoList"].as_array();
    assert_eq!(infos.map(Vec::len), Some(2), "{content:#}");

    let members = rig.objects.list("VolumeSnapshot", &rig.namespace).await;
    assert_eq!(members.len(), 2, "{members:#?}");
    for (i, member) in members.iter().enumerate() {
        let at = rig.at("VolumeSnapshot", name(member));
        let of_group = |member: &Value| {
            is_ready_to_use(member) && member["status"]["volumeGroupSnapshotName"] == "shop"
        };
        rig.until(&at, "ready, and of its group", of_group).await;
        let copy = format!("copy-{i}");
        rig.bound_claim(&copy, restored(&at.name)).await;
    }
    rig.delete(at).await;
    rig.until_gone(&content_at).await;
    let request = rig.request::<csi::DeleteVolumeGroupSnapshotRequest>();
    assert_eq!(request.group_snapshot_id, there.id);
    let mut ids = request.snapshot_ids;
    ids.sort();
    assert_eq!(ids, there.members);
    let deleted = rig.driver.count("DeleteSnapshot");
    assert_eq!(deleted, 0, "the group deletes its members");
    rig.down().await;
}

/// A client that only knows v1beta2 creates, reads and deletes a group.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_the_beta_version_is_served() {
    let rig = Rig::with_snapshots(spec("group-beta")).await;
    group_in(&rig, "groupsnapshot.storage.k8s.io/v1beta2").await;
    let at = rig.at("VolumeGroupSnapshot", "shop");
    let seen = rig.until(&at, "ready", is_ready_to_use).await;
    let beta_at = at.clone().in_version("v1beta2");
    let beta = rig.get(&beta_at).await;
    assert_eq!(beta["apiVersion"], "groupsnapshot.storage.k8s.io/v1beta2");
    let ours = |mut object: Value| {
        object["metadata"]["managedFields"] = Value::Null;
        object["apiVersion"] = Value::Null;
        object
    };
    // A controller may write between two reads.
    let same = || async {
        let [new, beta] = [ours(rig.get(&at).await), ours(rig.get(&beta_at).await)];
        (new == beta).then_some(())
    };
    if until(PATIENCE, same).await.is_none() {
        assert_eq!(ours(rig.get(&beta_at).await), ours(rig.get(&at).await));
    }
    let content = content_of(&rig, &seen);
    let beta_content = content.clone().in_version("v1beta2");
    let beta = rig.get(&beta_content).await;
    let members = beta["status"]["volumeSnapshotInfoList"].as_array();
    assert_eq!(members.map(Vec::len), Some(2), "{beta:#}");
    rig.delete(beta_at).await;
    rig.until_gone(&content).await;
    rig.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_reported_and_tried_again() {
    let rig = Rig::with_snapshots(spec("group-errors")).await;
    let steps = [
        Step::Fail(Code::Internal),
        Step::DoneBut(Code::DeadlineExceeded),
        Step::Fail(Code::Aborted),
    ];
    rig.driver.script("CreateVolumeGroupSnapshot", steps);
    group(&rig).await;
    let at = rig.at("VolumeGroupSnapshot", "shop");
    let seen = rig.until(&at, "ready", is_ready_to_use).await;
    assert_eq!(rig.driver.left().groups, 1);
    let content = content_of(&rig, &seen);
    rig.warned(&content, "GroupSnapshotCreationFailed", &["scripted"])
        .await;
    let internal = Step::Fail(Code::Internal);
    rig.driver.script("DeleteVolumeGroupSnapshot", [internal]);
    rig.delete(at).await;
    rig.down().await;
}

/// A user deletes the claims at once, so that no object shows the volumes' modes when the contents of
/// the members are made. A filesystem must not come from the bytes that a user wrote.
#[tokio::test(flavor = "multi_thread")]
async fn members_keep_the_volume_mode_of_claims_that_are_deleted_at_once() {
    let rig = Rig::with_snapshots(spec("group-raw")).await;
    class(&rig, "VolumeSnapshotClass", json!({})).await;
    class(&rig, "VolumeGroupSnapshotClass", json!({})).await;
    let labels = json!({"metadata": {"labels": {"app": "shop"}}});
    let block = || json!({"spec": {"volumeMode": "Block"}});
    let mut handles = Vec::new();
    for (name, mode) in [("raw", block()), ("other", block()), ("files", json!({}))] {
        let (_, volume) = rig.bound_claim(name, with(labels.clone(), mode)).await;
        handles.push(handle(&volume).to_owned());
    }
    // The driver has the group, and the answer comes when the volumes are gone.
    let unanswered = Step::DoneBut(Code::DeadlineExceeded);
    rig.driver.always("CreateVolumeGroupSnapshot", unanswered);
    group_of(&rig, API, "shop").await;
    rig.until_so("a group", || rig.driver.left().groups == 1)
        .await;
    for name in ["raw", "other", "files"] {
        rig.delete(rig.claim_at(name)).await;
    }
    rig.until_volumes(0).await;
    rig.driver.unscript("CreateVolumeGroupSnapshot");

    let at = rig.at("VolumeGroupSnapshot", "shop");
    rig.until(&at, "ready", is_ready_to_use).await;
    let members = rig.objects.list("VolumeSnapshot", &rig.namespace).await;
    assert_eq!(members.len(), 3, "{members:#?}");
    for member in &members {
        let at = rig.at("VolumeSnapshot", name(member));
        let member = rig.until(&at, "ready", is_ready_to_use).await;
        let content_at = content_of(&rig, &member);
        let content = rig.get(&content_at).await;
        let of = text(&content["spec"]["source"]["volumeHandle"]);
        let is_raw = handles[..2].iter().any(|raw| raw == of);
        let mode = if is_raw { "Block" } else { "Filesystem" };
        assert_eq!(content["spec"]["sourceVolumeMode"], mode, "{content:#}");
        if !is_raw {
            rig.bound_claim("copy", restored(&at.name)).await;
            continue;
        }
        let copy = format!("copy-{of}");
        rig.bound_claim(&format!("{copy}-raw"), with(restored(&at.name), block()))
            .await;
        rig.claim(&copy, restored(&at.name)).await;
        rig.warned(&rig.claim_at(&copy), "ProvisioningFailed", &["has Block"])
            .await;
        // An administrator trusts the data.
        let allow = "snapshot.storage.kubernetes.io/allow-volume-mode-change";
        rig.objects
            .merge(
                &content_at,
                json!({"metadata": {"annotations": {allow: "true"}}}),
            )
            .await;
        rig.bound(&copy).await;
    }
    rig.delete(at).await;
    rig.down().await;
}
