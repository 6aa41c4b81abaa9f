//! Copies a content's status to its snapshot.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::kind::{SnapshotKind, StatusChange};
use crate::snapshots::content::Content;

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
    if taken {
        patch["creationTime"] = json!(new.created);
    }
    let ready = new.ready.unwrap_or(false);
    if old.ready != Some(ready) {
        patch["readyToUse"] = json!(ready);
    }
    // Comparing JSON ignores fractions of seconds, which the API does not store.
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
