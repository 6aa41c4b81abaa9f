//! Gathers what a deletion depends on: where the volume is, who uses it, and the secrets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, SecretReference};
use kube::ResourceExt;

use super::Obstacle;
use super::decide::{annotated_secret, class_name};
use crate::api::pv;
use crate::attacher;
use crate::client::ApiError;
use crate::controller::owner::Ownership;
use crate::provisioner::Provisioner;
use crate::provisioner::secrets::{self, SecretPurpose, TemplateVars};
use crate::secrets::{Credentials, TemplateError};

impl Provisioner {
    /// True if this process may delete a volume. DeleteVolume succeeds for a missing volume, so its
    /// success proves nothing on a node that cannot have the volume.
    pub(super) async fn is_here(
        &self,
        volume: &PersistentVolume,
        id: &str,
    ) -> Result<bool, Obstacle> {
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

    /// The node that a volume is attached to, if any.
    pub(super) async fn attached_to(
        &self,
        volume: &PersistentVolume,
    ) -> Result<Option<String>, ApiError> {
        let Some(by_volume) = &self.attachments else {
            return Ok(None);
        };
        let found = attacher::attachment_of(&self.context, by_volume, volume).await?;
        Ok(found.map(|one| one.spec.node_name.clone()))
    }

    /// Reads the secrets for DeleteVolume.
    pub(super) async fn deletion_secrets(&self, volume: &PersistentVolume) -> Credentials {
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
    pub(in crate::provisioner) async fn secrets_to_delete(
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
