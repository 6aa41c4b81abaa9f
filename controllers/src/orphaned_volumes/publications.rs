//! Unpublishes volumes that are published to this node without a VolumeAttachment, and shared volumes of
//! this node that are published to any node without one. This happens when the attachments were deleted
//! while the node was away.

use std::collections::BTreeMap;

use hostloop_proto::csi;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use tokio::time::Instant;

use super::{InventoryEntry, ScanError, Scanner, decide};
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
        let cached = self.context.caches.attachments().all();
        let cached: Vec<&VolumeAttachment> = cached.iter().map(|one| &**one).collect();
        let suspects = decide::stale_publications(listed, inventory, &node_id, |publication| {
            cached
                .iter()
                .any(|one| self.is_of(one, publication, &node_id, None))
        });
        let due = self.stale_publications.due(
            suspects,
            Instant::now(),
            self.settings.options.orphan_grace,
        );
        if due.is_empty() {
            return Ok(());
        }
        let mut attachments = Vec::new();
        self.kube
            .each::<VolumeAttachment>(|one| attachments.push(one))
            .await?;
        let volumes = self.volumes_of(&attachments).await?;
        for publication in due {
            let mut attached = attachments.iter();
            if !attached.any(|one| self.is_of(one, &publication, &node_id, Some(&volumes))) {
                self.unpublish(&publication, &node_id).await;
            }
        }
        Ok(())
    }
}
