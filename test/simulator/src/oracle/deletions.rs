//! What is deleted is gone after a quiet time, or something keeps it that may.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{has_finalizer, is_deleting, name, text, uid};
use crate::oracle::adopted;
use crate::oracle::advice::Advice;
use crate::oracle::content_kinds::KINDS;
use crate::oracle::objects::{Objects, ours, state};
use crate::oracle::unmarked;
use crate::trace;

/// Keeps a claim while a pod uses it.
const OF_PODS: &str = "kubernetes.io/pvc-protection";
/// Keeps a claim while a volume is cloned from it.
const OF_CLONES: &str = "provisioner.storage.kubernetes.io/cloning-protection";
/// Keeps a claim while a snapshot of it is taken.
const OF_SNAPSHOTS: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";

/// Checks all deleted objects of users. Once advice was followed, the snapshots that can't be taken
/// were deleted, as events at their claims advise.
///
/// An event alone explains no deletion that is not done. What may keep an object is another object,
/// which must be there.
pub(super) fn check(objects: &Objects, advice: Advice) {
    for claim in objects.claims.iter().filter(|claim| is_deleting(claim)) {
        if !is_kept(objects, claim, advice) {
            trace::violation(format!(
                "claim not gone: {}, and nothing may keep it: {}; {}",
                name(claim),
                state(claim),
                objects.history(claim)
            ));
        }
    }
    let snapshots = objects.snapshots.iter();
    for snapshot in snapshots.filter(|snapshot| is_deleting(snapshot)) {
        if !stays(objects, snapshot) {
            trace::violation(format!(
                "snapshot not gone: {}, and no group has it, and no claim from before its deletion \
                 waits for it: {}; {}",
                name(snapshot),
                state(snapshot),
                objects.history(snapshot)
            ));
        }
    }
    for pod in objects.pods.iter().filter(|pod| is_deleting(pod)) {
        trace::violation(format!("pod not gone: {}", name(pod)));
    }
}

/// Checks that volumes and contents are gone which users have given up, without an administrator.
pub(super) fn check_data(cluster: &Cluster) {
    let volumes = ours(cluster, "persistentvolumes");
    let mut left: Vec<Value> = volumes.into_iter().filter(is_given_up).collect();
    for kind in &KINDS {
        let owners = ours(cluster, kind.owners);
        let mut contents = ours(cluster, kind.plural);
        contents.retain(|content| {
            let has_owner = owners.iter().any(|it| uid(it) == text(content, kind.owner));
            is_deleting(content) && !has_owner && !unmarked::may_stay(cluster, content)
        });
        left.extend(contents);
    }
    for object in left {
        let (kind, name) = (text(&object, "/kind"), name(&object));
        trace::violation(format!(
            "{kind} not gone: {name}, and nothing may keep it: {}",
            state(&object)
        ));
    }
}

/// True if nothing needs a volume any more: its claim is gone, and it goes with its claim or was
/// deleted itself.
fn is_given_up(volume: &Value) -> bool {
    let phase = text(volume, "/status/phase");
    phase == "Released" && adopted::goes_with_claim(volume)
        || phase != "Bound" && is_deleting(volume)
}

/// True if something may keep a deleted claim.
fn is_kept(objects: &Objects, claim: &Value, advice: Advice) -> bool {
    has_finalizer(claim, OF_PODS) && objects.users(claim).next().is_some()
        || has_finalizer(claim, OF_CLONES) && objects.is_awaited(claim)
        || has_finalizer(claim, OF_SNAPSHOTS)
            && objects
                .to_be_taken(claim)
                .any(|snapshot| advice == Advice::Open || is_kept_itself(objects, snapshot))
}

/// True if a snapshot stays although it is deleted, as advised.
fn is_kept_itself(objects: &Objects, snapshot: &Value) -> bool {
    is_deleting(snapshot) && stays(objects, snapshot)
}

/// True if a deleted snapshot may stay: a claim still waits for its data, or it is a member of a
/// group, which is deleted as a whole.
fn stays(objects: &Objects, snapshot: &Value) -> bool {
    objects.is_awaited(snapshot) || objects.group_of(snapshot).is_some()
}

/// The snapshots that keep deleted claims. Events at these claims advise to delete them.
pub(super) fn keeping(objects: &Objects) -> impl Iterator<Item = &Value> {
    let claims = objects
        .claims
        .iter()
        .filter(|claim| is_deleting(claim) && has_finalizer(claim, OF_SNAPSHOTS));
    claims
        .flat_map(move |claim| objects.to_be_taken(claim))
        .filter(|snapshot| !is_deleting(snapshot))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::model::view::PROVISIONED_BY;

    #[rstest]
    #[case::bound("Delete", "Bound", false, false)]
    #[case::deleted_while_its_claim_is_there("Delete", "Bound", true, false)]
    #[case::released("Delete", "Released", false, true)]
    #[case::kept("Retain", "Released", false, false)]
    #[case::kept_without_an_object("Retain", "Released", true, true)]
    #[case::free("Delete", "Available", false, false)]
    #[case::deleted_while_it_is_free("Delete", "Available", true, true)]
    fn volumes_that_nothing_needs(
        #[case] policy: &str,
        #[case] phase: &str,
        #[case] is_deleted: bool,
        #[case] expected: bool,
    ) {
        let volume = json!({"metadata": {"deletionTimestamp": is_deleted.then_some("now")},
            "spec": {"persistentVolumeReclaimPolicy": policy}, "status": {"phase": phase}});
        assert_eq!(is_given_up(&volume), expected);
        let mut others = volume;
        others["metadata"]["annotations"] = json!({PROVISIONED_BY: "former.csi.dev"});
        assert_eq!(is_given_up(&others), expected && is_deleted);
    }
}
