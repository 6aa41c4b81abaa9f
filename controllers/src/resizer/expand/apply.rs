//! Expanding: the writes before and after ControllerExpandVolume, and what its failures mean.

use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi::{CapacityRange, ControllerExpandVolumeRequest};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use super::decide::{Expanded, Facts, Step, begin_patch, decide, end_patch, failure_patch};
use crate::api::constants::PRE_RESIZE_CAPACITY;
use crate::api::{pv, quantity};
use crate::csi::{CallKind, ErrorClass, Freed, class};
use crate::queue::Outcome;
use crate::resizer::claim::{STORAGE, capacity, size, volume_capacity};
use crate::resizer::recover::Sizes;
use crate::resizer::{ClaimKey, PodsByClaim, ResizeError, Resizer, lacks_room, outcome_of};

impl Resizer {
    /// Reconciles the size of a claim's volume.
    pub(in crate::resizer) async fn expand_claim(&self, key: &ClaimKey) -> Outcome {
        let Some(claim) = self.claims.get_in(&key.0, &key.1) else {
            self.for_room.leave(key);
            return Outcome::Done;
        };
        match self.try_expand(key, claim).await {
            Ok(outcome) => outcome,
            Err(error) => outcome_of(&error, key),
        }
    }

    async fn try_expand(
        &self,
        key: &ClaimKey,
        claim: Arc<PersistentVolumeClaim>,
    ) -> Result<Outcome, ResizeError> {
        let Some(facts) = self.gather_expansion(key, claim).await? else {
            return Ok(Outcome::Done);
        };
        self.forget_earlier_capacity(&facts.claim, &facts.volume)
            .await?;
        let (target, same) = match decide(&facts, self.controller_expands) {
            Step::Nothing => return Ok(Outcome::Done),
            Step::Wait(left) => return Ok(Outcome::RequeueAfter(left)),
            Step::Expand { target, same } => (target, same),
        };
        let Facts { claim, volume, .. } = &facts;
        let patch = begin_patch(claim, &target, same);
        let marked = self.write(claim.clone(), patch).await?;
        if facts.in_use && self.is_in_use(key).await? {
            let message = "the driver can't expand the volume while a pod uses it";
            self.context
                .events
                .warning(marked.as_ref(), "VolumeResizeFailed", message);
            return Ok(Outcome::Failed);
        }
        let message = format!("Expanding volume {} to {}", volume.name_any(), target.0);
        self.context
            .events
            .normal(marked.as_ref(), "Resizing", message);
        self.for_room.enter(key, Freed::Room);
        let called = self.call(volume, &target).await;
        if !lacks_room(&called) {
            self.for_room.leave(key);
        }
        match called {
            Ok(expanded) => {
                self.remember(key, |memory| {
                    memory.final_error = false;
                    memory.in_use = false;
                    memory.expand_after = None;
                });
                self.record(marked, volume, &expanded).await?;
                Ok(Outcome::Done)
            }
            Err(error @ (ResizeError::NotOurs | ResizeError::Stopped)) => Err(error),
            Err(error) => Ok(self.failed(key, marked, volume, &target, error).await),
        }
    }

    /// Removes the earlier capacity when kubelet is done and it is not needed any more.
    async fn forget_earlier_capacity(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<(), ResizeError> {
        let recorded = volume.annotations().contains_key(PRE_RESIZE_CAPACITY);
        if !recorded || size(capacity(claim)) < size(volume_capacity(volume)) {
            return Ok(());
        }
        let patch = json!({"metadata": {
            "uid": volume.uid(), "resourceVersion": volume.resource_version(),
            "annotations": {PRE_RESIZE_CAPACITY: null},
        }});
        self.write_volume(volume, patch).await
    }

    async fn is_in_use(&self, key: &ClaimKey) -> Result<bool, ResizeError> {
        if !self.options.handle_volume_inuse_error {
            return Ok(false);
        }
        let begin = self.users.get_or_init(|| async {
            let pods = self.context.caches.pods();
            pods.synced().await;
            PodsByClaim::of(&pods, self.awaited())
        });
        let users = self.context.stop.run_until_cancelled(begin).await;
        Ok(users.ok_or(ResizeError::Stopped)?.any(key))
    }

    async fn call(
        &self,
        volume: &PersistentVolume,
        target: &Quantity,
    ) -> Result<Expanded, ResizeError> {
        if !self.controller_expands {
            return Ok(Expanded {
                capacity: target.clone(),
                node_too: true,
            });
        }
        // The PV belongs to the driver, so it has a spec and a CSI source.
        let spec = volume.spec.clone().unwrap_or_default();
        let csi = spec.csi.clone().unwrap_or_default();
        let capability = pv::capability(&spec, self.multi_writer, "")?;
        let secrets =
            crate::secrets::read(&self.kube, csi.controller_expand_secret_ref.as_ref()).await?;
        self.ours()?;
        let request = ControllerExpandVolumeRequest {
            volume_id: csi.volume_handle,
            capacity_range: Some(CapacityRange {
                required_bytes: size(Some(target)),
                limit_bytes: 0,
            }),
            secrets,
            volume_capability: Some(capability),
        };
        let timeout = self.context.common.timeout;
        let timeout = timeout.unwrap_or(self.options.resize_timeout);
        let answer = self
            .context
            .driver
            .csi
            .controller_expand_volume(request, timeout)
            .await?;
        self.context.room.change();
        Ok(Expanded {
            capacity: Quantity(quantity::written(answer.capacity_bytes)),
            node_too: answer.node_expansion_required,
        })
    }

    /// Writes the PV first, because the claim's status follows from the PV's capacity.
    async fn record(
        &self,
        claim: Arc<PersistentVolumeClaim>,
        volume: &PersistentVolume,
        expanded: &Expanded,
    ) -> Result<(), ResizeError> {
        let mut metadata = json!({"uid": volume.uid()});
        let recorded = volume.annotations().contains_key(PRE_RESIZE_CAPACITY);
        let records = expanded.node_too && !recorded;
        if records {
            let before = capacity(&claim).map_or("0", |before| before.0.as_str());
            metadata["annotations"] = json!({ PRE_RESIZE_CAPACITY: before });
        }
        if records || volume_capacity(volume) != Some(&expanded.capacity) {
            let spec = json!({"capacity": {STORAGE: expanded.capacity}});
            let patch = json!({"metadata": metadata, "spec": spec});
            self.write_volume(volume, patch).await?;
        }
        let patch = end_patch(&claim, expanded);
        let claim = self.write(claim, patch).await?;
        let name = volume.name_any();
        let (reason, message) = if expanded.node_too {
            (
                "FileSystemResizeRequired",
                format!("Volume {name} is expanded; kubelet expands its filesystem next"),
            )
        } else {
            (
                "VolumeResizeSuccessful",
                format!("Volume {name} is expanded to {}", expanded.capacity.0),
            )
        };
        self.context.events.normal(claim.as_ref(), reason, message);
        Ok(())
    }

    async fn failed(
        &self,
        key: &ClaimKey,
        claim: Arc<PersistentVolumeClaim>,
        volume: &PersistentVolume,
        target: &Quantity,
        error: ResizeError,
    ) -> Outcome {
        let message = format!("Expanding volume {} failed: {error}", volume.name_any());
        self.context
            .events
            .warning(claim.as_ref(), "VolumeResizeFailed", &message);
        tracing::warn!(namespace = key.0, claim = key.1, "{message}");
        // An error before the call says nothing about an earlier call.
        let class = match &error {
            ResizeError::Call(failure) => class(CallKind::Expand, failure),
            _ => ErrorClass::InBackground,
        };
        let is_final = class != ErrorClass::InBackground;
        self.remember(key, |memory| {
            memory.final_error = is_final;
            memory.in_use = class == ErrorClass::InUse;
            memory.expand_after = None;
        });
        if !is_final {
            return Outcome::Failed;
        }
        let infeasible = class == ErrorClass::Infeasible;
        let patch = failure_patch(&claim, &message, infeasible);
        let claim = match self.write(claim, patch).await {
            Ok(claim) => claim,
            Err(error) => return outcome_of(&error, key),
        };
        // The claim requests another size by now, which need not wait. An earlier process may have
        // begun with the size that failed.
        let sizes = Sizes::of(&claim, volume, true, self.controller_expands);
        let next = sizes.and_then(|sizes| sizes.target());
        if size(next) != size(Some(target)) {
            return Outcome::RequeueAfter(Duration::ZERO);
        }
        if !infeasible {
            return Outcome::Failed;
        }
        let again = Instant::now() + self.slow;
        self.remember(key, |memory| memory.expand_after = Some(again));
        Outcome::RetryAfter(self.slow)
    }
}

#[cfg(test)]
mod tests;
