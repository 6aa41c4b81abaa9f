use k8s_openapi::api::core::v1::TopologySelectorLabelRequirement;

use super::*;
use crate::testing::check_result;

mod cross;

fn place(node: &str, labels: &str) -> NodeTopology {
    let labels = segment(labels);
    let keys = labels.keys().cloned().collect();
    NodeTopology {
        node: node.to_owned(),
        labels,
        is_registered: true,
        keys,
    }
}

/// A node with these labels. The driver registered only these keys.
fn place_with(node: &str, labels: &str, keys: &[&str]) -> NodeTopology {
    NodeTopology {
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        ..place(node, labels)
    }
}

fn segment(text: &str) -> Segment {
    text.split_whitespace()
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Parses `zone=a|b rack=1` as a term of `allowedTopologies`.
fn term(text: &str) -> TopologySelectorTerm {
    let expressions = text.split_whitespace().filter_map(|pair| {
        let (key, values) = pair.split_once('=')?;
        Some(TopologySelectorLabelRequirement {
            key: key.to_owned(),
            values: values.split('|').map(str::to_owned).collect(),
        })
    });
    TopologySelectorTerm {
        match_label_expressions: Some(expressions.collect()),
    }
}

fn list(topologies: &[Topology]) -> Vec<String> {
    let one = |topology: &Topology| shown(&topology.segments).replace(", ", " ");
    topologies.iter().map(one).collect()
}

#[test]
fn requirements() {
    let nodes = [
        place("n1", "zone=a rack=1"),
        place("n2", "zone=a rack=2"),
        place("n3", "zone=b rack=1"),
        place("n4", "zone=b rack=1"),
        place("other", "site=x"),
        place("bare", ""),
        place_with("unlabelled", "", &["zone"]),
        NodeTopology {
            is_registered: false,
            ..place("fresh", "")
        },
    ];
    let n3 = "rack=1 zone=b";
    let no_place = "(rack=1, zone=b) is not in allowedTopologies";
    let not_allowed = "is not in allowedTopologies of the StorageClass (zone=c)";
    // The flags: s is --strict-topology, i is --immediate-topology. Expected are the requisite and
    // the preferred segments, or an error.
    for (allowed, selected, flags, expected) in [
        // Strict: the selected node alone.
        (&[][..], Some("n3"), "si", Ok([n3, n3])),
        (&["zone=a|b"], Some("n3"), "si", Ok([n3, n3])),
        (&["zone=a"], Some("n3"), "si", Err(no_place)),
        // Delayed: all nodes that have the node's keys, the node's segment first.
        (
            &[],
            Some("n3"),
            "i",
            Ok([
                "rack=1 zone=a; rack=1 zone=b; rack=2 zone=a",
                "rack=1 zone=b; rack=2 zone=a; rack=1 zone=a",
            ]),
        ),
        (
            &["zone=a|b", "zone=c rack=1|2"],
            Some("n3"),
            "i",
            Ok([
                "zone=a; zone=b; rack=1 zone=c; rack=2 zone=c",
                "zone=b; rack=1 zone=c; rack=2 zone=c; zone=a",
            ]),
        ),
        (&["zone=c"], Some("n3"), "i", Err(not_allowed)),
        (&[], Some("n9"), "i", Err("n9 does not exist")),
        (&[], Some("fresh"), "i", Err("fresh has no CSINode")),
        (
            &[],
            Some("bare"),
            "si",
            Err("no topology keys on node bare"),
        ),
        (&[], Some("unlabelled"), "si", Err("registered (zone)")),
        // Immediate: the segment of every node, by each registered set of keys.
        (
            &[],
            None,
            "i",
            Ok([
                "site=x; zone=a; zone=b; rack=1 zone=a; rack=1 zone=b; rack=2 zone=a",
                "any",
            ]),
        ),
        (&[], None, "", Ok(["", ""])),
        (&["zone=b"], None, "s", Ok(["zone=b", "zone=b"])),
    ] {
        let terms: Vec<_> = allowed.iter().map(|text| term(text)).collect();
        let ask = TopologyRequest {
            claim: "claim",
            allowed: &terms,
            selected,
            strict: flags.contains('s'),
            immediate: flags.contains('i'),
            nodes: &nodes,
        };
        let what = format!("{allowed:?} {selected:?} {flags:?}");
        let made = requirement(ask, None).map(|(made, _)| {
            assert_eq!(made.is_some(), expected != Ok(["", ""]), "{what}");
            let made = made.unwrap_or_default();
            let preferred = match expected {
                Ok([_, "any"]) => "any".to_owned(),
                _ => list(&made.preferred).join("; "),
            };
            [list(&made.requisite).join("; "), preferred]
        });
        check_result(made, expected.map(|lists| lists.map(str::to_owned)), what);
    }
}

/// A request that any of these nodes can meet.
fn anywhere(nodes: &[NodeTopology]) -> TopologyRequest<'_> {
    TopologyRequest {
        claim: "claim",
        allowed: &[],
        selected: None,
        strict: false,
        immediate: true,
        nodes,
    }
}

#[test]
fn without_registered_nodes_there_is_no_requirement() {
    let unlabelled = place_with("n1", "zone=a", &["zone", "rack"]);
    let no_term = TopologySelectorTerm::default();
    for (what, nodes, allowed, expected) in [
        ("no nodes", vec![], vec![], Err("on no node yet")),
        (
            "no driver",
            vec![place("n1", "")],
            vec![],
            Err("on no node yet"),
        ),
        (
            "no label",
            vec![unlabelled],
            vec![],
            Err("registered (rack, zone)"),
        ),
        // An empty term restricts nothing, so there is no requirement.
        ("an empty term", vec![], vec![no_term], Ok(None)),
    ] {
        let ask = TopologyRequest {
            allowed: &allowed,
            ..anywhere(&nodes)
        };
        check_result(requirement(ask, None).map(|(made, _)| made), expected, what);
    }
}

#[test]
fn segments_have_only_keys_registered_on_their_node() {
    let nodes = [
        place_with("fine", "zone=a rack=1", &["zone", "rack"]),
        place_with("coarse", "zone=b rack=2", &["zone"]),
        place_with("others", "zone=c rack=3", &[]),
        place_with("half", "zone=d", &["zone", "rack"]),
    ];
    for (selected, expected) in [
        // The driver registered zones on the fine nodes too, but no rack on the coarse node.
        (None, "zone=a; zone=b; zone=d; rack=1 zone=a"),
        (Some("fine"), "rack=1 zone=a"),
        (Some("coarse"), "zone=a; zone=b; zone=d"),
    ] {
        let ask = TopologyRequest {
            selected,
            ..anywhere(&nodes)
        };
        let (made, _) = requirement(ask, None).expect("nodes");
        let requisite = list(&made.expect("a requirement").requisite);
        assert_eq!(requisite.join("; "), expected, "{selected:?}");
    }
}

#[test]
fn a_repeated_call_has_the_same_requirement() {
    let then = [
        place("n1", "zone=a"),
        place("n2", "zone=b"),
        place("n3", "zone=c"),
    ];
    let moved = [place("n1", "zone=x"), place("n2", "zone=b")];
    let other_keys = [place("n1", "rack=1"), place("n4", "zone=d")];
    let stale = [place_with("n1", "", &["zone"])];
    for selected in [None, Some("n1")] {
        for strict in [false, true] {
            let ask = |nodes| TopologyRequest {
                selected,
                strict,
                ..anywhere(nodes)
            };
            let (made, seen) = requirement(ask(&then), None).expect("nodes");
            for now in [&moved[..], &other_keys, &stale, &[]] {
                let again = requirement(ask(now), Some(&seen));
                assert_eq!(
                    again,
                    Ok((made.clone(), seen.clone())),
                    "{selected:?} {strict}"
                );
            }
            // The state does not apply to another selected node.
            let other = TopologyRequest {
                selected: Some("n2"),
                ..ask(&moved)
            };
            let fresh = requirement(other, None);
            assert_eq!(requirement(other, Some(&seen)), fresh);
        }
    }
}

#[test]
fn a_changed_class_counts() {
    let nodes = [place("n1", "zone=a"), place("n2", "zone=b")];
    let ask = TopologyRequest {
        selected: Some("n1"),
        ..anywhere(&nodes)
    };
    let (a, b) = ([term("zone=a")], [term("zone=b")]);
    let (made, seen) = requirement(TopologyRequest { allowed: &a, ..ask }, None).expect("allowed");
    assert_eq!(list(&made.expect("a requirement").requisite), ["zone=a"]);
    let refused = requirement(TopologyRequest { allowed: &b, ..ask }, Some(&seen));
    assert!(matches!(refused, Err(TopologyError::NotAllowed { .. })));
    // Without `allowedTopologies`, the nodes count. The selected one is gone by now.
    let gone = [place("n2", "zone=b")];
    let again = TopologyRequest {
        nodes: &gone,
        ..ask
    };
    let (made, _) = requirement(again, Some(&seen)).expect("nodes");
    let made = made.expect("a requirement");
    assert_eq!(list(&made.requisite), ["zone=a", "zone=b"]);
    assert_eq!(list(&made.preferred), ["zone=a", "zone=b"]);
}

#[test]
fn hashes_as_published() {
    for (text, hash) in [
        ("", 0x811c_9dc5),
        ("a", 0x050c_5d7e),
        ("foobar", 0x31f0_b262),
    ] {
        assert_eq!(fnv(text), hash, "{text:?}");
    }
}

#[test]
fn replicas_are_spread() {
    let web = fnv("web");
    for (claim, number) in [
        ("data-web-0", web),
        ("data-web-3", web + 3),
        ("log-web-3", web + 3),
        ("web-3", web + 3),
        ("a-b-web-3", web + 3),
        ("web", web),
        ("web-x", fnv("web-x")),
        ("web-+1", fnv("web-+1")),
        ("web-", fnv("web-")),
        ("web-99999999999", fnv("web-99999999999")),
    ] {
        assert_eq!(spread(claim), number, "{claim}");
    }
}

#[test]
fn affinities() {
    assert_eq!(affinity(&[]), None);
    assert_eq!(affinity(&[Topology::default()]), None);
    let two = [
        topology(segment("zone=a rack=1")),
        topology(segment("zone=b")),
    ];
    let made = affinity(&two)
        .and_then(|made| made.required)
        .expect("terms");
    let shown: Vec<_> = made
        .node_selector_terms
        .iter()
        .flat_map(|term| term.match_expressions.iter().flatten())
        .map(|one| (one.key.as_str(), one.operator.as_str(), one.values.clone()))
        .collect();
    let value = |value: &str| Some(vec![value.to_owned()]);
    let expected = [
        ("rack", "In", value("1")),
        ("zone", "In", value("a")),
        ("zone", "In", value("b")),
    ];
    assert_eq!(shown, expected);
    assert_eq!(made.node_selector_terms.len(), 2);
}
