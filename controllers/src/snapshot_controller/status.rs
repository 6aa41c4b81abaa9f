//! Copies a content's status to its snapshot.

use kube::ResourceExt;
use serde_json::{Map, Value, json};

use super::kind::Kind;
use super::snapshot::Snapshots;
use crate::api::quantity;
use crate::snapshots::content::Content;
use crate::snapshots::{VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotStatus};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct StatusChange {
    /// A merge patch of the status.
    pub(super) patch: Value,
    /// True if the status now shows that the snapshot has been taken.
    pub(super) taken: bool,
    /// True if the status now shows that the snapshot can be restored from.
    pub(super) ready: bool,
}

/// The fields of a content's status that its snapshot lacks. `group` is the content's group, so the
/// snapshot is a member of it.
pub(super) fn of_snapshot(
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
    group: Option<&str>,
) -> Option<StatusChange> {
    let none = VolumeSnapshotStatus::default();
    let old = snapshot.status.as_ref().unwrap_or(&none);
    let mut fields = Map::new();
    let size = content.status.as_ref().and_then(|new| new.restore_size);
    let known = old.restore_size.as_deref();
    let is_unknown = matches!(known, Some("" | "0"));
    if let Some(size) = size.filter(|size| *size >= 0)
        && (known.is_none() || (is_unknown && size > 0))
    {
        set(&mut fields, "restoreSize", json!(quantity::written(size)));
    }
    if old.volume_group_snapshot_name.is_none()
        && let Some(group) = group
    {
        set(&mut fields, "volumeGroupSnapshotName", json!(group));
    }
    change::<Snapshots>(snapshot, content, fields)
}

/// The fields of a content's status that its snapshot lacks, added to `fields`.
pub(super) fn change<K: Kind>(
    snapshot: &K::Snapshot,
    content: &K::Content,
    mut fields: Map<String, Value>,
) -> Option<StatusChange> {
    let (old, new) = (K::view(snapshot), content.view());
    if old.bound.is_none() {
        set(&mut fields, K::NAMES.bound_field, json!(content.name_any()));
    }
    let taken = old.created.is_none() && new.created.is_some();
    if taken {
        set(&mut fields, "creationTime", json!(new.created));
    }
    let ready = new.ready.unwrap_or(false);
    if old.ready != Some(ready) {
        set(&mut fields, "readyToUse", json!(ready));
    }
    // Comparing JSON ignores fractions of seconds, which the API does not store.
    let (error, new_error) = (json!(old.error), json!(new.error));
    if error != new_error {
        set(&mut fields, "error", new_error);
    }
    (!fields.is_empty()).then(|| StatusChange {
        patch: Value::Object(fields),
        taken,
        ready: ready && !old.is_ready(),
    })
}

fn set(fields: &mut Map<String, Value>, name: &str, value: Value) {
    fields.insert(name.to_owned(), value);
}

#[cfg(test)]
mod tests {
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
        match of_snapshot(&snapshot, &content, group) {
            None => (Value::Null, false, false),
            Some(change) => (change.patch, change.taken, change.ready),
        }
    }

    #[test]
    fn statuses() {
        let bound =
            |ready: bool| json!({"boundVolumeSnapshotContentName": "c", "readyToUse": ready});
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
        for (snapshot, content, group, expected) in [
            (none.clone(), none.clone(), None, patch(bound(false))),
            (none.clone(), whole.clone(), None, (all.clone(), true, true)),
            (all, whole, None, nothing.clone()),
            (bound(false), none.clone(), None, nothing.clone()),
            (bound(false), unready, None, patch(with_error.clone())),
            (failed.clone(), with_error, None, nothing),
            (failed, none.clone(), None, patch(json!({"error": null}))),
            (bound(true), none.clone(), None, patch(json!({"readyToUse": false}))),
            (bound(false), none, Some("g"), patch(in_group)),
            (zero, json!({"restoreSize": 5}), None, patch(new_size)),
        ] {
            let label = format!("{snapshot} {content}");
            assert_eq!(taken(snapshot, content, group), expected, "{label}");
        }
    }
}
