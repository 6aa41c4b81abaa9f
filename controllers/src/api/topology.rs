//! Topology of volumes: the topology requirement of a CreateVolume call, and the node affinity of
//! the new volume.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_proto::csi::{Topology, TopologyRequirement};
use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, TopologySelectorTerm,
    VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt;

use super::node::registered;

/// A topology segment: the part of the cluster in which every node has these labels.
pub(crate) type Segment = BTreeMap<String, String>;

/// A node and its registration of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeTopology {
    pub(crate) node: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// True if the node has a CSINode.
    pub(crate) is_registered: bool,
    /// The topology keys that the driver registered in the CSINode.
    pub(crate) keys: BTreeSet<String>,
}

impl NodeTopology {
    /// Combines a node with the driver's entry in its CSINode.
    pub(crate) fn new(node: &Node, csi_node: Option<&CSINode>, driver: &str) -> Self {
        let registered = csi_node.and_then(|node| registered(node, driver));
        let keys = registered.and_then(|driver| driver.topology_keys.clone());
        NodeTopology {
            node: node.name_any(),
            labels: node.labels().clone(),
            is_registered: csi_node.is_some(),
            keys: keys.unwrap_or_default().into_iter().collect(),
        }
    }

    /// The node's values of these labels; `None` unless it has all of them.
    pub(crate) fn segment<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a String>,
    ) -> Option<Segment> {
        keys.into_iter()
            .map(|key| Some((key.clone(), self.labels.get(key)?.clone())))
            .collect()
    }
}

/// Inputs of the topology requirement for a new volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopologyRequest<'a> {
    /// The claim's name. Its hash spreads the volumes of a StatefulSet.
    pub(crate) claim: &'a str,
    /// The class's `allowedTopologies`.
    pub(crate) allowed: &'a [TopologySelectorTerm],
    pub(crate) selected: Option<&'a str>,
    /// `--strict-topology`: require the selected node's own segment.
    pub(crate) strict: bool,
    /// `--immediate-topology`: send all segments if neither class nor scheduler names one.
    pub(crate) immediate: bool,
    /// The nodes of the cluster.
    pub(crate) nodes: &'a [NodeTopology],
}

/// The cluster state that a requirement was built from. The driver may still be creating the
/// volume, so a repeated call must send the same requirement even if nodes have changed. The
/// provisioner remembers this state for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequirementInputs {
    /// The selected node and its segment.
    selected: Option<(String, Segment)>,
    /// Further segments for the volume, if they were needed.
    terms: Vec<Segment>,
}

impl RequirementInputs {
    /// True if the state is for the same selected node. It does not apply to another one.
    pub(crate) fn is_of(&self, selected: Option<&str>) -> bool {
        self.selected.as_ref().map(|(node, _)| node.as_str()) == selected
    }
}

/// The reason why the requirement cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TopologyError {
    #[error("the selected node {node} does not exist (any more)")]
    NoNode { node: String },
    /// The node has no CSINode: kubelet has not registered a driver, or the node is being removed.
    #[error("the selected node {node} has no CSINode (any more)")]
    NoCsiNode { node: String },
    #[error(
        "the CSI driver has registered topology keys on no node yet: see that its pods run \
         (kubectl get csinodes -o yaml)"
    )]
    Nowhere,
    #[error(
        "no node has all topology labels that the CSI driver registered ({keys}): label the \
         nodes, or restart the driver's pods"
    )]
    Unlabelled { keys: String },
    #[error(
        "the CSI driver has registered no topology keys on node {node}: see that its pod runs \
         there and is registered (kubectl get csinode {node} -o yaml)"
    )]
    NoKeys { node: String },
    #[error(
        "node {node} lacks some of the topology labels that the CSI driver registered ({keys}): \
         label it, or restart the driver's pod there"
    )]
    NoLabels { node: String, keys: String },
    #[error(
        "the selected node {node} ({place}) is not in allowedTopologies of the StorageClass \
         ({allowed}): extend them, or keep the pod off this node"
    )]
    NotAllowed {
        node: String,
        place: String,
        allowed: String,
    },
}

/// Builds the requirement (`None` if nothing is required), and returns the state that it was built
/// from. The state of an earlier call for the same node takes precedence over the current nodes.
pub(crate) fn requirement(
    request: TopologyRequest<'_>,
    before: Option<&RequirementInputs>,
) -> Result<(Option<TopologyRequirement>, RequirementInputs), TopologyError> {
    let mut inputs = match before.filter(|inputs| inputs.is_of(request.selected)) {
        Some(inputs) => inputs.clone(),
        None => RequirementInputs {
            selected: request
                .selected
                .map(|node| selected(node, request.nodes))
                .transpose()?,
            terms: Vec::new(),
        },
    };
    let mut requisite = requisite(request, &mut inputs)?;
    sort(&mut requisite);
    if requisite.is_empty() {
        return Ok((None, inputs));
    }
    let first = match &inputs.selected {
        None => spread(request.claim) as usize % requisite.len(),
        Some((node, segment)) => requisite
            .iter()
            .position(|term| is_within(segment, term))
            .ok_or_else(|| not_allowed(node, segment, &requisite))?,
    };
    let mut preferred = requisite.clone();
    preferred.rotate_left(first);
    let requirement = TopologyRequirement {
        requisite: requisite.into_iter().map(topology).collect(),
        preferred: preferred.into_iter().map(topology).collect(),
    };
    Ok((Some(requirement), inputs))
}

/// The acceptable segments, unsorted. Stores the segments of nodes in `inputs`.
fn requisite(
    request: TopologyRequest<'_>,
    inputs: &mut RequirementInputs,
) -> Result<Vec<Segment>, TopologyError> {
    let allowed = flatten(request.allowed);
    match &inputs.selected {
        Some((node, segment)) if request.strict => {
            if !request.allowed.is_empty() && !allowed.iter().any(|term| is_within(segment, term)) {
                return Err(not_allowed(node, segment, &allowed));
            }
            return Ok(vec![segment.clone()]);
        }
        _ if !request.allowed.is_empty() => return Ok(allowed),
        None if !request.immediate => return Ok(Vec::new()),
        _ => {}
    }
    if inputs.terms.is_empty() {
        inputs.terms = match &inputs.selected {
            None => everywhere(request.nodes)?,
            Some((_, segment)) => {
                let keys = segment.keys().cloned().collect();
                // Includes the selected node, even if it is gone by now.
                let own = std::iter::once(segment.clone());
                own.chain(with_keys(request.nodes, &keys)).collect()
            }
        };
    }
    Ok(inputs.terms.clone())
}

/// The segments of nodes by these keys, if the driver registered all of the keys there. A label
/// alone does not prove that the driver uses it.
fn with_keys(nodes: &[NodeTopology], keys: &BTreeSet<String>) -> impl Iterator<Item = Segment> {
    nodes
        .iter()
        .filter(move |place| place.keys.is_superset(keys))
        .filter_map(move |place| place.segment(keys))
}

/// The segments of all nodes, by each set of keys that is registered on some node. The driver may
/// register more keys in one part of the cluster than in another.
fn everywhere(nodes: &[NodeTopology]) -> Result<Vec<Segment>, TopologyError> {
    let sets: BTreeSet<_> = nodes.iter().map(|place| &place.keys).collect();
    let sets: Vec<_> = sets.into_iter().filter(|keys| !keys.is_empty()).collect();
    if sets.is_empty() {
        return Err(TopologyError::Nowhere);
    }
    let terms: Vec<_> = sets
        .iter()
        .flat_map(|keys| with_keys(nodes, keys))
        .collect();
    if terms.is_empty() {
        let keys: Vec<_> = sets.into_iter().map(listed).collect();
        return Err(TopologyError::Unlabelled {
            keys: keys.join("; "),
        });
    }
    Ok(terms)
}

fn listed(keys: &BTreeSet<String>) -> String {
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    keys.join(", ")
}

fn topology(segments: Segment) -> Topology {
    Topology { segments }
}

/// Finds the node of this name, and its segment.
fn selected(node: &str, nodes: &[NodeTopology]) -> Result<(String, Segment), TopologyError> {
    let node = node.to_owned();
    let Some(place) = nodes.iter().find(|place| place.node == node) else {
        return Err(TopologyError::NoNode { node });
    };
    if !place.is_registered {
        return Err(TopologyError::NoCsiNode { node });
    }
    if place.keys.is_empty() {
        return Err(TopologyError::NoKeys { node });
    }
    match place.segment(&place.keys) {
        Some(segment) => Ok((node, segment)),
        None => Err(TopologyError::NoLabels {
            node,
            keys: listed(&place.keys),
        }),
    }
}

fn not_allowed(node: &str, segment: &Segment, allowed: &[Segment]) -> TopologyError {
    let allowed: Vec<_> = allowed.iter().map(shown).collect();
    TopologyError::NotAllowed {
        node: node.to_owned(),
        place: shown(segment),
        allowed: allowed.join("; "),
    }
}

fn shown(segment: &Segment) -> String {
    let pairs: Vec<_> = segment
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join(", ")
}

/// True if a segment contains all key-value pairs of a term.
fn is_within(place: &Segment, term: &Segment) -> bool {
    term.iter()
        .all(|(key, value)| place.get(key) == Some(value))
}

/// Expands `allowedTopologies` to all allowed combinations of values.
fn flatten(allowed: &[TopologySelectorTerm]) -> Vec<Segment> {
    let mut all = Vec::new();
    for term in allowed {
        let mut combined = vec![Segment::new()];
        for expression in term.match_label_expressions.as_deref().unwrap_or_default() {
            combined = combined
                .iter()
                .flat_map(|known| {
                    expression.values.iter().map(|value| {
                        let mut more = known.clone();
                        more.insert(expression.key.clone(), value.clone());
                        more
                    })
                })
                .collect();
        }
        // A term without expressions adds no restriction.
        all.extend(combined.into_iter().filter(|term| !term.is_empty()));
    }
    sort(&mut all);
    all
}

/// True if `allowedTopologies` allow these labels.
pub(crate) fn allows(allowed: &[TopologySelectorTerm], place: &BTreeMap<String, String>) -> bool {
    allowed.is_empty() || flatten(allowed).iter().any(|term| is_within(place, term))
}

/// Sorts the terms: the position in this order selects a volume's first choice.
fn sort(terms: &mut Vec<Segment>) {
    terms.sort_by(|one, other| {
        let lengths = one.len().cmp(&other.len());
        lengths.then_with(|| one.iter().cmp(other.iter()))
    });
    terms.dedup();
}

/// A number for a claim. The claims of a StatefulSet (`data-web-0`, `data-web-1`, …) get
/// consecutive numbers, and all claims of one replica get the same number.
fn spread(claim: &str) -> u32 {
    let numbered = claim.rsplit_once('-').and_then(|(base, ordinal)| {
        let digits = ordinal.bytes().all(|c| c.is_ascii_digit());
        let ordinal: u32 = ordinal.parse().ok().filter(|_| digits)?;
        Some((base, ordinal))
    });
    match numbered {
        None => fnv(claim),
        Some((base, ordinal)) => {
            let set = base.rsplit_once('-').map_or(base, |(_, set)| set);
            fnv(set).wrapping_add(ordinal)
        }
    }
}

/// The FNV-1 hash, 32 bits.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    })
}

/// The node affinity of a volume with this accessible topology; `None` if all nodes can access it.
pub(crate) fn affinity(accessible: &[Topology]) -> Option<VolumeNodeAffinity> {
    let terms: Vec<_> = accessible
        .iter()
        .filter(|topology| !topology.segments.is_empty())
        .map(|topology| NodeSelectorTerm {
            match_expressions: Some(
                topology
                    .segments
                    .iter()
                    .map(|(key, value): (&String, &String)| NodeSelectorRequirement {
                        key: key.clone(),
                        operator: "In".to_owned(),
                        values: Some(vec![value.clone()]),
                    })
                    .collect(),
            ),
            match_fields: None,
        })
        .collect();
    (!terms.is_empty()).then_some(VolumeNodeAffinity {
        required: Some(NodeSelector {
            node_selector_terms: terms,
        }),
    })
}

#[cfg(test)]
mod tests;
