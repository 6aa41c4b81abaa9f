//! Where a volume may be: the topology requirement of a CreateVolume call, and the node affinity
//! of a volume that was made.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_proto::csi::{Topology, TopologyRequirement};
use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, TopologySelectorTerm,
    VolumeNodeAffinity,
};

/// A part of the cluster, by labels that nodes in it have.
pub(crate) type Segment = BTreeMap<String, String>;

/// A node, as the driver sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Its name.
    pub(crate) node: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// The labels that tell where it is, as the driver registered them.
    pub(crate) keys: BTreeSet<String>,
}

impl Place {
    /// Its values of these labels, if it has them all.
    fn segment<'a>(&self, keys: impl IntoIterator<Item = &'a String>) -> Option<Segment> {
        keys.into_iter()
            .map(|key| Some((key.clone(), self.labels.get(key)?.clone())))
            .collect()
    }
}

/// What is known when a volume is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    /// The claim's name, by which volumes of a set of replicas are spread.
    pub(crate) claim: &'a str,
    /// The class's `allowedTopologies`.
    pub(crate) allowed: &'a [TopologySelectorTerm],
    /// The node that was selected, if one was.
    pub(crate) selected: Option<&'a str>,
    /// Just the selected node will do.
    pub(crate) strict: bool,
    /// Say where nodes are even if nobody asked for a place.
    pub(crate) immediate: bool,
    /// The nodes.
    pub(crate) places: &'a [Place],
}

/// No place for a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TopologyProblem {
    /// The node is gone.
    #[error("the selected node {node} does not exist (any more): another is to be selected")]
    NoNode {
        /// Its name.
        node: String,
    },
    /// The driver does not run there, or has not registered.
    #[error(
        "the CSI driver has registered no topology keys on node {node}: see that its pod runs \
         there and is registered (kubectl get csinode {node} -o yaml)"
    )]
    NoKeys {
        /// Its name.
        node: String,
    },
    /// Its labels have been taken away.
    #[error("node {node} has not all the topology labels the CSI driver registered: {keys}")]
    NoLabels {
        /// Its name.
        node: String,
        /// Those that are needed.
        keys: String,
    },
    /// The class does not allow the node.
    #[error(
        "the selected node {node} ({place}) is not in allowedTopologies of the StorageClass \
         ({allowed}): extend them, or keep the pod off this node"
    )]
    NotAllowed {
        /// Its name.
        node: String,
        /// Where it is.
        place: String,
        /// What is allowed.
        allowed: String,
    },
}

/// The requirement; none if there is nothing to say.
pub(crate) fn requirement(ask: Ask<'_>) -> Result<Option<TopologyRequirement>, TopologyProblem> {
    let selected = match ask.selected {
        None => None,
        Some(node) => Some(selected(node, ask.places)?),
    };
    let allowed = flatten(ask.allowed);
    let mut requisite = match &selected {
        Some((place, segment)) if ask.strict => {
            let fits = |term: &Segment| is_within(segment, term);
            if !ask.allowed.is_empty() && !allowed.iter().any(fits) {
                return Err(not_allowed(place, segment, &allowed));
            }
            vec![segment.clone()]
        }
        _ if !ask.allowed.is_empty() => allowed,
        None if !ask.immediate => Vec::new(),
        None => ask
            .places
            .iter()
            .filter(|place| !place.keys.is_empty())
            .filter_map(|place| place.segment(&place.keys))
            .collect(),
        Some((chosen, _)) => ask
            .places
            .iter()
            .filter(|place| place.keys.is_superset(&chosen.keys))
            .filter_map(|place| place.segment(&chosen.keys))
            .collect(),
    };
    sort(&mut requisite);
    if requisite.is_empty() {
        return Ok(None);
    }
    let first = match &selected {
        None => spread(ask.claim) as usize % requisite.len(),
        Some((place, segment)) => requisite
            .iter()
            .position(|term| is_within(segment, term))
            .ok_or_else(|| not_allowed(place, segment, &requisite))?,
    };
    let mut preferred = requisite.clone();
    preferred.rotate_left(first);
    Ok(Some(TopologyRequirement {
        requisite: requisite.into_iter().map(topology).collect(),
        preferred: preferred.into_iter().map(topology).collect(),
    }))
}

fn topology(segments: Segment) -> Topology {
    Topology { segments }
}

fn selected<'a>(node: &str, places: &'a [Place]) -> Result<(&'a Place, Segment), TopologyProblem> {
    let named = node.to_owned();
    let place = places.iter().find(|place| place.node == node);
    let place = place.ok_or(TopologyProblem::NoNode {
        node: named.clone(),
    })?;
    if place.keys.is_empty() {
        return Err(TopologyProblem::NoKeys { node: named });
    }
    let keys: Vec<_> = place.keys.iter().map(String::as_str).collect();
    let segment = place
        .segment(&place.keys)
        .ok_or_else(|| TopologyProblem::NoLabels {
            node: named,
            keys: keys.join(", "),
        })?;
    Ok((place, segment))
}

fn not_allowed(place: &Place, segment: &Segment, allowed: &[Segment]) -> TopologyProblem {
    let allowed: Vec<_> = allowed.iter().map(shown).collect();
    TopologyProblem::NotAllowed {
        node: place.node.clone(),
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

/// Whether all that a term says is so in a place.
fn is_within(place: &Segment, term: &Segment) -> bool {
    term.iter()
        .all(|(key, value)| place.get(key) == Some(value))
}

/// Every combination of values that `allowedTopologies` allows.
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
        // A term that says nothing allows nothing in particular.
        all.extend(combined.into_iter().filter(|term| !term.is_empty()));
    }
    sort(&mut all);
    all
}

/// Whether `allowedTopologies` allow a place, which is told by its labels.
pub(crate) fn allows(allowed: &[TopologySelectorTerm], place: &BTreeMap<String, String>) -> bool {
    allowed.is_empty() || flatten(allowed).iter().any(|term| is_within(place, term))
}

/// The same order every time, since the place of a volume is told by its number in it.
fn sort(terms: &mut Vec<Segment>) {
    terms.sort_by(|one, other| {
        let lengths = one.len().cmp(&other.len());
        lengths.then_with(|| one.iter().cmp(other.iter()))
    });
    terms.dedup();
}

/// A number for a claim: the claims of a set of replicas (`data-web-0`, `data-web-1`, …) get
/// numbers that follow each other, and all claims of one replica the same.
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

/// FNV-1, 32 bits.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    })
}

/// The affinity of a volume that can be reached from these places; none if from everywhere.
pub(crate) fn affinity(accessible: &[Topology]) -> Option<VolumeNodeAffinity> {
    let terms: Vec<_> = accessible
        .iter()
        .filter(|topology| !topology.segments.is_empty())
        .map(|topology| {
            let requirement = |(key, value): (&String, &String)| NodeSelectorRequirement {
                key: key.clone(),
                operator: "In".to_owned(),
                values: Some(vec![value.clone()]),
            };
            NodeSelectorTerm {
                match_expressions: Some(topology.segments.iter().map(requirement).collect()),
                match_fields: None,
            }
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
