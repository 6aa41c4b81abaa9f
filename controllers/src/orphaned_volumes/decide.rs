//! Which volumes are nobody's, and what becomes of them.

use std::collections::{BTreeMap, BTreeSet};

use super::inventory::InventoryEntry;
use crate::attacher::Published;
use crate::provisioner::naming::Naming;

/// How long kubelet's name for a pod's own volume is, behind its prefix.
const INLINE_DIGITS: usize = 64;

/// Whether a volume is a pod's own. Where nobody tells, kubelet's name for it does; what the driver
/// does not know itself any more is not judged.
fn is_inline(id: &str, kept: Option<&BTreeMap<String, InventoryEntry>>) -> Option<bool> {
    let is_digit = |c: u8| c.is_ascii_hexdigit();
    let digits = id.strip_prefix("csi-").unwrap_or_default();
    let by_name = digits.len() == INLINE_DIGITS && digits.bytes().all(is_digit);
    match kept {
        None => Some(by_name),
        Some(kept) => kept.get(id).map(|volume| volume.inline || by_name),
    }
}

/// Volumes no object is known of.
pub(super) fn without_object(
    listed: &Published,
    kept: Option<&BTreeMap<String, InventoryEntry>>,
    has_object: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let ids = listed.keys();
    ids.filter(|id| is_inline(id, kept) == Some(false) && !has_object(id))
        .cloned()
        .collect()
}

/// Volumes that are published to this node, by the driver's ID of it, which no attachment is known
/// of and which are not staged.
pub(super) fn published_in_vain(
    listed: &Published,
    kept: &BTreeMap<String, InventoryEntry>,
    node_id: &str,
    is_attached: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let published = listed
        .iter()
        .filter(|(_, nodes)| nodes.iter().any(|node| node == node_id))
        .map(|(id, _)| id);
    published
        .filter(|id| kept.get(*id).is_some_and(|volume| !volume.staged))
        .filter(|id| !is_attached(id))
        .cloned()
        .collect()
}

/// What there is in the cluster, for certain.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    /// The UIDs of claims, if they were asked for.
    pub(super) claims: Option<BTreeSet<String>>,
    /// The names of PersistentVolumes, of whatever driver.
    pub(super) volumes: BTreeSet<String>,
    /// The handles of this driver's.
    pub(super) handles: BTreeSet<String>,
}

/// The claim a volume was made for, if it was never used and its name tells.
pub(super) fn claim_of_unused<'a>(kept: &'a InventoryEntry, naming: &Naming) -> Option<&'a str> {
    let unused = kept.fresh && !kept.staged && !kept.inline;
    naming.claim(&kept.name).filter(|_| unused)
}

/// Whether a volume may be deleted that no object has been known of for long: it was made for a
/// claim that is gone, and never used. `false` in any doubt.
pub(super) fn may_be_deleted(kept: &InventoryEntry, naming: &Naming, cluster: &Cluster) -> bool {
    let (Some(claim), Some(claims)) = (claim_of_unused(kept, naming), &cluster.claims) else {
        return false;
    };
    !claims.contains(claim)
        && !cluster.volumes.contains(&kept.name)
        && !cluster.handles.contains(&kept.id)
}

#[cfg(test)]
mod tests;
