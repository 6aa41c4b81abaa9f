//! What a snapshot's status says of its content's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::api::quantity;
use crate::snapshots::{
    SnapshotError, VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotContent,
};

/// A change of a status.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StatusChange {
    /// A merge patch of the status.
    pub(super) patch: Value,
    /// It says now that the snapshot has been taken.
    pub(super) taken: bool,
    /// It says now that the snapshot can be restored from.
    pub(super) ready: bool,
}

/// What both kinds of status have, as they are and as they are to be.
struct Common<'a> {
    bound_field: &'static str,
    bound: Option<&'a str>,
    content: String,
    created: Option<&'a Time>,
    content_created: Option<Time>,
    ready: Option<bool>,
    content_ready: Option<bool>,
    error: Option<&'a SnapshotError>,
    content_error: Option<&'a SnapshotError>,
}

/// What a snapshot's status lacks of its content's; `group` is the group it is a member of by its
/// content.
pub(super) fn change(
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
    group: Option<&str>,
) -> Option<StatusChange> {
    let old = snapshot.status.clone().unwrap_or_default();
    let new = content.status.clone().unwrap_or_default();
    let mut fields = Map::new();
    let size = new.restore_size.filter(|size| *size >= 0);
    let no_size = |size: &str| size.is_empty() || size == "0";
    match (old.restore_size.as_deref(), size) {
        (None, Some(size)) => set(&mut fields, "restoreSize", json!(quantity::written(size))),
        (Some(known), Some(size)) if no_size(known) && size > 0 => {
            set(&mut fields, "restoreSize", json!(quantity::written(size)));
        }
        _ => {}
    }
    if old.volume_group_snapshot_name.is_none()
        && let Some(group) = group
    {
        set(&mut fields, "volumeGroupSnapshotName", json!(group));
    }
    let common = Common {
        bound_field: "boundVolumeSnapshotContentName",
        bound: old.bound_volume_snapshot_content_name.as_deref(),
        content: content.metadata.name.clone().unwrap_or_default(),
        created: old.creation_time.as_ref(),
        content_created: new.creation_time.and_then(time),
        ready: old.ready_to_use,
        content_ready: new.ready_to_use,
        error: old.error.as_ref(),
        content_error: new.error.as_ref(),
    };
    common.change(fields)
}

/// What a group's status lacks of its content's.
pub(super) fn group_change(
    group: &VolumeGroupSnapshot,
    content: &VolumeGroupSnapshotContent,
) -> Option<StatusChange> {
    let old = group.status.clone().unwrap_or_default();
    let new = content.status.clone().unwrap_or_default();
    let common = Common {
        bound_field: "boundVolumeGroupSnapshotContentName",
        bound: old.bound_volume_group_snapshot_content_name.as_deref(),
        content: content.metadata.name.clone().unwrap_or_default(),
        created: old.creation_time.as_ref(),
        content_created: new.creation_time,
        ready: old.ready_to_use,
        content_ready: new.ready_to_use,
        error: old.error.as_ref(),
        content_error: new.error.as_ref(),
    };
    common.change(Map::new())
}

impl Common<'_> {
    fn change(self, mut fields: Map<String, Value>) -> Option<StatusChange> {
        if self.bound.is_none_or(str::is_empty) {
            set(&mut fields, self.bound_field, json!(self.content));
        }
        let taken = self.created.is_none() && self.content_created.is_some();
        if taken {
            set(&mut fields, "creationTime", json!(self.content_created));
        }
        let ready = self.content_ready.unwrap_or(false);
        if self.ready != Some(ready) {
            set(&mut fields, "readyToUse", json!(ready));
        }
        // Compared as it is written: times there have no fractions.
        let (error, content_error) = (json!(self.error), json!(self.content_error));
        if error != content_error {
            set(&mut fields, "error", content_error);
        }
        (!fields.is_empty()).then(|| StatusChange {
            patch: Value::Object(fields),
            taken,
            ready: ready && self.ready != Some(true),
        })
    }
}

fn set(fields: &mut Map<String, Value>, name: &str, value: Value) {
    fields.insert(name.to_owned(), value);
}

/// Nanoseconds since 1970 as a time.
fn time(nanoseconds: i64) -> Option<Time> {
    let second = Timestamp::from_second(nanoseconds.div_euclid(1_000_000_000));
    second.ok().map(Time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a snapshot of this status takes from a content of that one.
    fn taken(snapshot: Value, content: Value, group: Option<&str>) -> (Value, bool, bool) {
        let snapshot = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": "s"}, "spec": {"source": {}}, "status": snapshot});
        let content = json!({"apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotContent", "metadata": {"name": "c"},
            "spec": {"source": {}, "volumeSnapshotRef": {}, "deletionPolicy": "Delete",
            "driver": "d"}, "status": content});
        let snapshot = serde_json::from_value(snapshot).unwrap();
        let content = serde_json::from_value(content).unwrap();
        match change(&snapshot, &content, group) {
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
        for (snapshot, content, group, expected) in [
            (
                none.clone(),
                none.clone(),
                None,
                (bound(false), false, false),
            ),
            (none.clone(), whole.clone(), None, (all.clone(), true, true)),
            (
                all.clone(),
                whole.clone(),
                None,
                (none.clone(), false, false),
            ),
            (
                bound(false),
                none.clone(),
                None,
                (none.clone(), false, false),
            ),
            (
                bound(false),
                json!({"error": error, "readyToUse": false}),
                None,
                (json!({"error": error}), false, false),
            ),
            (
                failed.clone(),
                json!({"error": error}),
                None,
                (none.clone(), false, false),
            ),
            (
                failed,
                none.clone(),
                None,
                (json!({"error": null}), false, false),
            ),
            (
                bound(true),
                none.clone(),
                None,
                (json!({"readyToUse": false}), false, false),
            ),
            (
                bound(false),
                none.clone(),
                Some("g"),
                (json!({"volumeGroupSnapshotName": "g"}), false, false),
            ),
            (
                json!({"boundVolumeSnapshotContentName": "c", "readyToUse": false,
                    "restoreSize": "0"}),
                json!({"restoreSize": 5}),
                None,
                (json!({"restoreSize": "5"}), false, false),
            ),
        ] {
            let label = format!("{snapshot} {content}");
            assert_eq!(taken(snapshot, content, group), expected, "{label}");
        }
    }
}
