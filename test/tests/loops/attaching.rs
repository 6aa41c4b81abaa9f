//! Attaches volumes to nodes, with VolumeAttachments as the controller manager makes them.

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_test::client::map;
use hostloop_test::front::objects::{Place, attachment_name};
use hostloop_test::front::{FrontSpec, SECRET};
use hostloop_test::memory::Step;
use serde_json::{Value, json};
use tonic::Code;

use crate::{Rig, annotation, handle, has_finalizer, in_class, name, quick, text, without};

const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

/// Attaches a volume to a node.
async fn attach(rig: &Rig, volume: &Value, node: &str) -> Place {
    let attacher = &rig.driver_name;
    let attachment = attachment_name(handle(volume), attacher, node);
    rig.attachment(&attachment, attacher, node, name(volume)).await
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
    assert!(attachment["status"]["detachError"]["errorCode"].is_null(), "{attachment:#}");
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
    let rig =
        Rig::up(without(spec("attach-trivial"), &[ControllerRpc::PublishUnpublishVolume])).await;
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
    let other = rig.attachment(&other, "other.csi.dev", node, volume_name).await;
    let ours = attach(&rig, &volume, &rig.nodes[0]).await;
    rig.until(&ours, "attached", attached).await;
    let seen = rig.get(&other).await;
    let finalizers = &seen["metadata"]["finalizers"];
    assert!(finalizers.is_null() && !attached(&seen), "{seen:#}");
    rig.delete(other).await;
    rig.delete(ours).await;
    rig.down().await;
}
