//! The status of a snapshot.

use super::*;

/// The changes that a snapshot with this status gets from a content with that status.
fn taken(snapshot: Value, content: Value, group: Option<&str>) -> (Value, bool, bool) {
    let snapshot = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "s"}, "spec": {"source": {}}, "status": snapshot});
    let content = json!({"apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent", "metadata": {"name": "c"},
        "spec": {"source": {}, "volumeSnapshotRef": {}, "deletionPolicy": "Delete",
        "driver": "d"}, "status": content});
    let snapshot = serde_json::from_value(snapshot).unwrap();
    let content = serde_json::from_value(content).unwrap();
    match status_change(&snapshot, &content, group) {
        None => (Value::Null, false, false),
        Some(change) => (change.patch, change.taken, change.ready),
    }
}

#[test]
fn statuses() {
    let bound = |ready: bool| json!({"boundVolumeSnapshotContentName": "c", "readyToUse": ready});
    let error = json!({"time": "2026-01-02T03:04:05Z", "message": "full"});
    let mut failed = bound(false);
    failed["error"] = error.clone();
    let whole = json!({"creationTime": 1_000_000_001_i64, "restoreSize": 1 << 20,
        "readyToUse": true});
    let all = json!({"boundVolumeSnapshotContentName": "c", "readyToUse": true,
        "creationTime": "1970-01-01T00:00:01Z", "restoreSize": "1Mi"});
    let none = Value::Null;
    let nothing = (none.clone(), false, false);
    let patch = |patch: Value| (patch, false, false);
    let with_error = json!({"error": error});
    let unready = json!({"error": error, "readyToUse": false});
    let zero = json!({"boundVolumeSnapshotContentName": "c", "readyToUse": false,
        "restoreSize": "0"});
    let in_group = json!({"volumeGroupSnapshotName": "g"});
    let new_size = json!({"restoreSize": "5"});
    // It is taken again, after the API server went back to a backup.
    let again = json!({"creationTime": 2_000_000_001_i64, "restoreSize": 1 << 21,
        "readyToUse": true});
    let of_now = json!({"creationTime": "1970-01-01T00:00:02Z", "restoreSize": "2Mi"});
    for (snapshot, content, group, expected) in [
        (none.clone(), none.clone(), None, patch(bound(false))),
        (none.clone(), whole.clone(), None, (all.clone(), true, true)),
        (all.clone(), whole, None, nothing.clone()),
        (all, again, None, patch(of_now)),
        (bound(false), none.clone(), None, nothing.clone()),
        (bound(false), unready, None, patch(with_error.clone())),
        (failed.clone(), with_error, None, nothing),
        (failed, none.clone(), None, patch(json!({"error": null}))),
        (
            bound(true),
            none.clone(),
            None,
            patch(json!({"readyToUse": false})),
        ),
        (bound(false), none, Some("g"), patch(in_group)),
        (zero, json!({"restoreSize": 5}), None, patch(new_size)),
    ] {
        let label = format!("{snapshot} {content}");
        assert_eq!(taken(snapshot, content, group), expected, "{label}");
    }
}
