use super::*;
use crate::api::scope::node_label;
use crate::queue::QueueKey;

#[tokio::test]
async fn volumes_get_their_node_s_label() {
    let rig = Rig::new(&["n1", "n2"]);
    rig.volume("v", "n2", "h", "a");
    rig.volume("lost", "n9", "i", "b");
    rig.room("n1", "now", 5);
    let free = volume("free", DRIVER, "vol-pooln1-1");
    rig.world.add(&rig.world.context.caches.volumes(), free);
    for name in ["v", "v", "lost", "never", "free"] {
        assert_eq!(rig.labelling.volume_label(name).await, Outcome::Done);
    }
    assert_eq!(rig.world.api.writes(), ["v", "free"]);
    for (volume, node) in [("v", "n2"), ("free", "n1")] {
        let labels = rig.labels(&format!("persistentvolumes/{volume}"));
        assert_eq!(labels, json!({NODE_LABEL: node}));
    }
}

/// A stolen node can name claims of any number of namespaces, and each namespace has its turn.
#[tokio::test]
async fn volumes_without_a_claim_have_their_turns_together() {
    let rig = Rig::new(&["n1"]);
    rig.claim("a", "late", json!({}));
    for (claim, uid, namespace, expected) in [
        ("a", json!("a"), "shop", "shop"),
        ("a", Value::Null, "shop", "shop"),
        ("a", json!("other"), "shop", ""),
        ("b", json!("a"), "shop", ""),
        ("a", json!("a"), "invented-1", ""),
        ("a", json!("b"), "invented-2", ""),
    ] {
        let of = json!({"namespace": namespace, "name": claim, "uid": uid});
        let volume = with(volume("v", DRIVER, "h"), json!({"spec": {"claimRef": of}}));
        let key = rig.labelling.volume_key(&crate::testing::read(volume));
        assert_eq!(key.namespace(), expected, "{of}");
    }
}

#[tokio::test]
async fn attachments_get_their_node_s_label() {
    let rig = Rig::new(&["n1", "n2"]);
    let attachments = rig.world.context.caches.attachments();
    let long = "n".repeat(80);
    for (name, attacher, node, label) in [
        ("new", DRIVER, "n1", Value::Null),
        ("wrong", DRIVER, "n1", json!("n2")),
        ("long", DRIVER, &long, Value::Null),
        ("right", DRIVER, "n1", json!("n1")),
        ("another-driver-s", "other.csi.dev", "n1", Value::Null),
    ] {
        let labels = label.is_string().then(|| json!({NODE_LABEL: label}));
        let attachment = json!({"kind": "VolumeAttachment",
            "metadata": {"name": name, "labels": labels},
            "spec": {"attacher": attacher, "nodeName": node, "source": {}}});
        rig.world.add(&attachments, attachment);
    }
    for name in [
        "new",
        "new",
        "wrong",
        "long",
        "right",
        "another-driver-s",
        "never",
    ] {
        assert_eq!(rig.labelling.attachment_label(name).await, Outcome::Done);
    }
    assert_eq!(rig.world.api.writes(), ["new", "wrong", "long"]);
    for (attachment, node) in [("new", "n1"), ("wrong", "n1"), ("long", &*long)] {
        let labels = rig.labels(&format!("volumeattachments/{attachment}"));
        assert_eq!(labels, json!({NODE_LABEL: node_label(node)}));
    }
}

/// The node that has the volume attaches it to all nodes of its kernel.
#[tokio::test]
async fn attachments_of_a_shared_volume_get_the_label_of_its_node() {
    let rig = Rig::new(&["n1", "n2"]);
    let caches = &rig.world.context.caches;
    for (name, label) in [("shared", Some("n2")), ("new", None), ("lost", Some("n9"))] {
        let labels = label.map(|label| json!({NODE_LABEL: label}));
        let volume = crate::testing::shared(volume(name, DRIVER, name), "t/node", &["n1", "n2"]);
        let volume = with(volume, json!({"metadata": {"labels": labels}}));
        rig.world.add(&caches.volumes(), volume);
    }
    for (name, volume, node, before, after) in [
        ("far", "shared", "n1", None, Some("n2")),
        ("near", "shared", "n2", None, Some("n2")),
        // A policy of the API server has labelled it with its own node.
        ("corrected", "shared", "n1", Some("n1"), Some("n2")),
        ("right", "shared", "n1", Some("n2"), Some("n2")),
        ("early", "new", "n1", None, None),
        ("of-a-gone-node", "lost", "n1", Some("n9"), Some("n9")),
        ("of-no-volume", "never", "n1", None, Some("n1")),
        ("of-a-lost-volume", "never", "n1", Some("n2"), Some("n2")),
    ] {
        let labels = before.map(|label| json!({NODE_LABEL: label}));
        let attachment = with(
            crate::testing::attachment(name, volume, node),
            json!({"metadata": {"labels": labels}}),
        );
        rig.world.add(&caches.attachments(), attachment);
        assert_eq!(rig.labelling.attachment_label(name).await, Outcome::Done);
        let labels = rig.labels(&format!("volumeattachments/{name}"));
        let label = labels.get(NODE_LABEL).and_then(Value::as_str);
        assert_eq!(label, after, "{name}");
    }
}

/// A node of the kernel made a volume with the handle of another one's data. Its label stays, and nothing
/// has that of the node with the data, so that node does not serve the volume.
#[tokio::test]
async fn a_volume_with_a_handle_of_another_node_gets_no_label_of_that_node() {
    let rig = Rig::new(&["n1", "n2"]);
    let caches = &rig.world.context.caches;
    rig.room("n2", "now", 5);
    let volume = volume("v", DRIVER, "vol-pooln2-1");
    let volume = crate::testing::shared(volume, "t/node", &["n1", "n2"]);
    let volume = with(volume, json!({"metadata": {"labels": {NODE_LABEL: "n1"}}}));
    rig.world.add(&caches.volumes(), volume);
    let attachment = crate::testing::attachment("va", "v", "n1");
    rig.world.add(&caches.attachments(), attachment);
    assert_eq!(rig.labelling.volume_label("v").await, Outcome::Done);
    assert_eq!(rig.labelling.attachment_label("va").await, Outcome::Done);
    assert_eq!(rig.world.api.writes(), [""; 0]);
}

#[tokio::test]
async fn bound_claims_get_their_volume_s() {
    let rig = Rig::new(&["n1", "n2"]);
    rig.volume("v", "n2", "h", "a");
    rig.claim("a", "late", json!({"spec": {"volumeName": "v"}}));
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.labels("claims/a"), json!({NODE_LABEL: "n2"}));
}

/// A stolen node has a volume of its own with the handle of another node's. It also has a pool of
/// the name in the second handle, which the other node has not published yet.
#[tokio::test]
async fn a_copied_handle_changes_no_label() {
    for (handle, expected) in [("vol-pooln1-1", json!("n1")), ("vol-pooln2-1", Value::Null)] {
        let rig = Rig::with_room(&[("n1", 5), ("n2", 5)]);
        rig.claim("a", "late", json!({"spec": {"volumeName": "v"}}));
        rig.volume("v", "n1", handle, "a");
        rig.volume("copied", "n2", handle, "b");
        rig.content("c", json!({"volumeHandle": handle}), json!({}));
        rig.labelling.content_label("c").await;
        let labels = rig.labels("volumesnapshotcontents/c");
        assert_eq!(labels[MANAGED_BY], expected, "{handle}");
    }
}

/// A stolen node names the parts that all handles have as its pools.
#[tokio::test]
async fn what_all_handles_have_is_no_pool() {
    let rig = Rig::with_room(&[("n1", 5), ("n2", 5)]);
    rig.room_in("vol,snap,group,1", "n2", "now", 5);
    rig.content("c", json!({"snapshotHandle": "snap-pooln1-1"}), json!({}));
    rig.labelling.content_label("c").await;
    let labels = rig.labels("volumesnapshotcontents/c");
    assert_eq!(labels, json!({MANAGED_BY: "n1"}));
}

#[tokio::test]
async fn a_group_on_several_nodes_gets_an_error() {
    let mut rig = Rig::new(&["n1", "n2"]);
    rig.room("n2", "now", 5);
    rig.volume("v", "n1", "h1", "a");
    rig.volume("w", "n1", "h2", "b");
    rig.volume("x", "n2", "vol-pooln2-1", "c");
    for (name, handles) in [("one", ["h1", "h2"]), ("two", ["h1", "vol-pooln2-1"])] {
        let content = json!({"kind": "VolumeGroupSnapshotContent", "metadata": {"name": name},
            "spec": {"driver": DRIVER, "deletionPolicy": "Delete", "source": {"volumeHandles": handles},
                "volumeGroupSnapshotRef": {"name": "g", "namespace": "shop"}}});
        let caches = &rig.world.context.caches;
        rig.world.add(&caches.group_contents(), content);
        for _ in 0..2 {
            assert_eq!(rig.labelling.group_label(name).await, Outcome::Done);
        }
    }
    assert_eq!(rig.world.api.writes(), ["one", "two/status"]);
    assert_eq!(
        rig.labels("volumegroupsnapshotcontents/one"),
        json!({MANAGED_BY: "n1"})
    );
    let content = rig.world.api.get("volumegroupsnapshotcontents/two");
    let status = content.expect("the content")["status"].clone();
    let message = status["error"]["message"].as_str().expect("a message");
    assert!(message.contains("different nodes (n1, n2)"), "{message}");
    assert_eq!(status["readyToUse"], json!(false));
    let events = rig.world.events();
    assert_eq!(events.len(), 1);
    let reason = "Warning GroupSnapshotCreationFailed";
    assert!(events[0].starts_with(reason), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn contents_without_a_known_node_say_so() {
    let managed_by = |node: &str| json!({"metadata": {"labels": {MANAGED_BY: node}}});
    let ready = json!({"status": {"readyToUse": true}});
    let failed = json!({"status": {"error": {"message": "from the node"}}});
    let deleted = json!({"metadata": {"deletionTimestamp": "2020-01-02T00:00:00Z",
        "finalizers": ["a/b"]}});
    let foreign = json!({"spec": {"driver": "other.csi.dev"}});
    let (no_pool, no_node) = (
        Some("is known to have the pool"),
        Some("node n9 does not exist"),
    );
    for (what, handle, more, expected, status) in [
        ("unknown pool", "snap-poolx-1", vec![], no_pool, no_pool),
        (
            "known pool",
            "snap-pooln1-1",
            vec![managed_by("n1")],
            None,
            None,
        ),
        (
            "node gone",
            "snap-pooln1-1",
            vec![managed_by("n9")],
            no_node,
            no_node,
        ),
        (
            "failed",
            "snap-poolx-1",
            vec![failed],
            no_pool,
            Some("from the node"),
        ),
        ("ready", "snap-poolx-1", vec![ready.clone()], None, None),
        (
            "deleted",
            "snap-pooln1-1",
            vec![managed_by("n9"), ready, deleted],
            no_node,
            None,
        ),
        (
            "another driver's",
            "snap-poolx-1",
            vec![foreign],
            None,
            None,
        ),
    ] {
        let mut rig = Rig::new(&["n1", "n2"]);
        rig.room("n1", "now", 5);
        let more = more.into_iter().fold(json!({}), with);
        let reference = json!({"name": "s", "namespace": "shop"});
        let of = |kind: &str, source: Value| {
            let content = json!({"kind": kind, "metadata": {"name": "c"}, "spec": {
                "driver": DRIVER, "deletionPolicy": "Delete", "source": source,
                "volumeSnapshotRef": reference, "volumeGroupSnapshotRef": reference}});
            with(content, more.clone())
        };
        let caches = &rig.world.context.caches;
        let single = of("VolumeSnapshotContent", json!({"snapshotHandle": handle}));
        rig.world.add(&caches.contents(), single);
        let members = json!({"groupSnapshotHandles":
            {"volumeGroupSnapshotHandle": handle, "volumeSnapshotHandles": [handle]}});
        rig.world.add(
            &caches.group_contents(),
            of("VolumeGroupSnapshotContent", members),
        );
        for round in 0..3 {
            let outcomes = [
                rig.labelling.content_label("c").await,
                rig.labelling.group_label("c").await,
            ];
            let waits = outcomes.map(|outcome| matches!(outcome, Outcome::RequeueAfter(_)));
            assert_eq!(
                waits,
                [round == 0 && expected.is_some(); 2],
                "{what}, round {round}"
            );
            tokio::time::advance(Duration::from_secs(61)).await;
        }
        for kind in ["volumesnapshotcontents", "volumegroupsnapshotcontents"] {
            let content = rig
                .world
                .api
                .get(&format!("{kind}/c"))
                .expect("the content");
            let message = content["status"]["error"]["message"].as_str();
            assert_eq!(message.is_some(), status.is_some(), "{what}: {message:?}");
            assert!(
                message
                    .unwrap_or_default()
                    .contains(status.unwrap_or_default()),
                "{what}"
            );
        }
        let events = rig.world.events();
        assert_eq!(
            events.len(),
            if expected.is_some() { 2 } else { 0 },
            "{what}: {events:?}"
        );
        assert!(
            events
                .iter()
                .all(|event| event.contains(expected.unwrap_or_default())),
            "{what}"
        );
    }
}

/// The API server goes back to a backup from before the report.
#[tokio::test(start_paused = true)]
async fn a_report_that_is_lost_is_made_again() {
    let rig = Rig::new(&["n1"]);
    rig.room("n1", "now", 5);
    let path = "volumesnapshotcontents/c";
    rig.content("c", json!({"snapshotHandle": "snap-poolx-1"}), json!({}));
    let backup = rig.world.api.get(path).expect("the content");
    let message = || {
        let content = rig.world.api.get(path).expect("the content");
        content["status"]["error"]["message"].clone()
    };
    rig.labelling.content_label("c").await;
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(rig.labelling.content_label("c").await, Outcome::Done);
    let reported = message();
    assert!(reported.is_string(), "{reported}");

    let contents = rig.world.context.caches.contents();
    rig.world.add(&contents, backup);
    assert!(message().is_null());
    assert_eq!(rig.labelling.content_label("c").await, Outcome::Done);
    assert_eq!(message(), reported);
}

#[tokio::test]
async fn a_volume_that_was_made_for_another_driver_s_claim_is_deleted() {
    let other = "other.csi.dev";
    for (what, provisioner, name, phase, cached, is_left) in [
        ("new", other, "pvc-u", "", true, false),
        ("bound", other, "pvc-u", "Bound", true, false),
        ("claim not cached", other, "pvc-u", "Bound", false, false),
        (
            "given to the claim",
            other,
            "pvc-t",
            "Available",
            true,
            true,
        ),
        ("this driver's claim", DRIVER, "pvc-u", "", true, true),
    ] {
        let rig = Rig::new(&["n1", "n2"]);
        let claim = json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "data",
            "namespace": "shop", "uid": "u", "annotations": {PROVISIONER: provisioner}}, "spec": {}});
        if cached {
            rig.world.add(&rig.world.context.caches.claims(), claim);
        } else {
            rig.world.api.put(claim);
        }
        let more = json!({
            "metadata": {"annotations": {PROVISIONED_BY: DRIVER}},
            "spec": {"claimRef": {"name": "data", "namespace": "shop", "uid": "u"}},
            "status": {"phase": phase}});
        let volume = with(volume(name, DRIVER, "h"), more);
        rig.world.add(&rig.world.context.caches.volumes(), volume);
        assert_eq!(rig.labelling.volume_label(name).await, Outcome::Done);
        let left = rig.world.api.get(&format!("persistentvolumes/{name}"));
        assert_eq!(left.is_some(), is_left, "{what}");
    }
}
