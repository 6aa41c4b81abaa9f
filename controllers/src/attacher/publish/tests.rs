use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::json;
use tonic::Status;

use super::*;
use crate::csi::driver::ControllerCapability::{self, *};
use crate::queue::Outcome;
use crate::testing::{Call, DRIVER, World};

const FINALIZER: &str = "external-attacher/csi-example";

struct Setup {
    world: World,
    attacher: Attacher,
}

/// A setup with a driver that attaches, and an attachment.
fn attaching() -> Setup {
    let setup = setup(&[PublishUnpublishVolume]);
    setup.add(json!({}));
    setup
}

fn setup(capabilities: &[ControllerCapability]) -> Setup {
    let world = World::new(capabilities);
    let attacher = Attacher::new(world.context.clone());
    let source = json!({
        "driver": DRIVER, "volumeHandle": "h", "volumeAttributes": {"a": "b"},
        "controllerPublishSecretRef": {"name": "s", "namespace": "ns"},
    });
    world.add(
        &attacher.volumes,
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": "pv", "finalizers": ["kubernetes.io/pv-protection"]},
            "spec": {"accessModes": ["ReadWriteOnce"], "csi": source},
        }),
    );
    world.add(
        &attacher.csi_nodes,
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
            "metadata": {"name": "n1"},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": "id-1"}]},
        }),
    );
    world.api.put(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "s", "namespace": "ns"}, "data": {"key": "aHVzaA=="},
    }));
    Setup { world, attacher }
}

impl Setup {
    fn add(&self, patch: serde_json::Value) {
        let mut attachment = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": "va"},
            "spec": {
                "attacher": DRIVER, "nodeName": "n1",
                "source": {"persistentVolumeName": "pv"},
            },
            "status": {"attached": false},
        });
        json_patch::merge(&mut attachment, &patch);
        self.world.add(&self.attacher.attachments, attachment);
    }

    fn stored(&self) -> Option<serde_json::Value> {
        self.world.api.get("volumeattachments/va")
    }

    fn status(&self) -> serde_json::Value {
        self.stored().expect("the attachment")["status"].clone()
    }

    fn volume(&self) -> serde_json::Value {
        let volume = self.world.api.get("persistentvolumes/pv");
        volume.expect("the volume")
    }

    async fn work(&self) -> Outcome {
        self.attacher.attachment("va").await
    }

    /// The volume and node IDs of the only call since the last look, and its secrets.
    fn published(&self) -> (String, String, BTreeMap<String, String>) {
        let mut calls = self.world.script.calls();
        match (calls.pop(), calls.is_empty()) {
            (Some(Call::Publish(call)), true) => (call.volume_id, call.node_id, call.secrets),
            (call, _) => panic!("{call:?} {calls:?}"),
        }
    }
}

fn deleting() -> serde_json::Value {
    json!({
        "metadata": {
            "deletionTimestamp": "2026-01-02T03:04:05Z", "finalizers": [FINALIZER],
            "annotations": {"csi.alpha.kubernetes.io/node-id": "id-1"},
        },
        "status": {"attached": true, "attachmentMetadata": {"path": "/dev/x"}},
    })
}

#[tokio::test]
async fn attaching_writes_in_order() {
    let setup = attaching();
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(
        setup.world.api.writes(),
        [
            format!(
                r#"pv [{{"op":"test","path":"/metadata/finalizers","value":["kubernetes.io/pv-protection"]}},{{"op":"add","path":"/metadata/finalizers/-","value":"{FINALIZER}"}}]"#
            ),
            format!(
                r#"va {{"metadata":{{"annotations":{{"csi.alpha.kubernetes.io/node-id":"id-1"}},"finalizers":["{FINALIZER}"]}}}}"#
            ),
            r#"va/status {"status":{"attachError":null,"attached":true,"attachmentMetadata":{"path":"/dev/x"}}}"#
                .to_owned(),
        ]
    );
    let (volume, node, secrets) = setup.published();
    assert_eq!((&*volume, &*node, &*secrets["key"]), ("h", "id-1", "hush"));
    // A second attempt changes nothing. A forced one repeats only the call.
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.world.script.calls(), []);
    setup.attacher.forced().insert("va".to_owned());
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.world.script.calls().len(), 1);
    assert_eq!(setup.world.api.writes(), [""; 0]);
    assert!(setup.attacher.forced().is_empty());
}

#[tokio::test]
async fn an_error_has_its_code_until_the_next_success() {
    let setup = attaching();
    setup.world.script.fail(Status::resource_exhausted("full"));
    assert_eq!(setup.work().await, Outcome::Failed);
    let error = &setup.status()["attachError"];
    assert_eq!(error["errorCode"], 8);
    assert_eq!(error["message"], "rpc error: code = ResourceExhausted desc = full");
    assert!(error["time"].is_string());
    assert_eq!(setup.work().await, Outcome::Done);
    let attached = json!({"attached": true, "attachmentMetadata": {"path": "/dev/x"}});
    assert_eq!(setup.status(), attached);
}

#[tokio::test]
async fn objects_missing_from_the_cache_are_read() {
    let setup = setup(&[PublishUnpublishVolume]);
    setup.add(json!({"spec": {
        "nodeName": "n2", "source": {"persistentVolumeName": "late"},
    }}));
    assert_eq!(setup.work().await, Outcome::Failed);
    let error = &setup.status()["attachError"];
    assert_eq!(error["message"], "there is no PersistentVolume late");
    assert!(error["errorCode"].is_null());
    setup.world.api.put(json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "late"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": "l"},
        },
    }));
    setup.world.api.put(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n2"},
        "spec": {"drivers": [{"name": DRIVER, "nodeID": "id-2"}]},
    }));
    assert_eq!(setup.work().await, Outcome::Done);
    let (volume, node, _) = setup.published();
    assert_eq!((&*volume, &*node), ("l", "id-2"));
}

#[tokio::test]
async fn a_changed_volume_is_read_again() {
    let setup = attaching();
    let mut volume = setup.volume();
    volume["metadata"]["finalizers"] = json!(["other", "kubernetes.io/pv-protection"]);
    setup.world.api.put(volume);
    assert_eq!(setup.work().await, Outcome::Done);
    let volume = setup.volume();
    assert_eq!(
        volume["metadata"]["finalizers"],
        json!(["other", "kubernetes.io/pv-protection", FINALIZER])
    );
}

#[tokio::test]
async fn detaching_frees_the_attachment_and_then_the_volume() {
    let setup = setup(&[PublishUnpublishVolume]);
    setup.add(deleting());
    setup.world.script.fail(Status::internal("busy"));
    assert_eq!(setup.work().await, Outcome::Failed);
    let error = &setup.status()["detachError"];
    assert_eq!(error["message"], "rpc error: code = Internal desc = busy");
    assert!(error["errorCode"].is_null());
    setup.world.api.writes();
    assert_eq!(setup.work().await, Outcome::Done);
    let writes = setup.world.api.writes();
    assert_eq!(writes, [r#"va {"metadata":{"finalizers":[]}}"#]);
    assert_eq!(setup.stored(), None);
    assert_eq!(setup.world.script.calls().len(), 2);
}

#[tokio::test]
async fn an_attachment_with_another_finalizer_is_marked_as_detached() {
    let setup = setup(&[PublishUnpublishVolume]);
    let mut attachment = deleting();
    attachment["metadata"]["finalizers"] = json!(["x", FINALIZER]);
    setup.add(attachment);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(
        setup.world.api.writes(),
        [
            r#"va {"metadata":{"finalizers":["x"]}}"#,
            r#"va/status {"status":{"attached":false,"attachmentMetadata":null,"detachError":null}}"#
        ]
    );
    // Without our finalizer, the attachment needs no further work.
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.world.script.calls().len(), 1);
}

#[tokio::test]
async fn the_finalizer_of_a_volume_goes_with_its_last_attachment() {
    let setup = setup(&[PublishUnpublishVolume]);
    let mut volume = setup.volume();
    volume["metadata"]["finalizers"] = json!(["x", FINALIZER]);
    volume["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    setup.world.add(&setup.attacher.volumes, volume);
    setup.add(json!({}));
    assert_eq!(setup.attacher.volume("pv").await, Outcome::Done);
    assert_eq!(setup.world.api.writes(), [""; 0]);
    // The PV is being deleted, so attaching it fails.
    assert_eq!(setup.work().await, Outcome::Failed);
    let error = &setup.status()["attachError"];
    assert_eq!(error["message"], "PersistentVolume pv is marked for deletion");
    setup.add(json!({"spec": {"source": {"persistentVolumeName": "another"}}}));
    assert_eq!(setup.attacher.volume("pv").await, Outcome::Done);
    let volume: PersistentVolume = serde_json::from_value(setup.volume()).unwrap();
    assert_eq!(volume.finalizers(), ["x"]);
}

#[tokio::test]
async fn without_the_capability_it_is_marked_as_attached() {
    let setup = setup(&[]);
    setup.add(json!({}));
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(
        setup.world.api.writes(),
        [r#"va/status {"status":{"attachError":null,"attached":true}}"#]
    );
    assert_eq!(setup.world.script.calls(), []);
}

#[tokio::test]
async fn attachments_of_other_processes_are_left_alone() {
    let mut setup = setup(&[PublishUnpublishVolume]);
    setup.add(json!({"spec": {"attacher": "other"}}));
    assert_eq!(setup.work().await, Outcome::Done);
    setup.add(json!({"spec": {"nodeName": "n2"}}));
    setup.attacher.context.scope =
        crate::api::scope::Scope::Node { name: "n1".to_owned(), segments: Default::default() };
    assert_eq!(setup.work().await, Outcome::Done);
    // A process without the leadership does nothing.
    setup.add(json!({}));
    let (_until, leader) = crate::client::Leadership::elected();
    setup.attacher.context.leader = leader;
    setup.attacher.context.scope = crate::api::scope::Scope::Cluster;
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.world.api.writes(), [""; 0]);
    assert_eq!(setup.world.script.calls(), []);
}

#[tokio::test(start_paused = true)]
async fn the_attacher_starts_if_there_can_be_attachments() {
    use crate::api::scope::Scope;
    let driver = |version: u32, required: Option<bool>| {
        serde_json::from_value(json!({
            "metadata": {"name": DRIVER, "resourceVersion": version.to_string()},
            "spec": {"attachRequired": required},
        }))
        .unwrap()
    };
    let node = || Scope::Node { name: "n1".to_owned(), segments: Default::default() };
    for (can, scope, required, expected) in [
        (&[][..], node(), Some(false), false),
        (&[], node(), Some(true), true),
        (&[], node(), None, true),
        (&[], Scope::Cluster, Some(false), true),
        (&[PublishUnpublishVolume], node(), Some(false), true),
    ] {
        let mut world = World::new(can);
        world.context.scope = scope;
        let drivers = world.context.caches.csi_drivers();
        drivers.apply_write(driver(1, required));
        drivers.note_synced();
        let wait = std::time::Duration::from_secs(60);
        let needed = crate::attacher::needed(&world.context);
        let found = tokio::time::timeout(wait, needed).await.is_ok();
        assert_eq!(found, expected, "{required:?}");
        // The CSIDriver may be changed to require attaching.
        drivers.apply_write(driver(2, Some(true)));
        crate::attacher::needed(&world.context).await;
    }
}

#[test]
fn debug_output_hides_secrets() {
    // Only the request holds the secrets, and its Debug output hides them.
    let request = ControllerPublishVolumeRequest {
        secrets: [("key".to_owned(), "hush".to_owned())].into(),
        ..Default::default()
    };
    assert!(!format!("{request:?}").contains("hush"));
}
