//! Unpublishes volumes that are published to this node without a VolumeAttachment. This happens
//! when the attachments were deleted while the node was away.

use std::collections::BTreeMap;

use hostloop_proto::csi;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use tokio::time::Instant;

use super::{InventoryEntry, ScanError, Scanner, decide};
use crate::api::attachment::expected_name;
use crate::api::pv;
use crate::client::{ApiError, EventKind};
use crate::csi::Published;

impl Scanner {
    /// Unpublishes volumes that have had no VolumeAttachment for the grace period.
    pub(super) async fn publications(
        &mut self,
        listed: &Published,
        inventory: &BTreeMap<String, InventoryEntry>,
    ) -> Result<(), ScanError> {
        let request = csi::NodeGetInfoRequest {};
        let info = self.context.driver.csi.node_get_info(request, self.timeout);
        let node_id = info.await?.node_id;
        let seen = self.context.caches.attachments().all();
        let seen: Vec<&VolumeAttachment> = seen.iter().map(|one| &**one).collect();
        let suspects = decide::stale_publications(listed, inventory, &node_id, |id| {
            seen.iter().any(|one| self.is_of(one, id, None))
        });
        let due =
            self.stale_publications
                .due(suspects, Instant::now(), self.part.options.orphan_grace);
        if due.is_empty() {
            return Ok(());
        }
        let mut attachments = Vec::new();
        self.kube
            .each::<VolumeAttachment>(|one| attachments.push(one))
            .await?;
        let volumes = self.volumes_of(&attachments).await?;
        for id in due {
            let mut attached = attachments.iter();
            if !attached.any(|one| self.is_of(one, &id, Some(&volumes))) {
                self.unpublish(&id, &node_id).await;
            }
        }
        Ok(())
    }

    /// True if an attachment attaches this volume to this node.
    fn is_of(
        &self,
        attachment: &VolumeAttachment,
        id: &str,
        volumes: Option<&BTreeMap<String, String>>,
    ) -> bool {
        let driver = &self.context.driver.name;
        let spec = &attachment.spec;
        if spec.attacher != *driver || !self.context.scope.has_node(&spec.node_name) {
            return false;
        }
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
    async fn volumes_of(
        &self,
        attachments: &[VolumeAttachment],
    ) -> Result<BTreeMap<String, String>, ApiError> {
        let driver = &self.context.driver.name;
        let here = attachments.iter().filter(|one| {
            one.spec.attacher == *driver && self.context.scope.has_node(&one.spec.node_name)
        });
        let mut handles = BTreeMap::new();
        for name in here.filter_map(|one| one.spec.source.persistent_volume_name.as_ref()) {
            let seen = self.context.caches.volumes().get(name);
            let seen = seen.and_then(|seen| pv::handle(&seen, driver).map(str::to_owned));
            let found = match seen {
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

    async fn unpublish(&self, id: &str, node_id: &str) {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: node_id.to_owned(),
            ..Default::default()
        };
        let csi = &self.context.driver.csi;
        match csi.controller_unpublish_volume(request, self.timeout).await {
            Ok(_) => self.emit(
                EventKind::Normal,
                "VolumeUnpublished",
                format!("Volume {id} was published to this node without an attachment"),
            ),
            // The driver refuses because the volume is in use.
            Err(failure) => tracing::warn!(volume = id, %failure, "cannot unpublish a volume"),
        }
    }
}
