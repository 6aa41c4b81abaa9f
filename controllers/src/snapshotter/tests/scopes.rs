//! Checks which contents a node reconciles if every node runs a snapshotter.

use std::collections::BTreeMap;

use super::*;
use crate::cache::scope::MANAGED_BY;

fn here() -> Scope {
    Scope::Node {
        name: "n1".to_owned(),
        segments: BTreeMap::from([("t/node".to_owned(), "n1".to_owned())]),
    }
}

fn volume(node: &str) -> PersistentVolume {
    read(
        json!({"metadata": {"name": "pv", "resourceVersion": "1"}, "spec": {
        "csi": {"driver": "d", "volumeHandle": "v"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "t/node", "operator": "In", "values": [node]}]}]}}}}),
    )
}

fn labelled(node: &str) -> Value {
    json!({"metadata": {"labels": {MANAGED_BY: node}}})
}

fn at(node: Option<&str>, leads: bool, content: Value) -> Single {
    let single = Single::within(here(), leads, &all(), content, class(json!({})));
    if let Some(node) = node {
        single.context.caches.volumes().apply_write(volume(node));
    }
    single
}

#[tokio::test]
async fn ones_made_of_volumes_here() {
    let single = at(Some("n1"), false, content(json!({})));
    single.answer(Ok(snapshot(true)));
    assert_eq!(single.sync().await, Outcome::Done);
    let metadata = &single.content()["metadata"];
    assert_eq!(metadata["labels"], json!({MANAGED_BY: "n1"}));
    assert_eq!(single.content()["status"]["readyToUse"], true);
}

#[tokio::test]
async fn ones_of_others() {
    let gone = || json!({"status": {"snapshotHandle": "h"}});
    for (node, content) in [
        (Some("n2"), content(json!({}))),
        (Some("n1"), content(labelled("n2"))),
        (Some("n2"), content(and(deleted(), gone()))),
        (None, content(and(and(deleted(), gone()), labelled("n2")))),
    ] {
        let single = at(node, true, content.clone());
        assert_eq!(single.sync().await, Outcome::Done, "{content}");
        assert!(single.world.happened().is_empty());
    }
}

#[tokio::test]
async fn a_foreign_snapshot_is_not_taken_for_a_deleted_one() {
    let content = content(and(deleted(), json!({"status": {"snapshotHandle": "h"}})));
    // The volume is gone, and the driver here does not know the snapshot.
    for leads in [false, true] {
        let mut single = at(None, leads, content.clone());
        assert_eq!(single.sync().await, Outcome::Failed);
        assert_eq!(single.world.happened(), ["ListSnapshots h with"]);
        assert!(single.events().is_empty());
    }
    // Here the driver knows the snapshot.
    let single = at(None, false, content);
    single.answer(Ok(snapshot(true)));
    single.world.deletions.lock().unwrap().push_back(Ok(()));
    assert_eq!(single.sync().await, Outcome::Done);
    let content = single.content();
    assert_eq!(content["metadata"]["finalizers"], json!([]));
    assert_eq!(content["metadata"]["labels"], json!({MANAGED_BY: "n1"}));
    // After DeleteSnapshot, only the label names the owner.
    let status = json!({"status": {"snapshotHandle": "h"}});
    let labelled = super::content(and(and(deleted(), status), labelled("n1")));
    let single = at(None, false, labelled);
    single.world.deletions.lock().unwrap().push_back(Ok(()));
    assert_eq!(single.sync().await, Outcome::Done);
}

#[tokio::test]
async fn ones_made_beforehand_are_the_drivers_who_knows_them() {
    let made =
        || content(json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}}}));
    let mut foreign = at(None, true, made());
    assert_eq!(foreign.sync().await, Outcome::Failed);
    assert_eq!(foreign.world.happened(), ["ListSnapshots h with"]);
    assert!(foreign.events().is_empty());
    let ours = at(None, false, made());
    for _ in 0..2 {
        ours.answer(Ok(snapshot(true)));
    }
    assert_eq!(ours.sync().await, Outcome::Done);
    assert_eq!(ours.content()["status"]["readyToUse"], true);
    assert_eq!(
        ours.content()["metadata"]["labels"],
        json!({MANAGED_BY: "n1"})
    );
}

#[tokio::test]
async fn the_leader_releases_contents_without_an_owner() {
    let kept = json!({"spec": {"deletionPolicy": "Retain"}, "status": {"snapshotHandle": "h"}});
    for content in [content(deleted()), content(and(deleted(), kept))] {
        let follower = at(None, false, content.clone());
        assert_eq!(follower.sync().await, Outcome::Failed);
        assert!(follower.world.happened().is_empty());
        let leader = at(None, true, content);
        assert_eq!(leader.sync().await, Outcome::Done);
        assert_eq!(leader.content()["metadata"]["finalizers"], json!([]));
    }
}

#[tokio::test]
async fn the_driver_is_asked_for_unknown_volumes() {
    let single = at(None, true, content(json!({})));
    assert_eq!(single.sync().await, Outcome::Failed);
    assert_eq!(single.world.happened(), ["ControllerGetVolume"]);
}

#[tokio::test]
async fn the_cluster_wide_part_only_releases_unowned_contents() {
    let kept = || json!({"spec": {"deletionPolicy": "Retain"}, "status": {"snapshotHandle": "h"}});
    let gone = || json!({"status": {"snapshotHandle": "h"}});
    for (node, leads, content, released) in [
        (None, true, content(and(deleted(), kept())), true),
        (None, false, content(and(deleted(), kept())), false),
        // Only the node that has the snapshot can delete it.
        (None, true, content(and(deleted(), gone())), false),
        (None, true, content(json!({})), false),
        // The content belongs to a node.
        (Some("n2"), true, content(and(deleted(), kept())), false),
        (
            None,
            true,
            content(and(and(deleted(), kept()), labelled("n2"))),
            false,
        ),
        (
            None,
            true,
            content(and(and(deleted(), kept()), labelled("n1"))),
            false,
        ),
    ] {
        let single = at(node, leads, content.clone());
        let shared = Shared::new(single.context.clone(), options(), Part::Unowned);
        assert_eq!(
            Reconciler::<Singles>::new(shared).reconcile("c").await,
            Outcome::Done
        );
        let left = single.content()["metadata"]["finalizers"] == json!([]);
        assert_eq!(left, released, "{node:?} {leads} {content}");
        assert_eq!(single.world.happened().is_empty(), !released);
    }
}

#[tokio::test]
async fn handles_decide_the_owner() {
    let made = |handle: &str| {
        let source = json!({"volumeHandle": null, "snapshotHandle": handle});
        content(and(
            deleted(),
            json!({
            "metadata": {"labels": {MANAGED_BY: "n1"}},
            "spec": {"source": source}, "status": {"snapshotHandle": handle}}),
        ))
    };
    for (handle, deletes) in [("snap-a1-0", true), ("snap-b2-0", false)] {
        let mut single = at(None, true, made(handle));
        single.context.pools = crate::csi::Pools::reported(|| vec!["a1".to_owned()]);
        single.world.deletions.lock().unwrap().push_back(Ok(()));
        let shared = Shared::new(single.context.clone(), options(), Part::Own);
        assert_eq!(
            Reconciler::<Singles>::new(shared).reconcile("c").await,
            Outcome::Done
        );
        let happened = single.world.happened();
        let deleted = happened.iter().any(|one| one.contains(handle));
        assert_eq!(deleted, deletes, "{happened:?}");
    }
}
