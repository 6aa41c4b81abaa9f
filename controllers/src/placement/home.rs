//! Where the source of a volume is.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::provisioner::claim;
use crate::runtime::scope::{MANAGED_BY, node_label};
use crate::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use crate::volume::nodes::nodes_of;

/// Where a volume or a snapshot is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// On one node.
    Node(String),
    /// In reach of these nodes.
    Several(BTreeSet<String>),
    /// In reach of all nodes, or no source at all: whoever is to make the volume will say so.
    Anywhere,
    /// On a node that is not there (any more).
    Gone(String),
    /// Not known yet.
    Unknown(String),
}

impl Home {
    /// The node, if it is one.
    pub(super) fn node(&self) -> Option<&str> {
        match self {
            Home::Node(node) => Some(node),
            _ => None,
        }
    }
}

/// Where a volume is, by its affinity.
fn of_volume(volume: &PersistentVolume, nodes: &[Arc<Node>]) -> Home {
    let Some(mut found) = nodes_of(volume, nodes) else {
        return Home::Anywhere;
    };
    match (found.len(), found.pop()) {
        (1, Some(node)) => Home::Node(node),
        (_, None) => Home::Gone(format!(
            "no node fits the affinity of PersistentVolume {}",
            volume.name_any()
        )),
        (_, Some(last)) => {
            found.push(last);
            Home::Several(found.into_iter().collect())
        }
    }
}

/// Where a volume is, by its affinity and by the node whose pool its handle names: that is what is
/// left to tell where an affinity says nothing, or not enough.
pub(super) fn of_volume_in(
    volume: &PersistentVolume,
    by_handle: Option<String>,
    nodes: &[Arc<Node>],
) -> Home {
    match (of_volume(volume, nodes), by_handle) {
        (Home::Anywhere, Some(node)) => Home::Node(node),
        (Home::Several(nodes), Some(node)) if nodes.contains(&node) => Home::Node(node),
        (home, _) => home,
    }
}

/// The volume of a claim, as a source by this name; or why it has none of this driver.
pub(super) fn volume_of<'a>(
    name: &str,
    source: Option<&PersistentVolumeClaim>,
    volume: Option<&'a PersistentVolume>,
    driver: &str,
) -> Result<&'a PersistentVolume, Home> {
    let what = format!("PersistentVolumeClaim {name}");
    let Some(source) = source else {
        return Err(Home::Unknown(format!("{what} does not exist")));
    };
    if claim::volume_name(source).is_none() {
        let why = format!("{what} is not bound to a volume yet");
        return Err(Home::Unknown(why));
    }
    let Some(volume) = volume else {
        let why = format!("the PersistentVolume of {what} does not exist");
        return Err(Home::Unknown(why));
    };
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    match csi.is_some_and(|csi| csi.driver == driver) {
        true => Ok(volume),
        false => Err(Home::Anywhere),
    }
}

/// Where a snapshot is, by its content: the node that manages it; else the one its volume is on;
/// else the one whose pool its handle names.
pub(super) fn of_content(
    content: &VolumeSnapshotContent,
    volume: Option<Home>,
    by_handle: Option<String>,
    nodes: &[Arc<Node>],
) -> Home {
    if let Some(label) = content.labels().get(MANAGED_BY) {
        // A name that is too long for a label is told by a hash.
        let mut names = nodes.iter().map(|node| node.name_any());
        return match names.find(|name| node_label(name) == *label) {
            Some(name) => Home::Node(name),
            None => Home::Gone(format!("node {label} does not exist")),
        };
    }
    if let Some(home @ (Home::Node(_) | Home::Several(_))) = volume {
        return home;
    }
    let unknown = || {
        let name = content.name_any();
        Home::Unknown(format!(
            "the node of VolumeSnapshotContent {name} is not known"
        ))
    };
    by_handle.map_or_else(unknown, Home::Node)
}

/// The name of the content a snapshot is bound to; or why there is none.
pub(super) fn content_of(name: &str, snapshot: Option<&VolumeSnapshot>) -> Result<String, Home> {
    let what = format!("VolumeSnapshot {name}");
    let Some(snapshot) = snapshot else {
        return Err(Home::Unknown(format!("{what} does not exist")));
    };
    let status = snapshot.status.as_ref();
    let bound = status.and_then(|status| status.bound_volume_snapshot_content_name.clone());
    let bound = bound.filter(|bound| !bound.is_empty());
    let unbound = || {
        Home::Unknown(format!(
            "{what} is not bound to a VolumeSnapshotContent yet"
        ))
    };
    bound.ok_or_else(unbound)
}

/// The handles by which a content's node can be told, the likeliest first.
pub(super) fn handles(content: &VolumeSnapshotContent) -> impl Iterator<Item = &str> {
    let source = &content.spec.source;
    let status = content.status.as_ref();
    let told = status.and_then(|status| status.snapshot_handle.as_deref());
    let given = source.snapshot_handle.as_deref();
    [told, given, source.volume_handle.as_deref()]
        .into_iter()
        .flatten()
}

#[cfg(test)]
mod tests;
