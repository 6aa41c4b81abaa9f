//! Builds merge patches for the status of contents.

use hostloop_proto::csi;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::message;
use crate::snapshots::{
    SnapshotError, VolumeGroupSnapshotContentStatus, VolumeSnapshotContentStatus,
};

/// The changes in the driver's report of a snapshot; `None` without changes. Known values stay,
/// except readiness.
pub(super) fn of_snapshot(
    old: Option<&VolumeSnapshotContentStatus>,
    reported: &csi::Snapshot,
) -> Option<Value> {
    let none = VolumeSnapshotContentStatus::default();
    let old = old.unwrap_or(&none);
    let mut new = json!({});
    if old.snapshot_handle.is_none() {
        new["snapshotHandle"] = json!(reported.snapshot_id);
    }
    if old.creation_time.is_none() {
        let taken = nanoseconds(reported.creation_time.map(|at| (at.seconds, at.nanos)));
        new["creationTime"] = json!(taken);
    }
    if old.restore_size.is_none() && reported.size_bytes > 0 {
        new["restoreSize"] = json!(reported.size_bytes);
    }
    let group = &reported.group_snapshot_id;
    if old.volume_group_snapshot_handle.is_none() && !group.is_empty() {
        new["volumeGroupSnapshotHandle"] = json!(group);
    }
    readiness(
        old.ready_to_use,
        old.error.as_ref(),
        reported.ready_to_use,
        &mut new,
    );
    (new != json!({})).then_some(new)
}

/// The changes in the driver's report of a group snapshot. Its members are written once; `members`
/// is empty if another process writes them.
pub(super) fn of_group(
    old: Option<&VolumeGroupSnapshotContentStatus>,
    reported: &csi::VolumeGroupSnapshot,
    members: &[csi::Snapshot],
) -> Option<Value> {
    let none = VolumeGroupSnapshotContentStatus::default();
    let old = old.unwrap_or(&none);
    let mut new = json!({});
    if old.volume_group_snapshot_handle.is_none() {
        new["volumeGroupSnapshotHandle"] = json!(reported.group_snapshot_id);
    }
    if old.creation_time.is_none() {
        let taken = nanoseconds(reported.creation_time.map(|at| (at.seconds, at.nanos)));
        let taken = Timestamp::from_nanosecond(i128::from(taken)).unwrap_or_default();
        new["creationTime"] = json!(Time(taken));
    }
    let known = old.volume_snapshot_info_list.as_deref().unwrap_or_default();
    if known.is_empty() && !members.is_empty() {
        new["volumeSnapshotInfoList"] = members.iter().map(member).collect();
    }
    readiness(
        old.ready_to_use,
        old.error.as_ref(),
        reported.ready_to_use,
        &mut new,
    );
    (new != json!({})).then_some(new)
}

/// An error and `readyToUse: false`; `None` if the status already has an error with this message.
pub(crate) fn of_failure(
    old: Option<&SnapshotError>,
    message: &str,
    now: Timestamp,
) -> Option<Value> {
    let message = message::cut(message, message::MAX_STATUS);
    if old.and_then(|old| old.message.as_deref()) == Some(message.as_str()) {
        return None;
    }
    Some(json!({
        "readyToUse": false,
        "error": {"time": Time(now), "message": message},
    }))
}

/// Clears the fields that do not apply after the snapshot is deleted.
pub(super) fn cleared_single() -> Value {
    json!({"snapshotHandle": null, "readyToUse": null, "creationTime": null, "restoreSize": null})
}

/// Clears the fields that do not apply after the group snapshot is deleted.
pub(super) fn cleared_group() -> Value {
    json!({
        "volumeGroupSnapshotHandle": null, "readyToUse": null, "creationTime": null, "error": null,
    })
}

fn readiness(old: Option<bool>, error: Option<&SnapshotError>, ready: bool, new: &mut Value) {
    if old != Some(ready) {
        new["readyToUse"] = json!(ready);
        if ready && error.is_some() {
            new["error"] = Value::Null;
        }
    }
}

fn member(reported: &csi::Snapshot) -> Value {
    let mut info = json!({
        "volumeHandle": reported.source_volume_id, "snapshotHandle": reported.snapshot_id,
        "readyToUse": reported.ready_to_use,
    });
    if let Some(at) = &reported.creation_time {
        info["creationTime"] = json!(nanoseconds(Some((at.seconds, at.nanos))));
    }
    if reported.size_bytes > 0 {
        info["restoreSize"] = json!(reported.size_bytes);
    }
    info
}

/// Nanoseconds since 1970. Without a time from the driver this is 0, as in other implementations.
fn nanoseconds(at: Option<(i64, i32)>) -> i64 {
    let (seconds, nanos) = at.unwrap_or_default();
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(i64::from(nanos))
}

#[cfg(test)]
mod tests;
