//! Who may act: whether these loops serve the whole cluster, or one node's volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, PersistentVolume, PersistentVolumeClaim, VolumeNodeAffinity,
};
use kube::ResourceExt;

/// The annotation by which the scheduler says where a claim's volume is to be.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The label by which snapshot contents are told to belong to a node.
pub const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// What these loops serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything: the driver reaches every volume.
    Cluster,
    /// What is on one node.
    Node {
        /// The Kubernetes name of the node.
        name: String,
        /// Where it is, in the driver's terms (`NodeGetInfo`).
        segments: BTreeMap<String, String>,
    },
}

impl Scope {
    /// The node, if it is one node's scope.
    pub fn node(&self) -> Option<&str> {
        match self {
            Scope::Cluster => None,
            Scope::Node { name, .. } => Some(name),
        }
    }

    /// Whether a volume is within it, by its node affinity. Without an affinity it is anywhere.
    pub fn has_volume(&self, volume: &PersistentVolume) -> bool {
        let Scope::Node { segments, .. } = self else {
            return true;
        };
        let affinity = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.node_affinity.as_ref());
        affinity.is_none_or(|affinity| admits(affinity, segments))
    }

    /// Whether a claim is to get its volume here: its node is selected, and is this one.
    /// A claim without a selected node (Immediate binding) is anybody's.
    pub fn has_claim(&self, claim: &PersistentVolumeClaim) -> bool {
        let Scope::Node { name, .. } = self else {
            return true;
        };
        claim
            .annotations()
            .get(SELECTED_NODE)
            .is_none_or(|selected| selected == name)
    }

    /// Whether an attachment is to this node.
    pub fn has_node(&self, node: &str) -> bool {
        self.node().is_none_or(|name| name == node)
    }

    /// Whether a snapshot content is within it, by its label and else by its source volume.
    pub fn has_content(
        &self,
        labels: &BTreeMap<String, String>,
        source: Option<&PersistentVolume>,
    ) -> bool {
        let Scope::Node { name, .. } = self else {
            return true;
        };
        match labels.get(MANAGED_BY) {
            Some(node) => node == name,
            None => source.is_none_or(|volume| self.has_volume(volume)),
        }
    }
}

/// Whether a node in this place satisfies a volume's affinity: one of its terms, all of whose
/// requirements. Fields of nodes are not the driver's business and are taken to fit.
fn admits(affinity: &VolumeNodeAffinity, segments: &BTreeMap<String, String>) -> bool {
    let Some(required) = &affinity.required else {
        return true;
    };
    required.node_selector_terms.iter().any(|term| {
        let requirements = term.match_expressions.as_deref().unwrap_or_default();
        requirements
            .iter()
            .all(|requirement| fulfils(requirement, segments))
    })
}

fn fulfils(requirement: &NodeSelectorRequirement, segments: &BTreeMap<String, String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let value = segments.get(&requirement.key);
    match (requirement.operator.as_str(), value) {
        ("In", Some(value)) => values.contains(value),
        ("NotIn", Some(value)) => !values.contains(value),
        ("Exists", value) => value.is_some(),
        ("DoesNotExist", value) => value.is_none(),
        // A key that is not the driver's says nothing of where the driver is.
        _ => true,
    }
}

#[cfg(test)]
mod tests;
