//! Where volumes and snapshots are: on this node and nowhere else. Pure.

use std::collections::BTreeMap;

use hostloop_proto::csi;

use crate::request::{Invalid, invalid};

/// A node's topology segments, key → value; none where the topology is switched off.
pub(super) type Segments = BTreeMap<String, String>;

/// The `accessible_topology` of what is on this node.
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

/// Whether this node is in a topology: it has every segment of it.
pub(super) fn contains_us(topology: &csi::Topology, ours: &Segments) -> bool {
    let mut segments = topology.segments.iter();
    segments.all(|(key, value)| ours.get(key) == Some(value))
}

/// Reads `accessibility_requirements`: whether what is on this node satisfies them. Where the
/// topology is switched off nobody may ask, and everything does.
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
    // What is only preferred is no must.
    Ok(requisite.is_empty() || requisite.iter().any(|t| contains_us(t, ours)))
}

/// Whether a requirement names one place and no other, which the answer then need not repeat.
///
/// It must not, either: csi-sanity 5.6 compares the topology of a new snapshot with the one it
/// asked for byte by byte in memory, what its encoder left in there included, and no answer that
/// has one passes.
pub(super) fn names_one(requirement: Option<&csi::TopologyRequirement>) -> bool {
    requirement.is_some_and(|r| r.requisite.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(entries: &[(&str, &str)]) -> Segments {
        let entry = |(k, v): &(&str, &str)| (k.to_string(), v.to_string());
        entries.iter().map(entry).collect()
    }

    fn topology(entries: &[(&str, &str)]) -> csi::Topology {
        csi::Topology {
            segments: segments(entries),
        }
    }

    #[test]
    fn requirements() {
        let ours = segments(&[("t/node", "n1")]);
        let us = || topology(&[("t/node", "n1")]);
        let other = || topology(&[("t/node", "n2")]);
        let more = || topology(&[("t/node", "n1"), ("t/zone", "z")]);
        let table = [
            (vec![us()], vec![], Ok(true)),
            (vec![other(), us()], vec![other()], Ok(true)),
            (vec![other()], vec![], Ok(false)),
            (vec![more()], vec![more()], Ok(false)),
            (vec![topology(&[("zone", "z")])], vec![], Ok(false)),
            (vec![topology(&[])], vec![], Ok(true)),
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
    fn one_place_is_one_requisite_topology() {
        let requisite = |n: usize| csi::TopologyRequirement {
            requisite: vec![topology(&[]); n],
            preferred: vec![topology(&[])],
        };
        assert!(!names_one(None));
        for (n, expected) in [(0, false), (1, true), (2, false)] {
            assert_eq!(names_one(Some(&requisite(n))), expected);
        }
    }

    #[test]
    fn told_only_where_it_is_on() {
        let ours = segments(&[("t/node", "n1")]);
        assert_eq!(accessible(&ours), [topology(&[("t/node", "n1")])]);
        assert_eq!(accessible(&Segments::new()), []);
    }
}
