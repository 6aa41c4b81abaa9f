//! Creates the PersistentVolume of a new volume. A failed write is repeated, and the volume stays.
//! The volume is deleted only if no claim wants it any more.

use std::sync::Arc;

use hostloop_proto::csi::DeleteVolumeRequest;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::api::pv;
use crate::client::ApiError;
use crate::queue::Outcome;

use super::Provisioner;
use super::decide;
use super::error::without;
use super::in_flight::PendingPv;

/// The outcome of work on a volume.
enum PvOutcome {
    /// Its PersistentVolume exists.
    Saved,
    /// It will not get a PersistentVolume.
    Unwanted(&'static str),
    /// Another process is responsible for it now.
    NotOurs,
}

impl Provisioner {
    /// Reconciles a volume without a PersistentVolume, by its name.
    pub(super) async fn pending_pv(&self, name: &str) -> Outcome {
        match self.in_flight.pending_pv(name) {
            None => Outcome::Done,
            Some(pending) => self.create_pv(&pending, true).await,
        }
    }

    /// Creates the PersistentVolume of a volume, or deletes the volume if no claim wants it any
    /// more. If `doubtful`, it reads the claim first.
    pub(super) async fn create_pv(&self, pending: &Arc<PendingPv>, doubtful: bool) -> Outcome {
        let name = &pending.plan.draft.name;
        match self.fate(pending, doubtful).await {
            Err(error) => {
                self.pv_failed(pending, &error.to_string());
                Outcome::Failed
            }
            Ok(PvOutcome::NotOurs) => {
                self.in_flight.remove_pending_pv(name);
                Outcome::Done
            }
            Ok(PvOutcome::Saved) => {
                self.in_flight.remove_pending_pv(name);
                self.succeeded(pending);
                self.remove_source_finalizer(&pending.plan.draft).await;
                Outcome::Done
            }
            Ok(PvOutcome::Unwanted(why)) => {
                tracing::info!(volume = %name, why, "deleting a volume that is not wanted any more");
                match self.discard(pending).await {
                    Ok(()) => {
                        self.in_flight.remove_pending_pv(name);
                        self.remove_source_finalizer(&pending.plan.draft).await;
                        self.context.room_freed();
                        Outcome::Done
                    }
                    Err(error) => {
                        tracing::warn!(volume = %name, error, "deleting a volume that no claim wants failed");
                        Outcome::Failed
                    }
                }
            }
        }
    }

    async fn fate(&self, pending: &PendingPv, doubtful: bool) -> Result<PvOutcome, ApiError> {
        if !self.context.acts() {
            return Ok(PvOutcome::NotOurs);
        }
        let draft = &pending.plan.draft;
        if doubtful {
            let namespace = draft.claim.namespace().unwrap_or_default();
            let name = draft.claim.name_any();
            let now = self
                .kube
                .get::<PersistentVolumeClaim>(&namespace, &name)
                .await?;
            let wanted =
                decide::still_wants(now.as_ref(), &draft.claim, &draft.name, &self.context.scope);
            if let Err(why) = wanted {
                return self.existing(pending, why).await.map(|(fate, _)| fate);
            }
        }
        match self.kube.create(&pending.object).await {
            Ok(written) => {
                self.context.caches.volumes().apply_write(written);
                Ok(PvOutcome::Saved)
            }
            Err(error @ ApiError::AlreadyExists { .. }) => {
                let why = "its claim has got another volume of the same name";
                match self.existing(pending, why).await? {
                    (fate, true) => Ok(fate),
                    // The PersistentVolume existed a moment ago, so the write is tried again.
                    (_, false) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Decides the outcome by the existing PersistentVolume of this name. The flag is true if that
    /// object exists.
    async fn existing(
        &self,
        pending: &PendingPv,
        why: &'static str,
    ) -> Result<(PvOutcome, bool), ApiError> {
        let name = &pending.plan.draft.name;
        let object = self.kube.get::<PersistentVolume>("", name).await?;
        let Some(object) = object else {
            return Ok((PvOutcome::Unwanted(why), false));
        };
        if pv::handle(&object, &self.context.driver.name) == Some(pending.volume_id()) {
            self.context.caches.volumes().apply_write(object);
            return Ok((PvOutcome::Saved, true));
        }
        Ok((PvOutcome::Unwanted(why), true))
    }

    async fn discard(&self, pending: &PendingPv) -> Result<(), String> {
        let (plan, name) = (&pending.plan, &pending.plan.draft.name);
        let secrets = self
            .secrets_to_delete(name, plan.secrets.provisioner.as_ref())
            .await;
        let request = DeleteVolumeRequest {
            volume_id: pending.volume_id().to_owned(),
            secrets: secrets.clone(),
        };
        let answer = self
            .context
            .driver
            .csi
            .delete_volume(request, self.timeout)
            .await;
        answer
            .map(|_| ())
            .map_err(|failure| without(failure.status.message(), &secrets))
    }
}

impl PendingPv {
    fn volume_id(&self) -> &str {
        pv::csi(&self.object)
            .map(|csi| csi.volume_handle.as_str())
            .unwrap_or_default()
    }
}
