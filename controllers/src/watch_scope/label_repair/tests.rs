use serde_json::{Value, json};

use super::*;
use crate::cache::store::Selector;
use crate::csi::Pools;
use crate::csi::driver::ControllerCapability;
use crate::testing::{self, DRIVER, World, node_scope, with};

fn world() -> World {
    let mut world = World::new(&[ControllerCapability::CreateDeleteSnapshot]);
    world.context.scope = node_scope("n1", "t/node");
    world.context.pools = Pools::reported(|| vec!["a1".to_owned()]);
    world.context.caches.set_watch_scope(WatchScope::Narrow);
    world
}

fn volume(name: &str, handle: &str, driver: &str) -> Value {
    let claim = json!({"name": name, "namespace": "ns", "uid": format!("u-{name}")});
    with(
        testing::volume(name, driver, handle),
        json!({"spec": {"claimRef": claim}}),
    )
}

fn claim(name: &str, node: &str, volume: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("u-{name}"), "annotations": {
            "volume.kubernetes.io/storage-provisioner": DRIVER,
            "volume.kubernetes.io/selected-node": node}},
        "spec": {"volumeName": volume},
    })
}

fn content(name: &str, handle: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "deletionPolicy": "Delete", "volumeSnapshotRef": {},
                 "source": {"volumeHandle": handle}},
    })
}

#[tokio::test]
async fn a_node_labels_what_is_its_own() {
    let world = world();
    let (claims, volumes) = (
        world.context.caches.claims(),
        world.context.caches.volumes(),
    );
    let label = || Selector::label(NODE_LABEL, "n1".to_owned());
    claims.note_selected(label());
    volumes.note_selected(label());
    for object in [
        volume("ours", "vol-a1-0", DRIVER),
        volume("theirs", "vol-b2-0", DRIVER),
        volume("another", "vol-a1-0", "else"),
        claim("ours", "n2", Some("ours")),
        claim("waiting", "n1", None),
        claim("elsewhere", "n2", None),
        claim("bound-elsewhere", "n1", Some("theirs")),
        content("content", "vol-a1-0"),
        content("other-content", "vol-b2-0"),
    ] {
        world.api.put(object);
    }
    // A volume in the cache determines the owner of its claim.
    let mut known = volume("known", "vol-a1-1", DRIVER);
    known["metadata"]["labels"] = json!({NODE_LABEL: "n1"});
    world.add(&volumes, known);
    world.api.put(claim("known", "n2", Some("known")));
    let search = Search {
        context: &world.context,
        kube: world.context.kube.clone(),
        node: "n1",
        contents: true,
    };
    world.api.lists();
    search.round().await;
    // Of other drivers' claims there may be any number.
    let lists = [
        format!("persistentvolumes labelSelector=!{NODE_LABEL}"),
        format!("metadata of persistentvolumeclaims labelSelector=!{NODE_LABEL}"),
        format!("volumesnapshotcontents labelSelector=!{MANAGED_BY}"),
    ];
    assert_eq!(world.api.lists(), lists);
    // The volume, and then its claim.
    let labelled = ["ours", "known", "ours", "waiting", "content"];
    assert_eq!(world.api.writes(), labelled);
    for (object, key) in [
        ("persistentvolumes/ours", NODE_LABEL),
        ("claims/known", NODE_LABEL),
        ("claims/ours", NODE_LABEL),
        ("claims/waiting", NODE_LABEL),
        ("contents/content", MANAGED_BY),
    ] {
        let object = world.api.get(object).expect(object);
        assert_eq!(object["metadata"]["labels"], json!({key: "n1"}), "{object}");
    }
    search.round().await;
    assert!(world.api.writes().is_empty());
    // While the watches see everything, no labels are needed.
    world.context.caches.set_watch_scope(WatchScope::Whole);
    world.api.lists();
    search.round().await;
    assert!(world.api.lists().is_empty());
}
