//! Decides the next step for a content.

use std::collections::BTreeMap;

use kube::ResourceExt;

use super::names::{AnnotationKeys, GROUP, GROUP_MEMBER, SINGLE};
use crate::client::Resource;
use crate::snapshots::{
    DeletionPolicy, SnapshotError, VolumeGroupSnapshotContent, VolumeSnapshotContent,
};

/// A content, of either kind.
pub(super) trait Content: Resource {
    /// The annotations and the finalizer of this kind.
    const KEYS: &'static AnnotationKeys;

    /// Decides the next step.
    fn step(&self) -> Step;

    /// True if the status has been written.
    fn has_status(&self) -> bool;

    /// True if its snapshot is ready to use.
    fn is_ready(&self) -> bool;

    /// The last error.
    fn error(&self) -> Option<&SnapshotError>;
}

impl Content for VolumeSnapshotContent {
    const KEYS: &'static AnnotationKeys = &SINGLE;

    fn step(&self) -> Step {
        single(self)
    }

    fn has_status(&self) -> bool {
        self.status.is_some()
    }

    fn is_ready(&self) -> bool {
        let status = self.status.as_ref();
        status.and_then(|status| status.ready_to_use) == Some(true)
    }

    fn error(&self) -> Option<&SnapshotError> {
        self.status.as_ref()?.error.as_ref()
    }
}

impl Content for VolumeGroupSnapshotContent {
    const KEYS: &'static AnnotationKeys = &GROUP;

    fn step(&self) -> Step {
        group(self)
    }

    fn has_status(&self) -> bool {
        self.status.is_some()
    }

    fn is_ready(&self) -> bool {
        let status = self.status.as_ref();
        status.and_then(|status| status.ready_to_use) == Some(true)
    }

    fn error(&self) -> Option<&SnapshotError> {
        self.status.as_ref()?.error.as_ref()
    }
}

/// The next step for a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// No step.
    Rest,
    /// Ask the driver for the snapshot, by its name, until it is ready.
    Create,
    /// Ask the driver about a snapshot that was not taken for this content.
    Check {
        /// The snapshot's ID.
        handle: String,
    },
    /// It is ready: remove the annotation for its creation.
    Settle,
    /// Delete the snapshot, then remove the content's finalizer.
    Delete {
        /// The snapshot's ID.
        handle: String,
    },
    /// Remove the content's finalizer.
    Release,
}

impl Step {
    /// True if the step makes no call to the driver.
    pub(super) fn is_harmless(&self) -> bool {
        matches!(self, Step::Rest | Step::Settle | Step::Release)
    }
}

/// Decides the next step for a VolumeSnapshotContent.
pub(super) fn single(content: &VolumeSnapshotContent) -> Step {
    let status = content.status.as_ref();
    let source = &content.spec.source;
    let known = status.and_then(|status| status.snapshot_handle.clone());
    let group = status.and_then(|status| status.volume_group_snapshot_handle.as_ref());
    let pre_provisioned = source.snapshot_handle.is_some();
    let bound = is_set(content.spec.volume_snapshot_ref.uid.as_deref());
    if is_to_go(content, pre_provisioned && !bound) {
        return match known {
            // Members are deleted with their group.
            Some(handle)
                if content.spec.deletion_policy == DeletionPolicy::Delete && group.is_none() =>
            {
                Step::Delete { handle }
            }
            _ => release(content),
        };
    }
    if content.is_ready() {
        return settle(content);
    }
    let member = content.annotations().contains_key(GROUP_MEMBER);
    match &source.snapshot_handle {
        Some(handle) => Step::Check {
            handle: known.unwrap_or_else(|| handle.clone()),
        },
        None => match (group, known) {
            (Some(_), Some(handle)) => Step::Check { handle },
            // The snapshot-controller will soon write which snapshot it is.
            _ if member => Step::Rest,
            _ => Step::Create,
        },
    }
}

/// Decides the next step for a VolumeGroupSnapshotContent.
pub(super) fn group(content: &VolumeGroupSnapshotContent) -> Step {
    let status = content.status.as_ref();
    let source = &content.spec.source;
    let known = status.and_then(|status| status.volume_group_snapshot_handle.clone());
    let pre_provisioned = source.group_snapshot_handles.as_ref();
    let bound = is_set(content.spec.volume_group_snapshot_ref.uid.as_deref());
    if is_to_go(content, pre_provisioned.is_some() && !bound) {
        return match known {
            Some(handle) if content.spec.deletion_policy == DeletionPolicy::Delete => {
                Step::Delete { handle }
            }
            _ => release(content),
        };
    }
    if content.is_ready() {
        return settle(content);
    }
    match pre_provisioned {
        Some(handles) => Step::Check {
            handle: known.unwrap_or_else(|| handles.volume_group_snapshot_handle.clone()),
        },
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

fn is_set(uid: Option<&str>) -> bool {
    uid.is_some_and(|uid| !uid.is_empty())
}

/// True if the deletion of a content is due. For an unbound content, a deletion timestamp is
/// enough. A bound one also needs the snapshot-controller's annotation, and the driver must not be
/// creating the snapshot.
fn is_to_go<K: Content>(content: &K, unbound: bool) -> bool {
    let has = |key: &str| content.annotations().contains_key(key);
    content.meta().deletion_timestamp.is_some()
        && (unbound || has(K::KEYS.being_deleted) && !has(K::KEYS.being_created))
}

fn release<K: Content>(content: &K) -> Step {
    let finalizers = content.finalizers();
    if finalizers.iter().any(|one| one == K::KEYS.finalizer) {
        Step::Release
    } else {
        Step::Rest
    }
}

fn settle<K: Content>(content: &K) -> Step {
    if content.annotations().contains_key(K::KEYS.being_created) {
        Step::Settle
    } else {
        Step::Rest
    }
}

/// True if a change of a VolumeSnapshotContent needs a reconcile. The snapshotter's own writes do
/// not: they would cut the backoff of a content short.
pub(super) fn single_matters(old: &VolumeSnapshotContent, new: &VolumeSnapshotContent) -> bool {
    let group = |content: &VolumeSnapshotContent| {
        let status = content.status.as_ref();
        status.and_then(|status| status.volume_group_snapshot_handle.clone())
    };
    old.spec != new.spec || group(old) != group(new) || matters(old, new)
}

/// True if a change of a VolumeGroupSnapshotContent needs a reconcile.
pub(super) fn group_matters(
    old: &VolumeGroupSnapshotContent,
    new: &VolumeGroupSnapshotContent,
) -> bool {
    old.spec != new.spec || matters(old, new)
}

fn matters<K: Content>(old: &K, new: &K) -> bool {
    let others = |content: &K| -> BTreeMap<String, String> {
        let mut annotations = content.annotations().clone();
        annotations.remove(K::KEYS.being_created);
        annotations
    };
    new.is_ready() && !old.is_ready()
        || old.uid() != new.uid()
        || old.meta().deletion_timestamp != new.meta().deletion_timestamp
        || others(old) != others(new)
}

#[cfg(test)]
mod tests;
