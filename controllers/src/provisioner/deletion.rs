//! Deletes volumes of deleted claims. A finalizer keeps their PersistentVolumes until then.

use std::collections::BTreeMap;

use hostloop_proto::csi::DeleteVolumeRequest;
use k8s_openapi::api::core::v1::{PersistentVolume, SecretReference};
use kube::ResourceExt;
use tokio::time::Instant;
use tonic::Code;

use crate::api::pv;
use crate::attacher;
use crate::client::{ApiError, EventKind, Resource};
use crate::controller::owner::Ownership;
use crate::controller::{ObjectKey, finalizers};
use crate::csi::Freed;
use crate::queue::Outcome;
use crate::secrets::{Credentials, TemplateError};

use super::Provisioner;
use super::error::without;
use super::secrets::{self, SecretPurpose, TemplateVars};
use crate::api::constants::{
    CLASS_BETA, DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, MIGRATED_TO, PROVISIONED_BY,
    VOLUME_FINALIZER,
};

const FAILED: &str = "VolumeFailedDelete";
const WAITS: &str = "VolumeDelete";

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
pub(super) fn needs_work(volume: &PersistentVolume, driver: &str) -> Option<ObjectKey> {
    (decide(volume, driver) != DeletionStep::Nothing).then(|| ObjectKey::of_volume(volume))
}

/// The reason why a volume is not deleted yet.
#[derive(Debug, thiserror::Error)]
enum Obstacle {
    #[error("persistentvolume {volume} is still attached to node {node}, waiting for detach")]
    Attached { volume: String, node: String },
    #[error(
        "neither the PersistentVolume's node affinity nor the CSI driver shows the node of the \
         volume: delete the volume on its node, and then the PersistentVolume"
    )]
    Nowhere,
    #[error("rpc error: code = {code:?} desc = {message}")]
    Refused { code: Code, message: String },
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl Provisioner {
    /// Reconciles the PersistentVolume of this name.
    pub(super) async fn volume(&self, name: &str) -> Outcome {
        let watch = self.context.caches.volumes();
        let Some(volume) = watch.get(name) else {
            self.for_volume.leave(name);
            return Outcome::Done;
        };
        if !self.is_ours(&volume) {
            return Outcome::Done;
        }
        let done = match decide(&volume, &self.context.driver.name) {
            DeletionStep::Nothing => Ok(()),
            DeletionStep::AddFinalizer => {
                finalizers::add(&self.kube, Some(&watch), &*volume, VOLUME_FINALIZER).await
            }
            DeletionStep::RemoveFinalizer => {
                let watch = Some(&watch);
                finalizers::remove(&self.kube, watch, &*volume, VOLUME_FINALIZER)
                    .await
                    .map(drop)
            }
            DeletionStep::Delete => return self.delete(&volume).await,
        };
        match done {
            Ok(()) | Err(ApiError::NotFound { .. }) => Outcome::Done,
            Err(error) => {
                tracing::warn!(volume = name, %error, "cannot update the finalizers of a volume");
                Outcome::Failed
            }
        }
    }

    fn is_ours(&self, volume: &PersistentVolume) -> bool {
        self.context.acts() && self.context.may_have(volume)
    }

    async fn delete(&self, volume: &PersistentVolume) -> Outcome {
        let since = Instant::now();
        let class = self.known_class(class_name(volume));
        let deleted = self.deleted(volume).await;
        if deleted.is_ok() {
            self.for_volume.leave(&*volume.name_any());
        }
        match deleted {
            Ok(true) => {
                let took = since.elapsed();
                self.metrics.deleted(class, Some(took));
                self.context.room_freed();
                Outcome::Done
            }
            Ok(false) => Outcome::Done,
            // This is usual if a claim and its pod are deleted together.
            Err(obstacle @ Obstacle::Attached { .. }) => {
                tracing::info!(volume = %volume.name_any(), %obstacle, "a volume is not deleted yet");
                self.context
                    .events
                    .waits(volume, WAITS, obstacle.to_string());
                Outcome::Failed
            }
            Err(obstacle) => {
                let name = volume.name_any();
                tracing::warn!(volume = %name, %obstacle, "a volume is not deleted yet");
                let (events, message) = (&self.context.events, obstacle.to_string());
                match obstacle {
                    // Every node gets the same result. So one event is enough, and only the leader
                    // tries again.
                    Obstacle::Nowhere => {
                        events.once(volume, EventKind::Warning, FAILED, message);
                        if !self.context.leader.leads() {
                            return Outcome::Done;
                        }
                    }
                    _ => events.warning(volume, FAILED, message),
                }
                self.metrics.deleted(class, None);
                Outcome::Failed
            }
        }
    }

    /// Deletes a volume and its PersistentVolume. Returns `false` if the deletion is no longer due.
    async fn deleted(&self, seen: &PersistentVolume) -> Result<bool, Obstacle> {
        let (driver, name) = (&self.context.driver, seen.name_any());
        // To protect data, read it live: its policy or claim may have changed since.
        let now = self.kube.get::<PersistentVolume>("", &name).await?;
        let Some(volume) = now.filter(|now| now.uid() == seen.uid()) else {
            return Ok(false);
        };
        if decide(&volume, &driver.name) != DeletionStep::Delete || !self.is_ours(&volume) {
            return Ok(false);
        }
        let Some(volume_id) = pv::handle(&volume, &driver.name).map(str::to_owned) else {
            return Ok(false);
        };
        // From here on, the end of a use is a reason to try again.
        self.for_volume.enter(
            &ObjectKey::of_volume(&volume),
            Freed::Volume(volume_id.clone()),
        );
        if let Some(node) = self.attached_to(&volume).await? {
            return Err(Obstacle::Attached { volume: name, node });
        }
        let secrets = self.deletion_secrets(&volume).await;
        if !self.is_here(&volume, &volume_id).await? || !self.context.acts() {
            return Ok(false);
        }
        let request = DeleteVolumeRequest {
            volume_id,
            secrets: secrets.clone(),
        };
        driver
            .csi
            .delete_volume(request, self.timeout)
            .await
            .map_err(|failure| Obstacle::Refused {
                code: failure.code(),
                message: without(failure.status.message(), &secrets),
            })?;
        let watch = self.context.caches.volumes();
        self.kube.delete(&volume).await?;
        finalizers::remove(&self.kube, Some(&watch), &volume, VOLUME_FINALIZER).await?;
        Ok(true)
    }

    /// True if this process may delete a volume. DeleteVolume succeeds for a missing volume, so its
    /// success proves nothing on a node that cannot have the volume.
    async fn is_here(&self, volume: &PersistentVolume, id: &str) -> Result<bool, Obstacle> {
        let driver = &self.context.driver;
        match self.context.owner(volume) {
            Ownership::Local => return Ok(true),
            Ownership::Remote => return Ok(false),
            Ownership::Unknown if !driver.has_topology() => return Ok(true),
            Ownership::Unknown => {}
        }
        match self.context.driver_has(id, self.timeout).await {
            Ok(Some(has)) => Ok(has),
            Ok(None) => Err(Obstacle::Nowhere),
            Err(failure) => Err(Obstacle::Refused {
                code: failure.code(),
                message: failure.status.message().to_owned(),
            }),
        }
    }

    async fn attached_to(&self, volume: &PersistentVolume) -> Result<Option<String>, ApiError> {
        let Some(by_volume) = &self.attachments else {
            return Ok(None);
        };
        let found = attacher::attachment_of(&self.context, by_volume, volume).await?;
        Ok(found.map(|one| one.spec.node_name.clone()))
    }

    /// Reads the secrets for DeleteVolume.
    async fn deletion_secrets(&self, volume: &PersistentVolume) -> Credentials {
        let reference = match annotated_secret(volume) {
            Some(secret) => Ok(secret),
            None => self.secret_by_class(volume, class_name(volume)),
        };
        let name = volume.name_any();
        match reference {
            Ok(reference) => self.secrets_to_delete(&name, reference.as_ref()).await,
            Err(error) => without_secrets(&name, &error),
        }
    }

    /// Reads the secrets for DeleteVolume; empty on any error. The driver may no longer need them,
    /// and a missing secret must not block the deletion.
    pub(super) async fn secrets_to_delete(
        &self,
        volume: &str,
        reference: Option<&SecretReference>,
    ) -> Credentials {
        let read = crate::secrets::read(&self.kube, reference).await;
        read.unwrap_or_else(|error| without_secrets(volume, &error))
    }

    fn secret_by_class(
        &self,
        volume: &PersistentVolume,
        class: &str,
    ) -> Result<Option<SecretReference>, TemplateError> {
        let Some(class) = self.context.caches.classes().get(class) else {
            return Ok(None);
        };
        let claim = pv::claim(volume).cloned().unwrap_or_default();
        let about = TemplateVars {
            volume: &volume.name_any(),
            claim: claim.name.as_deref().unwrap_or_default(),
            namespace: claim.namespace.as_deref().unwrap_or_default(),
            annotations: &BTreeMap::new(),
        };
        match &class.parameters {
            None => Ok(None),
            Some(parameters) => secrets::reference(SecretPurpose::Provisioner, parameters, about),
        }
    }
}

fn without_secrets(volume: &str, error: &dyn std::error::Error) -> Credentials {
    tracing::warn!(volume, %error, "deleting a volume without its secrets");
    Credentials::new()
}

/// The class name of a volume. The beta annotation wins over the field.
fn class_name(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    let field = spec.and_then(|spec| spec.storage_class_name.as_ref());
    let annotated = volume.annotations().get(CLASS_BETA);
    annotated.or(field).map_or("", String::as_str)
}

/// The deletion secret in a volume's annotations. `None` without the annotations, `Some(None)` if
/// they say that the volume needs no secret.
fn annotated_secret(volume: &PersistentVolume) -> Option<Option<SecretReference>> {
    let name = annotation(volume, DELETION_SECRET_NAME)?;
    let namespace = annotation(volume, DELETION_SECRET_NAMESPACE)?;
    let is_named = !name.is_empty() && !namespace.is_empty();
    Some(is_named.then(|| SecretReference {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
    }))
}

#[cfg(test)]
mod tests;
