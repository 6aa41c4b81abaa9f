//! Implements [`SnapshotKind`] for VolumeSnapshots.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use serde_json::json;

use super::kind::{
    self, Names, SNAPSHOT_REASONS, SnapshotFailure, SnapshotKind, Step, View, WatchesOf,
};
use super::metrics::Of;
use super::names::{self, BindState};
use super::watches::{self, Watches};
use super::{AfterStep, ReconcileError, SnapshotController, SnapshotKey, decide, status};
use crate::api::constants::SNAPSHOT_FINALIZER;
use crate::api::node::owner_of;
use crate::api::{pv, quantity};
use crate::client::{ApiError, Kube, Resource};
use crate::controller::ObjectKey;
use crate::queue::yield_sometimes;
use crate::snapshots::content::{Content, SINGLE};
use crate::snapshots::{
    ContentSource, DeletionPolicy, VolumeGroupSnapshot, VolumeSnapshot, VolumeSnapshotClass,
    VolumeSnapshotContent, VolumeSnapshotContentSpec, VolumeSnapshotStatus,
};

/// The kind VolumeSnapshot.
#[derive(Debug)]
pub(super) struct Snapshots;

type Facts = kind::Facts<Snapshots>;

/// Inputs that only decisions about VolumeSnapshots need.
#[derive(Clone, Debug)]
pub(super) struct SnapshotFacts {
    /// The source claim of the snapshot.
    pub(super) claim: Option<Arc<PersistentVolumeClaim>>,
    /// The claim's finalizers without the source finalizer, if the snapshot is being deleted, the
    /// claim has that finalizer, and no other snapshot needs it.
    pub(super) released_claim: Option<Vec<String>>,
    /// The volume that the claim is bound to, if it exists.
    pub(super) volume: Option<Arc<PersistentVolume>>,
    /// The names of the claims that are, or may yet be, restored from the snapshot, if it is being
    /// deleted.
    pub(super) restoring: Vec<String>,
    /// The group that the snapshot names in its owner references or status, if it exists.
    pub(super) group: Option<Arc<VolumeGroupSnapshot>>,
    /// The group of the content, found by the CSI group snapshot's ID.
    pub(super) group_of_content: GroupOfContent,
}

/// The group that a content belongs to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum GroupOfContent {
    /// The content belongs to no group.
    None,
    /// The content belongs to a group that is not in the cache yet.
    Unknown,
    /// The content belongs to the group of this name.
    Named(String),
}

/// Steps that only VolumeSnapshots have.
#[derive(Debug)]
pub(super) enum SnapshotStep {
    /// Add the group as an owner.
    Adopt(OwnerReference),
    /// Write these finalizers to the claim.
    ClaimFinalizers(Vec<String>),
}

impl SnapshotKind for Snapshots {
    type Snapshot = VolumeSnapshot;
    type Content = VolumeSnapshotContent;
    type Class = VolumeSnapshotClass;
    type OwnFacts = SnapshotFacts;
    type OwnStep = SnapshotStep;

    const NAMES: Names = Names {
        of: Of::Snapshot,
        noun: "snapshot",
        title: "Snapshot",
        sources: "persistentVolumeClaimName and volumeSnapshotContentName",
        handles: "volumeHandle and snapshotHandle",
        class_field: "volumeSnapshotClassName",
        reference_field: "volumeSnapshotRef",
        bound_field: "boundVolumeSnapshotContentName",
        content_name: names::content_name,
        default_class: names::DEFAULT_CLASS,
        reasons: SNAPSHOT_REASONS,
    };

    const FINALIZERS: &[&str] = &[
        names::SNAPSHOT_AS_SOURCE,
        names::SNAPSHOT_BOUND,
        names::SNAPSHOT_IN_GROUP,
        SNAPSHOT_FINALIZER,
    ];

    fn key(namespace: String, name: String) -> SnapshotKey {
        SnapshotKey::Snapshot(namespace, name)
    }

    fn content_key(content: ObjectKey) -> SnapshotKey {
        SnapshotKey::Content(content)
    }

    fn orphan_key(content: ObjectKey, uid: String) -> SnapshotKey {
        SnapshotKey::Orphan(content, uid)
    }

    fn watches(all: &Watches) -> WatchesOf<'_, Self> {
        (&all.snapshots, &all.contents, &all.classes)
    }

    fn view(snapshot: &Self::Snapshot) -> View<'_> {
        let (spec, status) = (&snapshot.spec, snapshot.status.as_ref());
        View {
            class: spec.volume_snapshot_class_name.as_deref(),
            given: spec.source.volume_snapshot_content_name.as_deref(),
            selects_volumes: spec.source.persistent_volume_claim_name.is_some(),
            bound: snapshot.bound_content(),
            created: status.and_then(|it| it.creation_time.as_ref()),
            ready: status.and_then(|it| it.ready_to_use),
            error: status.and_then(|it| it.error.as_ref()),
        }
    }

    fn made_contents(snapshot: &ObjectMeta) -> Vec<String> {
        let own = snapshot.uid.as_deref().map(names::content_name);
        let of_member = snapshot
            .name
            .as_deref()
            .and_then(names::member_content_name);
        own.into_iter().chain(of_member).collect()
    }

    fn expected_content(snapshot: &Self::Snapshot) -> Option<String> {
        names::expected_content(snapshot)
    }

    async fn own_facts(
        all: &Watches,
        _: &Kube,
        snapshot: &Self::Snapshot,
        content: Option<&Self::Content>,
    ) -> Result<Self::OwnFacts, ApiError> {
        let namespace = snapshot.namespace().unwrap_or_default();
        let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref();
        let claim = claim.and_then(|name| all.claims.get_in(&namespace, name));
        let its = claim.as_deref();
        let mut restoring = Vec::new();
        if snapshot.is_deleting() {
            for (number, claim) in all.restoring_from(snapshot).enumerate() {
                restoring.push(claim.name_any());
                yield_sometimes(number).await;
            }
        }
        Ok(SnapshotFacts {
            volume: its.and_then(|claim| all.volume_of(claim)),
            released_claim: its
                .filter(|_| snapshot.is_deleting())
                .and_then(|claim| all.released(claim, Some(snapshot))),
            claim,
            restoring,
            group: group_of(all, snapshot),
            group_of_content: group_of_content(all, content),
        })
    }

    fn is_member(snapshot: &Self::Snapshot) -> bool {
        names::owning_group(snapshot).is_some()
    }

    fn finalizers(policy: DeletionPolicy) -> Vec<&'static str> {
        let mut needed = vec![names::SNAPSHOT_AS_SOURCE];
        if policy == DeletionPolicy::Delete {
            needed.push(names::SNAPSHOT_BOUND);
        }
        needed
    }

    fn driver(facts: &Facts) -> Result<&str, String> {
        let (_, volume) = bound_volume(facts)?;
        Ok(&decide::csi_of(volume)?.driver)
    }

    /// Adds finalizers to the snapshot, then to its claim, and then creates the content.
    fn make(facts: &Facts, class: &Self::Class) -> Result<Step<Self>, SnapshotFailure> {
        let needed = Self::finalizers(class.deletion_policy);
        if let Some(finalizers) = names::with(&*facts.snapshot, &needed) {
            return Ok(Step::Finalizers(finalizers));
        }
        let (claim, volume) = bound_volume(facts).map_err(no_content)?;
        let content = new_content(facts, class, volume).map_err(no_content)?;
        if let Some(finalizers) = names::with(claim, &[names::CLAIM_AS_SOURCE]) {
            if claim.is_deleting() {
                let claim = claim.name_any();
                return Err(no_content(format!("claim {claim} is being deleted")));
            }
            return Ok(Step::Own(SnapshotStep::ClaimFinalizers(finalizers)));
        }
        Ok(Step::Create(Box::new(content)))
    }

    fn when_ready(facts: &Facts, _: &Self::Content) -> Result<Step<Self>, SnapshotFailure> {
        let snapshot = &*facts.snapshot;
        let status = snapshot.status.as_ref();
        let in_group = status.and_then(|status| status.volume_group_snapshot_name.as_ref());
        Ok(match (in_group, &facts.own.group) {
            (Some(_), Some(group)) if !Self::is_member(snapshot) => {
                Step::Own(SnapshotStep::Adopt(names::owner(group)))
            }
            _ => Step::Done,
        })
    }

    fn before_status(
        facts: &Facts,
        content: &Self::Content,
        bind_state: BindState,
    ) -> Result<Option<Step<Self>>, SnapshotFailure> {
        if bind_state == BindState::Free {
            return Ok(Some(Step::Wait(
                "its content is not bound to it yet".to_owned(),
            )));
        }
        // The claim was released while this snapshot had an error.
        let claim = facts
            .own
            .claim
            .as_deref()
            .filter(|claim| !claim.is_deleting());
        let volume = facts.own.volume.as_deref().and_then(pv::csi);
        let handle = volume.map(|csi| csi.volume_handle.as_str());
        let claim = claim.filter(|_| {
            !Self::is_member(&facts.snapshot)
                && watches::needs_claim(&facts.snapshot, Some(content), handle)
        });
        let finalizers = claim.and_then(|it| names::with(it, &[names::CLAIM_AS_SOURCE]));
        Ok(finalizers.map(|finalizers| Step::Own(SnapshotStep::ClaimFinalizers(finalizers))))
    }

    fn copy_status(facts: &Facts, content: &Self::Content) -> Step<Self> {
        let group = match &facts.own.group_of_content {
            GroupOfContent::None => None,
            GroupOfContent::Named(name) => Some(name.as_str()),
            GroupOfContent::Unknown => {
                return Step::Wait("the group snapshot of its content is not known yet".to_owned());
            }
        };
        let change = status_change(&facts.snapshot, content, group);
        change.map_or(Step::Done, Step::Status)
    }

    /// Deletes the content first, then removes the finalizers.
    fn decide_deletion(facts: &Facts) -> Step<Self> {
        let snapshot = &*facts.snapshot;
        let held = [
            names::SNAPSHOT_AS_SOURCE,
            names::SNAPSHOT_BOUND,
            names::SNAPSHOT_IN_GROUP,
        ];
        if !held
            .iter()
            .any(|finalizer| snapshot.has_finalizer(finalizer))
        {
            return Step::Done;
        }
        let content = decide::bound_content(facts);
        let restoring = &facts.own.restoring;
        if content.is_some() && !restoring.is_empty() {
            return Step::BlockDeletion(format!(
                "{} claims are being restored from this snapshot: {}",
                restoring.len(),
                names::some_of(restoring)
            ));
        }
        if let Some(group) = &facts.own.group {
            let path = names::path(&**group);
            return if group.is_deleting() {
                Step::Wait(format!("group snapshot {path} is being deleted first"))
            } else {
                Step::BlockDeletion(format!(
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
                if !content.annotations().contains_key(SINGLE.being_deleted) {
                    return Step::Mark;
                }
                if doomed && !content.is_deleting() {
                    return Step::DeleteContent;
                }
                // A doomed content must be gone before this finalizer is removed.
                if !doomed {
                    released.push(names::SNAPSHOT_BOUND);
                }
            }
        }
        let Some(finalizers) = names::without(snapshot, &released) else {
            return Step::Done;
        };
        // Release the claim first: once the snapshot is deleted, nothing refers to the claim.
        match &facts.own.released_claim {
            Some(released) => Step::Own(SnapshotStep::ClaimFinalizers(released.clone())),
            None => Step::Finalizers(finalizers),
        }
    }

    async fn apply_own(
        controller: &SnapshotController,
        facts: &Facts,
        step: SnapshotStep,
    ) -> Result<AfterStep, ReconcileError> {
        let (snapshot, watches) = (&*facts.snapshot, &controller.watches);
        match step {
            SnapshotStep::Adopt(owner) => {
                let mut owners = snapshot.owner_references().to_vec();
                owners.push(owner);
                let patch = json!({"metadata": {"ownerReferences": owners}});
                controller
                    .merge(&watches.snapshots, snapshot, patch)
                    .await?;
            }
            SnapshotStep::ClaimFinalizers(finalizers) => {
                if let Some(claim) = &facts.own.claim {
                    let claims = &watches.claims;
                    controller
                        .set_finalizers(claims, &**claim, finalizers)
                        .await?;
                }
            }
        }
        Ok(AfterStep::Look)
    }
}

/// The group a snapshot is a member of, if it still exists.
fn group_of(all: &Watches, snapshot: &VolumeSnapshot) -> Option<Arc<VolumeGroupSnapshot>> {
    let namespace = snapshot.namespace().unwrap_or_default();
    if let Some(owner) = names::owning_group(snapshot) {
        let group = all.groups.get_in(&namespace, &owner.name)?;
        return (group.metadata.uid.as_ref() == Some(&owner.uid)).then_some(group);
    }
    let status = snapshot.status.as_ref()?;
    let name = status.volume_group_snapshot_name.as_ref()?;
    all.groups.get_in(&namespace, name)
}

fn group_of_content(all: &Watches, content: Option<&VolumeSnapshotContent>) -> GroupOfContent {
    let Some(content) = content else {
        return GroupOfContent::None;
    };
    let Some(handle) = content.view().group else {
        return GroupOfContent::None;
    };
    let found = all
        .by_group_handle
        .get(&watches::at(&content.spec.driver, handle));
    let name = found
        .first()
        .and_then(|found| found.spec.volume_group_snapshot_ref.name.clone());
    name.map_or(GroupOfContent::Unknown, GroupOfContent::Named)
}

/// The fields of a content's status that its snapshot lacks. `group` is the content's group, so the
/// snapshot is a member of it.
fn status_change(
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
    group: Option<&str>,
) -> Option<kind::StatusChange> {
    let none = VolumeSnapshotStatus::default();
    let old = snapshot.status.as_ref().unwrap_or(&none);
    let mut patch = json!({});
    let size = content.status.as_ref().and_then(|new| new.restore_size);
    let known = old.restore_size.as_deref();
    let is_unknown = matches!(known, Some("" | "0"));
    let is_of_another = status::has_other_time::<Snapshots>(snapshot, content);
    if let Some(size) = size.filter(|size| *size >= 0)
        && (known.is_none() || is_of_another || (is_unknown && size > 0))
    {
        patch["restoreSize"] = json!(quantity::written(size));
    }
    if old.volume_group_snapshot_name.is_none()
        && let Some(group) = group
    {
        patch["volumeGroupSnapshotName"] = json!(group);
    }
    status::change::<Snapshots>(snapshot, content, patch)
}

/// Why a snapshot's content is not made.
fn no_content(why: String) -> SnapshotFailure {
    SnapshotFailure::new(Snapshots::NAMES.reasons.make_content, why)
}

/// The source claim of a snapshot, and the volume that it is bound to.
fn bound_volume(facts: &Facts) -> Result<(&PersistentVolumeClaim, &PersistentVolume), String> {
    let source = &facts.snapshot.spec.source;
    let name = source.persistent_volume_claim_name.as_deref();
    let name = name.unwrap_or_default();
    let claim = facts.own.claim.as_deref();
    let claim = claim.ok_or_else(|| format!("there is no claim {name:?} in this namespace"))?;
    Ok((
        claim,
        decide::volume_of(claim, facts.own.volume.as_deref())?,
    ))
}

fn new_content(
    facts: &Facts,
    class: &VolumeSnapshotClass,
    volume: &PersistentVolume,
) -> Result<VolumeSnapshotContent, String> {
    let handle = decide::handle_of::<Snapshots>(class, volume)?;
    let nodes = facts.nodes.as_ref();
    let node = nodes.and_then(|nodes| owner_of(volume, nodes));
    let (metadata, reference) = decide::new_content(facts, class, node)?;
    let spec = VolumeSnapshotContentSpec {
        volume_snapshot_ref: reference,
        deletion_policy: class.deletion_policy,
        driver: class.driver.clone(),
        volume_snapshot_class_name: class.metadata.name.clone(),
        source: ContentSource {
            volume_handle: Some(handle),
            snapshot_handle: None,
        },
        source_volume_mode: Some(pv::volume_mode(volume).to_owned()),
    };
    Ok(VolumeSnapshotContent {
        metadata,
        spec,
        status: None,
    })
}

#[cfg(test)]
pub(super) mod tests;
