//! Checks which contents a node reconciles if every node runs a snapshotter.

use super::*;
use crate::api::scope::MANAGED_BY;
use crate::csi::Pools;
use crate::testing::{DRIVER, affinity, node_scope, volume};

fn labelled(node: &str) -> Value {
    json!({"metadata": {"labels": {MANAGED_BY: node}}})
}

fn taken() -> Value {
    json!({"status": {"snapshotHandle": "h"}})
}

fn retained() -> Value {
    json!({"spec": {"deletionPolicy": "Retain"}, "status": {"snapshotHandle": "h"}})
}

/// A content that is being deleted.
fn going(more: Value) -> Value {
    and(deleted::<SingleContents>(), more)
}

/// A snapshotter on node n1. The volume of its content is on this node, or unknown.
fn at(node: Option<&str>, leads: bool, more: Value) -> Single {
    within(node, leads, Part::Own, more)
}

fn within(node: Option<&str>, leads: bool, part: Part, more: Value) -> Single {
    let rig = Rig::with(more, |setup| {
        setup.scope = node_scope("n1", "t/node");
        (setup.leads, setup.part) = (leads, part);
    });
    if let Some(node) = node {
        let affinity = json!({"spec": {"nodeAffinity": affinity("t/node", &[node])}});
        let volumes = rig.world.context.caches.volumes();
        rig.world
            .add(&volumes, and(volume("pv", DRIVER, "v"), affinity));
    }
    rig
}

#[tokio::test]
async fn contents_of_local_volumes_are_reconciled_and_labelled() {
    let rig = at(Some("n1"), false, json!({}));
    rig.answers.single(Ok(snapshot(true)));
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert_eq!(rig.owner().as_deref(), Some("n1"));
    assert_eq!(rig.content()["status"]["readyToUse"], true);
}

#[tokio::test]
async fn contents_of_other_nodes_are_left_alone() {
    for (node, more) in [
        (Some("n2"), json!({})),
        (Some("n1"), labelled("n2")),
        (Some("n2"), going(taken())),
        (None, going(and(taken(), labelled("n2")))),
    ] {
        let rig = at(node, true, more.clone());
        assert_eq!(rig.reconcile().await, Outcome::Done, "{more}");
        assert!(rig.happened().is_empty());
    }
}

/// The volume is gone, and the driver here does not know the snapshot.
#[tokio::test]
async fn a_foreign_snapshot_is_not_taken_for_a_deleted_one() {
    let given = json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}}});
    for (leads, more) in [
        (false, going(taken())),
        (true, going(taken())),
        (true, given),
    ] {
        let mut rig = at(None, leads, more);
        assert_eq!(rig.reconcile().await, Outcome::Failed);
        assert_eq!(rig.happened(), ["ListSnapshots h with"]);
        assert!(rig.world.events().is_empty());
    }
}

#[tokio::test]
async fn a_node_owns_the_snapshots_that_its_driver_knows() {
    let rig = at(None, false, going(taken()));
    rig.answers.single(Ok(snapshot(true)));
    rig.answers.deletion(Ok(()));
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert!(rig.content().is_null());
    assert_eq!(rig.owner().as_deref(), Some("n1"));
    // After DeleteSnapshot, only the label names the owner.
    let rig = at(None, false, going(and(taken(), labelled("n1"))));
    rig.answers.deletion(Ok(()));
    assert_eq!(rig.reconcile().await, Outcome::Done);
    let given = json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}}});
    let rig = at(None, false, given);
    for _ in 0..2 {
        rig.answers.single(Ok(snapshot(true)));
    }
    assert_eq!(rig.reconcile().await, Outcome::Done);
    assert_eq!(rig.content()["status"]["readyToUse"], true);
    assert_eq!(rig.owner().as_deref(), Some("n1"));
}

#[tokio::test]
async fn the_leader_releases_contents_without_an_owner() {
    for more in [going(json!({})), going(retained())] {
        let follower = at(None, false, more.clone());
        assert_eq!(follower.reconcile().await, Outcome::Failed);
        assert!(follower.happened().is_empty());
        let leader = at(None, true, more);
        assert_eq!(leader.reconcile().await, Outcome::Done);
        assert!(leader.content().is_null());
    }
}

#[tokio::test]
async fn the_driver_is_asked_for_unknown_volumes() {
    let rig = at(None, true, json!({}));
    assert_eq!(rig.reconcile().await, Outcome::Failed);
    assert_eq!(rig.happened(), ["ControllerGetVolume"]);
}

#[tokio::test]
async fn the_cluster_wide_part_only_releases_unowned_contents() {
    for (node, leads, more, released) in [
        (None, true, going(retained()), true),
        (None, false, going(retained()), false),
        // Only the node that has the snapshot can delete it.
        (None, true, going(taken()), false),
        (None, true, json!({}), false),
        // The content belongs to a node.
        (Some("n2"), true, going(retained()), false),
        (None, true, going(and(retained(), labelled("n2"))), false),
        (None, true, going(and(retained(), labelled("n1"))), false),
    ] {
        let rig = within(node, leads, Part::Unowned, more.clone());
        assert_eq!(rig.reconcile().await, Outcome::Done);
        assert_eq!(rig.content().is_null(), released, "{node:?} {leads} {more}");
        assert_eq!(rig.happened().is_empty(), !released);
    }
}

#[tokio::test]
async fn handles_decide_the_owner() {
    for (handle, deletes) in [("snap-a1-0", true), ("snap-b2-0", false)] {
        let more = and(
            labelled("n1"),
            json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": handle}},
                "status": {"snapshotHandle": handle}}),
        );
        let rig: Single = Rig::with(going(more), |setup| {
            setup.scope = node_scope("n1", "t/node");
            setup.pools = Pools::reported(|| vec!["a1".to_owned()]);
        });
        rig.answers.deletion(Ok(()));
        assert_eq!(rig.reconcile().await, Outcome::Done);
        let happened = rig.happened();
        let deleted = happened.iter().any(|one| one.contains(handle));
        assert_eq!(deleted, deletes, "{happened:?}");
    }
}

/// A group of volumes on two nodes is taken by none. The label says which one releases its content.
#[tokio::test]
async fn the_labelled_node_releases_a_group_that_none_takes() {
    for (label, more, released) in [
        ("n1", deleted::<GroupContents>(), true),
        ("n2", deleted::<GroupContents>(), false),
        ("n1", json!({}), false),
    ] {
        let rig: Group = Rig::with(and(labelled(label), more.clone()), |setup| {
            setup.scope = node_scope("n1", "t/node");
            setup.pools = Pools::reported(|| vec!["a1".to_owned()]);
        });
        assert_eq!(rig.reconcile().await, Outcome::Done, "{label} {more}");
        assert_eq!(rig.content().is_null(), released, "{label} {more}");
        assert_eq!(rig.happened().is_empty(), !released, "{label} {more}");
    }
}
