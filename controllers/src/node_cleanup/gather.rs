//! Gathers the objects that may be left of missing nodes, from the caches.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::NodeCleanup;
use super::decide::Facts;
use crate::api::pv;
use crate::cache::Store;

impl NodeCleanup {
    /// Gathers the objects of the cluster. Of volumes and claims, only those that may belong to
    /// missing nodes.
    pub(super) fn gather(&self, nodes: Vec<Arc<Node>>) -> Facts {
        let caches = &self.context.caches;
        let waiting = self
            .waiting
            .keys()
            .into_iter()
            .filter(|node| self.resolver.absent(node).is_some());
        let claims: Vec<_> = waiting.flat_map(|node| self.waiting.get(&node)).collect();
        let attachments = caches.attachments().all();
        Facts {
            nodes,
            volumes: self.volumes(&claims),
            claims,
            shared: self.shared_volumes(&attachments),
            attachments,
            contents: caches.contents().all(),
            groups: caches.group_contents().all(),
            capacities: self.capacities.as_ref().map(Store::all).unwrap_or_default(),
        }
    }

    /// The volumes of these attachments that all nodes of a kernel can use, by name.
    fn shared_volumes(
        &self,
        attachments: &[Arc<VolumeAttachment>],
    ) -> BTreeMap<String, Arc<PersistentVolume>> {
        let names = attachments
            .iter()
            .filter_map(|one| one.spec.source.persistent_volume_name.as_ref());
        names
            .filter_map(|name| Some((name.clone(), self.shared.first(name)?)))
            .collect()
    }

    /// Volumes on missing nodes, and the volumes of these claims.
    fn volumes(&self, claims: &[Arc<PersistentVolumeClaim>]) -> Vec<Arc<PersistentVolume>> {
        let mut volumes = Vec::new();
        for place in self.by_affinity.keys() {
            let sample = self.by_affinity.first(&place);
            let gone = sample.and_then(|volume| self.resolver.of_volume(&volume));
            if gone.is_some() {
                volumes.extend(self.by_affinity.get(&place));
            }
        }
        if !claims.is_empty() {
            volumes.extend(self.context.caches.volumes().each().filter(|volume| {
                let uid = pv::claim_uid(volume);
                uid.is_some()
                    && claims
                        .iter()
                        .any(|claim| claim.metadata.uid.as_deref() == uid)
            }));
        }
        volumes
    }
}
