//! Volumes that all nodes of a kernel can use. The node that has one attaches it to all of them.

use super::*;
use crate::csi::Pools;
use crate::testing::shared;

/// The process of the node n1, which has the pool a1. Its caches lack the volume `pv`.
fn on_node(handle: &str) -> Setup {
    let capabilities = [
        PublishUnpublishVolume,
        ListVolumes,
        ListVolumesPublishedNodes,
    ];
    let mut world = World::new(&capabilities);
    world.context.scope = node_scope("n1", "t/node");
    world.context.pools = Pools::reported(|| vec!["a1".to_owned()]);
    let attacher = Attacher::new(world.context.clone());
    world.api.put(of_kernel(handle));
    world.api.put(csi_node("n2", DRIVER, "t/node"));
    world.add(&attacher.csi_nodes, csi_node("n1", DRIVER, "t/node"));
    Setup { world, attacher }
}

fn of_kernel(handle: &str) -> serde_json::Value {
    let modes = json!({"spec": {"accessModes": ["ReadWriteMany"]}});
    let volume = with(volume("pv", DRIVER, handle), modes);
    shared(volume, "t/node", &["n1", "n2"])
}

fn labelled(node: &str) -> serde_json::Value {
    json!({"metadata": {"labels": {NODE_LABEL: node}}})
}

#[tokio::test]
async fn the_node_with_the_volume_attaches_it_to_all() {
    for (handle, node, label, is_attached) in [
        ("vol-a1-0", "n1", "n1", true),
        ("vol-a1-0", "n2", "n1", true),
        ("vol-b2-0", "n1", "n2", false),
        ("vol-b2-0", "n2", "n2", false),
        // The leader has not written the right label yet.
        ("vol-b2-0", "n1", "n1", false),
    ] {
        for is_cached in [true, false] {
            let setup = on_node(handle);
            if is_cached {
                setup.world.add(&setup.attacher.volumes, of_kernel(handle));
            }
            setup.add(with(labelled(label), json!({"spec": {"nodeName": node}})));
            let what = format!("{handle} {node} {label} {is_cached}");
            assert_eq!(setup.work().await, Outcome::Done, "{what}");
            if is_attached {
                let (volume, node_id, _) = setup.published();
                assert_eq!((&*volume, &*node_id), (handle, node), "{what}");
                assert_eq!(setup.status()["attached"], true, "{what}");
            } else {
                assert_eq!(setup.world.script.calls(), [], "{what}");
                assert_eq!(setup.world.api.writes(), [""; 0], "{what}");
            }
        }
    }
}

/// Its driver would say that it has detached the volume, and the node that has it would not know.
#[tokio::test]
async fn the_node_of_the_attachment_detaches_nothing() {
    let setup = on_node("vol-b2-0");
    setup.add(with(deleting(), labelled("n1")));
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.world.script.calls(), []);
    let stored = setup.stored().expect("the attachment");
    assert_eq!(stored["metadata"]["finalizers"], json!([FINALIZER]));
    assert_eq!(stored["status"]["attached"], true);
}

/// The PV was removed by force. The label shows which node has the volume.
#[tokio::test]
async fn without_its_volume_an_attachment_is_of_the_node_in_its_label() {
    for (node, label, is_detached) in [
        ("n2", Some("n1"), true),
        ("n1", Some("n1"), true),
        ("n1", Some("n2"), false),
        ("n2", Some("n2"), false),
        // It is of a volume of its own node, or the leader has not seen it yet.
        ("n1", None, true),
        ("n2", None, false),
    ] {
        let setup = on_node("vol-a1-0");
        setup.world.api.take("persistentvolumes/pv");
        let name = expected_name("vol-a1-0", DRIVER, node);
        let change = json!({
            "metadata": {
                "name": name, "labels": {NODE_LABEL: label},
                "annotations": {"csi.alpha.kubernetes.io/node-id": node},
            },
            "spec": {"nodeName": node},
        });
        setup.add(with(deleting(), change));
        setup
            .world
            .script
            .page(vec![entry("vol-a1-0", &[node])], "");
        let what = format!("{node} {label:?}");
        assert_eq!(setup.attacher.attachment(&name).await, Outcome::Done);
        let expected = is_detached.then(|| ("vol-a1-0".to_owned(), node.to_owned()));
        assert_eq!(setup.unpublished(), Vec::from_iter(expected), "{what}");
        let stored = setup.world.api.get(&format!("volumeattachments/{name}"));
        assert_eq!(stored.is_none(), is_detached, "{what}");
    }
}

/// Its metadata names a device of an earlier boot.
#[tokio::test]
async fn each_process_confirms_what_is_attached_once() {
    let setup = on_node("vol-a1-0");
    let own = Selector::label(NODE_LABEL, "n1".to_owned());
    setup.attacher.volumes.note_selected(own);
    setup.add(json!({
        "metadata": {
            "labels": {NODE_LABEL: "n1"}, "finalizers": [FINALIZER],
            "annotations": {"csi.alpha.kubernetes.io/node-id": "n2"},
        },
        "spec": {"nodeName": "n2"},
        "status": {"attached": true, "attachmentMetadata": {"path": "/dev/old", "minor": "7"}},
    }));
    for is_forced in [true, false] {
        setup
            .world
            .script
            .page(vec![entry("vol-a1-0", &["n2"])], "");
        setup.attacher.compare(0).await;
        setup.world.script.calls();
        let forced = setup.attacher.forced.lock().contains("va");
        assert_eq!(forced, is_forced);
        assert_eq!(setup.work().await, Outcome::Done);
        let status = json!({"attached": true, "attachmentMetadata": {"path": "/dev/x"}});
        assert_eq!(setup.status(), status);
        let calls = setup.world.script.calls();
        assert_eq!(calls.len(), usize::from(is_forced), "{calls:?}");
    }
}

/// The cache lacks an attachment to another node until the leader has labelled it.
#[tokio::test]
async fn the_finalizer_of_a_volume_outlives_its_attachment_to_another_node() {
    let setup = on_node("vol-a1-0");
    let own = Selector::label(NODE_LABEL, "n1".to_owned());
    setup.attacher.attachments.note_selected(own);
    let end = json!({"metadata": {
        "finalizers": ["x", FINALIZER], "deletionTimestamp": "2026-01-02T03:04:05Z"}});
    let volume = with(of_kernel("vol-a1-0"), end);
    setup.world.add(&setup.attacher.volumes, volume);
    let name = expected_name("vol-a1-0", DRIVER, "n2");
    setup.world.api.put(attachment(&name, "pv", "n2"));
    assert_eq!(setup.attacher.volume("pv").await, Outcome::Failed);
    assert_eq!(setup.world.api.writes(), [""; 0]);
    setup.world.api.take(&format!("volumeattachments/{name}"));
    assert_eq!(setup.attacher.volume("pv").await, Outcome::Done);
    assert_eq!(setup.volume()["metadata"]["finalizers"], json!(["x"]));
}

/// Its kubelet has died, and its container lives on.
#[tokio::test]
async fn a_detach_from_a_node_that_still_uses_the_volume_is_tried_again_soon() {
    for (is_going, code, expected) in [
        (true, Code::FailedPrecondition, Outcome::RetryAfter(HELD)),
        (true, Code::Unavailable, Outcome::Failed),
        (false, Code::FailedPrecondition, Outcome::Failed),
    ] {
        let setup = on_node("vol-a1-0");
        let volume = of_kernel("vol-a1-0");
        setup.world.add(&setup.attacher.volumes, volume);
        let node = json!({"spec": {"nodeName": "n2"}});
        let change = if is_going {
            with(deleting(), node)
        } else {
            node
        };
        setup.add(change);
        setup
            .world
            .script
            .fail(tonic::Status::new(code, "n2 still has the volume mounted"));
        assert_eq!(setup.work().await, expected, "{is_going} {code:?}");
    }
}
