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
