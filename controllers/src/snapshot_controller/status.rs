//! Copies a content's status to its snapshot.

use kube::ResourceExt;
use serde_json::{Value, json};

use super::kind::Kind;
use crate::snapshots::content::Content;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct StatusChange {
    /// A merge patch of the status.
    pub(super) patch: Value,
    /// True if the status now shows that the snapshot has been taken.
    pub(super) taken: bool,
    /// True if the status now shows that the snapshot can be restored from.
    pub(super) ready: bool,
}

/// The fields of a content's status that its snapshot lacks, added to `patch`.
pub(super) fn change<K: Kind>(
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
