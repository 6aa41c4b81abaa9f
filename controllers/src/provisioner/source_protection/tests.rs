use serde_json::{Value, json};

use super::*;

fn claim(value: Value) -> PersistentVolumeClaim {
    serde_json::from_value(value).expect("a claim")
}

fn cloning(phase: &str) -> PersistentVolumeClaim {
    claim(json!({
        "metadata": {"name": "copy", "namespace": "ns"},
        "spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "source"}},
        "status": {"phase": phase},
    }))
}

#[test]
fn what_claims_wait_for() {
    let restoring = claim(json!({
        "metadata": {"name": "copy", "namespace": "ns"},
        "spec": {"dataSourceRef": {
            "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"}},
    }));
    assert_eq!(awaited(&restoring), ["snapshot/ns/snap"]);
    assert_eq!(awaited(&cloning("Pending")), ["claim/ns/source"]);
    assert!(awaited(&cloning("Bound")).is_empty());
    assert!(awaited(&claim(json!({"metadata": {"name": "plain"}}))).is_empty());
}

#[test]
fn changes_touch_sources() {
    let source = ("ns".to_owned(), "source".to_owned());
    assert!(touched(&cloning("Bound")).contains(&source));
    let going = claim(json!({"metadata": {
        "name": "source", "namespace": "ns", "finalizers": [CLONE_FINALIZER],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }}));
    assert_eq!(touched(&going), [source]);
}

#[test]
fn sources_are_kept_until_nobody_waits() {
    let time = "2026-01-01T00:00:00Z";
    for (deleted, finalizer, awaited, idle) in [
        (Some(time), true, false, true),
        (Some(time), true, true, false),
        (None, true, false, false),
        (Some(time), false, false, false),
    ] {
        let finalizers = finalizer.then_some(CLONE_FINALIZER);
        let claim = claim(json!({"metadata": {
            "name": "source", "deletionTimestamp": deleted,
            "finalizers": finalizers.into_iter().collect::<Vec<_>>(),
        }}));
        assert_eq!(is_idle(&claim, awaited), idle);
    }
}

#[test]
fn snapshots_are_looked_at_when_nobody_waits() {
    let restoring = |phase: &str| {
        Arc::new(claim(json!({
            "metadata": {"name": "copy", "namespace": "ns"},
            "spec": {"dataSourceRef": {
                "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"}},
            "status": {"phase": phase},
        })))
    };
    let applied = |new: Arc<PersistentVolumeClaim>| Change::Applied { old: None, new };
    let snap = Some(("ns".to_owned(), "snap".to_owned()));
    for (change, expected) in [
        (applied(restoring("Pending")), None),
        (applied(restoring("Bound")), snap.clone()),
        (Change::Deleted(restoring("Pending")), snap),
        (applied(Arc::new(cloning("Bound"))), None),
    ] {
        assert_eq!(left(&change), expected, "{change:?}");
    }
}
