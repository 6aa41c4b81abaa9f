//! Takes the step that a PersistentVolume needs: writes finalizers, or deletes the volume.

use hostloop_proto::csi::DeleteVolumeRequest;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use tokio::time::Instant;

use super::Obstacle;
use super::decide::{DeletionStep, class_name, decide};
use crate::api::constants::VOLUME_FINALIZER;
use crate::api::pv;
use crate::client::{ApiError, EventKind};
use crate::controller::{ObjectKey, finalizers};
use crate::csi::Freed;
use crate::provisioner::Provisioner;
use crate::provisioner::error::without;
use crate::queue::Outcome;

const FAILED: &str = "VolumeFailedDelete";
const WAITS: &str = "VolumeDelete";

impl Provisioner {
    /// Reconciles the PersistentVolume of this name.
    pub(in crate::provisioner) async fn volume(&self, name: &str) -> Outcome {
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
        let Some(volume) = self.kube.again(seen).await? else {
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
}
