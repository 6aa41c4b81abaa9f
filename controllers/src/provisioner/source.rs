//! Checks the data source of a volume: another claim's volume, or a snapshot.

use std::sync::Arc;

use hostloop_proto::csi::VolumeContentSource;
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::api::scope::{MANAGED_BY, Scope};
use crate::client::Resource;
use crate::controller::content_owner;
use crate::controller::owner::{Ownership, owner};
use crate::csi::Pools;
use crate::snapshots::content::Content;
use crate::snapshots::{VolumeSnapshot, VolumeSnapshotContent};

use crate::api::constants::{ALLOW_MODE_CHANGE, CLONE_FINALIZER};
use crate::api::pvc::{self, DataSource};
use crate::api::{boolean, pv, quantity, volume_mode};

/// A source that cannot be used, or cannot be used yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SourceError {
    #[error(
        "the source of the claim, {what}, does not exist: create it, or correct spec.dataSource"
    )]
    Missing { what: String },
    #[error("the source of the claim, {what}, cannot be used: {why}")]
    Unfit { what: String, why: String },
    #[error(
        "spec.resources.requests.storage is {requested}, but {what} needs at least {needed}: \
         delete the claim and create one with a larger request (a claim without a volume can't be \
         changed)"
    )]
    Small {
        what: String,
        requested: String,
        needed: String,
    },
    #[error("spec.volumeMode is {requested}, but {what} has {has}: {advice}")]
    Mode {
        what: String,
        requested: String,
        has: String,
        advice: &'static str,
    },
    #[error(
        "spec.volumeMode is Filesystem, but VolumeSnapshotContent {content} of {what} does not say \
         (spec.sourceVolumeMode) that it is of a filesystem: use volumeMode Block, or have an \
         administrator who trusts the data annotate the VolumeSnapshotContent with {key}=true",
        key = ALLOW_MODE_CHANGE
    )]
    UnknownMode { what: String, content: String },
}

impl SourceError {
    fn missing(what: String) -> Self {
        SourceError::Missing { what }
    }

    fn unfit(what: &str, why: impl Into<String>) -> Self {
        SourceError::Unfit {
            what: what.to_owned(),
            why: why.into(),
        }
    }
}

/// Why a source that was deleted before its claim was created cannot be used.
const TOO_LATE: &str = "it is being deleted: create the claim again with another source";

/// The existing objects of a data source: a snapshot and its content, or a claim and its volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceObjects {
    pub(crate) snapshot: Option<Arc<VolumeSnapshot>>,
    pub(crate) content: Option<Arc<VolumeSnapshotContent>>,
    pub(crate) claim: Option<Arc<PersistentVolumeClaim>>,
    pub(crate) volume: Option<Arc<PersistentVolume>>,
}

/// A claim that needs a volume from a data source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    pub(crate) claim: &'a PersistentVolumeClaim,
    /// The size of its volume in bytes.
    pub(crate) size: i64,
    pub(crate) driver: &'a str,
    /// The volumes that this process serves.
    pub(crate) scope: &'a Scope,
    /// The pools of this driver.
    pub(crate) pools: &'a Pools,
    /// `--prevent-volume-mode-conversion`.
    pub(crate) prevent_mode_change: bool,
}

impl Target<'_> {
    /// True if an administrator allows another volume mode than that of the source. Only
    /// administrators write contents, which are in no namespace.
    fn allows_mode_change(&self, content: &VolumeSnapshotContent) -> bool {
        let annotation = content.annotations().get(ALLOW_MODE_CHANGE);
        !self.prevent_mode_change || annotation.is_some_and(|text| boolean::parse(text) == Ok(true))
    }

    /// Checks the volume mode of a snapshot. The kernel trusts a filesystem that it mounts, so none
    /// comes from the bytes of a block device without an administrator's word.
    ///
    /// A content that a controller made may lack the mode: the volume's object was gone by then, and
    /// users can bring that about. One that an administrator made of a snapshot may lack it, too, also
    /// of a member of a group: the group in its status comes from the driver, while controllers annotate
    /// the members that they make.
    fn may_have_mode(
        &self,
        what: &str,
        content: &VolumeSnapshotContent,
    ) -> Result<(), SourceError> {
        let requested = pvc::volume_mode(self.claim);
        let view = content.view();
        let by_hand = view.given.is_some() && !view.is_member;
        match content.spec.source_volume_mode.as_deref() {
            _ if self.allows_mode_change(content) => Ok(()),
            Some(has) if has != requested => Err(SourceError::Mode {
                what: what.to_owned(),
                requested: requested.to_owned(),
                has: has.to_owned(),
                advice: "use the same mode, or have the VolumeSnapshotContent annotated with \
                         snapshot.storage.kubernetes.io/allow-volume-mode-change=true",
            }),
            None if requested == volume_mode::FILESYSTEM && !by_hand => {
                Err(SourceError::UnknownMode {
                    what: what.to_owned(),
                    content: content.name_any(),
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn must_hold(&self, what: &str, needed: i64) -> Result<(), SourceError> {
        if self.size >= needed {
            return Ok(());
        }
        Err(SourceError::Small {
            what: what.to_owned(),
            requested: quantity::written(self.size),
            needed: quantity::written(needed),
        })
    }
}

/// A source that a volume can be made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct UsableSource {
    /// The source in the CreateVolume request; `None` for an empty volume.
    pub(crate) content: Option<VolumeContentSource>,
    /// True if an administrator allows a filesystem from it even if users wrote it to a block device.
    pub(crate) may_change_mode: bool,
}

/// Finds the source of a volume from the objects, or rejects them.
pub(crate) fn content_source(
    target: Target<'_>,
    source: &DataSource,
    found: &SourceObjects,
) -> Result<UsableSource, SourceError> {
    let content = found.content.as_deref();
    match source {
        DataSource::Nothing | DataSource::Other(_) => Ok(UsableSource::default()),
        DataSource::Snapshot(name) => Ok(UsableSource {
            content: Some(from_snapshot(
                target,
                name,
                found.snapshot.as_deref(),
                content,
            )?),
            may_change_mode: content.is_some_and(|content| target.allows_mode_change(content)),
        }),
        DataSource::Claim(name) => {
            let (claim, volume) = (found.claim.as_deref(), found.volume.as_deref());
            let content = Some(from_claim(target, name, claim, volume)?);
            Ok(UsableSource {
                content,
                may_change_mode: false,
            })
        }
    }
}

/// Builds a snapshot source, or rejects the snapshot.
fn from_snapshot(
    target: Target<'_>,
    name: &str,
    snapshot: Option<&VolumeSnapshot>,
    content: Option<&VolumeSnapshotContent>,
) -> Result<VolumeContentSource, SourceError> {
    let namespace = target.claim.namespace().unwrap_or_default();
    let what = format!("VolumeSnapshot {namespace}/{name}");
    let snapshot = snapshot.ok_or_else(|| SourceError::missing(what.clone()))?;
    let bound = bound_content(target, snapshot).map_err(|why| SourceError::unfit(&what, why))?;
    let content = content
        .ok_or_else(|| SourceError::missing(format!("VolumeSnapshotContent {bound} of {what}")))?;
    let snapshot_id = snapshot_handle(target, name, bound, snapshot, content)
        .map_err(|why| SourceError::unfit(&what, why))?;
    let status = snapshot.status.as_ref();
    if let Some(size) = status.and_then(|status| status.restore_size.as_ref()) {
        let needed = quantity::bytes(size)
            .ok_or_else(|| SourceError::unfit(&what, "the restoreSize is not a size"))?;
        target.must_hold(&what, needed)?;
    }
    target.may_have_mode(&what, content)?;
    let source = SnapshotSource { snapshot_id };
    Ok(VolumeContentSource {
        r#type: Some(Type::Snapshot(source)),
    })
}

/// The content that a snapshot is bound to, or why a claim can't have the snapshot.
fn bound_content<'a>(
    target: Target<'_>,
    snapshot: &'a VolumeSnapshot,
) -> Result<&'a str, &'static str> {
    if !pvc::precedes_deletion(target.claim, &snapshot.metadata) {
        return Err(TOO_LATE);
    }
    let bound = snapshot.bound_content();
    bound.ok_or("it is not bound to a VolumeSnapshotContent yet")
}

/// The handle in a snapshot's content, or why the snapshot can't be used.
fn snapshot_handle(
    target: Target<'_>,
    name: &str,
    bound: &str,
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
) -> Result<String, String> {
    let back = &content.spec.volume_snapshot_ref;
    let is_bound_back = back.uid == snapshot.uid()
        && back.name.as_deref() == Some(name)
        && back.namespace == Some(target.claim.namespace().unwrap_or_default());
    if !is_bound_back {
        return Err(format!("VolumeSnapshotContent {bound} is not bound to it"));
    }
    let theirs = &content.spec.driver;
    if theirs != target.driver {
        return Err(format!(
            "it was taken by the driver {theirs}, and the claim's class uses another"
        ));
    }
    let status = snapshot.status.as_ref();
    if status.and_then(|status| status.ready_to_use) != Some(true) {
        return Err("it is not ready to use yet (status.readyToUse)".to_owned());
    }
    let status = content.status.as_ref();
    let handle = status.and_then(|status| status.snapshot_handle.clone());
    let handle = handle.filter(|handle| !handle.is_empty());
    let handle = handle.ok_or("its content has no status.snapshotHandle")?;
    // The leader sets the label to the node of the volume that is bound in the namespace. A handle
    // alone proves nothing: any node can write one.
    let is_made_from_volume = content.spec.source.volume_handle.is_some();
    if target.scope.node().is_some()
        && is_made_from_volume
        && !content.labels().contains_key(MANAGED_BY)
    {
        return Err(format!(
            "no node manages VolumeSnapshotContent {bound} yet (its label {MANAGED_BY})"
        ));
    }
    // Another node can write a handle of this node's snapshot into the content that it manages.
    let owner = content_owner::owner(
        target.scope,
        target.pools,
        content.labels(),
        Some(&handle),
        [],
    );
    if owner == Ownership::Remote {
        return Err(format!(
            "the label managed-by and the handle of VolumeSnapshotContent {bound} are not both \
             of this node"
        ));
    }
    Ok(handle)
}

/// Builds a volume source from another claim's volume, or rejects it.
fn from_claim(
    target: Target<'_>,
    name: &str,
    source: Option<&PersistentVolumeClaim>,
    volume: Option<&PersistentVolume>,
) -> Result<VolumeContentSource, SourceError> {
    let namespace = target.claim.namespace().unwrap_or_default();
    let what = format!("PersistentVolumeClaim {namespace}/{name}");
    let source = source.ok_or_else(|| SourceError::missing(what.clone()))?;
    let needed = requested_size(target, source).map_err(|why| SourceError::unfit(&what, why))?;
    target.must_hold(&what, needed)?;
    let bound = pvc::volume_name(source).unwrap_or_default();
    let volume = volume.filter(|volume| volume.spec.is_some());
    let volume = volume
        .ok_or_else(|| SourceError::missing(format!("PersistentVolume {bound} of {what}")))?;
    let volume_id = volume_handle(target, name, source, volume)
        .map_err(|why| SourceError::unfit(&what, why))?;
    let requested = pvc::volume_mode(target.claim);
    let has = pv::volume_mode(volume);
    if has != requested {
        return Err(SourceError::Mode {
            what,
            requested: requested.to_owned(),
            has: has.to_owned(),
            advice: "a clone must have the mode of its source",
        });
    }
    let source = VolumeSource { volume_id };
    Ok(VolumeContentSource {
        r#type: Some(Type::Volume(source)),
    })
}

/// The size that a claim requests, or why a clone can't have it as its source.
fn requested_size(target: Target<'_>, source: &PersistentVolumeClaim) -> Result<i64, String> {
    // Without the finalizer, the source may be gone at any moment.
    let is_kept = source.has_finalizer(CLONE_FINALIZER)
        && pvc::precedes_deletion(target.claim, &source.metadata);
    if source.is_deleting() && !is_kept {
        return Err(TOO_LATE.to_owned());
    }
    if !pvc::is_bound(source) {
        return Err("it is not bound to a volume yet".to_owned());
    }
    if pvc::written_class(source).is_none() || pvc::written_class(target.claim).is_none() {
        return Err("both claims must name a StorageClass".to_owned());
    }
    pvc::requested(source)
        .map_err(|text| format!("its spec.resources.requests.storage is {text:?}"))
}

/// The handle of a claim's volume, or why a clone can't have it as its source.
fn volume_handle(
    target: Target<'_>,
    name: &str,
    source: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<String, String> {
    let bound = pvc::volume_name(source).unwrap_or_default();
    let spec = volume.spec.as_ref();
    let csi = spec
        .and_then(|spec| spec.csi.as_ref())
        .filter(|csi| csi.driver == target.driver)
        .ok_or("its volume is not of the driver the claim's class uses")?;
    let back = spec.and_then(|spec| spec.claim_ref.as_ref());
    let is_bound_back = back.is_some_and(|back| {
        back.uid == source.uid()
            && back.name.as_deref() == Some(name)
            && back.namespace == Some(target.claim.namespace().unwrap_or_default())
    });
    if !is_bound_back {
        return Err(format!("PersistentVolume {bound} is not bound to it"));
    }
    // Another node may have created a PersistentVolume with a handle of this node.
    if owner(target.scope, target.pools, volume) == Ownership::Remote {
        return Err(format!(
            "the node affinity and the handle of PersistentVolume {bound} are not both of this node"
        ));
    }
    if pv::phase(volume) != Some("Bound") {
        return Err(format!("PersistentVolume {bound} is not Bound yet"));
    }
    Ok(csi.volume_handle.clone())
}

#[cfg(test)]
mod tests;
