//! Decides what a PersistentVolume needs.

use k8s_openapi::api::core::v1::{PersistentVolume, SecretReference};
use kube::ResourceExt;

use crate::api::constants::{
    CLASS_BETA, DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, MIGRATED_TO, PROVISIONED_BY,
    VOLUME_FINALIZER,
};
use crate::api::pv;
use crate::client::Resource;
use crate::controller::ObjectKey;

/// The action that a PersistentVolume needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeletionStep {
    Nothing,
    /// Add the finalizer that keeps it until its volume is deleted.
    AddFinalizer,
    /// Remove the finalizer: its volume will not be deleted.
    RemoveFinalizer,
    Delete,
}

/// True if this driver and no other provisioner created the volume. A volume of a migrated in-tree
/// plugin has no CSI source, so this returns false for it.
fn is_of(volume: &PersistentVolume, driver: &str) -> bool {
    pv::handle(volume, driver).is_some()
        && (annotation(volume, PROVISIONED_BY).is_none_or(|maker| maker == driver)
            || annotation(volume, MIGRATED_TO) == Some(driver))
}

fn annotation<'a>(volume: &'a PersistentVolume, key: &str) -> Option<&'a str> {
    volume.annotations().get(key).map(String::as_str)
}

/// Decides the action for a PersistentVolume.
pub(super) fn decide(volume: &PersistentVolume, driver: &str) -> DeletionStep {
    if !is_of(volume, driver) {
        return DeletionStep::Nothing;
    }
    let spec = volume.spec.clone().unwrap_or_default();
    let kept = volume.has_finalizer(VOLUME_FINALIZER);
    let going = volume.is_deleting();
    match (
        spec.persistent_volume_reclaim_policy.as_deref(),
        pv::phase(volume),
    ) {
        (Some("Retain" | "Recycle"), _) if kept => DeletionStep::RemoveFinalizer,
        (Some("Delete"), Some("Bound")) if !kept && !going => DeletionStep::AddFinalizer,
        (Some("Delete"), Some("Released")) if !going || kept => DeletionStep::Delete,
        _ => DeletionStep::Nothing,
    }
}

/// The key of a PersistentVolume that needs an action.
pub(in crate::provisioner) fn needs_work(
    volume: &PersistentVolume,
    driver: &str,
) -> Option<ObjectKey> {
    (decide(volume, driver) != DeletionStep::Nothing).then(|| ObjectKey::of_volume(volume))
}

/// The class name of a volume. The beta annotation wins over the field.
pub(super) fn class_name(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    let field = spec.and_then(|spec| spec.storage_class_name.as_ref());
    let annotated = volume.annotations().get(CLASS_BETA);
    annotated.or(field).map_or("", String::as_str)
}

/// The deletion secret in a volume's annotations. `None` without the annotations, `Some(None)` if
/// they say that the volume needs no secret.
pub(super) fn annotated_secret(volume: &PersistentVolume) -> Option<Option<SecretReference>> {
    let name = annotation(volume, DELETION_SECRET_NAME)?;
    let namespace = annotation(volume, DELETION_SECRET_NAMESPACE)?;
    let is_named = !name.is_empty() && !namespace.is_empty();
    Some(is_named.then(|| SecretReference {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
    }))
}
