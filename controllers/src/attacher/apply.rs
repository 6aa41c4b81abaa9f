//! Attaches and detaches: the CSI calls, and the writes before and after them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use tonic::Code;

use super::Attacher;
use super::decide::{Attach, AttachmentError, Detach, Step};
use crate::api::attachment::{expected_name, is_expected_name};
use crate::api::{message, pv};
use crate::client::{ApiError, Resource, unless_gone};
use crate::controller::ObjectKey;
use crate::csi::driver::ControllerCapability;
use crate::csi::{Failure, Freed, ListError, list};
use crate::queue::Outcome;
use crate::secrets::{self, SecretError};

/// How long until the detach of a shared volume is tried again that its node still uses.
const HELD: Duration = Duration::from_secs(10);

/// Why an attachment could not be reconciled.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error(transparent)]
    Attachment(#[from] AttachmentError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("{}", pv::rpc_error(&.0.status))]
    Call(#[from] Failure),
    #[error(transparent)]
    List(#[from] ListError),
    #[error("another process is responsible")]
    NotOurs,
}

impl PublishError {
    /// True if users should see the error. Conflicts and missing objects only lead to another
    /// attempt.
    fn is_for_users(&self) -> bool {
        match self {
            PublishError::NotOurs => false,
            PublishError::Api(error) => !error.is_conflict() && !error.is_not_found(),
            _ => true,
        }
    }

    fn code(&self) -> Option<i32> {
        match self {
            PublishError::Call(failure) => Some(failure.code() as i32),
            _ => None,
        }
    }
}

impl Attacher {
    /// Reconciles an attachment, by its name.
    pub(super) async fn attachment(&self, name: &str) -> Outcome {
        let attachment = self.attachments.get(name);
        let Some(attachment) = attachment.filter(|attachment| self.may_serve(attachment)) else {
            self.forced.lock().remove(name);
            self.for_slot.leave(name);
            return Outcome::Done;
        };
        if !self.context.acts() {
            return Outcome::Done;
        }
        let forced = self.forced.lock().contains(name);
        match self.sync(&attachment, forced).await {
            Ok(()) => {
                self.forced.lock().remove(name);
                Outcome::Done
            }
            Err(PublishError::NotOurs) => Outcome::Done,
            Err(error) => {
                tracing::warn!(attachment = name, %error, "attaching or detaching failed, and is tried again");
                if self.is_held(&attachment, &error) {
                    Outcome::RetryAfter(HELD)
                } else {
                    Outcome::Failed
                }
            }
        }
    }

    /// True if a shared volume can't be detached because its node still uses it. Nothing reports when
    /// that ends: another pod may wait for it, and so would wait for the backoff, too.
    fn is_held(&self, attachment: &VolumeAttachment, error: &PublishError) -> bool {
        let is_refused = matches!(
            error, PublishError::Call(failure) if failure.code() == Code::FailedPrecondition
        );
        let name = attachment.spec.source.persistent_volume_name.as_deref();
        let volume = name.and_then(|name| self.volumes.get(name));
        attachment.is_deleting() && is_refused && volume.as_deref().is_some_and(pv::is_shared)
    }

    async fn sync(
        &self,
        attachment: &Arc<VolumeAttachment>,
        forced: bool,
    ) -> Result<(), PublishError> {
        let facts = self.gather(attachment, forced).await?;
        // The caches may have lacked the volume.
        if !self.serves(attachment, facts.volume.as_deref()) {
            return Err(PublishError::NotOurs);
        }
        let done = match self.settings.decide(&facts) {
            Ok(Step::Nothing) => Ok(()),
            Ok(Step::MarkAttached) => self.mark_attached(attachment, &BTreeMap::new()).await,
            Ok(Step::Attach(how)) => self.attach(attachment, facts.volume, *how).await,
            Ok(Step::Detach(how)) => self.detach(attachment, *how).await,
            // The PV was removed by force. The driver may still have the volume as published.
            Err(AttachmentError::NoVolume(_) | AttachmentError::Replaced { .. })
                if attachment.is_deleting() && self.knows_by_name(attachment) =>
            {
                self.detach_by_name(attachment, facts.csi_node.as_deref())
                    .await
            }
            Err(trouble) => Err(trouble.into()),
        };
        if let Err(error) = &done
            && error.is_for_users()
            && let Err(unsaved) = self.save(attachment, error).await
        {
            let name = attachment.name_any();
            tracing::warn!(
                attachment = name, error = %unsaved,
                "cannot write an error to the status of an attachment"
            );
        }
        done
    }

    async fn attach(
        &self,
        attachment: &VolumeAttachment,
        volume: Option<Arc<PersistentVolume>>,
        how: Attach,
    ) -> Result<(), PublishError> {
        self.check_name(attachment, &how.request.volume_id);
        if how.needs_volume_finalizer
            && let Some(volume) = volume
        {
            self.ours()?;
            self.keep_volume(&volume).await?;
        }
        let secrets = secrets::read(&self.kube, how.secret.as_ref()).await?;
        self.ours()?;
        let prepared = match how.prepare {
            None => None,
            Some(patch) => {
                let written = self.kube.merge(attachment, patch).await?;
                self.attachments.apply_write(written.clone());
                Some(written)
            }
        };
        let attachment = prepared.as_ref().unwrap_or(attachment);
        self.ours()?;
        let request = ControllerPublishVolumeRequest {
            secrets,
            ..how.request
        };
        let csi = &self.context.driver.csi;
        let key = ObjectKey::of_attachment(attachment, &self.volumes);
        self.for_slot.enter(&key, Freed::Slot);
        let published = csi.controller_publish_volume(request, self.timeout).await;
        if !matches!(&published, Err(failure) if failure.code() == Code::ResourceExhausted) {
            self.for_slot.leave(&key);
        }
        let answer = published?;
        self.mark_attached(attachment, &answer.publish_context)
            .await?;
        tracing::info!(attachment = attachment.name_any(), "attached");
        Ok(())
    }

    /// Warns about an unexpected name. An attachment made by hand is served like any other, but
    /// kubelet waits only for the expected name.
    fn check_name(&self, attachment: &VolumeAttachment, handle: &str) {
        let expected = expected_name(handle, &self.settings.driver, &attachment.spec.node_name);
        let name = attachment.name_any();
        if name != expected {
            tracing::warn!(
                attachment = name,
                expected,
                "kubelet does not find this attachment, because it expects another name"
            );
        }
    }

    /// Writes only differences, because a forced attempt often finds nothing to change.
    async fn mark_attached(
        &self,
        attachment: &VolumeAttachment,
        context: &BTreeMap<String, String>,
    ) -> Result<(), PublishError> {
        let Some(patch) = attached_patch(attachment, context) else {
            return Ok(());
        };
        self.ours()?;
        let written = self.kube.merge_status(attachment, patch).await?;
        self.attachments.apply_write(written);
        Ok(())
    }

    async fn detach(&self, attachment: &VolumeAttachment, how: Detach) -> Result<(), PublishError> {
        let secrets = secrets::read(&self.kube, how.secret.as_ref()).await;
        let secrets = secrets::unless_missing(secrets)?;
        self.ours()?;
        let request = ControllerUnpublishVolumeRequest {
            secrets,
            ..how.request
        };
        let csi = &self.context.driver.csi;
        let volume = request.volume_id.clone();
        csi.controller_unpublish_volume(request, self.timeout)
            .await?;
        self.context.freed.announce_by_call(&Freed::Volume(volume));
        self.context.freed.announce(&Freed::Slot);
        self.mark_detached(attachment).await?;
        tracing::info!(attachment = attachment.name_any(), "detached");
        Ok(())
    }

    /// True if the attachment's name shows which of the driver's volumes it is for.
    fn knows_by_name(&self, attachment: &VolumeAttachment) -> bool {
        self.context.driver.can(ControllerCapability::ListVolumes)
            && is_expected_name(&attachment.name_any())
    }

    /// Detaches the volume that the attachment was made for, without its PV. A volume that the
    /// driver does not have is attached nowhere.
    async fn detach_by_name(
        &self,
        attachment: &VolumeAttachment,
        csi_node: Option<&CSINode>,
    ) -> Result<(), PublishError> {
        let node_id = self.settings.node_id_of(attachment, csi_node)?.to_owned();
        let listed = list::published(&self.context.driver.csi, 0, self.timeout).await?;
        let (name, node) = (attachment.name_any(), &attachment.spec.node_name);
        let driver = &self.settings.driver;
        let mut handles = listed.into_keys();
        let volume = handles.find(|handle| expected_name(handle, driver, node) == name);
        let Some(volume_id) = volume else {
            tracing::info!(
                attachment = name,
                "the volume is gone: the attachment counts as detached"
            );
            return self.mark_detached(attachment).await;
        };
        let request = ControllerUnpublishVolumeRequest {
            volume_id,
            node_id,
            secrets: Default::default(),
        };
        self.detach(
            attachment,
            Detach {
                request,
                secret: None,
            },
        )
        .await
    }

    /// Removes the finalizer first: an attachment that has it would be detached again, attached or
    /// not.
    async fn mark_detached(&self, attachment: &VolumeAttachment) -> Result<(), PublishError> {
        self.ours()?;
        let left = self.release_attachment(attachment).await?;
        let Some((patch, left)) = left.and_then(|left| Some((detached_patch(&left)?, left))) else {
            return Ok(());
        };
        self.ours()?;
        let written = unless_gone(self.kube.merge_status(&left, patch).await)?;
        written
            .into_iter()
            .for_each(|written| self.attachments.apply_write(written));
        Ok(())
    }

    async fn save(
        &self,
        attachment: &VolumeAttachment,
        error: &PublishError,
    ) -> Result<(), PublishError> {
        self.ours()?;
        let patch = error_patch(attachment, error, Timestamp::now());
        let written = unless_gone(self.kube.merge_status(attachment, patch).await)?;
        written
            .into_iter()
            .for_each(|written| self.attachments.apply_write(written));
        Ok(())
    }

    /// Call this before each write and CSI call.
    fn ours(&self) -> Result<(), PublishError> {
        if self.context.acts() {
            Ok(())
        } else {
            Err(PublishError::NotOurs)
        }
    }
}

/// The patch is bound to the object's UID, not its version: it stays true after other changes.
fn attached_patch(
    attachment: &VolumeAttachment,
    context: &BTreeMap<String, String>,
) -> Option<Value> {
    let status = attachment.status.clone().unwrap_or_default();
    let known = status.attachment_metadata.unwrap_or_default();
    if status.attached && status.attach_error.is_none() && known == *context {
        return None;
    }
    let mut metadata: BTreeMap<&String, Value> = context
        .iter()
        .map(|(key, value)| (key, json!(value)))
        .collect();
    for key in known.keys() {
        metadata.entry(key).or_insert(Value::Null);
    }
    let mut patch = json!({
        "metadata": {"uid": attachment.uid()},
        "status": {"attached": true, "attachError": null},
    });
    if !metadata.is_empty() {
        patch["status"]["attachmentMetadata"] = json!(metadata);
    }
    Some(patch)
}

fn detached_patch(attachment: &VolumeAttachment) -> Option<Value> {
    let status = attachment.status.as_ref()?;
    let clean = !status.attached
        && status.detach_error.is_none()
        && status
            .attachment_metadata
            .as_ref()
            .is_none_or(BTreeMap::is_empty);
    if clean {
        return None;
    }
    Some(json!({
        "metadata": {"uid": attachment.uid()},
        "status": {"attached": false, "detachError": null, "attachmentMetadata": null},
    }))
}

fn error_patch(attachment: &VolumeAttachment, error: &PublishError, now: Timestamp) -> Value {
    let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now);
    let message = message::cut(&error.to_string(), message::MAX_EVENT);
    let mut report = json!({"message": message, "time": time});
    let field = if attachment.is_deleting() {
        "detachError"
    } else {
        // Null removes the code of an earlier error.
        report["errorCode"] = json!(error.code());
        "attachError"
    };
    json!({
        "metadata": {"uid": attachment.uid()},
        "status": {field: report},
    })
}

#[cfg(test)]
mod tests;
