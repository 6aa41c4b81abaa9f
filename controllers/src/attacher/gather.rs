//! Gathers the facts about an attachment from the caches. Where a cache miss proves nothing, it
//! asks the API server.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;

use super::Attacher;
use super::decide::{Facts, is_attached};
use crate::api::attachment::expected_name;
use crate::api::pv;
use crate::cache::Index;
use crate::client::{ApiError, Resource};
use crate::controller::Context;

/// Finds an attachment of a volume, given the cached ones by volume name. A node's cache lacks an
/// attachment that has no label yet. So after a miss, the API server is asked for the name that the
/// attach-detach controller uses. A shared volume may be attached to each node of its affinity.
pub(crate) async fn attachment_of(
    context: &Context,
    by_volume: &Index<VolumeAttachment>,
    volume: &PersistentVolume,
) -> Result<Option<Arc<VolumeAttachment>>, ApiError> {
    let (name, driver) = (volume.name_any(), &context.driver.name);
    if let Some(known) = by_volume.get(&name).pop() {
        return Ok(Some(known));
    }
    let (Some(node), Some(handle)) = (context.scope.node(), pv::handle(volume, driver)) else {
        return Ok(None);
    };
    let attachments = context.caches.attachments();
    let mut nodes = BTreeSet::from([node]);
    if pv::is_shared(volume) {
        nodes.extend(pv::affine_values(volume));
    }
    for node in nodes {
        let expected = expected_name(handle, driver, node);
        let found = context.kube.find(&attachments, "", &expected).await?;
        let found =
            found.filter(|one| one.spec.source.persistent_volume_name.as_ref() == Some(&name));
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

impl Attacher {
    /// Gathers the PV and the CSINode of an attachment, if it needs work. Their watches may lag
    /// behind the watch of attachments, so a missing object is read from the API server.
    pub(super) async fn gather(
        &self,
        attachment: &Arc<VolumeAttachment>,
        forced: bool,
    ) -> Result<Facts, ApiError> {
        let mut facts = Facts {
            attachment: attachment.clone(),
            volume: None,
            csi_node: None,
            forced,
        };
        if !self.settings.attaches {
            return Ok(facts);
        }
        let deleting = attachment.is_deleting();
        if is_attached(attachment) && !deleting && !forced {
            return Ok(facts);
        }
        if let Some(name) = &attachment.spec.source.persistent_volume_name {
            facts.volume = self.kube.find_live(&self.volumes, "", name).await?;
        }
        let node = &attachment.spec.node_name;
        let csi_node = self.csi_nodes.get(node);
        let known = self.settings.node_id(node, csi_node.as_deref()).is_ok();
        let enough = known || deleting && self.settings.node_id_of(attachment, None).is_ok();
        facts.csi_node = if enough {
            csi_node
        } else {
            self.kube.get("", node).await?.map(Arc::new)
        };
        Ok(facts)
    }
}
