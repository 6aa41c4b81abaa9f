//! Locates the source of a volume.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::api::node::{nodes_of, owner_of};
use crate::api::scope::{MANAGED_BY, NODE_LABEL, node_label};
use crate::api::{pv, pvc};
use crate::snapshots::{VolumeSnapshot, VolumeSnapshotContent};

/// Where a volume or a snapshot is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SourceLocation {
    /// On one node.
    Node(String),
    /// In reach of these nodes.
    Several(BTreeSet<String>),
    /// In reach of all nodes, or not a valid source. The node that makes the volume reports the
    /// latter.
    Anywhere,
    /// On a node that does not exist, or no longer does. The text says why.
    Gone(String),
    /// Not known yet. The text says why.
    Unknown(String),
}

impl SourceLocation {
    /// True if no node is known that has the source.
    pub(super) fn is_unlocated(&self) -> bool {
        matches!(self, SourceLocation::Gone(_) | SourceLocation::Unknown(_))
    }

    /// The node, if there is exactly one.
    pub(super) fn node(&self) -> Option<&str> {
        match self {
            SourceLocation::Node(node) => Some(node),
            _ => None,
        }
    }
}

/// Locates a volume by its node affinity.
fn of_volume(volume: &PersistentVolume, nodes: &[Arc<Node>]) -> SourceLocation {
    let Some(mut found) = nodes_of(volume, nodes) else {
        return SourceLocation::Anywhere;
    };
    match (found.len(), found.pop()) {
        (1, Some(node)) => SourceLocation::Node(node),
        (_, None) => SourceLocation::Gone(format!(
            "no node fits the affinity of PersistentVolume {}",
            volume.name_any()
        )),
        (_, Some(last)) => {
            found.push(last);
            SourceLocation::Several(found.into_iter().collect())
        }
    }
}

/// Locates a volume that all nodes of a kernel can use. Its affinity fits all of them, also if the node
/// that has it is gone. That node's pool is in its handle, and the node's name in its label. The two must
/// agree: the label names the node that made the volume, and any node can write any handle.
fn of_shared_volume(
    volume: &PersistentVolume,
    by_handle: Option<String>,
    nodes: &[Arc<Node>],
) -> SourceLocation {
    let name = volume.name_any();
    let label = volume.labels().get(NODE_LABEL);
    if let Some((node, label)) = by_handle.as_deref().zip(label)
        && *label != node_label(node)
    {
        return SourceLocation::Unknown(format!(
            "PersistentVolume {name} has a handle of node {node}, and the label of node {label}: correct \
             its label"
        ));
    }
    let fitting = nodes_of(volume, nodes).unwrap_or_default();
    match by_handle.or_else(|| owner_of(volume, nodes)) {
        Some(node) if fitting.contains(&node) => SourceLocation::Node(node),
        Some(node) => SourceLocation::Unknown(format!(
            "PersistentVolume {name} is of node {node}, and its node affinity does not fit that \
             node: correct its node affinity"
        )),
        None => match label {
            Some(label) => SourceLocation::Gone(format!(
                "node {label} of PersistentVolume {name} does not exist"
            )),
            None => SourceLocation::Unknown(format!(
                "PersistentVolume {name} has no label of a node yet"
            )),
        },
    }
}

/// Locates a volume by its node affinity and by the node with the pool in its handle. The two must
/// agree: a node can make a volume with its own affinity and the handle of another node's data.
pub(super) fn of_volume_in(
    volume: &PersistentVolume,
    by_handle: Option<String>,
    nodes: &[Arc<Node>],
) -> SourceLocation {
    if pv::is_shared(volume) {
        return of_shared_volume(volume, by_handle, nodes);
    }
    match (of_volume(volume, nodes), by_handle) {
        (SourceLocation::Anywhere, Some(node)) => SourceLocation::Node(node),
        (SourceLocation::Several(nodes), Some(node)) if nodes.contains(&node) => {
            SourceLocation::Node(node)
        }
        (SourceLocation::Node(by_affinity), Some(node)) if by_affinity == node => {
            SourceLocation::Node(node)
        }
        (SourceLocation::Node(_) | SourceLocation::Several(_), Some(node)) => {
            SourceLocation::Unknown(format!(
                "PersistentVolume {} has a handle of node {node}, and a node affinity for another \
             node: correct its node affinity",
                volume.name_any()
            ))
        }
        (location, _) => location,
    }
}

/// The volume of a source claim with this name. The error says why there is none of this driver.
pub(super) fn volume_of<'a>(
    name: &str,
    source: Option<&PersistentVolumeClaim>,
    volume: Option<&'a PersistentVolume>,
    driver: &str,
) -> Result<&'a PersistentVolume, SourceLocation> {
    let what = format!("PersistentVolumeClaim {name}");
    let Some(source) = source else {
        return Err(SourceLocation::Unknown(format!("{what} does not exist")));
    };
    if pvc::volume_name(source).is_none() {
        let why = format!("{what} is not bound to a volume yet");
        return Err(SourceLocation::Unknown(why));
    }
    let Some(volume) = volume else {
        let why = format!("the PersistentVolume of {what} does not exist");
        return Err(SourceLocation::Unknown(why));
    };
    match pv::handle(volume, driver) {
        Some(_) => Ok(volume),
        None => Err(SourceLocation::Anywhere),
    }
}

/// The node of a snapshot, by its content.
///
/// The label `managed-by` decides, unless the handle belongs to another node's pool. Without the
/// label, a content that names its volume is on that volume's node. Only the volume is known to be
/// the user's own: a node may have written the handle. A content made for an existing snapshot is
/// on the node of its handle's pool.
pub(super) fn of_content(
    content: &VolumeSnapshotContent,
    volume: impl FnOnce() -> SourceLocation,
    by_handle: Option<String>,
    nodes: &[Arc<Node>],
) -> SourceLocation {
    let Some(label) = content.labels().get(MANAGED_BY) else {
        if content.spec.source.volume_handle.is_none() {
            return by_handle.map_or_else(volume, SourceLocation::Node);
        }
        return match (volume(), by_handle) {
            (SourceLocation::Node(volume), Some(node)) if volume != node => {
                SourceLocation::Unknown(format!(
                    "VolumeSnapshotContent {} is of a volume on node {volume}, and has a handle of \
                 node {node}",
                    content.name_any()
                ))
            }
            (location, _) => location,
        };
    };
    match (of_label(label, nodes), by_handle) {
        (SourceLocation::Node(name), Some(node)) if name != node => {
            SourceLocation::Unknown(format!(
                "VolumeSnapshotContent {} is managed by node {name}, and has a handle of node {node}",
                content.name_any()
            ))
        }
        (location, _) => location,
    }
}

/// The node that the label `managed-by` names. The label holds a hash if the node's name is too long
/// for a label.
pub(super) fn of_label(label: &str, nodes: &[Arc<Node>]) -> SourceLocation {
    let mut names = nodes.iter().map(|node| node.name_any());
    match names.find(|name| node_label(name) == *label) {
        Some(name) => SourceLocation::Node(name),
        None => SourceLocation::Gone(format!("node {label} does not exist")),
    }
}

/// Locates volumes that share one handle. A namespace has only one of them, unless another was made
/// for the same data.
pub(super) fn of_all(
    handle: &str,
    locations: impl IntoIterator<Item = SourceLocation>,
) -> SourceLocation {
    let mut locations = locations.into_iter();
    let first = locations.next().unwrap_or_else(|| {
        SourceLocation::Unknown(format!(
            "no PersistentVolume of handle {handle} is bound in the namespace of the snapshot"
        ))
    });
    if locations.all(|location| location == first) {
        first
    } else {
        SourceLocation::Unknown(format!(
            "the PersistentVolumes of handle {handle} are on different nodes"
        ))
    }
}

/// The name of the content that a snapshot is bound to. The error says why there is none.
pub(super) fn content_of(
    name: &str,
    snapshot: Option<&VolumeSnapshot>,
) -> Result<String, SourceLocation> {
    let what = format!("VolumeSnapshot {name}");
    let Some(snapshot) = snapshot else {
        return Err(SourceLocation::Unknown(format!("{what} does not exist")));
    };
    snapshot.bound_content().map(str::to_owned).ok_or_else(|| {
        SourceLocation::Unknown(format!(
            "{what} is not bound to a VolumeSnapshotContent yet"
        ))
    })
}

#[cfg(test)]
mod tests;
