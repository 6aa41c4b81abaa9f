use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::api::scope::{NODE_LABEL, Scope};
use crate::cache::store::Selector;
use crate::csi::driver::ControllerCapability::{self, *};
use crate::testing::{
    Call, DRIVER, World, attachment, csi_node, entry, node_scope, secret, volume, with,
};

mod shared;

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
    of_world(World::new(capabilities))
}

fn of_world(world: World) -> Setup {
    let attacher = Attacher::new(world.context.clone());
    let source = json!({
        "volumeAttributes": {"a": "b"},
        "controllerPublishSecretRef": {"name": "s", "namespace": "ns"},
    });
    let more = json!({
        "metadata": {"finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {"accessModes": ["ReadWriteOnce"], "csi": source},
    });
    world.add(&attacher.volumes, with(volume("pv", DRIVER, "h"), more));
    world.add(&attacher.csi_nodes, csi_node("n1", DRIVER, "t/node"));
    world.api.put(secret("ns", "s", "key", "hush"));
    Setup { world, attacher }
}

impl Setup {
    fn add(&self, patch: serde_json::Value) {
        let attachment = with(
            attachment("va", "pv", "n1"),
            json!({"status": {"attached": false}}),
        );
        self.world
            .add(&self.attacher.attachments, with(attachment, patch));
    }

    /// The volumes and nodes of the calls of ControllerUnpublishVolume.
    fn unpublished(&self) -> Vec<(String, String)> {
        let calls = self.world.script.calls().into_iter();
        calls
            .filter_map(|call| match call {
                Call::Unpublish(call) => Some((call.volume_id, call.node_id)),
                _ => None,
            })
            .collect()
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
            "annotations": {"csi.alpha.kubernetes.io/node-id": "n1"},
        },
        "status": {"attached": true, "attachmentMetadata": {"path": "/dev/x"}},
    })
}

#[tokio::test]
async fn attaching_writes_in_order() {
    let setup = attaching();
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.world.api.writes(), ["pv", "va", "va/status"]);
    let finalizers = json!(["kubernetes.io/pv-protection", FINALIZER]);
    assert_eq!(setup.volume()["metadata"]["finalizers"], finalizers);
    let metadata = &setup.stored().expect("the attachment")["metadata"];
    assert_eq!(
        metadata["annotations"],
        json!({"csi.alpha.kubernetes.io/node-id": "n1"})
    );
    assert_eq!(metadata["finalizers"], json!([FINALIZER]));
    let status = json!({"attached": true, "attachmentMetadata": {"path": "/dev/x"}});
    assert_eq!(setup.status(), status);
    let (volume, node, secrets) = setup.published();
    assert_eq!((&*volume, &*node, &*secrets["key"]), ("h", "n1", "hush"));
    // A second attempt changes nothing. A forced one repeats only the call.
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.world.script.calls(), []);
    setup.attacher.forced.lock().insert("va".to_owned());
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.world.script.calls().len(), 1);
    assert_eq!(setup.world.api.writes(), [""; 0]);
    assert!(setup.attacher.forced.lock().is_empty());
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
    let modes = json!({"spec": {"accessModes": ["ReadWriteOnce"]}});
    setup
        .world
        .api
        .put(with(volume("late", DRIVER, "l"), modes));
    setup.world.api.put(csi_node("n2", DRIVER, "t/node"));
    assert_eq!(setup.work().await, Outcome::Done);
    let (volume, node, _) = setup.published();
    assert_eq!((&*volume, &*node), ("l", "n2"));
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
async fn an_attachment_with_another_finalizer_is_marked_as_detached() {
    let setup = setup(&[PublishUnpublishVolume]);
    let mut attachment = deleting();
    attachment["metadata"]["finalizers"] = json!(["x", FINALIZER]);
    setup.add(attachment);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.world.api.writes(), ["va", "va/status"]);
    assert_eq!(
        setup.stored().expect("the attachment")["metadata"]["finalizers"],
        json!(["x"])
    );
    assert_eq!(setup.status(), json!({"attached": false}));
    // Without our finalizer, the attachment needs no further work.
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.world.script.calls().len(), 1);
}

/// An attachment without a label is not in the node's cache, but it is on the server.
#[tokio::test]
async fn the_finalizer_of_a_volume_outlives_an_attachment_outside_the_watch() {
    let mut world = World::new(&[PublishUnpublishVolume]);
    world.context.scope = Scope::Node {
        name: "n1".to_owned(),
        segments: Default::default(),
    };
    let setup = of_world(world);
    setup
        .attacher
        .attachments
        .note_selected(Selector::label(NODE_LABEL, "n1".to_owned()));
    let mut volume = setup.volume();
    volume["metadata"]["finalizers"] = json!(["x", FINALIZER]);
    volume["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    setup.world.add(&setup.attacher.volumes, volume);
    let attachment = |volume: &str| {
        json!({"kind": "VolumeAttachment", "metadata": {"name": expected_name("h", DRIVER, "n1")},
               "spec": {"attacher": DRIVER, "nodeName": "n1",
                        "source": {"persistentVolumeName": volume}}})
    };
    setup.world.api.put(attachment("pv"));
    // The watch does not report its deletion, so the volume is tried again.
    assert_eq!(setup.attacher.volume("pv").await, Outcome::Failed);
    assert_eq!(setup.world.api.writes(), [""; 0]);
    setup.world.api.put(attachment("another"));
    assert_eq!(setup.attacher.volume("pv").await, Outcome::Done);
    assert_eq!(setup.world.api.writes().len(), 1);
}

#[tokio::test]
async fn the_finalizer_of_a_volume_goes_only_at_its_end() {
    let (both, other) = (json!(["x", FINALIZER]), json!(["x"]));
    for (what, before, is_deleted, is_named, after) in [
        ("deleted", &both, true, false, &other),
        ("deleted, but attached", &both, true, true, &both),
        ("not deleted", &both, false, false, &both),
        ("without the finalizer", &other, true, false, &other),
    ] {
        let setup = setup(&[PublishUnpublishVolume]);
        let mut volume = setup.volume();
        volume["metadata"]["finalizers"] = before.clone();
        if is_deleted {
            volume["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
        }
        setup.world.add(&setup.attacher.volumes, volume);
        if is_named {
            setup.add(json!({}));
        }
        assert_eq!(setup.attacher.volume("pv").await, Outcome::Done, "{what}");
        assert_eq!(setup.volume()["metadata"]["finalizers"], *after, "{what}");
    }
}

#[tokio::test]
async fn attachments_of_other_processes_are_left_alone() {
    let mut setup = setup(&[PublishUnpublishVolume]);
    setup.add(json!({"spec": {"attacher": "other"}}));
    assert_eq!(setup.work().await, Outcome::Done);
    setup.add(json!({"spec": {"nodeName": "n2"}}));
    setup.attacher.context.scope = node_scope("n1", "t/node");
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
        crate::testing::read(json!({
            "metadata": {"name": DRIVER, "resourceVersion": version.to_string()},
            "spec": {"attachRequired": required},
        }))
    };
    let node = || node_scope("n1", "t/node");
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

/// The name of an attachment of the volume `h` to the node n1.
fn own_name() -> String {
    expected_name("h", DRIVER, "n1")
}

/// The PV was removed by force, and perhaps made again with another volume. The attachment's name
/// shows which of the driver's volumes it is for.
#[tokio::test]
async fn an_attachment_ends_without_its_volume() {
    let other = || volume("gone", DRIVER, "another");
    // Columns: the PV now, the driver's volumes, the volume that is detached.
    for (now, listed, detached) in [
        (None, &["x", "h"][..], Some("h")),
        (Some(other()), &["another", "h"], Some("h")),
        // The volume is gone as well.
        (None, &["x"], None),
        (Some(other()), &["another"], None),
    ] {
        let setup = setup(&[PublishUnpublishVolume, ListVolumes]);
        let what = format!("{now:?} {listed:?}");
        if let Some(now) = now {
            setup.world.add(&setup.attacher.volumes, now);
        }
        let change = json!({"metadata": {"name": own_name()},
            "spec": {"source": {"persistentVolumeName": "gone"}}});
        setup.add(with(deleting(), change));
        setup
            .world
            .script
            .page(listed.iter().map(|id| entry(id, &[])).collect(), "");
        assert_eq!(
            setup.attacher.attachment(&own_name()).await,
            Outcome::Done,
            "{what}"
        );
        let path = format!("volumeattachments/{}", own_name());
        assert!(
            setup.world.api.get(&path).is_none(),
            "{what}: it keeps its finalizer"
        );
        let expected = detached.map(|id| (id.to_owned(), "n1".to_owned()));
        assert_eq!(setup.unpublished(), Vec::from_iter(expected), "{what}");
    }
}

/// Another volume came back under the name of the PV. The attachment is not for that one.
#[tokio::test]
async fn an_attachment_of_an_earlier_volume_attaches_no_other() {
    let setup = setup(&[PublishUnpublishVolume]);
    let name = expected_name("earlier", DRIVER, "n1");
    setup.add(json!({"metadata": {"name": name}}));
    assert_eq!(setup.attacher.attachment(&name).await, Outcome::Failed);
    assert_eq!(setup.world.script.calls(), []);
    let stored = setup
        .world
        .api
        .get(&format!("volumeattachments/{name}"))
        .expect("it stays");
    let message = stored["status"]["attachError"]["message"]
        .as_str()
        .unwrap_or_default();
    assert!(message.contains("made for another one"), "{stored}");
}

#[tokio::test(start_paused = true)]
async fn an_attachment_without_a_slot_is_tried_again_after_another_ends() {
    let setup = attaching();
    setup
        .world
        .script
        .fail(tonic::Status::resource_exhausted("no more than 1 may be"));
    assert_eq!(setup.work().await, Outcome::Failed);
    assert_eq!(setup.attacher.queue.depth(), 0);
    let more = with(deleting(), json!({"metadata": {"name": "other"}}));
    setup.add(more);
    assert_eq!(setup.attacher.attachment("other").await, Outcome::Done);
    assert_eq!(setup.attacher.queue.depth(), 1);
}

/// The secret may be gone with its namespace.
#[tokio::test]
async fn detaching_needs_no_secret() {
    let setup = attaching();
    setup.world.api.take("ns/secrets/s");
    setup.add(deleting());
    assert_eq!(setup.work().await, Outcome::Done);
    assert!(setup.stored().is_none());
}

/// The API server refuses a longer one, and the user would never see why.
#[tokio::test]
async fn a_long_error_is_cut() {
    let setup = attaching();
    setup
        .world
        .script
        .fail(tonic::Status::internal("x".repeat(5000)));
    assert_eq!(setup.work().await, Outcome::Failed);
    let error = &setup.status()["attachError"];
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.len() <= message::MAX_EVENT && message.ends_with("x…"),
        "{message}"
    );
}
