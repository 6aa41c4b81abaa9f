//! What to do for a VolumeGroupSnapshot.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::names::{self, Fit};
use super::snapshot::Failure;
use super::status::{self, StatusChange};
use crate::snapshots::{
    DeletionPolicy, VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent,
    VolumeSnapshot, VolumeSnapshotContent,
};

mod content;
mod members;

pub(super) use members::Member;

/// What is known of a group and what belongs to it.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// It.
    pub(super) group: Arc<VolumeGroupSnapshot>,
    /// The content it names, or would have, if there is one of that name.
    pub(super) content: Option<Arc<VolumeGroupSnapshotContent>>,
    /// All classes.
    pub(super) classes: Vec<Arc<VolumeGroupSnapshotClass>>,
    /// All claims in its namespace, and the volumes they are bound to.
    pub(super) claims: Vec<(Arc<PersistentVolumeClaim>, Option<Arc<PersistentVolume>>)>,
    /// What is there, and is to be there, of the members its content tells of.
    pub(super) members: Vec<Member>,
    /// Snapshots it owns.
    pub(super) owned: Vec<Arc<VolumeSnapshot>>,
    /// Those of them that claims are being restored from.
    pub(super) restoring: Vec<String>,
    /// All nodes, if contents are to be labelled with theirs.
    pub(super) nodes: Option<Vec<Arc<Node>>>,
}

/// The next thing to do for a group. After each, there is another look.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// All is as it should be.
    Done,
    /// Name its class.
    SetClass(String),
    /// Write these finalizers.
    Finalizers(Vec<String>),
    /// Make its content.
    Create(Box<VolumeGroupSnapshotContent>),
    /// Bind its content to it, and name its class there.
    Bind(Option<String>),
    /// Make a member.
    CreateMember(Box<VolumeSnapshot>),
    /// Make a member's content.
    CreateMemberContent(Box<VolumeSnapshotContent>),
    /// Bind a member's content to the member of this UID.
    BindMemberContent(Arc<VolumeSnapshotContent>, String),
    /// Bind a member to the content of this name.
    BindMember(Arc<VolumeSnapshot>, String),
    /// Write the status of a member's content.
    MemberContentStatus(Arc<VolumeSnapshotContent>, serde_json::Value),
    /// Write its status.
    Status(StatusChange),
    /// Tell the driver's loop, on the content, that it is being deleted.
    Mark,
    /// Delete its content.
    DeleteContent,
    /// Delete these members.
    DeleteMembers(Vec<Arc<VolumeSnapshot>>),
    /// It can't be deleted yet: say why, and try again.
    Pend(String),
    /// It can't be: say why, and try again.
    Fail(Failure),
}

/// The name of the content a group names or would have.
pub(super) fn expected_content(group: &VolumeGroupSnapshot) -> Option<String> {
    let source = &group.spec.source;
    if let Some(name) = &source.volume_group_snapshot_content_name {
        return Some(name.clone());
    }
    let bound = bound_name(group).map(str::to_owned);
    bound.or_else(|| group.uid().map(|uid| names::group_content_name(&uid)))
}

fn bound_name(group: &VolumeGroupSnapshot) -> Option<&str> {
    let status = group.status.as_ref()?;
    let name = status.bound_volume_group_snapshot_content_name.as_deref();
    name.filter(|name| !name.is_empty())
}

pub(super) fn is_ready(group: &VolumeGroupSnapshot) -> bool {
    let status = group.status.as_ref();
    status.and_then(|status| status.ready_to_use) == Some(true)
}

/// The next thing to do for a group that is not being deleted.
pub(super) fn decide(facts: &Facts) -> Step {
    next(facts).unwrap_or_else(Step::Fail)
}

fn next(facts: &Facts) -> Result<Step, Failure> {
    let group = &*facts.group;
    let source = &group.spec.source;
    let given = source.volume_group_snapshot_content_name.as_deref();
    if source.selector.is_some() == given.is_some() {
        let message = "exactly one of selector and volumeGroupSnapshotContentName must be given";
        return Err(Failure::new("GroupSnapshotValidationError", message));
    }
    let ready = is_ready(group) && bound_name(group).is_some();
    let Some(content) = &facts.content else {
        if ready {
            let message = "its VolumeGroupSnapshotContent is missing";
            return Err(Failure::new("GroupSnapshotContentMissing", message));
        }
        let Some(name) = given else {
            return content::made(facts);
        };
        let message = format!("there is no VolumeGroupSnapshotContent {name}");
        return Err(Failure::new("GroupSnapshotContentMissing", message));
    };
    let fit = names::fit(&content.spec.volume_group_snapshot_ref, group);
    if ready && fit != Fit::Bound {
        let message = "its VolumeGroupSnapshotContent is bound to another group snapshot";
        return Err(Failure::new("GroupSnapshotMisbound", message));
    }
    check(content, fit, given.is_some())?;
    if let Some(finalizers) = names::with(group, &[names::GROUP_BOUND]) {
        return Ok(Step::Finalizers(finalizers));
    }
    if ready {
        return Ok(Step::Done);
    }
    if given.is_some() {
        let class = group.spec.volume_group_snapshot_class_name.clone();
        let unclassed = content.spec.volume_group_snapshot_class_name.is_none() && class.is_some();
        if fit == Fit::Free || unclassed {
            if let Some(name) = &class {
                content::class(facts, name)?;
            }
            return Ok(Step::Bind(class));
        }
    } else if let Some(step) = members::next(facts, content)? {
        return Ok(step);
    }
    Ok(status::group_change(group, content).map_or(Step::Done, Step::Status))
}

/// Whether the content is one for this group.
fn check(content: &VolumeGroupSnapshotContent, fit: Fit, given: bool) -> Result<(), Failure> {
    let name = content.name_any();
    let beforehand = content.spec.source.group_snapshot_handles.is_some();
    if given != beforehand {
        let not = if given { "not " } else { "" };
        let message =
            format!("VolumeGroupSnapshotContent {name} is {not}of a group made beforehand");
        return Err(Failure::new("GroupSnapshotContentMismatch", message));
    }
    if fit == Fit::Other || (fit == Fit::Free && !given) {
        let message =
            format!("VolumeGroupSnapshotContent {name} is bound to another group snapshot");
        return Err(Failure::new("GroupSnapshotContentMisbound", message));
    }
    Ok(())
}

/// The next thing to do for a group that is being deleted.
pub(super) fn decide_deletion(facts: &Facts) -> Step {
    let group = &*facts.group;
    if !names::has(group, names::GROUP_BOUND) {
        return Step::Done;
    }
    if !facts.restoring.is_empty() {
        return Step::Pend(format!(
            "claims are being restored from these of its snapshots: {}",
            facts.restoring.join(", ")
        ));
    }
    let fits = |reference| names::fit(reference, group) == Fit::Bound;
    let content = facts.content.as_ref();
    let content = content.filter(|content| fits(&content.spec.volume_group_snapshot_ref));
    let doomed = content.is_some_and(|it| it.spec.deletion_policy == DeletionPolicy::Delete);
    if let Some(content) = content {
        if !content
            .annotations()
            .contains_key(names::GROUP_BEING_DELETED)
        {
            return Step::Mark;
        }
        if doomed && !names::is_deleting(&**content) {
            return Step::DeleteContent;
        }
    }
    let is_kept = |member: &&Arc<VolumeSnapshot>| !names::is_deleting(&***member);
    let kept: Vec<_> = facts.owned.iter().filter(is_kept).cloned().collect();
    if !kept.is_empty() {
        return Step::DeleteMembers(kept);
    }
    if doomed {
        return Step::Done;
    }
    names::without(group, &[names::GROUP_BOUND]).map_or(Step::Done, Step::Finalizers)
}

#[cfg(test)]
mod tests;
