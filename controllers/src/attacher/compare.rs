//! Compares the attachments that the driver lists with the VolumeAttachments.

use std::time::Duration;

use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;

use super::Attacher;
use super::decide::{Facts, Settings, is_attached};
use crate::api::pv;
use crate::client::Resource;
use crate::controller::ObjectKey;
use crate::csi::driver::ControllerCapability;
use crate::csi::{Published, list};

impl Attacher {
    /// Compares periodically, and queues attachments that differ, whatever their status says.
    pub(super) async fn reconcile(&self, every: Duration, max_entries: u32) {
        let driver = &self.context.driver;
        let lists = driver.can(ControllerCapability::ListVolumes)
            && driver.can(ControllerCapability::ListVolumesPublishedNodes);
        if !self.settings.attaches || !lists || every.is_zero() {
            return;
        }
        loop {
            if self.context.acts() {
                self.compare(max_entries).await;
            }
            tokio::time::sleep(every).await;
        }
    }

    pub(super) async fn compare(&self, max_entries: u32) {
        let listed = list::published(&self.context.driver.csi, max_entries, self.timeout).await;
        let published = match listed {
            Ok(published) => published,
            Err(error) => {
                tracing::warn!(%error, "attachments can't be compared with the driver's");
                return;
            }
        };
        for attachment in self.attachments.all() {
            if !self.may_serve(&attachment) {
                continue;
            }
            let source = &attachment.spec.source.persistent_volume_name;
            let volume = match source {
                None => None,
                Some(name) => match self.kube.find(&self.volumes, "", name).await {
                    Ok(found) => found,
                    Err(error) => {
                        tracing::warn!(volume = name, %error, "cannot read an attachment's volume");
                        continue;
                    }
                },
            };
            // The driver on this node does not list volumes of other nodes.
            if volume
                .as_ref()
                .is_some_and(|volume| !self.context.may_have(volume))
                || !self.serves(&attachment, volume.as_deref())
            {
                continue;
            }
            let is_shared = volume.as_deref().is_some_and(pv::is_shared);
            let csi_node = self.csi_nodes.get(&attachment.spec.node_name);
            let facts = Facts {
                attachment: attachment.clone(),
                volume,
                csi_node,
                forced: false,
            };
            let name = attachment.name_any();
            if differs(&self.settings, &facts, &published) {
                tracing::warn!(
                    attachment = name,
                    attached = is_attached(&attachment),
                    "the driver's list contradicts the status of an attachment"
                );
            } else if !is_shared || !self.is_unconfirmed(&attachment) {
                continue;
            }
            self.forced.lock().insert(name);
            self.queue
                .add(ObjectKey::of_attachment(&attachment, &self.volumes));
        }
        let attachments = &self.attachments;
        self.confirmed
            .lock()
            .retain(|name| attachments.get(name).is_some());
    }

    /// True, once, for an attached attachment. The machine may have started again since it was
    /// attached: its metadata then names the device of an earlier boot.
    fn is_unconfirmed(&self, attachment: &VolumeAttachment) -> bool {
        is_attached(attachment)
            && !attachment.is_deleting()
            && self.confirmed.lock().insert(attachment.name_any())
    }
}

/// True if the driver's list contradicts an attachment's status. False if the volume or the node is
/// unknown.
fn differs(settings: &Settings, facts: &Facts, published: &Published) -> bool {
    let attachment = &facts.attachment;
    let source = settings.source(attachment, facts.volume.as_deref());
    let node = settings.node_id_of(attachment, facts.csi_node.as_deref());
    let (Ok(source), Ok(node)) = (source, node) else {
        return false;
    };
    let nodes = published.get(&source.csi.volume_handle);
    let found = nodes.is_some_and(|nodes| nodes.iter().any(|one| one == node));
    found != is_attached(attachment)
}

#[cfg(test)]
mod tests;
