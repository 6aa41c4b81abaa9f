//! The garbage collector: what an object owned goes after it, or, if its deletion asks for that,
//! before it or not at all.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::view::{
    Model, Step, View, has_finalizer, is_deleting, items, namespace, text, uid, without_finalizer,
};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// The kinds that own or are owned, by plural and kind.
const KINDS: [(&str, &str); 7] = [
    ("persistentvolumeclaims", "PersistentVolumeClaim"),
    ("pods", "Pod"),
    ("volumesnapshots", "VolumeSnapshot"),
    ("volumegroupsnapshots", "VolumeGroupSnapshot"),
    ("csistoragecapacities", "CSIStorageCapacity"),
    ("nodes", "Node"),
    ("csinodes", "CSINode"),
];

/// The garbage collector.
pub(crate) struct Garbage;

impl Model for Garbage {
    const KINDS: &[&str] = &[
        "persistentvolumeclaims",
        "pods",
        "volumesnapshots",
        "volumegroupsnapshots",
        "csistoragecapacities",
        "nodes",
        "csinodes",
    ];
    const PERIOD: Duration = Duration::from_secs(600);

    fn decide(&mut self, view: &View, _: Instant) -> Vec<Step> {
        let all = KINDS
            .iter()
            .flat_map(|(plural, _)| view.all(plural).map(move |object| (*plural, object)));
        all.flat_map(|(plural, object)| {
            if is_deleting(object) && has_finalizer(object, FOREGROUND) {
                in_foreground(view, plural, object)
            } else if is_deleting(object) && has_finalizer(object, ORPHAN) {
                orphan(view, plural, object)
            } else {
                collect(view, plural, object).into_iter().collect()
            }
        })
        .collect()
    }
}

/// The state of an owner.
enum Owner<'a> {
    Present(&'a Value),
    Absent,
    /// An object of a kind that is not watched.
    Unknown,
}

fn owner<'a>(view: &'a View, object: &Value, reference: &Value) -> Owner<'a> {
    let kind = KINDS.iter().find(|(_, kind)| reference["kind"] == *kind);
    let Some((plural, _)) = kind else {
        return Owner::Unknown;
    };
    // An owner is in the namespace of the object, or in none.
    let spaces = [namespace(object), ""];
    let found = spaces
        .iter()
        .find_map(|space| view.get(plural, space, text(reference, "/name")));
    match found.filter(|found| found["metadata"]["uid"] == reference["uid"]) {
        Some(owner) => Owner::Present(owner),
        None => Owner::Absent,
    }
}

/// Deletes an object after all its owners, or before an owner that waits for it.
fn collect(view: &View, plural: &str, object: &Value) -> Option<Step> {
    if is_deleting(object) {
        return None;
    }
    let owners = items(object, "/metadata/ownerReferences");
    let owners: Vec<Owner> = owners.map(|one| owner(view, object, one)).collect();
    let is_dead = |owner: &Owner| match owner {
        Owner::Present(owner) => is_deleting(owner) && has_finalizer(owner, FOREGROUND),
        Owner::Absent => true,
        Owner::Unknown => false,
    };
    let is_garbage = !owners.is_empty() && owners.iter().all(is_dead);
    is_garbage.then(|| Step::delete(plural, object))
}

/// The objects that an object owns.
fn owned<'a>(view: &'a View, owner: &'a Value) -> impl Iterator<Item = (&'static str, &'a Value)> {
    let all = KINDS
        .iter()
        .flat_map(|(plural, _)| view.all(plural).map(move |object| (*plural, object)));
    all.filter(|(_, object)| {
        items(object, "/metadata/ownerReferences").any(|one| text(one, "/uid") == uid(owner))
    })
}

/// An owner goes when nothing that blocks it is left. What it owns is deleted by [`collect`].
fn in_foreground(view: &View, plural: &str, object: &Value) -> Vec<Step> {
    let blocks = |(_, owned): (_, &Value)| {
        items(owned, "/metadata/ownerReferences")
            .any(|one| text(one, "/uid") == uid(object) && one["blockOwnerDeletion"] == true)
    };
    if owned(view, object).any(blocks) {
        return Vec::new();
    }
    let finalizers = without_finalizer(object, FOREGROUND);
    vec![Step::merge(
        plural,
        object,
        json!({"metadata": {"finalizers": finalizers}}),
    )]
}

/// What an object owned forgets it, and then it goes.
fn orphan(view: &View, plural: &str, object: &Value) -> Vec<Step> {
    let forget = |(plural, owned): (&'static str, &Value)| {
        let others = items(owned, "/metadata/ownerReferences");
        let others: Value = others
            .filter(|one| text(one, "/uid") != uid(object))
            .cloned()
            .collect();
        Step::merge(
            plural,
            owned,
            json!({"metadata": {"ownerReferences": others}}),
        )
    };
    let steps: Vec<Step> = owned(view, object).map(forget).collect();
    if !steps.is_empty() {
        return steps;
    }
    let finalizers = without_finalizer(object, ORPHAN);
    vec![Step::merge(
        plural,
        object,
        json!({"metadata": {"finalizers": finalizers}}),
    )]
}
