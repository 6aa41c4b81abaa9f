//! What the leader does for a claim; pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use crate::api::pv;
use crate::api::pvc::{self, DataSource};
use crate::client::Resource;
use crate::placement::placement_context::is_labelled;

/// State of a claim and its objects.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) claim: Arc<PersistentVolumeClaim>,
    /// Its class, if that exists.
    pub(super) class: Option<Arc<StorageClass>>,
    /// Its volume, if that exists: bound to the claim, or made for it.
    pub(super) volume: Option<Arc<PersistentVolume>>,
    /// The node of its volume, if it is on exactly one.
    pub(super) volume_node: Option<String>,
}

/// The driver's name and capabilities.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings<'a> {
    pub(super) driver: &'a str,
    /// The driver makes volumes from snapshots.
    pub(super) restores: bool,
    /// The driver makes volumes from volumes.
    pub(super) clones: bool,
}

/// What to do for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The claim belongs to another driver.
    NotOurs,
    /// Do nothing, at least for now.
    Nothing,
    Label(String),
    /// Assign the claim to the node of its source.
    Follow(DataSource),
    /// Choose a node by room.
    Choose,
    /// An external populator fills the volume from a source of this kind.
    Foreign(String),
}

/// Decides what to do for a claim.
pub(super) fn decide(facts: &Facts, settings: Settings<'_>) -> Step {
    let claim = &*facts.claim;
    let selected = pvc::selected_node(claim);
    if pvc::volume_name(claim).is_some() {
        return if facts
            .volume
            .as_deref()
            .is_some_and(|volume| pv::handle(volume, settings.driver).is_some())
        {
            label(claim, facts.volume_node.as_deref().or(selected))
        } else {
            Step::NotOurs
        };
    }
    let Some(class) = facts.class.as_deref() else {
        return Step::NotOurs;
    };
    if !pvc::is_of(class, claim, settings.driver) {
        return Step::NotOurs;
    }
    if facts.volume.is_some() || claim.is_deleting() {
        return label(claim, selected);
    }
    let delayed = pvc::is_delayed(class);
    // Until the PV controller hands the claim to the driver, it may bind it to an existing volume.
    // Do not label the claim earlier either: the PV controller is about to write to it. If our
    // write makes that fail with a conflict, it retries only after its resync.
    let handed = pvc::is_for(claim, settings.driver);
    if !delayed && !handed {
        return Step::Nothing;
    }
    match requested_source(claim, settings) {
        DataSource::Nothing | DataSource::Other(_) if delayed && !handed => Step::Nothing,
        DataSource::Nothing | DataSource::Other(_) if delayed || selected.is_some() => {
            label(claim, selected)
        }
        DataSource::Nothing => Step::Choose,
        DataSource::Other(kind) => Step::Foreign(kind),
        source => Step::Follow(source),
    }
}

/// The source of a claim's volume. A source that this driver can't use counts as none: the node
/// that makes the volume reports the error.
fn requested_source(claim: &PersistentVolumeClaim, settings: Settings<'_>) -> DataSource {
    match pvc::data_source(claim) {
        Ok(DataSource::Snapshot(_)) if !settings.restores => DataSource::Nothing,
        Ok(DataSource::Claim(_)) if !settings.clones => DataSource::Nothing,
        Ok(requested) => requested,
        Err(_) => DataSource::Nothing,
    }
}

/// Labels a claim with its node, if it has a node and lacks the label.
fn label(claim: &PersistentVolumeClaim, node: Option<&str>) -> Step {
    match node {
        Some(node) if !is_labelled(claim.labels(), node) => Step::Label(node.to_owned()),
        _ => Step::Nothing,
    }
}

#[cfg(test)]
mod tests;
