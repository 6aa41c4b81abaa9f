//! Decides the next step for a content.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::snapshots::content::Content;
use crate::snapshots::{DeletionPolicy, VolumeGroupSnapshotContent};

/// The next step for a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Rest,
    /// Ask the driver for the snapshot, by its name, until it is ready.
    Create,
    /// Ask the driver about a snapshot that was not taken for this content.
    Check {
        handle: String,
    },
    /// It is ready: remove the annotation for its creation.
    Settle,
    /// Delete the snapshot, then remove the content's finalizer.
    Delete {
        handle: String,
    },
    Release,
}

impl Step {
    /// True if the step makes no call to the driver.
    pub(super) fn is_harmless(&self) -> bool {
        matches!(self, Step::Rest | Step::Settle | Step::Release)
    }
}

/// Decides the next step for a content. `is_requested`: this process has asked the driver for the
/// snapshot, and has no final answer yet.
pub(super) fn decide<K: Content>(content: &K, is_requested: bool) -> Step {
    let view = content.view();
    let creating = content.annotations().contains_key(K::KEYS.being_created);
    if is_deletion_due(content, is_requested) {
        return match view.handle {
            // Members are deleted with their group.
            Some(handle) if view.policy == DeletionPolicy::Delete && view.group.is_none() => {
                let handle = handle.to_owned();
                Step::Delete { handle }
            }
            _ if content.has_finalizer(K::KEYS.finalizer) => Step::Release,
            _ => Step::Rest,
        };
    }
    if view.is_ready() {
        return if creating { Step::Settle } else { Step::Rest };
    }
    let taken = view.given.is_some() || view.group.is_some();
    match view.snapshot().filter(|_| taken) {
        Some(handle) => Step::Check {
            handle: handle.to_owned(),
        },
        // The snapshot-controller will soon write which snapshot it is.
        None if view.is_member => Step::Rest,
        None => Step::Create,
    }
}

/// The IDs of a group snapshot's members, from the driver or the pre-provisioned content.
pub(super) fn members(content: &VolumeGroupSnapshotContent) -> Vec<String> {
    let reported: Vec<String> = content
        .status
        .iter()
        .flat_map(|status| status.volume_snapshot_info_list.iter().flatten())
        .filter_map(|member| member.snapshot_handle.clone())
        .collect();
    if !reported.is_empty() {
        return reported;
    }
    let given = content.spec.source.group_snapshot_handles.as_ref();
    given.map_or_else(Vec::new, |given| given.volume_snapshot_handles.clone())
}

/// True if the deletion of a content is due: it is unwanted and, if it is bound, the driver is not
/// creating the snapshot. A backup of the API server may lack the annotation that says so.
fn is_deletion_due<K: Content>(content: &K, is_requested: bool) -> bool {
    let view = content.view();
    let is_annotated = content.annotations().contains_key(K::KEYS.being_created);
    let is_being_created = is_annotated || (is_requested && view.snapshot().is_none());
    content.is_unwanted() && (view.is_unbound() || !is_being_created)
}

/// True if a change of a content needs a reconcile. The snapshotter's own writes do not: they would
/// cut the backoff of a content short.
pub(super) fn matters<K: Content>(old: &K, new: &K) -> bool {
    let (was, is) = (old.view(), new.view());
    old.spec() != new.spec()
        || was.group != is.group
        || is.is_ready() && !was.is_ready()
        || old.uid() != new.uid()
        || old.meta().deletion_timestamp != new.meta().deletion_timestamp
        || other_annotations(old) != other_annotations(new)
}

/// All annotations but the snapshotter's own.
fn other_annotations<K: Content>(content: &K) -> BTreeMap<String, String> {
    let mut annotations = content.annotations().clone();
    annotations.remove(K::KEYS.being_created);
    annotations
}

#[cfg(test)]
mod tests;
