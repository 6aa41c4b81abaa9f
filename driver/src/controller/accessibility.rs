//! The topology of volumes and snapshots. They exist on this node only, and nodes that share its kernel
//! may use some of them. Pure.

use std::collections::BTreeSet;

use hostloop_proto::csi;

use crate::csi::topology::Segments;
use crate::csi::validate::{Invalid, invalid};

/// The `accessible_topology` of objects on this node.
pub(super) fn accessible(ours: &Segments) -> Vec<csi::Topology> {
    let topology = csi::Topology {
        segments: ours.clone(),
    };
    if ours.is_empty() {
        Vec::new()
    } else {
        vec![topology]
    }
}

/// The `accessible_topology` of a volume that these nodes may use, because they share this node's
/// kernel: this node comes first. The names of nodes are the values of the only key.
pub(super) fn of_kernel(ours: &Segments, nodes: &BTreeSet<String>) -> Vec<csi::Topology> {
    let mut topology = accessible(ours);
    let mut segments = ours.iter();
    let (Some((key, own)), None) = (segments.next(), segments.next()) else {
        return topology;
    };
    let others = nodes.iter().filter(|node| *node != own);
    topology.extend(others.map(|node| csi::Topology {
        segments: Segments::from([(key.clone(), node.clone())]),
    }));
    topology
}

/// True if this node has every segment of a topology. It may have more.
pub(super) fn contains_us(topology: &csi::Topology, ours: &Segments) -> bool {
    let mut segments = topology.segments.iter();
    segments.all(|(key, value)| ours.get(key) == Some(value))
}

/// True if objects on this node satisfy `accessibility_requirements`. While the topology is off,
/// every requirement is satisfied. INVALID_ARGUMENT for a requirement without topologies.
pub(super) fn satisfied(
    requirement: Option<&csi::TopologyRequirement>,
    ours: &Segments,
) -> Result<bool, Invalid> {
    let Some(requirement) = requirement.filter(|_| !ours.is_empty()) else {
        return Ok(true);
    };
    let requisite = &requirement.requisite;
    if requisite.is_empty() && requirement.preferred.is_empty() {
        return Err(invalid(
            "accessibility_requirements",
            "has neither requisite nor preferred topologies",
        ));
    }
    // A preferred topology is not mandatory.
    Ok(requisite.is_empty() || requisite.iter().any(|t| contains_us(t, ours)))
}

/// True if a requirement names exactly this node's topology, so the answer must not repeat it.
///
/// csi-sanity 5.6 compares the topology of a new snapshot with the requested one byte by byte in
/// memory, including the state of its encoder. No answer with a topology passes this comparison.
pub(super) fn names_us_alone(
    requirement: Option<&csi::TopologyRequirement>,
    ours: &Segments,
) -> bool {
    requirement.is_some_and(|r| matches!(&r.requisite[..], [one] if one.segments == *ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::tests::bench::{pairs, place};

    #[test]
    fn requirements() {
        let ours = pairs("t/node=n1");
        let us = || place("t/node=n1");
        let other = || place("t/node=n2");
        let more = || place("t/node=n1 t/zone=z");
        let table = [
            (vec![us()], vec![], Ok(true)),
            (vec![other(), us()], vec![other()], Ok(true)),
            (vec![other()], vec![], Ok(false)),
            (vec![more()], vec![more()], Ok(false)),
            (vec![place("zone=z")], vec![], Ok(false)),
            (vec![place("")], vec![], Ok(true)),
            (vec![], vec![other()], Ok(true)),
            (vec![], vec![], Err(())),
        ];
        for (requisite, preferred, expected) in table {
            let requirement = csi::TopologyRequirement {
                requisite,
                preferred,
            };
            let got = satisfied(Some(&requirement), &ours).map_err(|_| ());
            assert_eq!(got, expected, "{requirement:?}");
            let off = satisfied(Some(&requirement), &Segments::new());
            assert_eq!(off, Ok(true));
        }
        assert_eq!(satisfied(None, &ours), Ok(true));
    }

    #[test]
    fn a_part_of_the_segments_satisfies_a_requirement() {
        let ours = pairs("t/node=n1 zone=z rack=r");
        let table: [(&[&str], bool); 8] = [
            (&["t/node=n1 zone=z rack=r"], true),
            (&["zone=z"], true),
            (&["zone=z rack=r"], true),
            (&["zone=other", "rack=r"], true),
            (&["zone=z rack=other"], false),
            (&["zone=z t/node=n2"], false),
            (&["zone=z region=eu"], false),
            (&["zone=other", "rack=other"], false),
        ];
        for (requisite, expected) in table {
            let requirement = csi::TopologyRequirement {
                requisite: requisite.iter().map(|text| place(text)).collect(),
                preferred: Vec::new(),
            };
            let got = satisfied(Some(&requirement), &ours);
            assert_eq!(got, Ok(expected), "{requisite:?}");
        }
    }

    #[test]
    fn a_topology_that_the_requirement_names_is_not_repeated() {
        let ours = pairs("t/node=n1 zone=z");
        let us = || place("t/node=n1 zone=z");
        let zone = || place("zone=z");
        let table = [
            (vec![], false),
            (vec![us()], true),
            (vec![zone()], false),
            (vec![us(), zone()], false),
        ];
        assert!(!names_us_alone(None, &ours));
        for (requisite, expected) in table {
            let requirement = csi::TopologyRequirement {
                requisite,
                preferred: vec![us()],
            };
            assert_eq!(names_us_alone(Some(&requirement), &ours), expected);
        }
    }

    #[test]
    fn a_shared_volume_is_accessible_from_each_node_of_the_kernel() {
        // Our segments, the listed nodes → the entries
        let table: [(&str, &[&str], &[&str]); 5] = [
            (
                "t/node=n2",
                &["n1", "n2", "n3"],
                &["t/node=n2", "t/node=n1", "t/node=n3"],
            ),
            ("t/node=n2", &["n2"], &["t/node=n2"]),
            ("t/node=n2", &[], &["t/node=n2"]),
            // Others may be in another zone.
            ("t/node=n2 zone=z", &["n1", "n2"], &["t/node=n2 zone=z"]),
            ("", &["n1", "n2"], &[]),
        ];
        for (ours, nodes, expected) in table {
            let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
            let expected: Vec<csi::Topology> = expected.iter().map(|text| place(text)).collect();
            assert_eq!(
                of_kernel(&pairs(ours), &nodes),
                expected,
                "{ours} {nodes:?}"
            );
        }
    }

    #[test]
    fn the_topology_is_empty_if_it_is_off() {
        let ours = pairs("t/node=n1");
        assert_eq!(accessible(&ours), [place("t/node=n1")]);
        assert_eq!(accessible(&Segments::new()), []);
    }
}
