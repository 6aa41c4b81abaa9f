//! Checks the driver's answer to CreateVolume, and builds the PersistentVolume.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_proto::csi::{CreateVolumeResponse, Volume};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeSpec,
    SecretReference,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::access::VolumeMode;
use super::decide::{Flags, Plan};
use crate::api::constants::{
    DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, IDENTITY, MODIFY_SECRET_NAME,
    MODIFY_SECRET_NAMESPACE, PROVISIONED_BY, VOLUME_FINALIZER,
};
use crate::api::{pvc, quantity, topology};

/// A CreateVolume response that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unusable {
    /// The volume's ID, if the response has one.
    pub(crate) volume_id: Option<String>,
    /// The defect, as the end of a sentence about the driver.
    pub(crate) what: String,
}

/// Returns the volume of a valid response, with its size filled in.
pub(crate) fn check(plan: &Plan, answer: CreateVolumeResponse) -> Result<Volume, Unusable> {
    let Some(mut volume) = answer.volume.filter(|volume| !volume.volume_id.is_empty()) else {
        return Err(Unusable {
            volume_id: None,
            what: "answered CreateVolume without a volume ID".to_owned(),
        });
    };
    if volume.capacity_bytes == 0 {
        volume.capacity_bytes = plan.draft.size;
    }
    if volume.capacity_bytes < plan.draft.size {
        let (made, requested) = (volume.capacity_bytes, plan.draft.size);
        let what =
            format!("made a volume of {made} bytes, but the claim requests {requested} bytes");
        return Err(Unusable {
            volume_id: Some(volume.volume_id),
            what,
        });
    }
    if plan.request.volume_content_source.is_some() && volume.content_source.is_none() {
        let what = "made a volume without its source, although it says it can use sources";
        return Err(Unusable {
            volume_id: Some(volume.volume_id),
            what: what.to_owned(),
        });
    }
    Ok(volume)
}

/// The identity of this process in the attributes of volumes.
pub(crate) fn identity(driver: &str, node: Option<&str>, millis: u128, random: u64) -> String {
    let node = node.map(|node| format!("-{node}")).unwrap_or_default();
    format!("{millis}-{}-{driver}{node}", random % 10_000)
}

/// Builds the PersistentVolume of a volume.
pub(crate) fn build(
    plan: &Plan,
    volume: &Volume,
    driver: &str,
    identity: &str,
    flags: &Flags,
) -> PersistentVolume {
    let (draft, class) = (&plan.draft, &plan.draft.class);
    let claim_spec = draft.claim.spec.clone().unwrap_or_default();
    let claim_ref = ObjectReference {
        resource_version: draft.claim.resource_version(),
        ..draft.claim.object_ref(&())
    };
    let size = Quantity(quantity::written(volume.capacity_bytes));
    let policy = class.reclaim_policy.as_deref().unwrap_or("Delete");
    let spec = PersistentVolumeSpec {
        access_modes: claim_spec.access_modes.map(distinct),
        mount_options: class.mount_options.clone(),
        capacity: Some(BTreeMap::from([("storage".to_owned(), size)])),
        claim_ref: Some(claim_ref),
        storage_class_name: pvc::class_name(&draft.claim).map(str::to_owned),
        persistent_volume_reclaim_policy: Some(policy.to_owned()),
        volume_mode: Some(pvc::volume_mode(&draft.claim).to_owned()),
        node_affinity: flags
            .has_topology
            .then(|| topology::affinity(&volume.accessible_topology))
            .flatten(),
        csi: Some(csi(plan, volume, driver, identity, flags)),
        volume_attributes_class_name: pvc::attributes_class(&draft.claim).map(str::to_owned),
        ..PersistentVolumeSpec::default()
    };
    let metadata = ObjectMeta {
        name: Some(draft.name.clone()),
        annotations: Some(annotations(plan, driver)),
        // A retained volume outlives its PersistentVolume.
        finalizers: (policy == "Delete").then(|| vec![VOLUME_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    PersistentVolume {
        metadata,
        spec: Some(spec),
        status: None,
    }
}

/// The access modes without repeats. The API server takes any number of repeats in a claim, and a
/// node may name only as many modes in a volume as there are.
fn distinct(mut modes: Vec<String>) -> Vec<String> {
    let mut known = BTreeSet::new();
    modes.retain(|mode| known.insert(mode.clone()));
    modes
}

/// Always names the deletion secret, even if there is none: the class may change before deletion.
fn annotations(plan: &Plan, driver: &str) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([(PROVISIONED_BY.to_owned(), driver.to_owned())]);
    let deletion = plan.secrets.provisioner.clone().unwrap_or_default();
    let keys = [DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE];
    annotations.extend(annotated(keys, deletion));
    if let Some(modify) = plan.secrets.controller_modify.clone() {
        let keys = [MODIFY_SECRET_NAME, MODIFY_SECRET_NAMESPACE];
        annotations.extend(annotated(keys, modify));
    }
    annotations
}

/// The annotations with a secret's name and namespace.
fn annotated([name, namespace]: [&str; 2], secret: SecretReference) -> [(String, String); 2] {
    [
        (name.to_owned(), secret.name.unwrap_or_default()),
        (namespace.to_owned(), secret.namespace.unwrap_or_default()),
    ]
}

fn csi(
    plan: &Plan,
    volume: &Volume,
    driver: &str,
    identity: &str,
    flags: &Flags,
) -> CSIPersistentVolumeSource {
    let mut attributes = BTreeMap::from([(IDENTITY.to_owned(), identity.to_owned())]);
    attributes.extend(volume.volume_context.clone());
    let claim_spec = plan.draft.claim.spec.as_ref();
    let modes = claim_spec.and_then(|spec| spec.access_modes.as_deref());
    let only_reads = modes.is_some_and(|modes| matches!(modes, [one] if one == "ReadOnlyMany"));
    let fs_type = match &plan.draft.volume_mode {
        VolumeMode::Filesystem { fs_type, .. } => Some(fs_type.clone()),
        VolumeMode::Block => None,
    };
    let secrets = plan.secrets.clone();
    CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: volume.volume_id.clone(),
        fs_type: fs_type.filter(|fs_type| !fs_type.is_empty()),
        read_only: (flags.options.controller_publish_readonly && only_reads).then_some(true),
        volume_attributes: Some(attributes),
        controller_publish_secret_ref: secrets.controller_publish,
        node_stage_secret_ref: secrets.node_stage,
        node_publish_secret_ref: secrets.node_publish,
        controller_expand_secret_ref: secrets.controller_expand,
        node_expand_secret_ref: secrets.node_expand,
    }
}

#[cfg(test)]
mod tests;
