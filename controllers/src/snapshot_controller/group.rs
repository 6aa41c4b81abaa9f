//! Implements [`SnapshotKind`] for VolumeGroupSnapshots.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use serde_json::{Value, json};

use super::kind::{
    self, GROUP_REASONS, Names, SnapshotFailure, SnapshotKind, Step, View, WatchesOf,
};
use super::metrics::Of;
use super::names::{self, BindState};
use super::watches::{self, Watches};
use super::{AfterStep, CONFLICT, ReconcileError, SnapshotController, SnapshotKey, decide, status};
use crate::api::node::owner_of;
use crate::api::{pv, volume_mode};
use crate::cache::Store;
use crate::client::{ApiError, Kube, Resource};
use crate::controller::ObjectKey;
use crate::queue::{Outcome, yield_sometimes};
use crate::snapshots::content::GROUP;
use crate::snapshots::{
    DeletionPolicy, GroupContentSource, VolumeGroupSnapshot, VolumeGroupSnapshotClass,
    VolumeGroupSnapshotContent, VolumeGroupSnapshotContentSpec, VolumeSnapshot,
    VolumeSnapshotContent,
};

mod claims_by_label;
mod members;
mod source_modes;

pub(super) use claims_by_label::{ClaimsByLabel, any_label, awaited_labels, label};
use members::Member;

/// The kind VolumeGroupSnapshot.
#[derive(Debug)]
pub(super) struct Groups;

type Facts = kind::Facts<Groups>;

/// Inputs that only decisions about VolumeGroupSnapshots need.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupFacts {
    /// The volumes of the claims in the group's namespace that its selector fits, before it has a
    /// content. The error says why a claim has none: then the claims after it are missing.
    pub(super) sources: Vec<Result<SourceVolume, String>>,
    /// The members that the group's content lists.
    members: Vec<Member>,
    /// The snapshots that the group owns, if it is being deleted.
    pub(super) owned: Vec<Arc<VolumeSnapshot>>,
    /// The names of the owned snapshots that claims are being restored from.
    pub(super) restoring: Vec<String>,
}

/// What a group needs of a volume that it may be made of. Several groups of a namespace are decided
/// at the same time, each of thousands of claims: their whole objects would take too much memory.
#[derive(Clone, Debug)]
pub(super) struct SourceVolume {
    pub(super) volume: String,
    driver: String,
    handle: String,
    is_block: bool,
    /// The node of the volume, if it has one that counts.
    node: Option<String>,
    /// True if the volume has an affinity, and no node is known to have it.
    is_node_gone: bool,
}

impl SourceVolume {
    /// The volume of a claim. The error says why the claim has none that a group can be made of.
    fn new(
        claim: &PersistentVolumeClaim,
        volume: Option<&PersistentVolume>,
        nodes: Option<&[Arc<Node>]>,
    ) -> Result<Self, String> {
        let volume = decide::volume_of(claim, volume)?;
        let csi = decide::csi_of(volume)?;
        let node = nodes.and_then(|nodes| owner_of(volume, nodes));
        Ok(SourceVolume {
            volume: volume.name_any(),
            driver: csi.driver.clone(),
            handle: csi.volume_handle.clone(),
            is_block: pv::volume_mode(volume) == volume_mode::BLOCK,
            is_node_gone: nodes.is_some() && node.is_none() && pv::node_terms(volume).is_some(),
            node,
        })
    }
}

/// Steps that only VolumeGroupSnapshots have.
#[derive(Debug)]
pub(super) enum GroupStep {
    CreateMember(Box<VolumeSnapshot>),
    CreateMemberContent(Box<VolumeSnapshotContent>),
    /// Bind a member's content to the member of this UID.
    BindMemberContent(Arc<VolumeSnapshotContent>, String),
    /// Bind a member to the content of this name.
    BindMember(Arc<VolumeSnapshot>, String),
    /// Write the status of a member's content.
    MemberContentStatus(Arc<VolumeSnapshotContent>, Value),
    /// Delete these members.
    DeleteMembers(Vec<Arc<VolumeSnapshot>>),
}

impl SnapshotKind for Groups {
    type Snapshot = VolumeGroupSnapshot;
    type Content = VolumeGroupSnapshotContent;
    type Class = VolumeGroupSnapshotClass;
    type OwnFacts = GroupFacts;
    type OwnStep = GroupStep;

    const NAMES: Names = Names {
        of: Of::Group,
        noun: "group snapshot",
        title: "Group snapshot",
        sources: "selector and volumeGroupSnapshotContentName",
        handles: "volumeHandles and groupSnapshotHandles",
        class_field: "volumeGroupSnapshotClassName",
        reference_field: "volumeGroupSnapshotRef",
        bound_field: "boundVolumeGroupSnapshotContentName",
        content_name: names::group_content_name,
        default_class: names::DEFAULT_GROUP_CLASS,
        reasons: GROUP_REASONS,
    };

    const FINALIZERS: &[&str] = &[names::GROUP_BOUND];

    fn key(namespace: String, name: String) -> SnapshotKey {
        SnapshotKey::Group(namespace, name)
    }

    fn content_key(content: ObjectKey) -> SnapshotKey {
        SnapshotKey::GroupContent(content)
    }

    fn orphan_key(content: ObjectKey, uid: String) -> SnapshotKey {
        SnapshotKey::GroupOrphan(content, uid)
    }

    fn watches(all: &Watches) -> WatchesOf<'_, Self> {
        (&all.groups, &all.group_contents, &all.group_classes)
    }

    fn view(group: &Self::Snapshot) -> View<'_> {
        let (spec, status) = (&group.spec, group.status.as_ref());
        let bound = status.and_then(|it| it.bound_volume_group_snapshot_content_name.as_deref());
        View {
            class: spec.volume_group_snapshot_class_name.as_deref(),
            given: spec.source.volume_group_snapshot_content_name.as_deref(),
            selects_volumes: spec.source.selector.is_some(),
            bound: bound.filter(|name| !name.is_empty()),
            created: status.and_then(|it| it.creation_time.as_ref()),
            ready: status.and_then(|it| it.ready_to_use),
            error: status.and_then(|it| it.error.as_ref()),
        }
    }

    fn made_contents(group: &ObjectMeta) -> Vec<String> {
        group
            .uid
            .as_deref()
            .map(names::group_content_name)
            .into_iter()
            .collect()
    }

    fn expected_content(group: &Self::Snapshot) -> Option<String> {
        let view = Self::view(group);
        let named = view.given.or(view.bound).map(str::to_owned);
        named.or_else(|| group.uid().map(|uid| names::group_content_name(&uid)))
    }

    async fn own_facts(
        all: &Watches,
        kube: &Kube,
        group: &Self::Snapshot,
        content: Option<&Self::Content>,
    ) -> Result<Self::OwnFacts, ApiError> {
        if !group.is_deleting() {
            return Ok(GroupFacts {
                sources: match content {
                    None => selected(all, kube, group).await?,
                    Some(_) => Vec::new(),
                },
                members: members::listed(all, group, content).await,
                ..GroupFacts::default()
            });
        }
        let owned = all.of_group.get(&names::path(group)).into_iter();
        let owned: Vec<_> = owned
            .filter(|one| names::owning_group(one).map(|it| &it.uid) == group.metadata.uid.as_ref())
            .collect();
        let restoring = owned
            .iter()
            .filter(|one| all.restoring_from(one).next().is_some());
        Ok(GroupFacts {
            restoring: restoring.map(|one| one.name_any()).collect(),
            owned,
            ..GroupFacts::default()
        })
    }

    fn finalizers(_: DeletionPolicy) -> Vec<&'static str> {
        vec![names::GROUP_BOUND]
    }

    /// The driver of the group's first volume.
    fn driver(facts: &Facts) -> Result<&str, String> {
        let first = volumes(facts)?.into_iter().next();
        Ok(&first.ok_or("its selector fits no claim")?.driver)
    }

    /// Adds the finalizer first, then creates the content.
    fn make(facts: &Facts, class: &Self::Class) -> Result<Step<Self>, SnapshotFailure> {
        let content = new_content(facts, class)
            .map_err(|message| SnapshotFailure::new(Self::NAMES.reasons.make_content, message))?;
        Ok(match names::with(&*facts.snapshot, &[names::GROUP_BOUND]) {
            Some(finalizers) => Step::Finalizers(finalizers),
            None => Step::Create(Box::new(content)),
        })
    }

    /// Makes the members that a backup lacks: the status of the group can be from after it. A member
    /// that the caches leave out may be whole.
    fn when_ready(facts: &Facts, content: &Self::Content) -> Result<Step<Self>, SnapshotFailure> {
        let is_given = Self::view(&facts.snapshot).given.is_some();
        if is_given || facts.own.members.iter().any(|one| one.is_left_out) {
            return Ok(Step::Done);
        }
        Ok(members::next(facts, content)?.map_or(Step::Done, Step::Own))
    }

    fn before_status(
        facts: &Facts,
        content: &Self::Content,
        _: BindState,
    ) -> Result<Option<Step<Self>>, SnapshotFailure> {
        Ok(members::next(facts, content)?.map(Step::Own))
    }

    fn copy_status(facts: &Facts, content: &Self::Content) -> Step<Self> {
        let change = status::change::<Self>(&facts.snapshot, content, json!({}));
        change.map_or(Step::Done, Step::Status)
    }

    fn decide_deletion(facts: &Facts) -> Step<Self> {
        let group = &*facts.snapshot;
        if !group.has_finalizer(names::GROUP_BOUND) {
            return Step::Done;
        }
        if !facts.own.restoring.is_empty() {
            return Step::BlockDeletion(format!(
                "claims are being restored from its snapshots: {}",
                facts.own.restoring.join(", ")
            ));
        }
        let content = decide::bound_content(facts);
        let doomed = content.is_some_and(|it| it.spec.deletion_policy == DeletionPolicy::Delete);
        if let Some(content) = content {
            let marks = content.annotations();
            if !marks.contains_key(GROUP.being_deleted) {
                return Step::Mark;
            }
            if doomed && !content.is_deleting() {
                return Step::DeleteContent;
            }
        }
        let kept: Vec<_> = facts
            .own
            .owned
            .iter()
            .filter(|member| !member.is_deleting())
            .cloned()
            .collect();
        if !kept.is_empty() {
            return Step::Own(GroupStep::DeleteMembers(kept));
        }
        if doomed {
            return Step::Done;
        }
        names::without(group, &[names::GROUP_BOUND]).map_or(Step::Done, Step::Finalizers)
    }

    async fn apply_own(
        controller: &SnapshotController,
        facts: &Facts,
        step: GroupStep,
    ) -> Result<AfterStep, ReconcileError> {
        let (snapshots, contents) = (&controller.watches.snapshots, &controller.watches.contents);
        match step {
            GroupStep::CreateMember(member) => {
                return controller.create_for(facts, snapshots, &*member).await;
            }
            GroupStep::CreateMemberContent(content) => {
                return controller.create_for(facts, contents, &*content).await;
            }
            GroupStep::BindMemberContent(content, uid) => {
                let patch = json!({"spec": {"volumeSnapshotRef": {"uid": uid}}});
                controller.merge(contents, &*content, patch).await?;
            }
            GroupStep::BindMember(member, content) => {
                let status = json!({"boundVolumeSnapshotContentName": content});
                controller.merge_status(snapshots, &*member, status).await?;
            }
            GroupStep::MemberContentStatus(content, status) => {
                match controller.merge_status(contents, &*content, status).await {
                    Err(dropped @ ReconcileError::Dropped { .. }) => {
                        let reason = Self::NAMES.reasons.make_content;
                        let failure = SnapshotFailure::new(reason, dropped.to_string());
                        return controller.fail(facts, failure).await;
                    }
                    written => written?,
                }
            }
            GroupStep::DeleteMembers(members) => {
                for member in members {
                    controller.may_write()?;
                    controller.kube.delete(&*member).await?;
                }
                return Ok(AfterStep::End(Outcome::RequeueAfter(CONFLICT)));
            }
        }
        Ok(AfterStep::Look)
    }

    fn deletes(step: &GroupStep) -> bool {
        matches!(step, GroupStep::DeleteMembers(_))
    }

    /// Queues the members, which waited for the group's deletion.
    fn deleted(controller: &SnapshotController, namespace: &str, name: &str) {
        let members = &controller.watches.of_group;
        for member in members.get(&watches::at(namespace, name)) {
            controller
                .queue
                .add(super::key_of::<super::Snapshots>(&member));
        }
    }
}

/// The selector of a group's claims.
fn selector(group: &VolumeGroupSnapshot) -> Result<Selector, String> {
    let selector = group.spec.source.selector.clone().unwrap_or_default();
    Selector::try_from(selector).map_err(|error| format!("selector: {error}"))
}

/// True if a group's volumes are selected, and its selector fits this claim.
pub(super) fn selects(group: &VolumeGroupSnapshot, claim: &PersistentVolumeClaim) -> bool {
    Groups::view(group).selects_volumes
        && selector(group).is_ok_and(|selector| selector.matches(claim.labels()))
}

/// The volumes of the claims that a group's selector fits, up to the first claim without one that a
/// group can be made of. A claim that is too large to be kept may be one of them.
async fn selected(
    all: &Watches,
    kube: &Kube,
    group: &VolumeGroupSnapshot,
) -> Result<Vec<Result<SourceVolume, String>>, ApiError> {
    let namespace = group.namespace().unwrap_or_default();
    let (Ok(selector), true) = (selector(group), Groups::view(group).selects_volumes) else {
        return Ok(Vec::new());
    };
    let label = group
        .spec
        .source
        .selector
        .as_ref()
        .and_then(claims_by_label::required);
    let nodes = all.nodes.as_ref().map(Store::all);
    let claims = all
        .claims_by_label
        .select(&namespace, label, selector)
        .await;
    let mut selected = Vec::new();
    for (number, claim) in claims.enumerate() {
        if let Some(claim) = claim {
            let volume = all.volume_of(&claim);
            let source = SourceVolume::new(&claim, volume.as_deref(), nodes.as_deref());
            let is_usable = source.is_ok();
            selected.push(source);
            if !is_usable {
                // The group is not made, whatever else there is: no list is worth its cost.
                return Ok(selected);
            }
        }
        yield_sometimes(number).await;
    }
    // Without its labels, no one knows whether it belongs to the group.
    if let Some(name) = left_out_claim(all, kube, &namespace).await? {
        selected.push(Err(format!(
            "claim {name} of this namespace is too large to be read, and the selector may fit it"
        )));
    }
    Ok(selected)
}

/// The name of a claim in a namespace that is too large to be kept. If not all names are known, the
/// API server says whether there is one: it may be in any other namespace.
async fn left_out_claim(
    all: &Watches,
    kube: &Kube,
    namespace: &str,
) -> Result<Option<String>, ApiError> {
    if !all.claims.leaves_out_any(namespace) {
        return Ok(None);
    }
    if let Some(name) = all.claims.first_left_out(namespace) {
        return Ok(Some(name));
    }
    let field = format!("metadata.namespace={namespace}");
    let mut found = None;
    kube.list_in_by_field(namespace, &field, |claim: PersistentVolumeClaim| {
        let name = claim.name_any();
        found = all.claims.leaves_out(namespace, &name).then_some(name);
        found.is_none()
    })
    .await?;
    Ok(found)
}

/// The volumes of the claims that the selector fits.
fn volumes(facts: &Facts) -> Result<Vec<&SourceVolume>, String> {
    // A selector that is not valid fits nothing.
    selector(&facts.snapshot)?;
    let sources = &facts.own.sources;
    if sources.is_empty() {
        return Err("its selector fits no claim in this namespace".to_owned());
    }
    sources
        .iter()
        .map(|source| source.as_ref().map_err(String::clone))
        .collect()
}

/// The node of all volumes, if they have one. While the node of a volume is gone, the node of the
/// others can't take the group, and so must not get its label.
fn node(volumes: &[&SourceVolume]) -> Result<Option<String>, String> {
    let nodes = volumes.iter().filter_map(|volume| volume.node.as_deref());
    let nodes: BTreeSet<&str> = nodes.collect();
    if nodes.len() > 1 {
        let nodes: Vec<&str> = nodes.into_iter().collect();
        return Err(format!(
            "the volumes are on different nodes ({}), and can't be snapshotted at one moment",
            nodes.join(", ")
        ));
    }
    if volumes.iter().any(|volume| volume.is_node_gone) {
        return Ok(None);
    }
    Ok(nodes.into_iter().next().map(str::to_owned))
}

fn new_content(
    facts: &Facts,
    class: &VolumeGroupSnapshotClass,
) -> Result<VolumeGroupSnapshotContent, String> {
    let volumes = volumes(facts)?;
    for source in &volumes {
        decide::check_driver::<Groups>(class, &source.volume, &source.driver)?;
    }
    let handles = volumes.iter().map(|source| source.handle.clone());
    let handles = handles.collect();
    let node = node(&volumes)?;
    let (mut metadata, reference) = decide::new_content(facts, class, node)?;
    source_modes::note(&mut metadata, &volumes);
    let spec = VolumeGroupSnapshotContentSpec {
        volume_group_snapshot_ref: reference,
        deletion_policy: class.deletion_policy,
        driver: class.driver.clone(),
        volume_group_snapshot_class_name: class.metadata.name.clone(),
        source: GroupContentSource {
            volume_handles: Some(handles),
            group_snapshot_handles: None,
        },
    };
    Ok(VolumeGroupSnapshotContent {
        metadata,
        spec,
        status: None,
    })
}

#[cfg(test)]
pub(super) mod tests;
