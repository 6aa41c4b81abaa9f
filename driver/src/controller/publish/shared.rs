//! Publications of volumes that all nodes of a kernel may use. Their own node, on which this runs,
//! attaches and mounts such a volume for the first publication, and ends that after the last.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::decide_at;
use crate::controller::{Controller, Error, Result};
use crate::csi::capability::compatible;
use crate::reach::context::PublishContext;
use crate::reach::decide::{UseFacts, may_release, may_use};
use crate::storage::{Capability, Publication, VolumeRecord};

/// Fails if the publication of another node excludes this one.
fn check_others(record: &VolumeRecord, node: &str, requested: &Capability) -> Result<()> {
    let mut others = record
        .publications
        .iter()
        .filter(|(other, _)| *other != node);
    let excludes = others.find(|(_, published)| {
        !published.capability.mode.is_multi_node() || !compatible(&published.capability, requested)
    });
    match excludes {
        None => Ok(()),
        Some((other, _)) => Err(Error::FailedPrecondition(format!(
            "volume {} is published to node {other} for another use, which excludes this one: it is \
             detached there first",
            record.id
        ))),
    }
}

impl Controller {
    /// Publishes a shared volume to a node of this kernel. A repeated call attaches the volume again
    /// if it is not attached any more: after a reboot, other nodes learn the new device by it.
    pub(super) fn publish_shared(
        &self,
        record: &VolumeRecord,
        node: &str,
        publication: Publication,
    ) -> Result<PublishContext> {
        let anchors = self.anchors(record.id)?;
        let step = decide_at(record, node, &publication)?;
        let mode = publication.capability.mode;
        let is_listed = self.kernel_nodes().contains(node);
        let look = anchors.look(record)?;
        // Nodes that may all use the volume are not in each other's way.
        let holders = if mode.is_multi_node() {
            BTreeSet::new()
        } else {
            look.holders()?
        };
        may_use(&UseFacts {
            volume: record.id,
            mode,
            node,
            is_here: is_listed && look.is_here(node)?,
            is_listed,
            published: others(record.publications.keys(), node),
            holding: others(&holders, node),
        })?;
        check_others(record, node, &publication.capability)?;
        if look.is_left_over(record) {
            look.release(record)?;
        }
        let capability = publication.capability.clone();
        // If the rest fails, the next call or the unpublication finds the publication.
        let record = self.record_publication(record, node, publication, step)?;
        look.anchor(&record, &capability)
    }

    /// Unpublishes a shared volume from a node, or from all of them if `node` is empty. Fails while
    /// the node has the volume mounted or bound, whatever Kubernetes believes of it.
    pub(super) fn unpublish_shared(&self, record: &Arc<VolumeRecord>, node: &str) -> Result<()> {
        let anchors = self.anchors(record.id)?;
        let look = anchors.look(record)?;
        may_release(node, &look.holders()?)?;
        let record = self.remove_publication(record, node)?;
        // Also if an earlier call removed the last publication, and did not finish. The record may have
        // lost its staging: that part is not synced.
        if record.publications.is_empty() {
            look.release(&record)?;
        }
        Ok(())
    }
}

/// These nodes without the one that asks.
fn others<'a>(nodes: impl IntoIterator<Item = &'a String>, node: &str) -> BTreeSet<&'a str> {
    nodes
        .into_iter()
        .map(String::as_str)
        .filter(|other| *other != node)
        .collect()
}
