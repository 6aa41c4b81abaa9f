//! Copies a content's status to its snapshot.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::kind::{SnapshotKind, StatusChange};
use crate::snapshots::content::Content;

/// True if the status of a snapshot can be that of its content. After the API server went back to a
/// backup, the caches are listed one after the other, so it may be copied from a content that is not
/// taken any more, and is taken again.
pub(super) fn is_of<K: SnapshotKind>(snapshot: &K::Snapshot, content: &K::Content) -> bool {
    content.view().snapshot().is_some() && !has_other_time::<K>(snapshot, content)
}

/// True if a snapshot was taken at another time than its content says.
pub(super) fn has_other_time<K: SnapshotKind>(
    snapshot: &K::Snapshot,
    content: &K::Content,
) -> bool {
    let (old, new) = (K::view(snapshot).created, content.view().created);
    // Comparing JSON ignores fractions of seconds, which the API does not store.
    old.is_some() && new.is_some() && json!(old) != json!(new)
}

/// The fields of a content's status that its snapshot lacks, added to `patch`.
pub(super) fn change<K: SnapshotKind>(
    snapshot: &K::Snapshot,
    content: &K::Content,
    mut patch: Value,
) -> Option<StatusChange> {
    let (old, new) = (K::view(snapshot), content.view());
    if old.bound.is_none() {
        patch[K::NAMES.bound_field] = json!(content.name_any());
    }
    let taken = old.created.is_none() && new.created.is_some();
    if taken || has_other_time::<K>(snapshot, content) {
        patch["creationTime"] = json!(new.created);
    }
    let ready = new.ready.unwrap_or(false);
    if old.ready != Some(ready) {
        patch["readyToUse"] = json!(ready);
    }
    // As JSON, too.
    let (error, new_error) = (json!(old.error), json!(new.error));
    if error != new_error {
        patch["error"] = new_error;
    }
    let ready = ready && !old.is_ready();
    (patch != json!({})).then_some(StatusChange {
        patch,
        taken,
        ready,
    })
}
