//! Decides which volumes are orphans, and which of them may be deleted; pure.

use std::collections::{BTreeMap, BTreeSet};

use super::inventory::InventoryEntry;
use crate::api::object_name::VolumeNaming;
use crate::csi::Published;

/// Length of kubelet's handle for an inline volume, without its prefix.
const INLINE_DIGITS: usize = 64;

/// True if a volume is inline. Without the driver's inventory, kubelet's naming scheme decides.
/// `None` if the inventory no longer has the volume: then it is not judged.
fn is_inline(id: &str, inventory: Option<&BTreeMap<String, InventoryEntry>>) -> Option<bool> {
    let digits = id.strip_prefix("csi-").unwrap_or_default();
    let by_name =
        digits.len() == INLINE_DIGITS && digits.bytes().all(|c: u8| c.is_ascii_hexdigit());
    match inventory {
        None => Some(by_name),
        Some(inventory) => inventory.get(id).map(|volume| volume.inline || by_name),
    }
}

/// Volumes without a known object.
pub(super) fn without_object(
    listed: &Published,
    inventory: Option<&BTreeMap<String, InventoryEntry>>,
    has_object: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let ids = listed.keys();
    ids.filter(|id| is_inline(id, inventory) == Some(false) && !has_object(id))
        .cloned()
        .collect()
}

/// A volume that is published to a node, by the driver's IDs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Publication {
    pub(super) volume: String,
    pub(super) node: String,
}

/// Publications without a known VolumeAttachment: those to this node of volumes that are not staged,
/// and all of shared volumes. `node_id` is the driver's ID of this node.
pub(super) fn stale_publications(
    listed: &Published,
    inventory: &BTreeMap<String, InventoryEntry>,
    node_id: &str,
    is_attached: impl Fn(&Publication) -> bool,
) -> BTreeSet<Publication> {
    let published = listed
        .iter()
        .flat_map(|(id, nodes)| nodes.iter().map(move |node| (id, node)));
    published
        .filter(|(id, node)| {
            let volume = inventory.get(*id);
            volume.is_some_and(|volume| volume.shared || !volume.staged && *node == node_id)
        })
        .map(|(id, node)| Publication {
            volume: id.clone(),
            node: node.clone(),
        })
        .filter(|publication| !is_attached(publication))
        .collect()
}

/// Objects in the API server, not in the cache.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The UIDs of all claims, if they were listed.
    pub(super) claims: Option<BTreeSet<String>>,
    /// The names of all PersistentVolumes, of any driver.
    pub(super) volumes: BTreeSet<String>,
    /// The handles of this driver's PersistentVolumes.
    pub(super) handles: BTreeSet<String>,
}

/// The UID of the claim that a volume was made for, if its name contains one and the volume never
/// held data.
pub(super) fn claim_of_empty<'a>(
    entry: &'a InventoryEntry,
    naming: &VolumeNaming,
) -> Option<&'a str> {
    let empty = entry.is_empty && !entry.staged && !entry.inline;
    naming.claim(&entry.name).filter(|_| empty)
}

/// True if a volume without a known object may be deleted: it was made for a claim that is gone,
/// and it never held data. False in any doubt.
pub(super) fn may_be_deleted(entry: &InventoryEntry, naming: &VolumeNaming, facts: &Facts) -> bool {
    let (Some(claim), Some(claims)) = (claim_of_empty(entry, naming), &facts.claims) else {
        return false;
    };
    !claims.contains(claim)
        && !facts.volumes.contains(&entry.name)
        && !facts.handles.contains(&entry.id)
}

#[cfg(test)]
mod tests;
