//! Attaches volumes to nodes, with VolumeAttachments as the controller manager makes them.

use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_test::client::map;

use hostloop_test::PATIENCE;
use hostloop_test::fleet::{Binding, Fleet, FleetSpec, Member};
use hostloop_test::front::fields::{handle, has_finalizer, name, text};
use hostloop_test::front::objects::{self, Place, attachment_name, with};
use hostloop_test::front::plane::Plane;
use hostloop_test::front::wait::until;
use hostloop_test::front::{FrontSpec, SECRET};
use hostloop_test::memory::Step;
use serde_json::{Value, json};
use tonic::Code;

use crate::{LABEL, Rig, annotation, in_class, quick, without};

const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

/// Attaches a volume to a node.
async fn attach(rig: &Rig, volume: &Value, node: &str) -> Place {
    let attacher = &rig.driver_name;
    let attachment = attachment_name(handle(volume), attacher, node);
    rig.attachment(&attachment, attacher, node, name(volume))
        .await
}

fn attached(attachment: &Value) -> bool {
    attachment["status"]["attached"] == true
}

fn spec(name: &str) -> FrontSpec {
    quick(name, "provisioner,attacher")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_comes_and_goes() {
    let rig = Rig::up(spec("attach")).await;
    rig.secret("publish").await;
    let class = format!("secret-{}", rig.name);
    let key = "csi.storage.k8s.io/controller-publish-secret";
    let parameters = json!({
        format!("{key}-name"): "publish", format!("{key}-namespace"): rig.namespace,
    });
    rig.class(&class, json!({"parameters": parameters})).await;
    let (_, volume) = rig.bound_claim("data", in_class(&class)).await;
    let node = rig.nodes[0].clone();
    let at = attach(&rig, &volume, &node).await;
    let attachment = rig.until(&at, "attached", attached).await;

    let finalizer = format!("external-attacher/{}", rig.driver_name.replace('.', "-"));
    let node_id = format!("id-of-{node}");
    let handle = handle(&volume);
    assert_eq!(attachment["metadata"]["finalizers"], json!([finalizer]));
    assert_eq!(*annotation(&attachment, NODE_ID), node_id);
    let context = json!({"device": format!("memory/{handle}@{node_id}")});
    assert_eq!(attachment["status"]["attachmentMetadata"], context);
    let volume_at = rig.at("PersistentVolume", name(&volume));
    let held = |volume: &Value| has_finalizer(volume, &finalizer);
    rig.until(&volume_at, "held by the attacher", held).await;

    let request = rig.request::<csi::ControllerPublishVolumeRequest>();
    assert_eq!(request.volume_id, handle);
    assert_eq!(request.node_id, node_id);
    assert_eq!(request.secrets, map(&[("password", SECRET)]));
    assert_eq!(request.volume_context["kept"], "in-memory");
    assert!(!request.readonly);

    // While the volume is attached, neither the claim nor the volume disappears.
    rig.objects.delete(&rig.claim_at("data")).await;
    rig.until_gone(&rig.claim_at("data")).await;
    assert!(rig.objects.get(&volume_at).await.is_some());
    rig.delete(at).await;
    rig.until_gone(&volume_at).await;
    let request = rig.request::<csi::ControllerUnpublishVolumeRequest>();
    assert_eq!(request.volume_id, handle);
    assert_eq!(request.node_id, node_id);
    assert_eq!(request.secrets, map(&[("password", SECRET)]));
    rig.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_on_the_attachment() {
    let rig = Rig::up(spec("attach-errors")).await;
    let volume = rig.volume("data").await;
    let gate = Step::Fail(Code::ResourceExhausted);
    rig.driver.always("ControllerPublishVolume", gate);
    let at = attach(&rig, &volume, &rig.nodes[0]).await;
    let failed = |a: &Value| a["status"]["attachError"]["errorCode"] == 8;
    let attachment = rig.until(&at, "with an error", failed).await;
    let error = &attachment["status"]["attachError"];
    assert!(text(&error["message"]).contains("scripted"), "{error}");
    assert!(!text(&error["time"]).is_empty(), "{error}");
    assert_eq!(attachment["status"]["attached"], false);
    rig.driver.unscript("ControllerPublishVolume");
    let attachment = rig.until(&at, "attached", attached).await;
    let error = &attachment["status"]["attachError"];
    assert!(error.is_null(), "{error}");

    let internal = Step::Fail(Code::Internal);
    rig.driver.always("ControllerUnpublishVolume", internal);
    rig.objects.delete(&at).await;
    let failed = |a: &Value| text(&a["status"]["detachError"]["message"]).contains("scripted");
    let attachment = rig.until(&at, "with an error", failed).await;
    assert!(
        attachment["status"]["detachError"]["errorCode"].is_null(),
        "{attachment:#}"
    );
    assert_eq!(attachment["status"]["attached"], true, "{attachment:#}");
    rig.driver.unscript("ControllerUnpublishVolume");
    rig.until_gone(&at).await;
    rig.down().await;
}

/// An attachment that is deleted before it succeeds leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn an_uncertain_attachment_is_undone() {
    let rig = Rig::up(spec("attach-uncertain")).await;
    let volume = rig.volume("data").await;
    let uncertain = Step::DoneBut(Code::DeadlineExceeded);
    rig.driver.always("ControllerPublishVolume", uncertain);
    let at = attach(&rig, &volume, &rig.nodes[0]).await;
    let published = || rig.driver.left().publications == 1;
    rig.until_so("published", published).await;
    let failed = |a: &Value| a["status"]["attachError"]["errorCode"] == 4;
    rig.until(&at, "with an error", failed).await;
    rig.delete(at).await;
    assert_eq!(rig.driver.left().publications, 0);
    rig.down().await;
}

/// The Node object is gone; the VolumeAttachment still has its ID.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_gone_is_detached_from() {
    let rig = Rig::up(spec("attach-gone").nodes(2)).await;
    let volume = rig.volume("data").await;
    let node = rig.nodes[1].clone();
    let at = attach(&rig, &volume, &node).await;
    rig.until(&at, "attached", attached).await;
    rig.delete(rig.at("CSINode", &node)).await;
    rig.delete(at).await;
    let request = rig.request::<csi::ControllerUnpublishVolumeRequest>();
    assert_eq!(request.node_id, format!("id-of-{node}"));
    rig.down().await;
}

/// A volume that is published without a VolumeAttachment, or is no longer published, is corrected.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_lost_is_published_again() {
    let rig = Rig::up(spec("attach-reconcile").args(&["--reconcile-sync=1s"])).await;
    let volume = rig.volume("data").await;
    let at = attach(&rig, &volume, &rig.nodes[0]).await;
    rig.until(&at, "attached", attached).await;
    let handle = handle(&volume);
    let node_id = format!("id-of-{}", rig.nodes[0]);
    rig.driver.set_published(handle, &node_id, None);
    let published = || rig.driver.left().publications == 1;
    rig.until_so("published again", published).await;
    assert!(attached(&rig.get(&at).await));
    rig.delete(at).await;
    rig.down().await;
}

/// With a driver without ControllerPublishVolume, attachments succeed at once without a finalizer.
#[tokio::test(flavor = "multi_thread")]
async fn without_publishing_everything_is_attached() {
    let rig = Rig::up(without(
        spec("attach-trivial"),
        &[ControllerRpc::PublishUnpublishVolume],
    ))
    .await;
    let volume = rig.volume("data").await;
    let at = attach(&rig, &volume, &rig.nodes[0]).await;
    let attachment = rig.until(&at, "attached", attached).await;
    let finalizers = &attachment["metadata"]["finalizers"];
    assert!(finalizers.is_null(), "{finalizers}");
    assert_eq!(rig.driver.count("ControllerPublishVolume"), 0);
    rig.delete(at).await;
    rig.down().await;
}

/// VolumeAttachments of another driver stay unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn another_drivers_attachment_is_left_alone() {
    let rig = Rig::up(spec("attach-other")).await;
    let volume = rig.volume("data").await;
    let other = format!("other-{}", rig.name);
    let (node, volume_name) = (&rig.nodes[0], name(&volume));
    let other = rig
        .attachment(&other, "other.csi.dev", node, volume_name)
        .await;
    let ours = attach(&rig, &volume, &rig.nodes[0]).await;
    rig.until(&ours, "attached", attached).await;
    let seen = rig.get(&other).await;
    let finalizers = &seen["metadata"]["finalizers"];
    assert!(finalizers.is_null() && !attached(&seen), "{seen:#}");
    rig.delete(other).await;
    rig.delete(ours).await;
    rig.down().await;
}

/// A fleet with a separate leader on this control plane, and with volumes on its nodes in turn.
async fn fleet(plane: &Plane, name: &str, nodes: usize, volumes: usize) -> Fleet {
    let fleet = FleetSpec::new(name, nodes).attach(true).leader_apart();
    let fleet = fleet.up(&plane.kubeconfig()).await;
    fleet.controller.as_ref().expect("it is apart").start();
    fleet.start(Duration::ZERO).await;
    fleet.ready(PATIENCE).await;
    fleet.storm(Binding::Wait, 0..volumes).await;
    fleet.bound(volumes, PATIENCE).await;
    fleet
}

/// Attaches the fleet's volumes on a node with attachments that have these labels.
async fn attach_all(fleet: &Fleet, node: &str, labels: Value) -> Vec<Place> {
    let mut made = Vec::new();
    for volume in fleet.all_volumes().await {
        if fleet.node_of(&volume).as_deref() != Some(node) {
            continue;
        }
        let volume = serde_json::to_value(volume).expect("an object");
        let (attacher, labels) = (&fleet.driver_name, json!({"metadata": {"labels": labels}}));
        let attachment = attachment_name(handle(&volume), attacher, node);
        let attachment = objects::attachment(&attachment, attacher, node, name(&volume));
        let attachment = with(attachment, labels);
        made.push(Place::of_object(&fleet.objects.create(attachment).await));
    }
    made
}

/// Waits until attachments are like this.
async fn until_all(
    fleet: &Fleet,
    attachments: &[Place],
    limit: Duration,
    is: impl Fn(&Value) -> bool,
) {
    for at in attachments {
        let seen = fleet.objects.until(at, limit, &is).await;
        assert!(seen.is_some(), "{at} did not change");
    }
}

async fn detach_all(fleet: &Fleet, attachments: &[Place]) {
    for at in attachments {
        fleet.objects.delete(at).await;
    }
    for at in attachments {
        assert!(fleet.objects.until_gone(at, PATIENCE).await, "{at} is left");
    }
}

/// The number of changes of attachments that a node's watch has reported.
fn watched(member: &Member) -> usize {
    member.counter(r#"hostloop_watch_events_total{kind="VolumeAttachment"}"#)
}

/// A node's watch reports three changes of each of its own attachments and none of others: the
/// leader's label, the finalizer, the status. A label with another node's name is corrected.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_watch_only_their_own_attachments() {
    let plane = crate::plane(false).await;
    let fleet = fleet(&plane, "attach-own", 3, 9).await;
    let [first, second, third] = &fleet.members[..] else {
        panic!("three nodes")
    };
    let mut attachments = attach_all(&fleet, &first.node, Value::Null).await;
    attachments.extend(attach_all(&fleet, &second.node, Value::Null).await);
    assert_eq!(attachments.len(), 6);
    until_all(&fleet, &attachments, PATIENCE, attached).await;
    let counts = || fleet.members.iter().map(watched).collect::<Vec<_>>();
    let reported = || async { (counts() == [9, 9, 0]).then_some(()) };
    let reported = until(PATIENCE, reported).await;
    reported.unwrap_or_else(|| panic!("{:?} changes were reported", counts()));

    let of = |node: &str| json!({"metadata": {"labels": {LABEL: node}}});
    for label in [
        of(&third.node),
        json!({"metadata": {"labels": {LABEL: null}}}),
    ] {
        fleet.objects.merge(&attachments[0], label).await;
        let right = |one: &Value| one["metadata"]["labels"][LABEL] == *first.node;
        until_all(&fleet, &attachments[..1], PATIENCE, right).await;
    }
    let wrong = attach_all(&fleet, &third.node, json!({LABEL: second.node})).await;
    until_all(&fleet, &wrong, PATIENCE, attached).await;
    for member in &fleet.members {
        assert_eq!(member.driver.left().publications, 3, "{}", member.node);
    }
    attachments.extend(wrong);
    detach_all(&fleet, &attachments).await;
    fleet.clear(PATIENCE).await;
    fleet.down().await;
}

/// Without a leader, nodes watch all attachments after one to two minutes. Then the labels do not
/// matter.
#[tokio::test(flavor = "multi_thread")]
async fn attachments_need_no_leader() {
    let plane = crate::plane(false).await;
    let fleet = fleet(&plane, "attach-alone", 2, 4).await;
    let controller = fleet.controller.as_ref().expect("it is apart");
    controller.stop();
    let (first, second) = (&fleet.members[0].node, &fleet.members[1].node);
    let mut attachments = attach_all(&fleet, first, Value::Null).await;
    attachments.extend(attach_all(&fleet, second, json!({LABEL: first})).await);
    until_all(&fleet, &attachments, Duration::from_secs(180), attached).await;
    for member in &fleet.members {
        assert_eq!(member.driver.left().publications, 2, "{}", member.node);
    }
    controller.start();
    detach_all(&fleet, &attachments).await;
    fleet.clear(PATIENCE).await;
    fleet.down().await;
}
