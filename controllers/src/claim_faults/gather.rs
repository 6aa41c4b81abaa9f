//! Gathers the facts about a volume and its claim from the caches. Where a cache miss proves nothing,
//! it asks the API server.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use super::ClaimFaults;
use super::decide::{Facts, KnownFault, VolumeKey, claim_namespace, volume_key};
use crate::api::{pv, pvc};
use crate::client::ApiError;

impl ClaimFaults {
    /// Gathers the facts about the volume with this key. The claim is read only if it decides.
    pub(super) async fn gather(&self, key: &VolumeKey) -> Result<Facts, ApiError> {
        let (namespace, name) = key;
        let known = self.known.lock().get(name).cloned();
        let found = self.context.kube.find_live(&self.volumes, "", name).await?;
        let Some(volume) = found else {
            return Ok(Facts {
                known,
                ..Facts::default()
            });
        };
        let is_here = self.context.may_have(&volume);
        let handle = pv::handle(&volume, &self.context.driver.name);
        let is_of_another = known.is_none() && handle.is_some_and(|handle| self.has_fault(handle));
        let is_own = is_here && handle.is_some() && claim_namespace(&volume) == namespace;
        let is_waiting = known.as_ref().is_some_and(KnownFault::waits_for_pods);
        let claim = if is_own {
            self.claim_of(&volume, is_waiting).await?
        } else {
            None
        };
        Ok(Facts {
            preset: claim.as_deref().and_then(|claim| self.presets.of(claim)),
            claim,
            is_here,
            known,
            is_of_another,
            volume: Some(volume),
        })
    }

    /// True if a PersistentVolume of this handle has a fault.
    fn has_fault(&self, handle: &str) -> bool {
        let known = self.known.lock();
        let mut all = known.values();
        all.any(|known| known.handle == handle && !known.name.is_empty())
    }

    /// The claim that the volume is bound to. One that is too large to be read asks for nothing:
    /// otherwise its users could keep a fault longer than its time. Neither does one that the cache
    /// leaves out while its fault waits for pods to come or to go: thousands of them would be read
    /// from the API server every few seconds.
    async fn claim_of(
        &self,
        volume: &PersistentVolume,
        is_waiting: bool,
    ) -> Result<Option<Arc<PersistentVolumeClaim>>, ApiError> {
        let Some(reference) = pv::claim(volume) else {
            return Ok(None);
        };
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let name = reference.name.as_deref().unwrap_or_default();
        if is_waiting && self.claims.leaves_out(namespace, name) {
            return Ok(None);
        }
        let kube = &self.context.kube;
        let claim = match kube.find_live(&self.claims, namespace, name).await {
            Err(error) if error.is_too_large() => None,
            found => found?,
        };
        Ok(claim.filter(|claim| {
            reference.uid == claim.uid()
                && pvc::volume_name(claim) == volume.metadata.name.as_deref()
        }))
    }

    /// The cached PersistentVolumes of the volumes with a recorded fault, and the handles of those
    /// without one. One of another node does not count: any node can name this one's volumes.
    pub(super) fn faulty_volumes(&self) -> (Vec<VolumeKey>, BTreeSet<String>) {
        let (mut keys, mut unnamed) = (Vec::new(), BTreeSet::new());
        for handle in self.driver_faults.faulty() {
            let context = &self.context;
            let mut volumes = context.caches.volumes_of(&context.driver.name, &handle);
            volumes.retain(|volume| context.may_have(volume));
            keys.extend(volumes.iter().map(|volume| volume_key(volume)));
            if volumes.is_empty() {
                unnamed.insert(handle);
            }
        }
        (keys, unnamed)
    }
}
