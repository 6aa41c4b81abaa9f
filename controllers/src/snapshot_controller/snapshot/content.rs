//! A content for a snapshot that is to be taken.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::{Facts, Failure, Step};
use crate::api::secret_template::{self, SnapshotVariables};
use crate::runtime::scope::{MANAGED_BY, node_label};
use crate::snapshot_controller::{classes, names};
use crate::snapshots::{
    ContentSource, DeletionPolicy, VolumeSnapshotClass, VolumeSnapshotContent,
    VolumeSnapshotContentSpec,
};
use crate::volume::nodes::node_of;

/// The reason of whatever keeps a content from being made.
const UNMADE: &str = "SnapshotContentCreationFailed";

/// The next thing to do for a snapshot without a content: class, finalizers, claim, content.
pub(super) fn made(facts: &Facts) -> Result<Step, Failure> {
    let snapshot = &*facts.snapshot;
    let Some(class_name) = &snapshot.spec.volume_snapshot_class_name else {
        return Ok(Step::SetClass(default_class(facts)?));
    };
    let class = class(facts, class_name)?;
    let mut needed = vec![names::SNAPSHOT_AS_SOURCE];
    if class.deletion_policy == DeletionPolicy::Delete {
        needed.push(names::SNAPSHOT_BOUND);
    }
    if let Some(finalizers) = names::with(snapshot, &needed) {
        return Ok(Step::Finalizers(finalizers));
    }
    let unmade = |message: String| Failure::new(UNMADE, message);
    let (claim, volume) = bound_volume(facts).map_err(unmade)?;
    let csi = csi_of(volume).map_err(unmade)?;
    if csi.driver != class.driver {
        return Err(unmade(format!(
            "VolumeSnapshotClass {class_name} is of driver {}, but volume {} is of {}",
            class.driver,
            volume.name_any(),
            csi.driver
        )));
    }
    let content = content(facts, class, volume, csi).map_err(unmade)?;
    if let Some(finalizers) = names::with(claim, &[names::CLAIM_AS_SOURCE]) {
        if names::is_deleting(claim) {
            let claim = claim.name_any();
            return Err(unmade(format!("claim {claim} is being deleted")));
        }
        return Ok(Step::ClaimFinalizers(finalizers));
    }
    Ok(Step::Create(Box::new(content)))
}

/// The class of this name.
pub(super) fn class<'a>(facts: &'a Facts, name: &str) -> Result<&'a VolumeSnapshotClass, Failure> {
    let missing = |message| Failure::still_ready("GetSnapshotClassFailed", message);
    classes::named(&facts.classes, name).map_err(missing)
}

/// The only default class of the volume's driver.
fn default_class(facts: &Facts) -> Result<String, Failure> {
    let unset = |message: String| Failure::still_ready("SetDefaultSnapshotClassFailed", message);
    let (_, volume) = bound_volume(facts).map_err(unset)?;
    let driver = &csi_of(volume).map_err(unset)?.driver;
    let mark = names::DEFAULT_CLASS;
    let what = "snapshot class";
    classes::only_default(&facts.classes, |class| &class.driver, driver, mark, what).map_err(unset)
}

/// The claim a snapshot is of, and the volume it is bound to.
fn bound_volume(facts: &Facts) -> Result<(&PersistentVolumeClaim, &PersistentVolume), String> {
    let source = &facts.snapshot.spec.source;
    let name = source.persistent_volume_claim_name.as_deref();
    let name = name.unwrap_or_default();
    let claim = facts.claim.as_deref();
    let claim = claim.ok_or_else(|| format!("there is no claim {name:?} in this namespace"))?;
    Ok((claim, volume_of(claim, facts.volume.as_deref())?))
}

/// The volume of a claim, if both are bound to each other.
pub(in crate::snapshot_controller) fn volume_of<'a>(
    claim: &PersistentVolumeClaim,
    volume: Option<&'a PersistentVolume>,
) -> Result<&'a PersistentVolume, String> {
    let name = claim.name_any();
    let status = claim.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") {
        return Err(format!("claim {name} is not bound to a volume yet"));
    }
    let volume = volume.ok_or_else(|| format!("the volume of claim {name} does not exist"))?;
    let reference = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref());
    let fits = reference.is_some_and(|it| names::fit(it, claim) != names::Fit::Other);
    if fits {
        Ok(volume)
    } else {
        let volume = volume.name_any();
        Err(format!("volume {volume} is not bound to claim {name}"))
    }
}

/// What the driver knows a volume by.
pub(in crate::snapshot_controller) fn csi_of(
    volume: &PersistentVolume,
) -> Result<&CSIPersistentVolumeSource, String> {
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    csi.ok_or_else(|| format!("volume {} is not of a CSI driver", volume.name_any()))
}

fn content(
    facts: &Facts,
    class: &VolumeSnapshotClass,
    volume: &PersistentVolume,
    csi: &CSIPersistentVolumeSource,
) -> Result<VolumeSnapshotContent, String> {
    let snapshot = &*facts.snapshot;
    let name = names::content_name(&snapshot.uid().unwrap_or_default());
    let variables = SnapshotVariables {
        kind: "volumesnapshot",
        content: &name,
        name: &snapshot.name_any(),
        namespace: &snapshot.namespace().unwrap_or_default(),
    };
    let secret = secret_template::of_snapshot_class(
        class.parameters.as_ref(),
        "snapshotter-secret",
        variables,
    )
    .map_err(|problem| problem.to_string())?;
    let secret = secret.map(|secret| {
        let keys = (
            names::DELETION_SECRET_NAME,
            names::DELETION_SECRET_NAMESPACE,
        );
        names::annotations(secret, keys)
    });
    let node = facts
        .nodes
        .as_ref()
        .and_then(|nodes| node_of(volume, nodes));
    let volume_mode = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_mode.clone());
    let spec = VolumeSnapshotContentSpec {
        volume_snapshot_ref: ObjectReference {
            resource_version: snapshot.resource_version(),
            ..snapshot.object_ref(&())
        },
        deletion_policy: class.deletion_policy,
        driver: class.driver.clone(),
        volume_snapshot_class_name: class.metadata.name.clone(),
        source: ContentSource {
            volume_handle: Some(csi.volume_handle.clone()),
            snapshot_handle: None,
        },
        source_volume_mode: volume_mode,
    };
    let metadata = ObjectMeta {
        name: Some(name),
        annotations: secret,
        labels: node.map(|node| BTreeMap::from([(MANAGED_BY.to_owned(), node_label(&node))])),
        finalizers: Some(vec![names::CONTENT_BOUND.to_owned()]),
        ..ObjectMeta::default()
    };
    Ok(VolumeSnapshotContent {
        metadata,
        spec,
        status: None,
    })
}
