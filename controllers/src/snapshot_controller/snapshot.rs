//! What to do for a VolumeSnapshot.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::names::{self, Fit};
use super::status::{self, StatusChange};
use crate::snapshots::{
    DeletionPolicy, VolumeGroupSnapshot, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};

mod content;
mod delete;

pub(super) use content::{csi_of, volume_of};
pub(super) use delete::decide as decide_deletion;

/// What is known of a snapshot and what belongs to it.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// It.
    pub(super) snapshot: Arc<VolumeSnapshot>,
    /// The content it names, or would have, if there is one of that name.
    pub(super) content: Option<Arc<VolumeSnapshotContent>>,
    /// All classes.
    pub(super) classes: Vec<Arc<VolumeSnapshotClass>>,
    /// The claim it is of.
    pub(super) claim: Option<Arc<PersistentVolumeClaim>>,
    /// The claim's finalizers without the source finalizer, if it has that one and no other
    /// snapshot needs it.
    pub(super) released_claim: Option<Vec<String>>,
    /// The volume that claim is bound to, if it exists.
    pub(super) volume: Option<Arc<PersistentVolume>>,
    /// Claims that are being restored from it.
    pub(super) restoring: usize,
    /// The group it says it is a member of, if that exists.
    pub(super) group: Option<Arc<VolumeGroupSnapshot>>,
    /// The group whose member its content is, by the CSI group snapshot's ID.
    pub(super) group_of_content: GroupOfContent,
    /// All nodes, if contents are to be labelled with theirs.
    pub(super) nodes: Option<Vec<Arc<Node>>>,
}

/// The group a content is of.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum GroupOfContent {
    /// It is of none.
    None,
    /// It is of one that has not been seen.
    Unknown,
    /// It is of this one.
    Named(String),
}

/// The next thing to do for a snapshot. After each, there is another look.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// All is as it should be.
    Done,
    /// Something that will come is missing: look again later.
    Wait(String),
    /// Name its class.
    SetClass(String),
    /// Write these finalizers.
    Finalizers(Vec<String>),
    /// Name its group as its owner.
    Adopt(OwnerReference),
    /// Write these finalizers to the claim.
    ClaimFinalizers(Vec<String>),
    /// Make its content.
    Create(Box<VolumeSnapshotContent>),
    /// Bind its content to it, and name its class there.
    Bind(Option<String>),
    /// Write its status.
    Status(StatusChange),
    /// Tell the driver's loop, on the content, that it is being deleted.
    Mark,
    /// Delete its content.
    DeleteContent,
    /// It can't be deleted yet: say why, and try again.
    Pend(String),
    /// It can't be: say why, and try again.
    Fail(Failure),
}

/// Why a snapshot can't be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The event's reason.
    pub(super) reason: &'static str,
    /// What is wrong.
    pub(super) message: String,
    /// It can't be restored from, either.
    pub(super) unready: bool,
}

impl Failure {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Failure {
            reason,
            message: message.into(),
            unready: true,
        }
    }

    pub(super) fn still_ready(reason: &'static str, message: impl Into<String>) -> Self {
        Failure {
            unready: false,
            ..Failure::new(reason, message)
        }
    }
}

/// The name of the content a snapshot names or would have.
pub(super) fn expected_content(snapshot: &VolumeSnapshot) -> Option<String> {
    let source = &snapshot.spec.source;
    let status = snapshot.status.as_ref();
    let bound = status.and_then(|status| status.bound_volume_snapshot_content_name.clone());
    let bound = bound.filter(|name| !name.is_empty());
    if let Some(name) = &source.volume_snapshot_content_name {
        return Some(name.clone());
    }
    if names::owning_group(snapshot).is_some() {
        let own = snapshot.name_any();
        let digest = own.strip_prefix("snapshot-");
        return bound.or_else(|| digest.map(|digest| format!("snapcontent-{digest}")));
    }
    bound.or_else(|| snapshot.uid().map(|uid| names::content_name(&uid)))
}

pub(super) fn is_ready(snapshot: &VolumeSnapshot) -> bool {
    let status = snapshot.status.as_ref();
    status.and_then(|status| status.ready_to_use) == Some(true)
}

/// Whether a snapshot may yet be taken, for which its claim must stay.
pub(super) fn needs_claim(snapshot: &VolumeSnapshot) -> bool {
    let given_up = names::is_deleting(snapshot) && !names::has(snapshot, names::SNAPSHOT_AS_SOURCE);
    !is_ready(snapshot) && !given_up
}

fn is_bound(snapshot: &VolumeSnapshot) -> bool {
    let status = snapshot.status.as_ref();
    let bound = status.and_then(|status| status.bound_volume_snapshot_content_name.as_deref());
    bound.is_some_and(|name| !name.is_empty())
}

/// The next thing to do for a snapshot that is not being deleted.
pub(super) fn decide(facts: &Facts) -> Step {
    next(facts).unwrap_or_else(Step::Fail)
}

fn next(facts: &Facts) -> Result<Step, Failure> {
    let snapshot = &*facts.snapshot;
    let source = &snapshot.spec.source;
    let claim_name = source.persistent_volume_claim_name.as_deref();
    let content_name = source.volume_snapshot_content_name.as_deref();
    if claim_name.is_some() == content_name.is_some() {
        let message = "exactly one of persistentVolumeClaimName and volumeSnapshotContentName \
                       must be given";
        return Err(Failure::new("SnapshotValidationError", message));
    }
    if is_ready(snapshot) && is_bound(snapshot) {
        return ready(facts);
    }
    let member = names::owning_group(snapshot).is_some();
    let made = match (&facts.content, content_name) {
        (Some(content), _) => Some(checked(facts, content, content_name.is_some(), member)?),
        (None, Some(name)) => {
            let message = format!("there is no VolumeSnapshotContent {name}");
            return Err(Failure::new("SnapshotContentMissing", message));
        }
        (None, None) => None,
    };
    match made {
        Some(content) => bound_to(facts, content, content_name.is_some()),
        // Whoever makes the group's members makes it.
        None if member => Ok(Step::Wait(
            "this member of a group has no content yet".to_owned(),
        )),
        None => content::made(facts),
    }
}

/// Whether all is well with a snapshot that can be restored from.
fn ready(facts: &Facts) -> Result<Step, Failure> {
    let snapshot = &*facts.snapshot;
    let Some(content) = &facts.content else {
        let message = "its VolumeSnapshotContent is missing";
        return Err(Failure::new("SnapshotContentMissing", message));
    };
    if names::fit(&content.spec.volume_snapshot_ref, snapshot) != Fit::Bound {
        let message = "its VolumeSnapshotContent is bound to another snapshot";
        return Err(Failure::new("SnapshotMisbound", message));
    }
    if let Some(finalizers) = protected(snapshot, content) {
        return Ok(Step::Finalizers(finalizers));
    }
    let status = snapshot.status.as_ref();
    let in_group = status.and_then(|status| status.volume_group_snapshot_name.as_ref());
    Ok(match (in_group, &facts.group) {
        (Some(_), Some(group)) if names::owning_group(snapshot).is_none() => {
            Step::Adopt(names::owner(group))
        }
        _ => Step::Done,
    })
}

/// The content, if it is one for this snapshot.
fn checked<'a>(
    facts: &Facts,
    content: &'a VolumeSnapshotContent,
    given: bool,
    member: bool,
) -> Result<&'a VolumeSnapshotContent, Failure> {
    let name = content.name_any();
    let source = &content.spec.source;
    if given && source.snapshot_handle.is_none() {
        let message = format!("VolumeSnapshotContent {name} is not of a snapshot made beforehand");
        return Err(Failure::new("SnapshotContentMismatch", message));
    }
    if !given && source.volume_handle.is_none() {
        let message = format!("VolumeSnapshotContent {name} is of a snapshot made beforehand");
        return Err(Failure::new("SnapshotContentMismatch", message));
    }
    match names::fit(&content.spec.volume_snapshot_ref, &*facts.snapshot) {
        Fit::Bound => Ok(content),
        // A member's is bound by who makes the group's members.
        Fit::Free if given || member => Ok(content),
        _ => {
            let message = format!("VolumeSnapshotContent {name} is bound to another snapshot");
            Err(Failure::new("SnapshotContentMisbound", message))
        }
    }
}

/// The finalizers a snapshot with a content lacks.
fn protected(snapshot: &VolumeSnapshot, content: &VolumeSnapshotContent) -> Option<Vec<String>> {
    let mut needed = vec![names::SNAPSHOT_AS_SOURCE];
    if content.spec.deletion_policy == DeletionPolicy::Delete {
        needed.push(names::SNAPSHOT_BOUND);
    }
    names::with(snapshot, &needed)
}

/// What is left to do for a snapshot with a content.
fn bound_to(facts: &Facts, content: &VolumeSnapshotContent, given: bool) -> Result<Step, Failure> {
    let snapshot = &*facts.snapshot;
    if let Some(finalizers) = protected(snapshot, content) {
        return Ok(Step::Finalizers(finalizers));
    }
    let is_free = names::fit(&content.spec.volume_snapshot_ref, snapshot) == Fit::Free;
    if given {
        let class = snapshot.spec.volume_snapshot_class_name.clone();
        let unclassed = content.spec.volume_snapshot_class_name.is_none() && class.is_some();
        if is_free || unclassed {
            if let Some(name) = &class {
                content::class(facts, name)?;
            }
            return Ok(Step::Bind(class));
        }
    } else if is_free {
        return Ok(Step::Wait("its content is not bound to it yet".to_owned()));
    }
    let group = match &facts.group_of_content {
        GroupOfContent::None => None,
        GroupOfContent::Named(name) => Some(name.as_str()),
        GroupOfContent::Unknown => {
            let message = "the group its content is of has not been seen".to_owned();
            return Ok(Step::Wait(message));
        }
    };
    Ok(status::change(snapshot, content, group).map_or(Step::Done, Step::Status))
}

#[cfg(test)]
mod tests;
