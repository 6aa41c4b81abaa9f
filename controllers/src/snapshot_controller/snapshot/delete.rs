//! Deleting a snapshot: content first, then what holds the snapshot.

use kube::ResourceExt;

use super::{Facts, Step};
use crate::snapshot_controller::names::{self, Fit};
use crate::snapshots::DeletionPolicy;

/// The next thing to do for a snapshot that is being deleted.
pub(in crate::snapshot_controller) fn decide(facts: &Facts) -> Step {
    let snapshot = &*facts.snapshot;
    let held = [
        names::SNAPSHOT_AS_SOURCE,
        names::SNAPSHOT_BOUND,
        names::SNAPSHOT_IN_GROUP,
    ];
    if !held.iter().any(|finalizer| names::has(snapshot, finalizer)) {
        return Step::Done;
    }
    let fits = |reference| names::fit(reference, snapshot) == Fit::Bound;
    let content = facts.content.as_ref();
    let content = content.filter(|content| fits(&content.spec.volume_snapshot_ref));
    if content.is_some() && facts.restoring > 0 {
        return Step::Pend(format!(
            "{} claims are being restored from this snapshot",
            facts.restoring
        ));
    }
    if let Some(group) = &facts.group {
        let path = names::path(&**group);
        return if names::is_deleting(&**group) {
            Step::Wait(format!("group snapshot {path} is being deleted first"))
        } else {
            Step::Pend(format!(
                "this snapshot is a member of group snapshot {path}: delete that, and all its \
                 members are deleted with it"
            ))
        };
    }
    let mut released = vec![names::SNAPSHOT_AS_SOURCE, names::SNAPSHOT_IN_GROUP];
    match content {
        None => released.push(names::SNAPSHOT_BOUND),
        Some(content) => {
            let doomed = content.spec.deletion_policy == DeletionPolicy::Delete;
            if !content.annotations().contains_key(names::BEING_DELETED) {
                return Step::Mark;
            }
            if doomed && !names::is_deleting(&**content) {
                return Step::DeleteContent;
            }
            // Else it is gone when the content is.
            if !doomed {
                released.push(names::SNAPSHOT_BOUND);
            }
        }
    }
    let Some(finalizers) = names::without(snapshot, &released) else {
        return Step::Done;
    };
    // Release the claim first: once the snapshot is deleted, nothing refers to the claim.
    match &facts.released_claim {
        Some(released) => Step::ClaimFinalizers(released.clone()),
        None => Step::Finalizers(finalizers),
    }
}
