//! Checks the properties of a requirement for every combination of its inputs. For every possible
//! segment, the tests check whether the requirement may contain it.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use super::*;
use crate::api::pvc::{self, ClaimContext};
use crate::api::scope::{SELECTED_NODE, Scope};

/// For each key, every value in these tests, and values that no node has.
const UNIVERSE: [(&str, &[&str]); 3] = [
    ("rack", &["1", "2", "9"]),
    ("site", &["x", "9"]),
    ("zone", &["a", "b", "c", "9"]),
];

const ALLOWED: [(&str, &[&str]); 7] = [
    ("none", &[]),
    ("one key", &["zone=a|b"]),
    ("two keys", &["zone=b rack=1"]),
    ("a cross product", &["zone=a|b rack=1|2"]),
    ("two terms", &["zone=a", "zone=b rack=1|2"]),
    (
        "terms that overlap",
        &["zone=b rack=1", "zone=b|b", "zone=b rack=1|2"],
    ),
    ("where no node is", &["site=x"]),
];

/// The node `far` is alone in its zone, and no class with `allowedTopologies` allows it.
const SELECTED: [Option<&str>; 5] = [None, Some("n3"), Some("far"), Some("gone"), Some("fresh")];

fn clusters() -> [(&'static str, Vec<NodeTopology>); 3] {
    let uniform = vec![
        place("n1", "zone=a rack=1"),
        place("n2", "zone=a rack=2"),
        place("n3", "zone=b rack=1"),
        place("n4", "zone=b rack=1"),
        place("far", "zone=c rack=2"),
        NodeTopology {
            is_registered: false,
            ..place_with("fresh", "zone=a rack=1", &[])
        },
    ];
    let mut mixed = uniform.clone();
    mixed.extend([
        place_with("coarse", "zone=a rack=9", &["zone"]),
        place_with("coarse too", "zone=9 rack=1", &["zone"]),
        place_with("elsewhere", "site=9 zone=9", &["site"]),
    ]);
    let mut stale = uniform.clone();
    stale.extend([
        place_with("without the driver", "zone=9 rack=9", &[]),
        place_with("unlabelled", "zone=9", &["zone", "rack"]),
        place_with("of other labels", "rack=9", &["site"]),
    ]);
    [("uniform", uniform), ("mixed", mixed), ("stale", stale)]
}

/// Every segment that some of the keys can form.
fn every_segment() -> Vec<Segment> {
    let mut all = vec![Segment::new()];
    for (key, values) in UNIVERSE {
        let with = |known: &Segment| {
            let more = |value: &&str| {
                let mut known = known.clone();
                known.insert(key.to_owned(), (*value).to_owned());
                known
            };
            values.iter().map(more).collect::<Vec<_>>()
        };
        let more: Vec<_> = all.iter().flat_map(with).collect();
        all.extend(more);
    }
    all.retain(|segment| !segment.is_empty());
    all
}

/// True if the scheduler would match a segment to a term of `allowedTopologies`.
fn admits(term: &str, place: &Segment) -> bool {
    term.split_whitespace().all(|part| {
        let (key, values) = part.split_once('=').expect("key=values");
        let value = place.get(key).map(String::as_str).unwrap_or_default();
        values.split('|').any(|allowed| allowed == value)
    })
}

fn keys(segment: &Segment) -> BTreeSet<String> {
    segment.keys().cloned().collect()
}

/// True if a node is in a segment. The driver must have registered all keys there, and the node
/// must have all the labels.
fn says(node: &NodeTopology, place: &Segment) -> bool {
    node.keys.is_superset(&keys(place)) && place.iter().all(|(k, v)| node.labels.get(k) == Some(v))
}

/// One combination of inputs.
#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    strict: bool,
    immediate: bool,
    delayed: bool,
    allowed: &'a [&'a str],
    nodes: &'a [NodeTopology],
    selected: Option<&'a str>,
}

#[derive(Debug, PartialEq)]
enum Expected {
    /// CreateVolume must not be called yet.
    NotDue,
    NoNode,
    NoCsiNode,
    NotAllowed,
    /// Any node will do.
    Anywhere,
    /// The requirement lists the segments that match [`Case::names`].
    Places,
}

impl Case<'_> {
    fn node(&self) -> Option<(&NodeTopology, Segment)> {
        let name = self.selected?;
        let node = self.nodes.iter().find(|place| place.node == name)?;
        Some((node, node.segment(&node.keys)?))
    }

    fn expected(&self) -> Expected {
        match (self.selected, self.node()) {
            (None, _) if self.delayed => Expected::NotDue,
            (Some("gone"), _) => Expected::NoNode,
            (Some("fresh"), _) => Expected::NoCsiNode,
            (Some(_), Some((_, here))) => {
                let free = self.allowed.is_empty();
                if free || self.allowed.iter().any(|term| admits(term, &here)) {
                    Expected::Places
                } else {
                    Expected::NotAllowed
                }
            }
            (None, _) if self.allowed.is_empty() && !self.immediate => Expected::Anywhere,
            _ => Expected::Places,
        }
    }

    /// True if the requirement must contain a segment.
    fn names(&self, place: &Segment) -> bool {
        if let (true, Some((_, here))) = (self.strict, self.node()) {
            return *place == here;
        }
        if !self.allowed.is_empty() {
            return self
                .allowed
                .iter()
                .any(|term| segment(term).keys().eq(place.keys()) && admits(term, place));
        }
        let somewhere = self.nodes.iter().any(|node| says(node, place));
        let registered = match self.node() {
            Some((_, here)) => keys(&here) == keys(place),
            None => self.nodes.iter().any(|node| node.keys == keys(place)),
        };
        somewhere && registered
    }

    fn is_due(&self) -> bool {
        let mode = if self.delayed {
            "WaitForFirstConsumer"
        } else {
            "Immediate"
        };
        let class =
            json!({"metadata": {"name": "c"}, "provisioner": "d", "volumeBindingMode": mode});
        let class: StorageClass = serde_json::from_value(class).expect("a class");
        let mut annotations = json!({"volume.kubernetes.io/storage-provisioner": "d"});
        if let Some(node) = self.selected {
            annotations[SELECTED_NODE] = json!(node);
        }
        let claim = json!({"metadata": {"name": "data-web-1", "annotations": annotations}});
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).expect("a claim");
        let context = ClaimContext {
            driver: "d",
            scope: &Scope::Cluster,
            leads: true,
        };
        pvc::is_due(&claim, &class, context)
    }

    fn made(&self, claim: &str) -> Result<Option<TopologyRequirement>, TopologyError> {
        let allowed: Vec<_> = self.allowed.iter().map(|text| term(text)).collect();
        let ask = TopologyRequest {
            claim,
            allowed: &allowed,
            selected: self.selected,
            strict: self.strict,
            immediate: self.immediate,
            nodes: self.nodes,
        };
        requirement(ask, None).map(|(made, _)| made)
    }
}

fn segments(topologies: &[Topology]) -> Vec<Segment> {
    topologies.iter().map(|one| one.segments.clone()).collect()
}

/// Checks the properties that every requirement must have.
fn check(case: &Case<'_>, made: &TopologyRequirement, claim: &str, what: &str) {
    let (requisite, preferred) = (segments(&made.requisite), segments(&made.preferred));
    for place in every_segment() {
        let named = requisite.contains(&place);
        assert_eq!(named, case.names(&place), "{what}: {}", shown(&place));
    }
    // All keys and values in these tests have the same length, so the text order is the segment
    // order.
    let rank = |place: &Segment| (place.len(), shown(place));
    let rising = requisite
        .windows(2)
        .all(|two| rank(&two[0]) < rank(&two[1]));
    assert!(rising, "sorted, and none twice: {what}: {requisite:?}");
    let at = requisite.iter().position(|place| *place == preferred[0]);
    let at = at.unwrap_or_else(|| panic!("{what}: {preferred:?} is not of {requisite:?}"));
    let (tail, head) = (&requisite[at..], &requisite[..at]);
    assert_eq!(
        preferred,
        [tail, head].concat(),
        "{what}: turned, and no more"
    );
    match case.node() {
        Some((node, _)) => {
            let first = requisite.iter().position(|place| says(node, place));
            assert_eq!(first, Some(at), "{what}: the selected node leads");
        }
        None => assert_eq!(at, spread(claim) as usize % requisite.len(), "{what}"),
    }
}

#[test]
fn every_combination() {
    let (mut done, mut required) = (0, 0);
    for (cluster, nodes) in &clusters() {
        for (limits, allowed) in ALLOWED {
            for selected in SELECTED {
                for flags in 0..8 {
                    let case = Case {
                        strict: flags & 1 > 0,
                        immediate: flags & 2 > 0,
                        delayed: flags & 4 > 0,
                        allowed,
                        nodes,
                        selected,
                    };
                    let what = format!(
                        "{cluster} nodes, allowed {limits}, selected {selected:?}, strict {}, \
                         immediate {}, delayed {}",
                        case.strict, case.immediate, case.delayed
                    );
                    let expected = case.expected();
                    assert_eq!(case.is_due(), expected != Expected::NotDue, "{what}");
                    done += 1;
                    if expected == Expected::NotDue {
                        continue;
                    }
                    let got = match case.made("data-web-1") {
                        Err(TopologyError::NoNode { .. }) => Expected::NoNode,
                        Err(TopologyError::NoCsiNode { .. }) => Expected::NoCsiNode,
                        Err(TopologyError::NotAllowed { .. }) => Expected::NotAllowed,
                        Err(other) => panic!("{what}: {other}"),
                        Ok(None) => Expected::Anywhere,
                        Ok(Some(made)) => {
                            check(&case, &made, "data-web-1", &what);
                            required += 1;
                            Expected::Places
                        }
                    };
                    assert_eq!(got, expected, "{what}");
                }
            }
        }
    }
    assert_eq!(done, 3 * 7 * 5 * 8);
    assert!(required > 200, "{required}");
}

#[test]
fn replicas_go_round_wherever_nothing_is_selected() {
    for (cluster, nodes) in &clusters() {
        for (limits, allowed) in ALLOWED {
            let case = Case {
                strict: false,
                immediate: true,
                delayed: false,
                allowed,
                nodes,
                selected: None,
            };
            let first = |ordinal: usize| {
                let made = case.made(&format!("data-web-{ordinal}")).expect("nodes");
                let made = made.expect("a requirement");
                let at = made
                    .requisite
                    .iter()
                    .position(|one| *one == made.preferred[0]);
                (at.expect("one of them"), made.requisite.len())
            };
            for ordinal in 0..12 {
                let ((at, of), (next, _)) = (first(ordinal), first(ordinal + 1));
                assert_eq!(next, (at + 1) % of, "{cluster}, {limits}: {ordinal}");
            }
        }
    }
}
