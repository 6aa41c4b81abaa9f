//! Modifying: the writes before and after ControllerModifyVolume.

use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi::ControllerModifyVolumeRequest;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::decide::{
    Step, asks, begin_patch, cancel_patch, decide, end_patch, failure_patch, infeasible_patch,
    is_in_progress, is_same_try, meaning, pending_patch, requested_class, secret_of,
};
use super::gather::UnusableClass;
use crate::api::{pv, pvc};
use crate::cache::Change;
use crate::controller::Controller;
use crate::csi::{ErrorClass, Failure, Freed};
use crate::queue::{Outcome, yield_sometimes};
use crate::resizer::{
    ClaimKey, Classes, ModifyKey, ResizeError, Resizer, key_of, lacks_room, outcome_of, too_early,
};

impl Resizer {
    /// Creates the controller for modifications. Only this part waits for VolumeAttributesClasses,
    /// because an API server may not serve them.
    pub(in crate::resizer) fn modifier(self: &Arc<Self>) -> Controller<Self> {
        let (queue, memory) = (&self.modify_queue, self.memory.clone());
        Controller::new(&self.context, self.clone())
            .after(|this| async move {
                this.context
                    .caches
                    .served()
                    .wait::<VolumeAttributesClass>(|| {})
                    .await;
                this.synced().await;
                this.classes().watch.synced().await;
                this.recall_uncertain().await;
            })
            .feed(&self.claims, queue, move |change| match change {
                Change::Applied { old, new } => {
                    // A claim that enters the watch scope is treated like one that existed at the
                    // start.
                    if old.is_none() && is_in_progress(new) {
                        memory.lock().entry(key_of(new)).or_default().uncertain = true;
                    }
                    let asks = old.as_ref().is_none_or(|old| asks(old, new));
                    asks.then(|| ModifyKey::Claim(key_of(new)))
                }
                Change::Deleted(old) => {
                    memory.lock().remove(&key_of(old));
                    Some(ModifyKey::Claim(key_of(old)))
                }
            })
            .feed(&self.classes().watch, queue, |change| match change {
                Change::Applied { old: None, new } => Some(ModifyKey::Class(new.name_any())),
                _ => None,
            })
            .work("modifier", queue, self.workers(), |this, key| async move {
                this.modify_key(key).await
            })
            .resync(self.resync(), queue, |this| {
                let claims = this.claims.each();
                claims.map(|claim| ModifyKey::Claim(key_of(&claim)))
            })
    }

    /// The VolumeAttributesClasses, watched from the first use on.
    pub(in crate::resizer) fn classes(&self) -> &Classes {
        self.classes.get_or_init(|| Classes {
            watch: self.context.caches.attributes_classes(),
            claims: self.claims.index(|claim| match requested_class(claim) {
                "" => Vec::new(),
                class => vec![class.to_owned()],
            }),
        })
    }

    /// After a restart, it is unknown whether a modification in progress is still running.
    pub(in crate::resizer) async fn recall_uncertain(&self) {
        for (number, claim) in self.claims.each().enumerate() {
            if is_in_progress(&claim) {
                self.remember(&key_of(&claim), |memory| memory.uncertain = true);
            }
            yield_sometimes(number).await;
        }
    }

    /// Reconciles a claim, or queues the claims that request a class.
    pub(in crate::resizer) async fn modify_key(&self, key: ModifyKey) -> Outcome {
        let key = match key {
            ModifyKey::Claim(key) => key,
            ModifyKey::Class(class) => {
                let claims = self.classes().claims.each(&class);
                let keys = claims.map(|claim| ModifyKey::Claim(key_of(&claim)));
                self.modify_queue.add_each(keys).await;
                return Outcome::Done;
            }
        };
        let Some(claim) = self.claims.get_in(&key.0, &key.1) else {
            self.modify_for_room.leave(&key);
            return Outcome::Done;
        };
        match self.try_modify(&key, claim).await {
            Ok(outcome) => outcome,
            Err(error) => outcome_of(&error, &key),
        }
    }

    async fn try_modify(
        &self,
        key: &ClaimKey,
        claim: Arc<PersistentVolumeClaim>,
    ) -> Result<Outcome, ResizeError> {
        let memory = self.recall(key);
        let step = decide(&claim, memory.uncertain);
        if step == Step::Nothing {
            return Ok(Outcome::Done);
        }
        let Some(volume) = self.volume_of(&claim, true).await? else {
            return Ok(Outcome::Done);
        };
        if !is_same_try(&claim) {
            // The claim now names another class, which may be feasible.
            self.remember(key, |memory| memory.modify_after = None);
        } else if let Some(left) = too_early(memory.modify_after) {
            return Ok(Outcome::RequeueAfter(left));
        }
        let (target, continues) = match step {
            Step::Nothing => return Ok(Outcome::Done),
            Step::Cancel => return self.cancel(claim).await,
            Step::Continue(target) => (target, true),
            Step::Begin(target) => (target, false),
        };
        let class = match self.gather_class(&target).await? {
            Ok(class) => class,
            Err(unusable) => {
                self.warn_of_modify(&claim, unusable.to_string());
                if continues {
                    return Ok(Outcome::Failed);
                }
                return self.await_class(claim, &target, &unusable).await;
            }
        };
        let claim = if continues {
            claim
        } else {
            self.begin(claim, &volume, &target).await?
        };
        self.modify_for_room.enter(key, Freed::Room);
        let modified = self.modify(&claim, &volume, &class).await;
        if !lacks_room(&modified) {
            self.modify_for_room.leave(key);
        }
        match modified {
            Ok(()) => self.completed(key, claim, &volume, &target).await,
            Err(ResizeError::Call(failure)) => {
                self.modify_failed(key, claim, &target, &failure).await
            }
            Err(error) => {
                if !matches!(error, ResizeError::NotOurs) {
                    let message = format!("Modifying the volume failed: {error}");
                    self.warn_of_modify(&claim, message);
                }
                Err(error)
            }
        }
    }

    /// Writes that the claim waits for its class. The class watch reports one that is created
    /// later, or that replaces another driver's class.
    async fn await_class(
        &self,
        claim: Arc<PersistentVolumeClaim>,
        target: &str,
        unusable: &UnusableClass,
    ) -> Result<Outcome, ResizeError> {
        let patch = match unusable {
            UnusableClass::Missing(_) => pending_patch(&claim),
            UnusableClass::Foreign { .. } => {
                infeasible_patch(&claim, target, &unusable.to_string())
            }
        };
        self.write(claim, patch).await?;
        Ok(Outcome::Done)
    }

    async fn begin(
        &self,
        claim: Arc<PersistentVolumeClaim>,
        volume: &PersistentVolume,
        target: &str,
    ) -> Result<Arc<PersistentVolumeClaim>, ResizeError> {
        let patch = begin_patch(&claim, target);
        let claim = self.write(claim, patch).await?;
        let message = format!("Modifying volume {} to {target:?}", volume.name_any());
        self.context
            .events
            .normal(claim.as_ref(), "VolumeModify", message);
        Ok(claim)
    }

    async fn modify(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        class: &VolumeAttributesClass,
    ) -> Result<(), ResizeError> {
        let handle = pv::csi(volume).map(|csi| csi.volume_handle.clone());
        let mut parameters = class.parameters.clone().unwrap_or_default();
        if self.options.extra_modify_metadata {
            parameters.extend(pvc::names(claim, &volume.name_any()));
        }
        let secret = secret_of(volume);
        let secrets = crate::secrets::read(&self.kube, secret.as_ref()).await?;
        self.ours()?;
        let request = ControllerModifyVolumeRequest {
            volume_id: handle.unwrap_or_default(),
            secrets,
            mutable_parameters: parameters,
        };
        let timeout = self.context.common.timeout;
        let timeout = timeout.unwrap_or(self.options.modify_timeout);
        let csi = &self.context.driver.csi;
        csi.controller_modify_volume(request, timeout).await?;
        // The modification may have made the volume thick or thin.
        self.context.room_freed();
        Ok(())
    }

    /// Writes the PV first: if the claim were complete, nothing would return to fix the PV.
    async fn completed(
        &self,
        key: &ClaimKey,
        claim: Arc<PersistentVolumeClaim>,
        volume: &PersistentVolume,
        target: &str,
    ) -> Result<Outcome, ResizeError> {
        let spec = volume.spec.as_ref();
        let known = spec.and_then(|spec| spec.volume_attributes_class_name.as_deref());
        if known != Some(target) {
            let patch = json!({
                "metadata": {"uid": volume.uid()},
                "spec": {"volumeAttributesClassName": target},
            });
            self.write_volume(volume, patch).await?;
        }
        let patch = end_patch(&claim, target);
        let claim = self.write(claim, patch).await?;
        self.remember(key, |memory| {
            memory.uncertain = false;
            memory.modify_after = None;
        });
        let message = format!("Volume {} is modified to {target:?}", volume.name_any());
        self.context
            .events
            .normal(claim.as_ref(), "VolumeModifySuccessful", message);
        Ok(Outcome::Done)
    }

    async fn modify_failed(
        &self,
        key: &ClaimKey,
        claim: Arc<PersistentVolumeClaim>,
        target: &str,
        failure: &Failure,
    ) -> Result<Outcome, ResizeError> {
        let class = meaning(failure);
        let uncertain = class == ErrorClass::InBackground;
        self.remember(key, |memory| {
            memory.uncertain = uncertain;
            memory.modify_after = None;
        });
        let error = pv::rpc_error(&failure.status);
        let end = if uncertain {
            "; the driver may still be modifying it"
        } else {
            ""
        };
        let message = format!("Modifying the volume to {target:?} failed: {error}{end}");
        tracing::warn!(namespace = key.0, claim = key.1, "{message}");
        self.warn_of_modify(&claim, message);
        let patch = failure_patch(&claim, target, failure);
        let claim = self.write(claim, patch).await?;
        if uncertain {
            return Ok(Outcome::Failed);
        }
        let is_next = match decide(&claim, false) {
            Step::Begin(next) | Step::Continue(next) => next == target,
            Step::Nothing | Step::Cancel => false,
        };
        if !is_next {
            // The claim names another class by now, which need not wait.
            return Ok(Outcome::RequeueAfter(Duration::ZERO));
        }
        if class != ErrorClass::Infeasible {
            return Ok(Outcome::Failed);
        }
        let again = Instant::now() + self.slow;
        self.remember(key, |memory| memory.modify_after = Some(again));
        Ok(Outcome::RetryAfter(self.slow))
    }

    async fn cancel(&self, claim: Arc<PersistentVolumeClaim>) -> Result<Outcome, ResizeError> {
        let patch = cancel_patch(&claim);
        let claim = self.write(claim, patch).await?;
        let message = "The claim requests no other VolumeAttributesClass any more";
        self.context
            .events
            .normal(claim.as_ref(), "VolumeModifyCanceled", message);
        Ok(Outcome::Done)
    }

    fn warn_of_modify(&self, claim: &PersistentVolumeClaim, message: String) {
        self.context
            .events
            .warning(claim, "VolumeModifyFailed", message);
    }
}

#[cfg(test)]
mod tests;
