use serde_json::json;

use super::*;
use crate::testing::read;

const TIME: Option<&str> = Some("2026-01-01T00:00:00Z");
const FINALIZER: Option<&str> = Some(CLONE_FINALIZER);
const SNAPSHOT: &str = "VolumeSnapshot";
const CLAIM: &str = "PersistentVolumeClaim";

/// A claim with a source of this kind.
fn copy(kind: &str, phase: &str) -> Arc<PersistentVolumeClaim> {
    let group = (kind == SNAPSHOT).then_some("snapshot.storage.k8s.io");
    Arc::new(read(json!({
        "metadata": {"name": "copy", "namespace": "ns"},
        "spec": {"dataSourceRef": {"apiGroup": group, "kind": kind, "name": "source"}},
        "status": {"phase": phase},
    })))
}

/// A claim that may be a source.
fn source(deleted: Option<&str>, finalizer: Option<&str>) -> PersistentVolumeClaim {
    let finalizers: Vec<_> = finalizer.into_iter().collect();
    read(json!({"metadata": {"name": "source", "namespace": "ns",
        "deletionTimestamp": deleted, "finalizers": finalizers}}))
}

#[test]
fn a_pending_claim_waits_for_its_source() {
    assert_eq!(awaited(&copy(SNAPSHOT, "Pending")), ["snapshot/ns/source"]);
    assert_eq!(awaited(&copy(CLAIM, "Pending")), ["claim/ns/source"]);
    assert!(awaited(&copy(CLAIM, "Bound")).is_empty());
    assert!(awaited(&source(None, None)).is_empty());
}

#[test]
fn changes_touch_sources() {
    let key = ("ns".to_owned(), "source".to_owned());
    assert!(touched(&copy(CLAIM, "Bound")).contains(&key));
    assert_eq!(touched(&source(TIME, FINALIZER)), [key]);
}

#[test]
fn a_source_is_kept_while_a_claim_waits() {
    for (deleted, finalizer, awaited, idle) in [
        (TIME, FINALIZER, false, true),
        (TIME, FINALIZER, true, false),
        (None, FINALIZER, false, false),
        (TIME, None, false, false),
    ] {
        let source = source(deleted, finalizer);
        assert_eq!(is_idle(&source, awaited), idle, "{source:?} {awaited}");
    }
}

#[test]
fn a_snapshot_is_checked_when_a_claim_stops_waiting() {
    let applied = |new| Change::Applied { old: None, new };
    let key = Some(("ns".to_owned(), "source".to_owned()));
    for (change, expected) in [
        (applied(copy(SNAPSHOT, "Pending")), None),
        (applied(copy(SNAPSHOT, "Bound")), key.clone()),
        (Change::Deleted(copy(SNAPSHOT, "Pending")), key),
        (applied(copy(CLAIM, "Bound")), None),
    ] {
        assert_eq!(left(&change), expected, "{change:?}");
    }
}

/// Looks at the sources of both kinds, and returns how many finalizers each of them has then.
async fn finalizers_left(protection: &Protection, world: &crate::testing::World) -> [usize; 2] {
    let source = ("ns".to_owned(), "source".to_owned());
    assert_eq!(protection.restored(&source).await, Outcome::Done);
    assert_eq!(protection.cloned("ns", "source").await, Outcome::Done);
    ["volumesnapshots/source", "persistentvolumeclaims/source"].map(|path| {
        let source = world.api.get(path).expect("it has another finalizer");
        let finalizers = source["metadata"]["finalizers"].as_array();
        finalizers.expect("a list").len()
    })
}

/// A source is deleted in second 5. A claim that came later does not get it, so it must not keep
/// it either.
#[tokio::test]
async fn a_deleted_source_waits_only_for_claims_that_came_before() {
    use ControllerCapability::{CloneVolume, CreateDeleteSnapshot};
    for (created, expected) in [(4, 2), (5, 2), (6, 1)] {
        let world = crate::testing::World::new(&[CreateDeleteSnapshot, CloneVolume]);
        let context = world.context.clone();
        let protection = Protection::new(context.clone(), crate::testing::options());
        let caches = &context.caches;
        let deleted = |object, finalizer: &str| {
            let change = json!({"metadata": {"name": "source", "namespace": "ns",
                "deletionTimestamp": "2026-01-01T00:00:05Z", "finalizers": ["x/y", finalizer]}});
            crate::testing::with(object, change)
        };
        let snapshot = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": SNAPSHOT,
            "spec": {"source": {}}, "status": {"readyToUse": true}});
        world.add(&caches.snapshots(), deleted(snapshot, SNAPSHOT_FINALIZER));
        let claim = json!({"apiVersion": "v1", "kind": CLAIM, "status": {"phase": "Bound"}});
        world.add(&caches.claims(), deleted(claim, CLONE_FINALIZER));
        for kind in [SNAPSHOT, CLAIM] {
            let mut copy = (*copy(kind, "Pending")).clone();
            copy.metadata.name = Some(format!("of-{kind}"));
            let created = json!(format!("2026-01-01T00:00:0{created}Z"));
            copy.metadata.creation_timestamp = Some(read(created));
            caches.claims().apply_write(copy);
        }
        let left = finalizers_left(&protection, &world).await;
        assert_eq!(left, [expected; 2], "{created}");
    }
}

/// The caches have no room for a source, and a user deletes it. A claim may still wait for it.
#[tokio::test]
async fn a_source_that_is_left_out_is_let_go() {
    use ControllerCapability::{CloneVolume, CreateDeleteSnapshot};
    for (deleted, awaited, expected) in [(TIME, false, 1), (None, false, 2), (TIME, true, 2)] {
        let world = crate::testing::World::new(&[CreateDeleteSnapshot, CloneVolume]);
        let context = world.context.clone();
        let protection = Protection::new(context.clone(), crate::testing::options());
        let large = |kind: &str, version: &str, finalizer: &str| {
            let labels = json!({"a": "x".repeat(1 << 15)});
            world.api.put(
                json!({"apiVersion": version, "kind": kind, "spec": {"source": {}},
                "metadata": {"name": "source", "namespace": "ns", "labels": labels,
                    "deletionTimestamp": deleted, "finalizers": ["x/y", finalizer]}}),
            );
        };
        large(SNAPSHOT, "snapshot.storage.k8s.io/v1", SNAPSHOT_FINALIZER);
        large(CLAIM, "v1", CLONE_FINALIZER);
        context.caches.snapshots().note_left_out("ns", "source");
        context.caches.claims().note_left_out("ns", "source");
        for kind in [SNAPSHOT, CLAIM].iter().filter(|_| awaited) {
            let mut copy = (*copy(kind, "Pending")).clone();
            copy.metadata.name = Some(format!("of-{kind}"));
            context.caches.claims().apply_write(copy);
        }
        protection.add_left_over().await;
        let source = ("ns".to_owned(), "source".to_owned());
        assert_eq!(
            protection.snapshots.ready_keys(),
            std::slice::from_ref(&source)
        );
        let left = finalizers_left(&protection, &world).await;
        assert_eq!(left, [expected; 2], "{deleted:?} {awaited}");
    }
}
