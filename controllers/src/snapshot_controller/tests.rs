//! Reconciles single keys against an in-memory API server.

use serde_json::{Value, json};

use super::*;
use crate::api::constants::{GROUP_SNAPSHOT_GROUP, SNAPSHOT_GROUP};
use crate::testing::{World, options};

mod groups;
mod orphans;

const DELETED: &str = "2026-01-01T00:00:00Z";

fn controller(world: &World) -> SnapshotController {
    let context = world.context.clone();
    // Groups are reconciled only after they have been listed.
    context.caches.groups().note_synced();
    context.caches.group_contents().note_synced();
    context.caches.group_classes().note_synced();
    SnapshotController {
        kube: context.kube.clone(),
        watches: Watches::new(context.caches.clone(), false),
        metrics: Metrics::default(),
        gone: GoneSnapshots::default(),
        queue: Queue::new(context.common.backoff()),
        context,
    }
}

/// Releases the claim. Returns it as it is then.
async fn released(world: &World, controller: &SnapshotController) -> Value {
    let key = SnapshotKey::Release("team".to_owned(), "data".to_owned());
    assert_eq!(controller.work(key).await, Outcome::Done);
    let claim = world.api.get("persistentvolumeclaims/data");
    claim.expect("the claim")
}

fn protected_claim() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "team",
            "finalizers": ["x/other", names::CLAIM_AS_SOURCE]},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
    })
}

fn deleted_snapshot(name: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": "team", "deletionTimestamp": DELETED,
            "finalizers": [names::SNAPSHOT_AS_SOURCE, names::SNAPSHOT_BOUND]},
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
    })
}

fn snapshot_of(name: &str) -> SnapshotKey {
    SnapshotKey::Snapshot("team".to_owned(), name.to_owned())
}

#[tokio::test]
async fn a_claim_stays_protected_for_another_snapshot() {
    let world = World::new(&[]);
    let controller = controller(&world);
    world.add(&controller.watches.claims, protected_claim());
    world.add(&controller.watches.snapshots, deleted_snapshot("snap"));
    let mut other = deleted_snapshot("other");
    other["metadata"]["deletionTimestamp"] = Value::Null;
    world.add(&controller.watches.snapshots, other);
    assert_eq!(
        controller.work(snapshot_of("snap")).await,
        Outcome::RequeueAfter(CONFLICT)
    );
    assert_eq!(world.api.writes(), ["snap"]);
    assert_eq!(world.api.get("volumesnapshots/snap"), None);
}

/// The snapshot was deleted while there was no leader.
#[tokio::test(start_paused = true)]
async fn a_leftover_protection_is_found() {
    let world = World::new(&[]);
    let controller = controller(&world);
    world.add(&controller.watches.claims, protected_claim());
    let options = options::<Options>();
    let resync = controller.resync(&options);
    assert!(
        tokio::time::timeout(Duration::from_secs(1), resync)
            .await
            .is_err(),
        "it goes on"
    );
    assert_eq!(controller.queue.depth(), 1);
    let claim = released(&world, &controller).await;
    assert_eq!(claim["metadata"]["finalizers"], json!(["x/other"]));
}

#[tokio::test]
async fn a_write_to_what_is_gone_is_retried_ever_more_rarely() {
    let world = World::new(&[]);
    let controller = controller(&world);
    world.add(&controller.watches.snapshots, deleted_snapshot("snap"));
    world.api.take("/snap");
    assert_eq!(controller.work(snapshot_of("snap")).await, Outcome::Failed);
    // After a conflict the object is read again soon.
    world.add(&controller.watches.snapshots, deleted_snapshot("snap"));
    world.api.refuse("/snap", 409);
    assert_eq!(
        controller.work(snapshot_of("snap")).await,
        Outcome::RequeueAfter(CONFLICT)
    );
}

/// Adds a group with one member, which only lacks the handle of its group.
fn group_with_a_member(world: &World, controller: &SnapshotController) {
    let (member, content) = names::member_names("g", "vol-1");
    let (api, group_api) = (SNAPSHOT_GROUP, GROUP_SNAPSHOT_GROUP);
    world.add(
        &controller.watches.groups,
        json!({
            "apiVersion": format!("{group_api}/v1"), "kind": "VolumeGroupSnapshot",
            "metadata": {"name": "group", "namespace": "team", "uid": "g",
                "finalizers": [names::GROUP_BOUND]},
            "spec": {"source": {"selector": {}}},
        }),
    );
    world.add(
        &controller.watches.group_contents,
        json!({
            "apiVersion": format!("{group_api}/v1"), "kind": "VolumeGroupSnapshotContent",
            "metadata": {"name": names::group_content_name("g")},
            "spec": {
                "volumeGroupSnapshotRef": {"namespace": "team", "name": "group", "uid": "g"},
                "deletionPolicy": "Delete", "driver": "csi.example",
                "source": {"volumeHandles": ["vol-1"]},
            },
            "status": {
                "volumeGroupSnapshotHandle": "group-1", "readyToUse": true,
                "volumeSnapshotInfoList": [
                    {"volumeHandle": "vol-1", "snapshotHandle": "snap-1", "readyToUse": true},
                ],
            },
        }),
    );
    world.add(
        &controller.watches.snapshots,
        json!({
            "apiVersion": format!("{api}/v1"), "kind": "VolumeSnapshot",
            "metadata": {"name": member, "namespace": "team", "uid": "m"},
            "spec": {"source": {"persistentVolumeClaimName": "data"}},
        }),
    );
    world.add(
        &controller.watches.contents,
        json!({
            "apiVersion": format!("{api}/v1"), "kind": "VolumeSnapshotContent",
            "metadata": {"name": content},
            "spec": {
                "volumeSnapshotRef": {"namespace": "team", "name": member, "uid": "m"},
                "deletionPolicy": "Delete", "driver": "csi.example",
                "source": {"volumeHandle": "vol-1"},
            },
        }),
    );
}

fn group_key() -> SnapshotKey {
    SnapshotKey::Group("team".to_owned(), "group".to_owned())
}

#[tokio::test]
async fn a_definition_without_a_field_is_reported() {
    let mut world = World::new(&[]);
    let controller = controller(&world);
    group_with_a_member(&world, &controller);
    let field = "volumeGroupSnapshotHandle";
    world.api.undefine("volumesnapshotcontents", field);
    assert_eq!(controller.work(group_key()).await, Outcome::Failed);
    // The first write changes what it can. The second changes nothing, and the third reports that.
    let writes = world.api.writes();
    assert_eq!(writes.len(), 3, "{writes:#?}");
    let problem = "update the CustomResourceDefinition";
    assert_eq!(writes[2], "group/status");
    let group = world
        .api
        .get("volumegroupsnapshots/group")
        .expect("the group");
    let message = group["status"]["error"]["message"]
        .as_str()
        .expect("a message");
    assert!(message.contains(problem), "{message}");
    let events = world.events();
    assert!(events[0].contains(problem), "{events:#?}");
    // The problem is already reported.
    assert_eq!(controller.work(group_key()).await, Outcome::Failed);
    assert_eq!(world.api.writes().len(), 1);
}

/// The classes of the controller are those of the components `snapshot-class` and
/// `group-snapshot-class`, with the controller's name and driver.
#[tokio::test]
async fn missing_classes_are_created_and_existing_ones_stay() {
    let class = include_str!("../../../deploy/components/snapshot-class/class.yaml");
    let group = include_str!("../../../deploy/components/group-snapshot-class/class.yaml");
    for (kept, text) in [
        ("volumegroupsnapshotclasses", class),
        ("volumesnapshotclasses", group),
    ] {
        let world = World::new(&[]);
        let mut existing: Value = json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotClass",
            "metadata": {"name": "fast"}, "driver": "other", "deletionPolicy": "Retain",
        });
        if kept == "volumesnapshotclasses" {
            existing["apiVersion"] = json!("snapshot.storage.k8s.io/v1");
            existing["kind"] = json!("VolumeSnapshotClass");
        }
        world.api.put(existing);
        for _ in 0..2 {
            ensure_classes(&world.context.kube, "fast", "csi.example")
                .await
                .unwrap();
        }
        assert_eq!(world.api.all(kept)[0]["driver"], "other");
        let mut made: Vec<Value> = ["volumesnapshotclasses", "volumegroupsnapshotclasses"]
            .into_iter()
            .filter(|plural| *plural != kept)
            .flat_map(|plural| world.api.all(plural))
            .collect();
        let metadata = made[0]["metadata"].as_object_mut().unwrap();
        for of_the_server in ["uid", "resourceVersion", "creationTimestamp", "generation"] {
            metadata.remove(of_the_server).unwrap();
        }
        let mut expected: Value = serde_saphyr::from_str(text).unwrap();
        expected["metadata"]["name"] = json!("fast");
        expected["driver"] = json!("csi.example");
        assert_eq!(made, [expected]);
    }
}

/// A claim that is restored from `snap`, created in this second.
fn restored_claim(second: u8) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "copy", "namespace": "team",
            "creationTimestamp": format!("2026-01-01T00:00:0{second}Z")},
        "spec": {"dataSource":
            {"apiGroup": SNAPSHOT_GROUP, "kind": "VolumeSnapshot", "name": "snap"}},
        "status": {"phase": "Pending"},
    })
}

/// The snapshot is deleted in second 5. A claim that came later must not keep it: the provisioner
/// does not restore from it, so neither would ever end.
#[tokio::test]
async fn a_deleted_snapshot_waits_only_for_claims_that_came_before() {
    use crate::api::constants::SNAPSHOT_FINALIZER;
    let (ready, not) = (json!({"readyToUse": true}), json!({"readyToUse": false}));
    for (created, status, is_read, kept) in [
        (4, &ready, false, true),
        (5, &ready, false, true),
        (6, &ready, false, false),
        // A provisioner reads it now.
        (6, &ready, true, true),
        (4, &not, true, true),
        // No claim can be restored from it, and it does not become ready any more.
        (4, &not, false, false),
    ] {
        let mut world = World::new(&[]);
        let controller = controller(&world);
        let mut snapshot = deleted_snapshot("snap");
        snapshot["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:05Z");
        snapshot["metadata"]["uid"] = json!("u");
        snapshot["status"] = status.clone();
        if is_read {
            let finalizers = snapshot["metadata"]["finalizers"]
                .as_array_mut()
                .expect("a list");
            finalizers.push(json!(SNAPSHOT_FINALIZER));
        }
        world.add(&controller.watches.snapshots, snapshot);
        world.add(
            &controller.watches.contents,
            json!({
                "apiVersion": format!("{SNAPSHOT_GROUP}/v1"), "kind": "VolumeSnapshotContent",
                "metadata": {"name": "snapcontent-u"},
                "spec": {
                    "volumeSnapshotRef": {"namespace": "team", "name": "snap", "uid": "u"},
                    "deletionPolicy": "Delete", "driver": "csi.example",
                    "source": {"volumeHandle": "vol-1"},
                },
            }),
        );
        world.add(&controller.watches.claims, restored_claim(created));
        let worked = controller.work(snapshot_of("snap")).await;
        let what = format!("{created} {status} {is_read}: {worked:?}");
        let event = world.events().pop().unwrap_or_default();
        assert_eq!(
            event.contains("being restored from this snapshot: copy"),
            kept,
            "{what}"
        );
        let content = world.api.get("volumesnapshotcontents/snapcontent-u");
        assert_eq!(content.is_some(), kept, "{what}");
    }
}

/// A claim is deleted, and one of its snapshots names a class that does not exist.
#[tokio::test]
async fn a_broken_snapshot_keeps_no_claim() {
    let broken = json!({"status": {"error": {"message": "there is no VolumeSnapshotClass x"}}});
    for (change, kept) in [(json!({}), true), (broken, false)] {
        let mut world = World::new(&[]);
        let controller = controller(&world);
        let mut claim = protected_claim();
        claim["metadata"]["deletionTimestamp"] = json!(DELETED);
        world.add(&controller.watches.claims, claim);
        let mut other = deleted_snapshot("other");
        other["metadata"]["deletionTimestamp"] = Value::Null;
        world.add(
            &controller.watches.snapshots,
            crate::testing::with(other, change),
        );
        let claim = released(&world, &controller).await;
        let finalizers = claim["metadata"]["finalizers"]
            .as_array()
            .expect("a list")
            .len();
        assert_eq!(finalizers == 2, kept, "{claim}");
        let reported = world
            .events()
            .iter()
            .any(|event| event.contains("are taken: other."));
        assert_eq!(reported, kept);
    }
}
