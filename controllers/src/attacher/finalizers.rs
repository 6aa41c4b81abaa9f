//! The finalizer `external-attacher/<driver>`: on an attachment until its volume is detached, and on
//! an attached PV until no attachment names it.
//!
//! A write that prepares an attachment adds it there (`decide`). For a node that is gone, node
//! cleanup removes it.

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::{Attacher, attachment_of};
use crate::client::ApiError;
use crate::client::lease::lease_name;
use crate::controller::finalizers;
use crate::queue::Outcome;

/// The finalizer on a driver's attachments and on attached volumes.
pub(crate) fn finalizer(driver: &str) -> String {
    format!("external-attacher/{}", lease_name(driver))
}

impl Attacher {
    /// Adds the finalizer to a PV that is to be attached.
    pub(super) async fn keep_volume(&self, volume: &PersistentVolume) -> Result<(), ApiError> {
        let finalizer = &self.settings.finalizer;
        finalizers::add(&self.kube, Some(&self.volumes), volume, finalizer).await
    }

    /// Removes the finalizer from an attachment. Returns the attachment without it, or `None` if it
    /// is gone.
    pub(super) async fn release_attachment(
        &self,
        attachment: &VolumeAttachment,
    ) -> Result<Option<VolumeAttachment>, ApiError> {
        let (attachments, finalizer) = (Some(&self.attachments), &self.settings.finalizer);
        finalizers::remove(&self.kube, attachments, attachment, finalizer).await
    }

    /// Removes the finalizer from a PV that is being deleted, once no attachment names it.
    pub(super) async fn volume(&self, name: &str) -> Outcome {
        let volume = self.volumes.get(name);
        let Some(volume) = volume.filter(|volume| self.context.may_have(volume)) else {
            return Outcome::Done;
        };
        if !self.settings.keeps(&volume) || !self.settings.attaches || !self.context.acts() {
            return Outcome::Done;
        }
        let named = match attachment_of(&self.context, &self.of_volume, &volume).await {
            Ok(found) => found.is_some(),
            Err(error) => {
                tracing::warn!(volume = name, %error, "cannot read the attachments of a volume");
                return Outcome::Failed;
            }
        };
        if named {
            return if self.of_volume.get(name).is_empty() {
                // The watch will not report the end of an attachment without a label.
                Outcome::Failed
            } else {
                Outcome::Done
            };
        }
        let finalizer = &self.settings.finalizer;
        match finalizers::remove(&self.kube, Some(&self.volumes), &*volume, finalizer).await {
            Ok(_) => Outcome::Done,
            Err(error) => {
                tracing::warn!(volume = name, %error, "removing the finalizer failed");
                Outcome::Failed
            }
        }
    }
}
