//! Why a snapshot is not ready.

use hostloop_api_objects::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use k8s_openapi::api::core::v1::Event;

use crate::events;
use crate::verdict::{Stuck, is_overdue};
use crate::volume_objects::{created_ns, ns};

/// Why a snapshot is not ready. `None` if it is, or if it is being taken.
pub(crate) fn snapshot_stuck(
    snapshot: Option<&VolumeSnapshot>,
    content: Option<&VolumeSnapshotContent>,
    events: &[Event],
    now_ns: u64,
) -> Option<Stuck> {
    let status = snapshot.and_then(|snapshot| snapshot.status.as_ref());
    let content_status = content.and_then(|content| content.status.as_ref());
    let ready = status.and_then(|status| status.ready_to_use);
    if ready.or(content_status.and_then(|status| status.ready_to_use)) == Some(true) {
        return None;
    }
    let error = status.and_then(|status| status.error.as_ref());
    let error = error.or_else(|| content_status.and_then(|status| status.error.as_ref()));
    if let Some(error) = error {
        let why = error
            .message
            .clone()
            .unwrap_or_else(|| "no reason is given".to_owned());
        return Some(Stuck {
            why,
            since_ns: error.time.as_ref().map(ns),
        });
    }
    let snapshot = snapshot?;
    if let Some(warning) = events::last_warning(events, snapshot) {
        return Some(warning.into());
    }
    let since = created_ns(snapshot);
    let why = match status {
        None => "not taken yet; does a snapshot controller run in the cluster?",
        Some(_) => "not taken yet, and no event says why; see the log of hostloop's pods",
    };
    is_overdue(Some(since), now_ns).then(|| Stuck {
        why: why.to_owned(),
        since_ns: Some(since),
    })
}

#[cfg(test)]
mod tests;
