//! Gathers what decides about volumes: the driver's inventory, and the cluster's objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;

use super::decide::{Facts, Publication};
use super::{InventoryEntry, ScanError, Scanner};
use crate::api::attachment::expected_name;
use crate::api::constants::NODE_ID;
use crate::api::pv;
use crate::client::ApiError;
use crate::kept_fields::HANDLES;

impl Scanner {
    /// What the driver reports of its volumes, if it reports that.
    pub(super) fn inventory(&self) -> Result<Option<BTreeMap<String, InventoryEntry>>, ScanError> {
        self.settings
            .inventory
            .volumes()
            .map_err(ScanError::Inventory)
    }

    /// The cached PersistentVolumes with this handle.
    pub(super) fn with_handle(&self, id: &str) -> Vec<Arc<PersistentVolume>> {
        let context = &self.context;
        context.caches.volumes_of(&context.driver.name, id)
    }

    /// Gathers the cluster's objects from the API server. The claims come first: a PersistentVolume
    /// is created only while its claim exists. So if both lists lack an entry, neither missed it.
    pub(super) async fn gather(&self, with_claims: bool) -> Result<Facts, ApiError> {
        let mut facts = Facts::default();
        if with_claims {
            let mut claims = BTreeSet::new();
            self.kube
                .each_metadata::<PersistentVolumeClaim>(|claim| claims.extend(claim.uid()))
                .await?;
            facts.claims = Some(claims);
        }
        let driver = &self.context.driver.name;
        let (volumes, handles) = (&mut facts.volumes, &mut facts.handles);
        self.kube
            .each_fields::<PersistentVolume>("", &HANDLES, |volume| {
                handles.extend(pv::handle(&volume, driver).map(str::to_owned));
                volumes.insert(volume.name_any());
            })
            .await?;
        Ok(facts)
    }

    /// True if an attachment attaches a volume to the node that it is published to. `own` is the
    /// driver's ID of this node, and `volumes` has the handles of attachments to it.
    pub(super) fn is_of(
        &self,
        attachment: &VolumeAttachment,
        publication: &Publication,
        own: &str,
        volumes: Option<&BTreeMap<String, String>>,
    ) -> bool {
        let driver = &self.context.driver.name;
        let spec = &attachment.spec;
        let (id, node) = (&*publication.volume, &*publication.node);
        let is_to_it = if node == own {
            self.context.scope.has_node(&spec.node_name)
        } else {
            is_to(attachment, node)
        };
        if spec.attacher != *driver || !is_to_it {
            return false;
        }
        let volumes = volumes.filter(|_| node == own);
        let named = spec.source.persistent_volume_name.as_ref();
        let inline = spec.source.inline_volume_spec.as_ref();
        let inline = inline.and_then(|spec| spec.csi.as_ref());
        let by_name = named.is_some_and(|name| match volumes {
            Some(volumes) => volumes.get(name).is_some_and(|handle| handle == id),
            None => {
                let known = self.with_handle(id);
                known.iter().any(|volume| volume.name_any() == *name)
            }
        });
        by_name
            || inline.is_some_and(|csi| csi.volume_handle == id)
            || attachment.name_any() == expected_name(id, driver, &spec.node_name)
    }

    /// The handles of the PersistentVolumes in attachments to this node, by volume name.
    pub(super) async fn volumes_of(
        &self,
        attachments: &[VolumeAttachment],
    ) -> Result<BTreeMap<String, String>, ApiError> {
        let driver = &self.context.driver.name;
        let here = attachments.iter().filter(|one| {
            one.spec.attacher == *driver && self.context.scope.has_node(&one.spec.node_name)
        });
        let mut handles = BTreeMap::new();
        for name in here.filter_map(|one| one.spec.source.persistent_volume_name.as_ref()) {
            let cached = self.context.caches.volumes().get(name);
            let cached = cached.and_then(|volume| pv::handle(&volume, driver).map(str::to_owned));
            let found = match cached {
                Some(found) => Some(found),
                None => {
                    let found = self.kube.get::<PersistentVolume>("", name).await?;
                    found.and_then(|found| pv::handle(&found, driver).map(str::to_owned))
                }
            };
            handles.extend(found.map(|found| (name.clone(), found)));
        }
        Ok(handles)
    }
}

/// True if an attachment is to the node with this ID of the driver. It is noted before the driver is
/// asked to publish the volume, and most drivers use the node's name.
fn is_to(attachment: &VolumeAttachment, node: &str) -> bool {
    let noted = attachment.annotations().get(NODE_ID);
    attachment.spec.node_name == node || noted.is_some_and(|noted| noted == node)
}
