//! Tests of the deletion of a snapshot, and of objects that must stay unchanged.

use super::*;

#[test]
fn contents_expected() {
    let owner = json!([{"apiVersion": "groupsnapshot.storage.k8s.io/v1",
        "kind": "VolumeGroupSnapshot", "name": "g", "uid": "g"}]);
    for (changes, expected) in [
        (json!({}), Some("snapcontent-11-22")),
        (
            json!({"status": {"boundVolumeSnapshotContentName": "b"}}),
            Some("b"),
        ),
        (
            json!({"status": {"boundVolumeSnapshotContentName": ""}}),
            Some("snapcontent-11-22"),
        ),
        (
            json!({"spec": {"source": {"persistentVolumeClaimName": null,
                "volumeSnapshotContentName": "c"}}}),
            Some("c"),
        ),
        (json!({"metadata": {"ownerReferences": owner}}), None),
        (
            json!({"metadata": {"name": "snapshot-ab", "ownerReferences": owner}}),
            Some("snapcontent-ab"),
        ),
    ] {
        let snapshot: Arc<VolumeSnapshot> = of(snapshot(changes));
        assert_eq!(Snapshots::expected_content(&snapshot).as_deref(), expected);
    }
}

#[test]
fn deletion() {
    let marked = json!({SINGLE.being_deleted: "yes"});
    let going = json!({"annotations": marked, "deletionTimestamp": DELETED});
    let in_group = json!([names::SNAPSHOT_IN_GROUP]);
    let (own, none) = (Value::Null, None);
    let kept =
        |metadata: Value| Some(json!({"metadata": metadata, "spec": {"deletionPolicy": "Retain"}}));
    let doomed = |metadata: Value| Some(json!({"metadata": metadata}));
    let others = Some(json!({"spec": {"volumeSnapshotRef": {"uid": "other"}}}));
    let marked = || json!({"annotations": marked});
    for (finalizers, content_is, restoring, expected) in [
        (json!([]), none.clone(), 0, "done"),
        (json!(["x/other"]), none.clone(), 0, "done"),
        (own.clone(), none.clone(), 0, "finalizers 0"),
        (in_group, none.clone(), 0, "finalizers 0"),
        (own.clone(), none, 1, "finalizers 0"),
        (
            own.clone(),
            doomed(json!({})),
            1,
            "block deletion: 1 claims are being restored from this snapshot: copy",
        ),
        (own.clone(), doomed(json!({})), 0, "mark"),
        (own.clone(), doomed(marked()), 0, "delete content"),
        // The snapshot stays until the content is gone.
        (
            own.clone(),
            doomed(going.clone()),
            0,
            "finalizers 1: volumesnapshot-bound-protection",
        ),
        (json!([names::SNAPSHOT_BOUND]), doomed(going), 0, "done"),
        (own.clone(), kept(json!({})), 0, "mark"),
        (own.clone(), kept(marked()), 0, "finalizers 0"),
        // The content of another snapshot stays unchanged.
        (own, others, 0, "finalizers 0"),
    ] {
        let mut changes = json!({"metadata": {"deletionTimestamp": DELETED}});
        if !finalizers.is_null() {
            changes["metadata"]["finalizers"] = finalizers;
        }
        let mut facts = facts(snapshot(changes));
        facts.content = content_is.map(|changes| of(content(changes)));
        facts.own.restoring = vec!["copy".to_owned(); restoring];
        expect(&facts, expected);
    }
}

#[test]
fn the_claim_is_released_first() {
    let deleted = json!({"metadata": {"deletionTimestamp": DELETED}});
    let mut facts = facts(snapshot(deleted));
    facts.own.released_claim = Some(Vec::new());
    expect(&facts, "claim finalizers 0");
    // While the snapshot may still be taken, the claim stays protected.
    facts.content = Some(of(content(json!({}))));
    expect(&facts, "mark");
}

#[test]
fn deletion_of_members() {
    for (deleting, expected) in [
        (
            None,
            "block deletion: this snapshot is a member of group snapshot team/g: delete that",
        ),
        (Some(DELETED), "wait"),
    ] {
        let changes = json!({"metadata": {"deletionTimestamp": DELETED}});
        let mut facts = facts(snapshot(changes));
        facts.own.group = Some(of(json!({"apiVersion": "groupsnapshot.storage.k8s.io/v1",
            "kind": "VolumeGroupSnapshot", "metadata": {"name": "g", "namespace": "team",
            "uid": "g", "deletionTimestamp": deleting}, "spec": {"source": {}}})));
        expect(&facts, expected);
    }
}

#[test]
fn claims_held() {
    let deleting = DELETED;
    let broken = || json!({"status": {"error": {"message": "there is no class"}}});
    let of_volume = |handle: &str| Some(json!({"spec": {"source": {"volumeHandle": handle}}}));
    for (changes, content_is, expected) in [
        (json!({}), None, true),
        (json!({"status": {"readyToUse": false}}), None, true),
        (json!({"status": {"readyToUse": true}}), None, false),
        (
            json!({"metadata": {"deletionTimestamp": deleting}}),
            None,
            true,
        ),
        (
            json!({"metadata": {"deletionTimestamp": deleting,
                "finalizers": [names::SNAPSHOT_BOUND]}}),
            None,
            false,
        ),
        // It has no content: the snapshotter never tried.
        (broken(), None, false),
        // The driver tries again. Without the volume, the snapshot would be lost.
        (broken(), of_volume("vol-1"), true),
        (json!({}), of_volume("vol-1"), true),
        // Another claim had the same name when the content was made.
        (json!({}), of_volume("vol-0"), false),
        (broken(), of_volume("vol-0"), false),
    ] {
        let what = format!("{changes} {content_is:?}");
        let snapshot: Arc<VolumeSnapshot> = of(snapshot(changes));
        let content = content_is.map(|changes| of(content(changes)));
        let content: Option<Arc<VolumeSnapshotContent>> = content;
        let needs = watches::needs_claim(&snapshot, content.as_deref(), Some("vol-1"));
        assert_eq!(needs, expected, "{what}");
    }
}
