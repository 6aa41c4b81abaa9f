//! What the leader is to do for a claim.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use crate::api::pvc::{self, DataSource};

use crate::runtime::scope::{NODE_LABEL, node_label};

/// What is known of a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) claim: &'a PersistentVolumeClaim,
    /// Its class, if it is there.
    pub(super) class: Option<&'a StorageClass>,
    /// Its volume, if that is there: bound to it, or about to be.
    pub(super) volume: Option<&'a PersistentVolume>,
    /// The one node its volume is on.
    pub(super) volume_node: Option<&'a str>,
}

/// What all claims are held to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    pub(super) driver: &'a str,
    /// The driver makes volumes of snapshots.
    pub(super) restores: bool,
    /// The driver makes volumes of volumes.
    pub(super) clones: bool,
}

/// What to do for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Todo {
    /// It is not this driver's.
    NotOurs,
    /// Nothing, or not yet.
    Nothing,
    /// It is to have the label of this node.
    Label(String),
    /// It goes where its source is.
    Follow(DataSource),
    /// A node is to be chosen for it.
    Choose,
    /// Somebody else fills it from a source of this kind.
    Foreign(String),
}

/// What to do for a claim, by what is known of it.
pub(super) fn decide(facts: Facts<'_>, terms: Terms<'_>) -> Todo {
    let claim = facts.claim;
    let selected = pvc::selected_node(claim);
    let ours = |volume: &PersistentVolume| {
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        csi.is_some_and(|csi| csi.driver == terms.driver)
    };
    if pvc::volume_name(claim).is_some() {
        let node = facts.volume_node.or(selected);
        return match facts.volume.is_some_and(ours) {
            true => node.map_or(Todo::Nothing, |node| label(claim, node)),
            false => Todo::NotOurs,
        };
    }
    let Some(class) = facts.class else {
        return Todo::NotOurs;
    };
    if !pvc::is_of(class, claim, terms.driver) {
        return Todo::NotOurs;
    }
    let labelled = || selected.map_or(Todo::Nothing, |node| label(claim, node));
    if facts.volume.is_some() || claim.metadata.deletion_timestamp.is_some() {
        return labelled();
    }
    let delayed = pvc::is_delayed(class);
    // Until then the cluster's own controller may give it to a volume that is there. Nor is a claim
    // to be labelled before: that controller is about to write to it, and if it is refused for our
    // sake it comes back only after its resync.
    let handed = pvc::is_for(claim, terms.driver);
    if !delayed && !handed {
        return Todo::Nothing;
    }
    match asked(claim, terms) {
        DataSource::Nothing | DataSource::Other(_) if delayed && !handed => Todo::Nothing,
        DataSource::Nothing if delayed || selected.is_some() => labelled(),
        DataSource::Nothing => Todo::Choose,
        DataSource::Other(_) if delayed || selected.is_some() => labelled(),
        DataSource::Other(kind) => Todo::Foreign(kind),
        source => Todo::Follow(source),
    }
}

/// What a claim's volume is made from. Whatever nobody can make one from is for the node that is
/// to make it to tell.
fn asked(claim: &PersistentVolumeClaim, terms: Terms<'_>) -> DataSource {
    match pvc::data_source(claim) {
        Ok(DataSource::Snapshot(_)) if !terms.restores => DataSource::Nothing,
        Ok(DataSource::Claim(_)) if !terms.clones => DataSource::Nothing,
        Ok(asked) => asked,
        Err(_) => DataSource::Nothing,
    }
}

/// Whether labels say that an object is a node's.
pub(super) fn is_labelled(labels: &BTreeMap<String, String>, node: &str) -> bool {
    labels.get(NODE_LABEL) == Some(&node_label(node))
}

fn label(claim: &PersistentVolumeClaim, node: &str) -> Todo {
    match is_labelled(claim.labels(), node) {
        true => Todo::Nothing,
        false => Todo::Label(node.to_owned()),
    }
}

#[cfg(test)]
mod tests;
