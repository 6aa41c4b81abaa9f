//! Expanding: the writes before and after ControllerExpandVolume, and what its failures mean.

use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi::{CapacityRange, ControllerExpandVolumeRequest};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use crate::api::names::{NODE_EXPANSION_NOT_REQUIRED, PRE_RESIZE_CAPACITY};
use crate::api::{pv, pvc, quantity};
use crate::csi::{Call, Class, Freed, class};
use crate::queue::Outcome;
use crate::resizer::claim::{
    CONTROLLER_RESIZE_ERROR, FILE_SYSTEM_RESIZE_PENDING, NODE_RESIZE_ERROR, RESIZE_CONDITIONS,
    RESIZING, STORAGE, StatusPatch, allocated, capacity, is_bound, resize_status, size,
    volume_capacity,
};
use crate::resizer::recover::{
    CONTROLLER_IN_PROGRESS, CONTROLLER_INFEASIBLE, NODE_PENDING, Sizes, is_wanted,
};
use crate::resizer::{Key, ResizeError, Resizer, Users, lacks_room, outcome_of, too_early};

/// The result of an expansion.
struct Expanded {
    capacity: Quantity,
    node_too: bool,
}

/// True if a change of a claim needs work: a new request, or a result of kubelet. The resizer's own
/// writes do not.
pub(in crate::resizer) fn asks(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    let ours = [CONTROLLER_IN_PROGRESS, CONTROLLER_INFEASIBLE, NODE_PENDING];
    let status = resize_status(new);
    size(pvc::request(old)) != size(pvc::request(new))
        || size(capacity(new)) != size(capacity(old))
        || resize_status(old) != status && !ours.contains(&status)
        || !is_bound(old) && is_bound(new)
}

impl Resizer {
    /// Reconciles the size of a claim's volume.
    pub(in crate::resizer) async fn expand_claim(&self, key: &Key) -> Outcome {
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
        key: &Key,
        claim: Arc<PersistentVolumeClaim>,
    ) -> Result<Outcome, ResizeError> {
        let live = is_wanted(&claim);
        let Some(volume) = self.volume_of(&claim, live).await? else {
            return Ok(Outcome::Done);
        };
        self.forget_earlier_capacity(&claim, &volume).await?;
        let memory = self.recall(key);
        let sizes = Sizes::of(&claim, &volume, memory.final_error, self.controller_expands);
        let Some(target) = sizes.and_then(|sizes| sizes.target()) else {
            return Ok(Outcome::Done);
        };
        let begun = allocated(&claim);
        let same = begun.is_some() && size(begun) == size(Some(target));
        if same && let Some(left) = too_early(memory.expand_after) {
            return Ok(Outcome::RequeueAfter(left));
        }
        let marked = self
            .write(claim.clone(), begin_patch(&claim, target, same))
            .await?;
        if memory.in_use && self.is_in_use(key).await? {
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
        let called = self.call(&volume, target).await;
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
                self.record(marked, &volume, &expanded).await?;
                Ok(Outcome::Done)
            }
            Err(error @ (ResizeError::NotOurs | ResizeError::Stopped)) => Err(error),
            Err(error) => Ok(self.failed(key, marked, &volume, target, error).await),
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

    async fn is_in_use(&self, key: &Key) -> Result<bool, ResizeError> {
        if !self.options.handle_volume_inuse_error {
            return Ok(false);
        }
        let begin = self.users.get_or_init(|| async {
            let pods = self.context.caches.pods();
            pods.synced().await;
            Users::of(&pods, self.awaited())
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
                format!("Volume {name} is expanded; its node has to follow"),
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
        key: &Key,
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
            ResizeError::Call(failure) => class(Call::Expand, failure),
            _ => Class::InBackground,
        };
        let is_final = class != Class::InBackground;
        self.remember(key, |memory| {
            memory.final_error = is_final;
            memory.in_use = class == Class::InUse;
            memory.expand_after = None;
        });
        if !is_final {
            return Outcome::Failed;
        }
        let infeasible = class == Class::Infeasible;
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

/// The patch before the call. If the target size is the `same` as before, it is the same expansion,
/// and the patch only marks it as in progress.
fn begin_patch(
    claim: &PersistentVolumeClaim,
    target: &Quantity,
    same: bool,
) -> Option<serde_json::Value> {
    let mut patch = StatusPatch::of(claim);
    patch
        .hold(RESIZING, None, None)
        .annotation(NODE_EXPANSION_NOT_REQUIRED, None)
        .allocated(target);
    if !same {
        let others = [
            FILE_SYSTEM_RESIZE_PENDING,
            CONTROLLER_RESIZE_ERROR,
            NODE_RESIZE_ERROR,
        ];
        patch
            .drop(&others)
            .resize_status(Some(CONTROLLER_IN_PROGRESS));
    }
    patch.finish(true)
}

/// The patch after a successful call.
fn end_patch(claim: &PersistentVolumeClaim, expanded: &Expanded) -> Option<serde_json::Value> {
    let mut patch = StatusPatch::of(claim);
    if expanded.node_too {
        let message = "Waiting for the node to grow the filesystem, when a pod uses the volume.";
        patch
            .hold(FILE_SYSTEM_RESIZE_PENDING, None, Some(message))
            .annotation(NODE_EXPANSION_NOT_REQUIRED, None)
            .resize_status(Some(NODE_PENDING));
    } else {
        patch
            .drop(&RESIZE_CONDITIONS)
            .annotation(NODE_EXPANSION_NOT_REQUIRED, Some("true"))
            .resize_status(None)
            .capacity(&expanded.capacity);
    }
    patch.finish(true)
}

/// The patch after a final error. It stays true after other writes, so it names no version.
fn failure_patch(
    claim: &PersistentVolumeClaim,
    message: &str,
    infeasible: bool,
) -> Option<serde_json::Value> {
    let mut patch = StatusPatch::of(claim);
    patch.hold(CONTROLLER_RESIZE_ERROR, None, Some(message));
    if infeasible {
        patch.resize_status(Some(CONTROLLER_INFEASIBLE));
    }
    patch.finish(false)
}

#[cfg(test)]
mod tests;
