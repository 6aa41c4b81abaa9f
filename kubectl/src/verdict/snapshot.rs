//! Why a snapshot is not ready.

use hostloop_api_objects::snapshots::{
    SnapshotError, VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeSnapshot,
    VolumeSnapshotContent,
};
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;

use crate::events::{self, Warning};
use crate::verdict::{Stuck, is_overdue};
use crate::volume_objects::{created_ns, ns};

/// What snapshots and groups have in common.
struct SnapshotFacts<'a> {
    /// True if a controller has seen the object.
    is_seen: bool,
    is_ready: bool,
    error: Option<&'a SnapshotError>,
    warning: Option<Warning>,
}

/// Why a snapshot does not go on. `None` if it does, or if it is ready.
pub(crate) fn snapshot_stuck(
    snapshot: Option<&VolumeSnapshot>,
    content: Option<&VolumeSnapshotContent>,
    events: &[Event],
    now_ns: u64,
) -> Option<Stuck> {
    let undeleted = content.and_then(|content| deletion_stuck(content, now_ns));
    if undeleted.is_some() {
        return undeleted;
    }
    let status = snapshot.and_then(|snapshot| snapshot.status.as_ref());
    let content_status = content.and_then(|content| content.status.as_ref());
    let is_ready = status.and_then(|status| status.ready_to_use);
    let is_ready = is_ready.or(content_status.and_then(|status| status.ready_to_use));
    let error = status.and_then(|status| status.error.as_ref());
    let facts = SnapshotFacts {
        is_seen: status.is_some(),
        is_ready: is_ready == Some(true),
        error: error.or(content_status.and_then(|status| status.error.as_ref())),
        warning: snapshot.and_then(|snapshot| events::last_warning(events, snapshot, 0)),
    };
    stuck(snapshot, facts, now_ns)
}

/// Why a group of snapshots does not go on. `None` if it does, or if it is ready.
pub(crate) fn group_stuck(
    group: &VolumeGroupSnapshot,
    content: Option<&VolumeGroupSnapshotContent>,
    events: &[Event],
    now_ns: u64,
) -> Option<Stuck> {
    let status = group.status.as_ref();
    let content_status = content.and_then(|content| content.status.as_ref());
    let is_ready = status.and_then(|status| status.ready_to_use);
    let is_ready = is_ready.or(content_status.and_then(|status| status.ready_to_use));
    let error = status.and_then(|status| status.error.as_ref());
    let facts = SnapshotFacts {
        is_seen: status.is_some(),
        is_ready: is_ready == Some(true),
        error: error.or(content_status.and_then(|status| status.error.as_ref())),
        warning: events::last_warning(events, group, 0),
    };
    stuck(Some(group), facts, now_ns)
}

fn stuck(
    object: Option<&impl ResourceExt>,
    facts: SnapshotFacts<'_>,
    now_ns: u64,
) -> Option<Stuck> {
    let undeleted = object.and_then(|object| deletion_stuck(object, now_ns));
    if undeleted.is_some() {
        return undeleted;
    }
    if facts.is_ready {
        return None;
    }
    if let Some(error) = facts.error {
        let why = error.message.as_deref().unwrap_or("no reason is given");
        return Some(Stuck::new(why, error.time.as_ref().map(ns)));
    }
    if let Some(warning) = facts.warning {
        return Some(warning.into());
    }
    let since = created_ns(object?);
    let why = if facts.is_seen {
        "not taken yet, and no event says why; see the log of hostloop's pods"
    } else {
        "not taken yet; does a snapshot controller run in the cluster?"
    };
    is_overdue(Some(since), now_ns).then(|| Stuck::new(why, Some(since)))
}

/// Why an object is not deleted although that was requested long ago.
fn deletion_stuck(object: &impl ResourceExt, now_ns: u64) -> Option<Stuck> {
    let since = object.meta().deletion_timestamp.as_ref().map(ns);
    let finalizers = object.finalizers().join(", ");
    let why = format!("its deletion waits for the finalizers {finalizers}");
    is_overdue(since, now_ns).then(|| Stuck::new(why, since))
}

#[cfg(test)]
mod tests;
