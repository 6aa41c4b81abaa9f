//! Which objects a process serves: those of the whole cluster, or those of one node.

use std::collections::BTreeMap;

pub(crate) use hostloop_api_objects::labels::hash;
pub use hostloop_api_objects::labels::{
    MANAGED_BY, MAX_LABEL, NODE_LABEL, SELECTED_NODE, node_label,
};
use k8s_openapi::api::core::v1::PersistentVolume;

use super::{node_selector, pv};

/// What this process serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All volumes: the driver reaches every one.
    Cluster,
    /// No volumes: each node has its own controllers, and this process only runs cluster-wide
    /// tasks.
    Leader,
    /// The volumes on one node.
    Node {
        /// The Kubernetes name of the node.
        name: String,
        /// The node's topology segments from `NodeGetInfo`.
        segments: BTreeMap<String, String>,
    },
}

impl Scope {
    /// Returns the node name if this is the scope of one node.
    pub fn node(&self) -> Option<&str> {
        match self {
            Scope::Cluster | Scope::Leader => None,
            Scope::Node { name, .. } => Some(name),
        }
    }

    /// True if every node has its own controllers.
    pub fn is_per_node(&self) -> bool {
        *self != Scope::Cluster
    }

    /// True unless the node affinity rules the volume out. The leader has no volumes.
    pub fn has_volume(&self, volume: &PersistentVolume) -> bool {
        *self != Scope::Leader && self.holds(volume) != Some(false)
    }

    /// Whether the node affinity places a volume in this scope; `None` if the affinity cannot
    /// decide.
    pub fn holds(&self, volume: &PersistentVolume) -> Option<bool> {
        let of_node = match self {
            Scope::Cluster => return Some(true),
            Scope::Leader => None,
            Scope::Node { name, segments } => Some((name, segments)),
        };
        let terms = pv::node_terms(volume)?;
        let Some((name, segments)) = of_node else {
            return Some(false);
        };
        node_selector::fits(
            terms,
            |key: &str| segments.get(key).map(|value| Some(value.as_str())),
            |key: &str| (key == "metadata.name").then_some(Some(name.as_str())),
        )
    }

    /// True if an attachment to this node is in the scope.
    pub fn has_node(&self, node: &str) -> bool {
        match self {
            Scope::Cluster => true,
            Scope::Leader => false,
            Scope::Node { name, .. } => name == node,
        }
    }

    /// True if a snapshot content is in the scope: its label decides, or else its source volume.
    pub fn has_content(
        &self,
        labels: &BTreeMap<String, String>,
        source: Option<&PersistentVolume>,
    ) -> bool {
        let name = match self {
            Scope::Cluster => return true,
            Scope::Leader => return false,
            Scope::Node { name, .. } => name,
        };
        match labels.get(MANAGED_BY) {
            Some(node) => *node == node_label(name),
            None => source.is_none_or(|volume| self.has_volume(volume)),
        }
    }
}

#[cfg(test)]
mod tests;
