//! Finds the missing node that an object belongs to.
//!
//! A mistake here costs the data of a healthy node. So a node is named only if nothing points to
//! another: an object that an existing node could own belongs to that node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSelectorTerm, PersistentVolume};
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity};
use kube::ResourceExt;

use crate::api::capacity::{MANAGED_BY, managed_by};
use crate::api::constants::is_name;
use crate::api::node::{node_of, registered};
use crate::api::pv;
use crate::api::scope::{MAX_LABEL, NODE_LABEL, node_label};

type Segments = BTreeMap<String, String>;

/// The existing nodes, and what is known of earlier ones.
#[derive(Default)]
pub(super) struct NodeResolver {
    nodes: Vec<Arc<Node>>,
    /// Names of the existing nodes.
    present: BTreeSet<String>,
    /// Nodes that had the driver, with their topology labels.
    known: BTreeMap<String, Arc<Node>>,
    /// Topology keys of the driver with the node's name as value, on every node that has them.
    naming: BTreeSet<String>,
}

impl NodeResolver {
    /// Updates the existing nodes.
    pub(super) fn note(&mut self, nodes: &[Arc<Node>], csi_nodes: &[Arc<CSINode>], driver: &str) {
        self.nodes = nodes.to_vec();
        self.present = nodes.iter().map(|node| node.name_any()).collect();
        let by_name = nodes.iter().map(|node| (node.name_any(), node));
        let by_name: BTreeMap<String, &Arc<Node>> = by_name.collect();
        let mut keys_of_driver = BTreeSet::new();
        for csi_node in csi_nodes {
            let Some(node) = by_name.get(&csi_node.name_any()) else {
                continue;
            };
            let mut place = Node::default();
            place.metadata.name = Some(node.name_any());
            let registered = registered(csi_node, driver);
            for key in registered
                .iter()
                .flat_map(|known| known.topology_keys.iter().flatten())
            {
                let Some(value) = node.labels().get(key) else {
                    continue;
                };
                keys_of_driver.insert(key.to_owned());
                let labels = place.metadata.labels.get_or_insert_default();
                labels.insert(key.to_owned(), value.clone());
            }
            if place.metadata.labels.is_some() {
                self.known.insert(node.name_any(), Arc::new(place));
            }
        }
        // This includes nodes without the driver at present.
        keys_of_driver.retain(|key| {
            nodes.iter().all(|node| {
                let value = node.labels().get(key);
                value.is_none_or(|value| *value == node.name_any())
            })
        });
        self.naming = keys_of_driver;
    }

    /// Forgets missing nodes that no object names.
    pub(super) fn forget_all_but(&mut self, named: &BTreeSet<String>) {
        let present = &self.present;
        self.known
            .retain(|name, _| present.contains(name) || named.contains(name));
    }

    /// Returns the node if the name is valid and no such node exists.
    pub(super) fn absent(&self, name: &str) -> Option<String> {
        (is_name(name) && !self.present.contains(name)).then(|| name.to_owned())
    }

    /// Returns the missing node for a label value. The label truncates long names.
    pub(super) fn absent_by_label(&self, value: &str) -> Option<String> {
        if self.present.iter().any(|name| node_label(name) == value) {
            return None;
        }
        if value.len() < MAX_LABEL {
            return self.absent(value);
        }
        let mut known = self.known.keys().filter(|name| node_label(name) == value);
        known.next().and_then(|name| self.absent(name))
    }

    /// Returns the node of a volume, if its affinity names exactly one node and that is missing. Of a
    /// shared volume, the affinity names all nodes of a kernel, and the label the one that has it.
    pub(super) fn of_volume(&self, volume: &PersistentVolume) -> Option<String> {
        if pv::is_shared(volume) {
            let node = self.absent_by_label(volume.labels().get(NODE_LABEL)?)?;
            return pv::affine_values(volume)
                .any(|value| value == node)
                .then_some(node);
        }
        let terms = pv::node_terms(volume)?;
        let by_name = self.by_name(terms).ok()?;
        if let Some(name) = &by_name
            && self.present.contains(name)
        {
            return None;
        }
        if node_of(volume, &self.nodes).is_some() {
            return None;
        }
        let absent = self.known.values();
        let absent = absent.filter(|node| !self.present.contains(&node.name_any()));
        let fitting: Vec<String> = absent
            .filter(|node| node_of(volume, std::slice::from_ref(*node)).is_some())
            .map(|node| node.name_any())
            .collect();
        let name = match (fitting.as_slice(), by_name) {
            ([], named) => named?,
            ([known], None) => known.clone(),
            ([known], Some(named)) if *known == named => named,
            _ => return None,
        };
        self.absent(&name)
    }

    /// The node name that all terms agree on; an error if they differ.
    fn by_name(&self, terms: &[NodeSelectorTerm]) -> Result<Option<String>, ()> {
        let mut names = BTreeSet::new();
        for term in terms {
            let requirements = term.match_expressions.iter().flatten();
            let naming = requirements.filter(|one| self.naming.contains(&one.key));
            let mut of_term = BTreeSet::new();
            for requirement in naming {
                match (requirement.operator.as_str(), requirement.values.as_deref()) {
                    ("In", Some([value])) => of_term.insert(value.clone()),
                    _ => return Err(()),
                };
            }
            // A term without a name matches any node.
            if of_term.is_empty() && terms.len() > 1 {
                return Err(());
            }
            names.extend(of_term);
        }
        match names.len() {
            0 | 1 => Ok(names.pop_first()),
            _ => Err(()),
        }
    }

    /// The missing node that manages a capacity object.
    pub(super) fn of_capacity(&self, object: &CSIStorageCapacity) -> Option<String> {
        let label = object.labels().get(MANAGED_BY)?;
        if self.present.iter().any(|node| is_managed_by(label, node)) {
            return None;
        }
        let segments: Segments = object
            .node_topology
            .as_ref()
            .and_then(|topology| topology.match_labels.clone())
            .unwrap_or_default();
        let named = segments
            .iter()
            .filter(|(key, _)| self.naming.contains(*key))
            .map(|(_, value)| value);
        let mut names = named
            .chain(self.known.keys())
            .filter(|node| is_managed_by(label, node));
        let named = names.next().map(String::as_str);
        self.absent(named.or_else(|| managing_node(label))?)
    }
}

fn is_managed_by(label: &str, node: &str) -> bool {
    managed_by(Some(node)) == label
}

/// The node that a managed-by label names. A long name is replaced by an eight-digit hash.
fn managing_node(label: &str) -> Option<&str> {
    let node = label.strip_prefix(&managed_by(None))?.strip_prefix('-')?;
    let hash = node.len() == 8 && node.bytes().all(|c| c.is_ascii_hexdigit());
    (!hash).then_some(node)
}

#[cfg(test)]
mod tests;
