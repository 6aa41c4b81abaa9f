//! Deletes and unpublishes volumes, and reports orphans.

use std::collections::BTreeSet;

use hostloop_proto::csi;

use super::decide::{self, Facts, Publication};
use super::{ScanError, Scanner};
use crate::api::node::node_reference;
use crate::client::EventKind;

/// Maximum number of volumes named in one event.
const NAMED: usize = 5;

impl Scanner {
    /// Deletes a volume if that is safe. Returns true if it is deleted.
    pub(super) async fn deleted(&self, id: &str, facts: &Facts) -> Result<bool, ScanError> {
        // Ask the driver again: the volume may have been used since the first list.
        let inventory = self.inventory()?;
        let Some(volume) = inventory.as_ref().and_then(|inventory| inventory.get(id)) else {
            return Ok(false);
        };
        if !decide::may_be_deleted(volume, &self.settings.naming, facts) {
            return Ok(false);
        }
        let request = csi::DeleteVolumeRequest {
            volume_id: id.to_owned(),
            ..Default::default()
        };
        let csi = &self.context.driver.csi;
        match csi.delete_volume(request, self.timeout).await {
            Ok(_) => {
                self.context.room_freed();
                self.emit(
                    EventKind::Normal,
                    "OrphanDeleted",
                    format!(
                        "Volume {id} ({}) never held data, and its claim is gone: deleted",
                        volume.name
                    ),
                );
                Ok(true)
            }
            Err(failure) => {
                tracing::warn!(volume = id, %failure, "cannot delete an orphaned volume yet");
                Ok(false)
            }
        }
    }

    /// Unpublishes a volume. `own` is the driver's ID of this node.
    pub(super) async fn unpublish(&self, publication: &Publication, own: &str) {
        let Publication { volume: id, node } = publication;
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: id.clone(),
            node_id: node.clone(),
            ..Default::default()
        };
        let to = if node == own {
            "this node".to_owned()
        } else {
            format!("node {node}")
        };
        let csi = &self.context.driver.csi;
        match csi.controller_unpublish_volume(request, self.timeout).await {
            Ok(_) => self.emit(
                EventKind::Normal,
                "VolumeUnpublished",
                format!("Volume {id} was published to {to} without an attachment"),
            ),
            // The driver refuses because the volume is in use.
            Err(failure) => {
                tracing::warn!(volume = id, node, %failure, "cannot unpublish a volume");
            }
        }
    }

    /// Counts the orphans, and emits an event if they differ from the last report.
    pub(super) fn report(&mut self, orphans: BTreeSet<String>) {
        let count = i64::try_from(orphans.len()).unwrap_or(i64::MAX);
        self.settings.metrics.orphans.set(count);
        if !orphans.is_empty() && orphans != self.reported {
            self.emit(
                EventKind::Warning,
                "OrphanedVolumes",
                orphan_message(&orphans),
            );
        }
        self.reported = orphans;
    }

    fn emit(&self, kind: EventKind, reason: &str, message: String) {
        match kind {
            EventKind::Normal => tracing::info!("{message}"),
            EventKind::Warning => tracing::warn!("{message}"),
        }
        if let Some(node) = self.context.scope.node() {
            let events = &self.context.events;
            events.emit(node_reference(node), kind, reason, message);
        }
    }
}

/// The message of the event about these orphans.
pub(super) fn orphan_message(orphans: &BTreeSet<String>) -> String {
    let named: Vec<&str> = orphans.iter().take(NAMED).map(String::as_str).collect();
    let named = named.join(", ");
    let more = match orphans.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("Volumes without a PersistentVolume use space on this node: {named}{more}")
}
