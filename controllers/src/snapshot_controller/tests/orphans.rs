//! Contents of snapshots that are gone before them: a user removed the finalizers.

use super::*;
use crate::snapshots::content::{GROUP, SINGLE};
use crate::testing::with;

const CONTENT: &str = "snapcontent-u";

fn snapshot(uid: &str) -> Value {
    json!({
        "apiVersion": format!("{SNAPSHOT_GROUP}/v1"), "kind": "VolumeSnapshot",
        "metadata": {"name": "snap", "namespace": "team", "uid": uid},
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
        // A user can name any content here.
        "status": {"boundVolumeSnapshotContentName": "other", "readyToUse": true},
    })
}

fn content(more: Value) -> Value {
    let content = json!({
        "apiVersion": format!("{SNAPSHOT_GROUP}/v1"), "kind": "VolumeSnapshotContent",
        "metadata": {"name": CONTENT, "finalizers": [SINGLE.finalizer]},
        "spec": {
            "volumeSnapshotRef": {"namespace": "team", "name": "snap", "uid": "u"},
            "deletionPolicy": "Delete", "driver": "csi.example",
            "source": {"volumeHandle": "vol-1"},
        },
    });
    with(content, more)
}

fn marks() -> Value {
    json!({"metadata": {"annotations": {SINGLE.being_deleted: "yes"}}})
}

fn retained() -> Value {
    json!({"spec": {"deletionPolicy": "Retain"}})
}

fn going() -> Value {
    json!({"metadata": {"deletionTimestamp": DELETED}})
}

async fn work_all(controller: &SnapshotController) {
    for key in controller.queue.ready_keys() {
        controller.work(key).await;
    }
}

fn left(world: &World) -> Option<Value> {
    world.api.get(&format!("volumesnapshotcontents/{CONTENT}"))
}

/// Checks that the content is marked and deleted, or neither.
fn assert_goes(world: &World, goes: bool, what: &str) {
    let left = left(world);
    let is_deleted = left
        .as_ref()
        .is_none_or(|it| !it["metadata"]["deletionTimestamp"].is_null());
    assert_eq!(is_deleted, goes, "{what}: {left:?}");
    let is_marked = left.is_some_and(|it| !it["metadata"]["annotations"].is_null());
    assert_eq!(
        is_marked, goes,
        "{what}: the snapshotter waits for the mark"
    );
}

/// The watch reports the end of a snapshot that no step of the controller led to.
#[tokio::test]
async fn a_content_goes_with_a_snapshot_that_was_seen() {
    for (more, now, goes) in [
        (json!({}), None, true),
        // A new one of the same name.
        (json!({}), Some("v"), true),
        // It left the cache only: it is too large.
        (json!({}), Some("u"), false),
        // Someone has deleted the content before.
        (going(), None, true),
        (with(going(), retained()), None, true),
        (retained(), None, false),
        (
            json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "s"}}}),
            None,
            false,
        ),
        (
            json!({"spec": {"volumeSnapshotRef": {"uid": null}}}),
            None,
            false,
        ),
        (
            json!({"spec": {"volumeSnapshotRef": {"uid": "w"}}}),
            None,
            false,
        ),
    ] {
        let world = World::new(&[]);
        let controller = controller(&world);
        let what = format!("{more} {now:?}");
        world.add(&controller.watches.snapshots, snapshot("u"));
        world.add(&controller.watches.contents, content(more));
        controller.listen();
        assert_eq!(controller.queue.ready_keys().len(), 3, "{what}");
        world.api.take("/snap");
        if let Some(uid) = now {
            world.api.put(snapshot(uid));
        }
        controller.watches.snapshots.note_deleted("team", "snap");
        work_all(&controller).await;
        assert_goes(&world, goes, &what);
    }
}

/// The answer to the write of the content was late, or lost.
#[tokio::test]
async fn a_content_that_comes_after_the_end_of_its_snapshot_goes_too() {
    for (more, now, goes) in [
        (json!({}), None, true),
        // Someone has deleted it before.
        (going(), None, true),
        // A new one of the same name.
        (json!({}), Some("v"), true),
        // The snapshot is back, or only left the cache.
        (json!({}), Some("u"), false),
        (retained(), None, false),
        // No snapshot with this UID was seen.
        (
            json!({"spec": {"volumeSnapshotRef": {"uid": "w"}}}),
            None,
            false,
        ),
    ] {
        let world = World::new(&[]);
        let controller = controller(&world);
        let what = format!("{more} {now:?}");
        world.add(&controller.watches.snapshots, snapshot("u"));
        controller.listen();
        world.api.take("/snap");
        controller.watches.snapshots.note_deleted("team", "snap");
        work_all(&controller).await;
        if let Some(uid) = now {
            world.api.put(snapshot(uid));
        }
        world.add(&controller.watches.contents, content(more));
        work_all(&controller).await;
        assert_goes(&world, goes, &what);
    }
}

/// The API server went back to a backup, and the cache still has a snapshot from after it.
#[tokio::test]
async fn no_content_goes_with_a_snapshot_that_is_not_deleted_any_more() {
    for (uid, deleted, goes) in [
        ("u", json!(DELETED), true),
        ("u", Value::Null, false),
        // A new one of the same name.
        ("v", json!(DELETED), false),
    ] {
        for more in [json!({}), marks()] {
            let world = World::new(&[]);
            let controller = controller(&world);
            let what = format!("{uid} {deleted} {more}");
            let cached = json!({
                "metadata": {"deletionTimestamp": DELETED, "finalizers": [names::SNAPSHOT_BOUND]},
                "status": {"boundVolumeSnapshotContentName": CONTENT},
            });
            let cached = with(snapshot("u"), cached);
            world.add(&controller.watches.snapshots, cached.clone());
            world.add(&controller.watches.contents, content(more.clone()));
            world.api.take("/snap");
            let now = json!({"metadata": {"uid": uid, "deletionTimestamp": deleted}});
            world.api.put(with(cached, now));
            let worked = controller.work(snapshot_of("snap")).await;
            let left = left(&world).expect("the content");
            let is_deleted = !left["metadata"]["deletionTimestamp"].is_null();
            assert_eq!(is_deleted, goes, "{what}: {worked:?}");
            let is_marked = !left["metadata"]["annotations"].is_null();
            assert_eq!(is_marked, goes || more == marks(), "{what}: {worked:?}");
        }
    }
}

/// The data goes with a content that has the finalizer. Who deletes a content that was made by hand,
/// and that no snapshot is bound to, does not say that the data is unwanted.
#[tokio::test]
async fn a_content_has_the_finalizer_once_a_snapshot_is_bound() {
    let given = json!({"metadata": {"finalizers": null},
        "spec": {"source": {"volumeHandle": null, "snapshotHandle": "s"}}});
    for (uid, expected) in [
        (Value::Null, Value::Null),
        (json!("u"), json!([SINGLE.finalizer])),
    ] {
        let world = World::new(&[]);
        let controller = controller(&world);
        let reference = json!({"spec": {"volumeSnapshotRef": {"uid": uid}}});
        let content = with(content(given.clone()), reference);
        world.add(&controller.watches.contents, content);
        let key = SnapshotKey::Content(ObjectKey::new(Some("team"), CONTENT));
        assert_eq!(controller.work(key).await, Outcome::Done);
        let left = left(&world).expect("the content");
        assert_eq!(left["metadata"]["finalizers"], expected, "{uid}");
    }
}

/// Contents can be copied from another cluster, where their snapshots are.
#[tokio::test]
async fn a_content_without_a_snapshot_stays_unless_it_is_marked() {
    for (more, goes) in [(json!({}), false), (marks(), true)] {
        let world = World::new(&[]);
        let controller = controller(&world);
        world.add(&controller.watches.contents, content(more));
        let key = || SnapshotKey::Content(ObjectKey::new(Some("team"), CONTENT));
        assert_eq!(controller.work(key()).await, Outcome::Done);
        let deleted = left(&world).is_none_or(|it| !it["metadata"]["deletionTimestamp"].is_null());
        assert_eq!(deleted, goes);
    }
}

/// No controller saw the snapshot: the content was made from a cache after the API server had gone back
/// to a backup without it.
#[tokio::test]
async fn a_deleted_content_that_loses_no_data_waits_for_no_snapshot() {
    let kept = with(going(), retained());
    let taken = json!({"status": {"snapshotHandle": "s"}});
    let begun = json!({"metadata": {"annotations": {SINGLE.being_created: "yes"}}});
    let given = json!({
        "metadata": {"deletionTimestamp": DELETED},
        "spec": {"deletionPolicy": "Retain",
            "source": {"volumeHandle": null, "snapshotHandle": "s"}},
    });
    for (more, now, is_marked) in [
        (kept.clone(), None, true),
        (given, None, true),
        // A new one of the same name.
        (kept.clone(), Some("v"), true),
        (kept, Some("u"), false),
        (retained(), None, false),
        // No snapshot was begun, so no data goes.
        (going(), None, true),
        (going(), Some("u"), false),
        // Its data would go.
        (with(going(), taken), None, false),
        (with(going(), begun), None, false),
    ] {
        let world = World::new(&[]);
        let controller = controller(&world);
        let what = format!("{more} {now:?}");
        world.add(&controller.watches.contents, content(more));
        if let Some(uid) = now {
            world.api.put(snapshot(uid));
        }
        let key = SnapshotKey::Content(ObjectKey::new(Some("team"), CONTENT));
        assert_eq!(controller.work(key).await, Outcome::Done, "{what}");
        let left = left(&world).expect("the content");
        let mark = &left["metadata"]["annotations"][SINGLE.being_deleted];
        assert_eq!(!mark.is_null(), is_marked, "{what}: {left}");
    }
}

#[tokio::test]
async fn a_deleted_content_that_keeps_its_data_waits_for_no_group() {
    let world = World::new(&[]);
    let controller = controller(&world);
    let name = names::group_content_name("g");
    let content = json!({
        "apiVersion": format!("{GROUP_SNAPSHOT_GROUP}/v1"), "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": name, "finalizers": [GROUP.finalizer]},
        "spec": {
            "volumeGroupSnapshotRef": {"namespace": "team", "name": "group", "uid": "g"},
            "deletionPolicy": "Retain", "driver": "csi.example",
            "source": {"volumeHandles": ["vol-1"]},
        },
    });
    world.add(&controller.watches.group_contents, with(content, going()));
    let key = SnapshotKey::GroupContent(ObjectKey::new(Some("team"), &name));
    assert_eq!(controller.work(key).await, Outcome::Done);
    let left = world
        .api
        .get(&format!("volumegroupsnapshotcontents/{name}"));
    let left = left.expect("the content");
    assert_eq!(
        left["metadata"]["annotations"],
        json!({GROUP.being_deleted: "yes"})
    );
}

/// A content that was made by hand can be a copy from another cluster. Its data would go.
#[tokio::test]
async fn a_deleted_content_of_a_given_snapshot_gets_no_mark_without_a_snapshot() {
    for (source, is_marked) in [
        (json!({"volumeHandle": "vol-1"}), true),
        (json!({"volumeHandle": null, "snapshotHandle": "s"}), false),
    ] {
        let world = World::new(&[]);
        let controller = controller(&world);
        let what = source.to_string();
        let content = with(content(going()), json!({"spec": {"source": source}}));
        world.add(&controller.watches.contents, content);
        // This process saw the snapshot go.
        let key = SnapshotKey::Orphan(ObjectKey::new(Some("team"), CONTENT), "u".to_owned());
        assert_eq!(controller.work(key).await, Outcome::Done, "{what}");
        let left = left(&world).expect("the content");
        let annotations = &left["metadata"]["annotations"];
        assert_eq!(!annotations.is_null(), is_marked, "{what}: {left}");
    }
}

/// Without an answer, and without the kind, nothing shows that the snapshot does not exist.
#[tokio::test]
async fn no_content_goes_while_the_snapshots_cannot_be_read() {
    for code in [403, 404, 500] {
        let world = World::new(&[]);
        let controller = controller(&world);
        world.add(&controller.watches.contents, content(marks()));
        world.api.hide("volumesnapshots", code);
        for key in [
            SnapshotKey::Content(ObjectKey::new(Some("team"), CONTENT)),
            SnapshotKey::Orphan(ObjectKey::new(Some("team"), CONTENT), "u".to_owned()),
        ] {
            assert_eq!(controller.work(key).await, Outcome::Failed, "{code}");
        }
        let kept = left(&world).expect("the content");
        assert!(kept["metadata"]["deletionTimestamp"].is_null(), "{code}");
    }
}

#[tokio::test]
async fn a_content_goes_with_a_group_that_was_seen() {
    let world = World::new(&[]);
    let controller = controller(&world);
    group_with_a_member(&world, &controller);
    world.api.take("/group");
    let content = names::group_content_name("g");
    let key = SnapshotKey::GroupOrphan(ObjectKey::new(Some("team"), &content), "g".to_owned());
    assert_eq!(controller.work(key).await, Outcome::Done);
    let left = world
        .api
        .get(&format!("volumegroupsnapshotcontents/{content}"));
    assert!(left.is_none_or(|it| !it["metadata"]["deletionTimestamp"].is_null()));
}

/// A user makes a snapshot too large for the caches, and deletes it.
#[tokio::test]
async fn a_snapshot_that_is_too_large_is_let_go() {
    for (deleted, goes) in [(json!(DELETED), true), (Value::Null, false)] {
        let world = World::new(&[]);
        let controller = controller(&world);
        let finalizers = ["x/other", names::SNAPSHOT_BOUND, names::SNAPSHOT_AS_SOURCE];
        let large = json!({
            "metadata": {"deletionTimestamp": deleted, "finalizers": finalizers},
            "spec": {"volumeSnapshotClassName": "x".repeat(1 << 15)},
        });
        world.api.put(with(snapshot("u"), large));
        controller.watches.snapshots.note_left_out("team", "snap");
        world.add(&controller.watches.contents, content(json!({})));
        controller.queue_all::<Snapshots>().await;
        assert!(controller.queue.ready_keys().contains(&snapshot_of("snap")));
        assert_eq!(controller.work(snapshot_of("snap")).await, Outcome::Done);
        let kept = &world.api.get("volumesnapshots/snap").expect("it")["metadata"]["finalizers"];
        assert_eq!(*kept == json!(["x/other"]), goes, "{kept}");
        assert_eq!(controller.gone.has("u"), goes);
        world.api.take("/snap");
        work_all(&controller).await;
        let is_kept = left(&world).is_some_and(|it| it["metadata"]["deletionTimestamp"].is_null());
        assert_eq!(is_kept, !goes);
    }
}

/// Where not all names are known, the caches may leave out whatever they do not have.
#[tokio::test]
async fn the_members_of_a_group_that_is_gone_are_queued_though_it_may_be_left_out() {
    let world = World::new(&[]);
    let controller = controller(&world);
    let of_group = json!({"status": {"volumeGroupSnapshotName": "group"}});
    world.add(&controller.watches.snapshots, with(snapshot("u"), of_group));
    controller.watches.groups.note_left_out("team", "group");
    assert_eq!(controller.work(group_key()).await, Outcome::Done);
    assert_eq!(controller.queue.ready_keys(), [snapshot_of("snap")]);
}

/// Other users may use up the room for a source while it is read.
#[tokio::test]
async fn a_source_that_is_left_out_stays_while_it_is_read() {
    let world = World::new(&[]);
    let controller = controller(&world);
    let finalizers = [names::SNAPSHOT_AS_SOURCE];
    let deleted = json!({"metadata": {"deletionTimestamp": DELETED, "finalizers": finalizers}});
    world.api.put(with(snapshot("u"), deleted));
    controller.watches.snapshots.note_left_out("team", "snap");
    world.add(&controller.watches.claims, restored_claim(1));
    assert_eq!(controller.work(snapshot_of("snap")).await, Outcome::Done);

    let deleted = json!({"metadata": {"deletionTimestamp": DELETED}});
    world.api.put(with(protected_claim(), deleted));
    controller.watches.claims.note_left_out("team", "data");
    let untaken = json!({"metadata": {"name": "other"}, "status": null});
    world.add(&controller.watches.snapshots, with(snapshot("v"), untaken));
    let key = SnapshotKey::Release("team".to_owned(), "data".to_owned());
    assert_eq!(controller.work(key).await, Outcome::Done);
    for (path, finalizer) in [
        ("volumesnapshots/snap", names::SNAPSHOT_AS_SOURCE),
        ("persistentvolumeclaims/data", names::CLAIM_AS_SOURCE),
    ] {
        let left = &world.api.get(path).expect("it")["metadata"]["finalizers"];
        let mut left = left.as_array().expect("a list").iter();
        assert!(left.any(|one| *one == finalizer), "{path}");
    }
}

#[tokio::test]
async fn a_claim_that_is_too_large_is_let_go() {
    let world = World::new(&[]);
    let controller = controller(&world);
    let large = json!({
        "metadata": {"deletionTimestamp": DELETED, "labels": {"a": "x".repeat(1 << 15)}},
    });
    world.api.put(with(protected_claim(), large));
    controller.watches.claims.note_left_out("team", "data");
    let claim = released(&world, &controller).await;
    assert_eq!(claim["metadata"]["finalizers"], json!(["x/other"]));
    assert!(claim["metadata"]["labels"]["a"].is_string());
}
