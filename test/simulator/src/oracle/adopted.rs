//! Data that has objects made by hand: it becomes ready, is bound and can be used, and goes or
//! stays as its objects say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::{Cluster, DRIVER};
use crate::machine::Contents;
use crate::model::view::{
    PROVISIONED_BY, annotation, claims_of, is_deleting, is_unbound, items, name, namespace, text,
    uid,
};
use crate::oracle::hindered::Hindered;
use crate::oracle::objects::{Objects, state, volume_of};
use crate::users::{ADOPTED, content_path};
use crate::{messages, trace};

/// What the oracle remembers of contents that were made by hand.
#[derive(Default)]
pub(super) struct Adopted {
    /// The handles of data that the deletion of its contents leaves alone.
    left_alone: BTreeSet<String>,
}

impl Adopted {
    pub(super) fn note(&mut self, contents: &[Arc<Value>]) {
        for content in contents {
            // The driver's answer to the deletion takes the confirmation back.
            if leaves_data_alone(content) && !is_deleting(content) {
                let named = text(content, "/spec/source/snapshotHandle");
                self.left_alone.insert(named.to_owned());
            }
        }
        // One content that the data goes with suffices.
        for content in contents {
            let is_kept = content["spec"]["deletionPolicy"] == "Retain";
            if !is_kept && !leaves_data_alone(content) {
                let confirmed = text(content, "/status/snapshotHandle");
                self.left_alone.remove(confirmed);
            }
        }
    }

    /// True if the deletion of all objects may leave the snapshot with this handle.
    pub(super) fn may_stay(&self, handle: &str) -> bool {
        self.left_alone.contains(handle)
    }
}

/// True if the deletion of a content leaves its data alone, also with the policy Delete: the driver
/// has not confirmed the data, or the API server deletes the content at once. Its finalizer comes
/// when a VolumeSnapshot is bound to it.
fn leaves_data_alone(content: &Value) -> bool {
    let is_unbound = text(content, "/spec/volumeSnapshotRef/uid").is_empty();
    let goes_at_once = items(content, "/metadata/finalizers").next().is_none();
    let is_confirmed = !text(content, "/status/snapshotHandle").is_empty();
    !is_confirmed || (is_unbound && goes_at_once)
}

/// The snapshots that contents name, by handle. True for those that are to stay: all their contents
/// say so.
pub(super) fn kept(contents: &[Arc<Value>]) -> BTreeMap<&str, bool> {
    let mut kept = BTreeMap::new();
    for content in contents {
        let confirmed = text(content, "/status/snapshotHandle");
        let handle = if confirmed.is_empty() {
            text(content, "/spec/source/snapshotHandle")
        } else {
            confirmed
        };
        *kept.entry(handle).or_insert(true) &= content["spec"]["deletionPolicy"] == "Retain";
    }
    kept
}

/// True if the deletion of a volume object leaves the data: its policy says so, another provisioner
/// made it, or it was never bound.
pub(super) fn keeps(volume: &Value) -> bool {
    volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
        || is_of_another(volume)
        || text(volume, "/spec/claimRef/uid").is_empty()
}

/// True if hostloop deletes a volume once its claim is gone: the policy says so, and no other provisioner
/// made it.
pub(super) fn goes_with_claim(volume: &Value) -> bool {
    text(volume, "/spec/persistentVolumeReclaimPolicy") == "Delete" && !is_of_another(volume)
}

/// True if a volume object says that another provisioner made the volume. Only that one deletes it.
fn is_of_another(volume: &Value) -> bool {
    annotation(volume, PROVISIONED_BY).is_some_and(|maker| maker != DRIVER)
}

/// True if a reference is to this object, or may become one.
fn is_to(reference: &Value, object: &Value) -> bool {
    reference["name"] == *name(object)
        && reference["namespace"] == *namespace(object)
        && ["", uid(object)].contains(&text(reference, "/uid"))
}

/// True if a pod is on a node, should run, and needs nothing but one volume.
fn needs_one_volume(pod: &Value) -> bool {
    !is_deleting(pod) && !text(pod, "/spec/nodeName").is_empty() && claims_of(pod).len() == 1
}

/// Checks after a quiet time that data can be used by objects that were made by hand. What users
/// keep from being mounted is excused.
pub(super) fn are_usable(cluster: &Cluster, objects: &Objects, hindered: &Hindered) {
    let contents = cluster.contents();
    for snapshot in &objects.snapshots {
        if is_not_ready(cluster, &contents, snapshot) {
            trace::violation(format!(
                "not ready: snapshot {} of existing data: {}; {}",
                name(snapshot),
                state(snapshot),
                objects.history(snapshot)
            ));
        }
    }
    let claims = objects.claims.iter();
    for claim in claims.filter(|claim| annotation(claim, ADOPTED).is_some()) {
        let volume = volume_of(cluster, claim).filter(|volume| is_meant_for(volume, claim));
        if let Some(volume) = volume.filter(|_| !is_deleting(claim)) {
            let is_mountable =
                !hindered.has(cluster, &volume) && has_space(cluster, objects, claim);
            check_claim(objects, &contents, claim, &volume, is_mountable);
        }
    }
}

fn is_meant_for(volume: &Value, claim: &Value) -> bool {
    !is_deleting(volume) && is_to(&volume["spec"]["claimRef"], claim)
}

/// True if no kubelet says that a disk lacks space for the pods of a claim.
fn has_space(cluster: &Cluster, objects: &Objects, claim: &Value) -> bool {
    let pods = objects.users(claim);
    let mut complaints = pods.flat_map(|pod| cluster.complaints(uid(pod)));
    complaints.all(|complaint| !messages::is_full(&complaint))
}

/// Checks a claim for a volume that was there before.
fn check_claim(
    objects: &Objects,
    contents: &Contents,
    claim: &Value,
    volume: &Value,
    is_mountable: bool,
) {
    let phase = text(claim, "/status/phase");
    if is_unbound(claim) {
        trace::violation(format!(
            "not bound: claim {} of an existing volume: {}; {}",
            name(claim),
            state(claim),
            objects.history(claim)
        ));
    }
    let handle = text(volume, "/spec/csi/volumeHandle");
    let mut volumes = contents.volumes.iter();
    let is_readable = volumes.any(|one| one.id.to_string() == handle);
    let is_writable = items(volume, "/spec/accessModes").all(|mode| mode != "ReadOnlyMany");
    let mut pods = objects.users(claim);
    // Other pods may keep a volume from this one.
    let (Some(pod), None) = (pods.next(), pods.next()) else {
        return;
    };
    let can_run = is_mountable && is_readable && is_writable;
    let should_run = phase == "Bound" && can_run && needs_one_volume(pod);
    if should_run && text(pod, "/status/phase") != "Running" {
        trace::violation(format!(
            "not usable: pod {} with claim {} of an existing volume: {}",
            name(pod),
            name(claim),
            state(pod)
        ));
    }
}

/// True if the data of a snapshot that was made by hand is there, and the snapshot is not ready.
/// Members of groups don't count.
fn is_not_ready(cluster: &Cluster, contents: &Contents, snapshot: &Value) -> bool {
    let named = text(snapshot, "/spec/source/volumeSnapshotContentName");
    if named.is_empty() || is_deleting(snapshot) || snapshot["status"]["readyToUse"] == true {
        return false;
    }
    let content = cluster.api.shared_at(&content_path(named));
    content.is_some_and(|content| {
        let handle = text(&content, "/spec/source/snapshotHandle");
        let mut snapshots = contents.snapshots.iter();
        !is_deleting(&content)
            && is_to(&content["spec"]["volumeSnapshotRef"], snapshot)
            && snapshots.any(|one| one.group.is_none() && one.id.to_string() == handle)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn content(given: &str, confirmed: &str, policy: &str) -> Arc<Value> {
        let status = if confirmed.is_empty() {
            Value::Null
        } else {
            json!({"snapshotHandle": confirmed})
        };
        Arc::new(json!({"status": status, "spec": {"deletionPolicy": policy,
            "source": {"snapshotHandle": given}, "volumeSnapshotRef": {"uid": "1"}}}))
    }

    #[test]
    fn a_snapshot_stays_if_all_its_contents_say_so() {
        let (kept_old, old) = (content("", "s", "Retain"), content("", "s", "Delete"));
        let (kept_new, new) = (content("s", "", "Retain"), content("s", "s", "Delete"));
        for (contents, expected) in [
            (vec![kept_old.clone()], true),
            (vec![old.clone()], false),
            (vec![kept_old.clone(), kept_new.clone()], true),
            (vec![kept_old.clone(), new.clone()], false),
            (vec![new, kept_old], false),
            (vec![old, kept_new], false),
        ] {
            assert_eq!(kept(&contents).get("s"), Some(&expected), "{contents:?}");
        }
    }

    #[test]
    fn the_deletion_of_a_content_leaves_what_the_driver_has_not_confirmed() {
        let mut adopted = Adopted::default();
        assert!(!adopted.may_stay("s"));
        adopted.note(&[content("s", "", "Delete")]);
        assert!(adopted.may_stay("s"));
        adopted.note(&[content("s", "s", "Delete")]);
        assert!(!adopted.may_stay("s"));
    }

    #[test]
    fn the_deletion_of_a_content_leaves_data_as_long_as_no_snapshot_is_bound() {
        let bound = content("s", "s", "Delete");
        let mut free = Value::clone(&bound);
        free["spec"]["volumeSnapshotRef"] = json!({"name": "s"});
        let mut held = free.clone();
        held["metadata"]["finalizers"] = json!(["protection"]);
        let (free, held) = (Arc::new(free), Arc::new(held));
        let mut adopted = Adopted::default();
        for (contents, expected) in [
            (vec![free.clone()], true),
            (vec![], true),
            (vec![bound.clone()], false),
            (vec![], false),
            (vec![free.clone(), bound.clone()], false),
            (vec![bound, free.clone()], false),
            (vec![free], true),
            (vec![held], false),
        ] {
            adopted.note(&contents);
            assert_eq!(adopted.may_stay("s"), expected, "{contents:?}");
        }
    }

    #[test]
    fn volume_objects_that_leave_their_data() {
        for (policy, claim, maker, expected) in [
            ("Delete", "1", None, false),
            ("Delete", "1", Some(DRIVER), false),
            ("Delete", "1", Some("former.csi.dev"), true),
            ("Retain", "1", Some(DRIVER), true),
            ("Delete", "", Some(DRIVER), true),
        ] {
            let volume = json!({"metadata": {"annotations": {PROVISIONED_BY: maker}},
                "spec": {"persistentVolumeReclaimPolicy": policy, "claimRef": {"uid": claim}}});
            assert_eq!(keeps(&volume), expected, "{policy} {claim} {maker:?}");
        }
    }

    #[test]
    fn references_by_hand_have_no_uid() {
        let object = json!({"metadata": {"name": "s", "namespace": "u", "uid": "1"}});
        for (reference, expected) in [
            (json!({"name": "s", "namespace": "u"}), true),
            (json!({"name": "s", "namespace": "u", "uid": "1"}), true),
            (json!({"name": "s", "namespace": "u", "uid": "2"}), false),
            (json!({"name": "t", "namespace": "u"}), false),
            (json!({"name": "s", "namespace": "v"}), false),
        ] {
            assert_eq!(is_to(&reference, &object), expected, "{reference}");
        }
    }
}
