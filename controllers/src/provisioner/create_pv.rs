//! Giving a volume that was made its object. That the object can't be written is no reason to
//! delete the volume: it is tried for ever. That nobody wants the volume any more is.

use std::sync::Arc;

use hostloop_proto::csi::DeleteVolumeRequest;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::runtime::ApiError;
use crate::runtime::queue::Outcome;

use super::Provisioner;
use super::apply::without;
use super::in_flight::Unsaved;
use super::volume;
use crate::api::pvc;

/// What became of a volume.
enum Fate {
    /// It has its object.
    Saved,
    /// It will not get one.
    Unwanted(&'static str),
    /// This process has no say any more.
    NotOurs,
}

impl Provisioner {
    /// Works on a volume that has no object yet, by its name.
    pub(super) async fn unsaved(&self, name: &str) -> Outcome {
        match self.kept.unsaved(name) {
            None => Outcome::Done,
            Some(unsaved) => self.save(&unsaved, true).await,
        }
    }

    /// Gives a volume its object, or deletes the volume if it is not wanted any more. If it is
    /// doubtful, the claim is read first.
    pub(super) async fn save(&self, unsaved: &Arc<Unsaved>, doubtful: bool) -> Outcome {
        let name = &unsaved.plan.draft.name;
        match self.fate(unsaved, doubtful).await {
            Err(error) => {
                self.not_saved(unsaved, &error.to_string());
                Outcome::Failed
            }
            Ok(Fate::NotOurs) => {
                self.kept.saved(name);
                Outcome::Done
            }
            Ok(Fate::Saved) => {
                self.kept.saved(name);
                self.succeeded(unsaved);
                self.release(&unsaved.plan.draft).await;
                Outcome::Done
            }
            Ok(Fate::Unwanted(why)) => {
                tracing::info!(volume = %name, why, "deleting a volume that is not wanted any more");
                match self.discard(unsaved).await {
                    Ok(()) => {
                        self.kept.saved(name);
                        self.release(&unsaved.plan.draft).await;
                        self.room_changed();
                        Outcome::Done
                    }
                    Err(error) => {
                        tracing::warn!(volume = %name, error, "an unwanted volume is not deleted");
                        Outcome::Failed
                    }
                }
            }
        }
    }

    async fn fate(&self, unsaved: &Unsaved, doubtful: bool) -> Result<Fate, ApiError> {
        if !self.context.acts() {
            return Ok(Fate::NotOurs);
        }
        let draft = &unsaved.plan.draft;
        if doubtful {
            let namespace = draft.claim.namespace().unwrap_or_default();
            let name = draft.claim.name_any();
            let now = self
                .kube
                .get::<PersistentVolumeClaim>(&namespace, &name)
                .await?;
            let wanted =
                pvc::still_wants(now.as_ref(), &draft.claim, &draft.name, &self.context.scope);
            if let Err(why) = wanted {
                return self.existing(unsaved, why).await.map(|(fate, _)| fate);
            }
        }
        match self.kube.create(&unsaved.object).await {
            Ok(written) => {
                self.context.caches.volumes().wrote(written);
                Ok(Fate::Saved)
            }
            Err(error @ ApiError::AlreadyExists { .. }) => {
                let why = "its claim has got another volume of the same name";
                match self.existing(unsaved, why).await? {
                    (fate, true) => Ok(fate),
                    // It was there a moment ago.
                    (_, false) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// What becomes of the volume by the object there is of its name, and whether there is one.
    async fn existing(
        &self,
        unsaved: &Unsaved,
        why: &'static str,
    ) -> Result<(Fate, bool), ApiError> {
        let name = &unsaved.plan.draft.name;
        let object = self.kube.get::<PersistentVolume>("", name).await?;
        let Some(object) = object else {
            return Ok((Fate::Unwanted(why), false));
        };
        if volume::is_of(&object, &self.context.driver.name, unsaved.volume_id()) {
            self.context.caches.volumes().wrote(object);
            return Ok((Fate::Saved, true));
        }
        Ok((Fate::Unwanted(why), true))
    }

    async fn discard(&self, unsaved: &Unsaved) -> Result<(), String> {
        let (plan, name) = (&unsaved.plan, &unsaved.plan.draft.name);
        let secrets = self
            .secrets_to_delete(name, plan.secrets.provisioner.as_ref())
            .await;
        let request = DeleteVolumeRequest {
            volume_id: unsaved.volume_id().to_owned(),
            secrets: secrets.clone(),
        };
        let answer = self
            .context
            .driver
            .csi
            .delete_volume(request, self.timeout)
            .await;
        let failed =
            |failure: crate::runtime::csi::Failure| without(failure.status.message(), &secrets);
        answer.map(|_| ()).map_err(failed)
    }
}

impl Unsaved {
    /// The volume's ID.
    fn volume_id(&self) -> &str {
        let spec = self.object.spec.as_ref();
        let csi = spec.and_then(|spec| spec.csi.as_ref());
        csi.map(|csi| csi.volume_handle.as_str())
            .unwrap_or_default()
    }
}
