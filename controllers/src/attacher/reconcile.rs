//! Compares the attachments that the driver lists with the VolumeAttachments.

use std::collections::BTreeMap;
use std::time::Duration;

use hostloop_proto::csi::ListVolumesRequest;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;

use super::Attacher;
use super::decide::{Rules, Seen, is_attached};
use crate::csi::driver::ControllerCapability;
use crate::csi::{Csi, Failure};

/// The driver's node IDs, by volume handle.
pub(crate) type Published = BTreeMap<String, Vec<String>>;

/// Why the list of attachments is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListError {
    #[error(transparent)]
    Call(#[from] Failure),
    #[error("ListVolumes gave the token {0:?} twice in a row")]
    Endless(String),
    #[error("ListVolumes: not all pages within {0:?}")]
    Late(Duration),
}

impl Attacher {
    /// Compares periodically, and queues attachments that differ, whatever their status says.
    pub(super) async fn reconcile(&self, every: Duration, max_entries: u32) {
        let can = |capability| self.context.driver.can(capability);
        let lists = can(ControllerCapability::ListVolumes)
            && can(ControllerCapability::ListVolumesPublishedNodes);
        if !self.rules.attaches || !lists || every.is_zero() {
            return;
        }
        loop {
            if self.context.acts() {
                self.compare(max_entries).await;
            }
            tokio::time::sleep(every).await;
        }
    }

    async fn compare(&self, max_entries: u32) {
        let listed = list(&self.context.driver.csi, max_entries, self.timeout).await;
        let published = match listed {
            Ok(published) => published,
            Err(error) => {
                tracing::warn!(%error, "attachments can't be compared with the driver's");
                return;
            }
        };
        for attachment in self.attachments.all() {
            if !self.is_mine(&attachment) {
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
            if volume.as_ref().is_some_and(|volume| !self.context.may_have(volume)) {
                continue;
            }
            let csi_node = self.csi_nodes.get(&attachment.spec.node_name);
            let seen = Seen {
                attachment: &attachment,
                volume: volume.as_deref(),
                csi_node: csi_node.as_deref(),
                forced: false,
            };
            if differs(&self.rules, seen, &published) {
                let name = attachment.name_any();
                tracing::warn!(
                    attachment = name,
                    attached = is_attached(&attachment),
                    "the driver's list contradicts the status of an attachment"
                );
                self.forced.lock().insert(name.clone());
                self.queue.add(name);
            }
        }
    }
}

/// True if the driver's list contradicts an attachment's status. False if the volume or the node is
/// unknown.
fn differs(rules: &Rules, seen: Seen<'_>, published: &Published) -> bool {
    let attachment: &VolumeAttachment = seen.attachment;
    let source = rules.source(attachment, seen.volume);
    let node = rules.node_id_of(attachment, seen.csi_node);
    let (Ok(source), Ok(node)) = (source, node) else {
        return false;
    };
    let nodes = published.get(&source.csi.volume_handle);
    let found = nodes.is_some_and(|nodes| nodes.iter().any(|one| one == node));
    found != is_attached(attachment)
}

/// Lists all volumes, page by page, within one deadline.
pub(crate) async fn list(
    csi: &Csi,
    max_entries: u32,
    deadline: Duration,
) -> Result<Published, ListError> {
    let pages = async {
        let mut published = Published::new();
        let mut token = String::new();
        loop {
            let request = ListVolumesRequest {
                max_entries: i32::try_from(max_entries).unwrap_or(i32::MAX),
                starting_token: token.clone(),
            };
            let page = csi.list_volumes(request, deadline).await?;
            for entry in page.entries {
                let nodes = entry.status.unwrap_or_default().published_node_ids;
                if let Some(volume) = entry.volume {
                    published.insert(volume.volume_id, nodes);
                }
            }
            if page.next_token.is_empty() {
                return Ok(published);
            }
            if page.next_token == token {
                return Err(ListError::Endless(token));
            }
            token = page.next_token;
        }
    };
    tokio::time::timeout(deadline, pages).await.unwrap_or(Err(ListError::Late(deadline)))
}

#[cfg(test)]
mod tests;
