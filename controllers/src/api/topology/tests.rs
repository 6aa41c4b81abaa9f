use k8s_openapi::api::core::v1::TopologySelectorLabelRequirement;

use super::*;

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
    type Expected<'a> = Result<Option<(&'a [&'a str], &'a [&'a str])>, &'a str>;
    struct Case<'a> {
        what: &'a str,
        allowed: &'a [&'a str],
        selected: Option<&'a str>,
        strict: bool,
        immediate: bool,
        expected: Expected<'a>,
    }
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
    let cases = [
        Case {
            what: "strict: the selected node alone",
            allowed: &[],
            selected: Some("n3"),
            strict: true,
            immediate: true,
            expected: Ok(Some((&["rack=1 zone=b"], &["rack=1 zone=b"]))),
        },
        Case {
            what: "strict, allowed",
            allowed: &["zone=a|b"],
            selected: Some("n3"),
            strict: true,
            immediate: true,
            expected: Ok(Some((&["rack=1 zone=b"], &["rack=1 zone=b"]))),
        },
        Case {
            what: "strict, not allowed",
            allowed: &["zone=a"],
            selected: Some("n3"),
            strict: true,
            immediate: true,
            expected: Err("(rack=1, zone=b) is not in allowedTopologies"),
        },
        Case {
            what: "delayed: all nodes that have the node's keys, the node's first",
            allowed: &[],
            selected: Some("n3"),
            strict: false,
            immediate: true,
            expected: Ok(Some((
                &["rack=1 zone=a", "rack=1 zone=b", "rack=2 zone=a"],
                &["rack=1 zone=b", "rack=2 zone=a", "rack=1 zone=a"],
            ))),
        },
        Case {
            what: "delayed with allowedTopologies",
            allowed: &["zone=a|b", "zone=c rack=1|2"],
            selected: Some("n3"),
            strict: false,
            immediate: true,
            expected: Ok(Some((
                &["zone=a", "zone=b", "rack=1 zone=c", "rack=2 zone=c"],
                &["zone=b", "rack=1 zone=c", "rack=2 zone=c", "zone=a"],
            ))),
        },
        Case {
            what: "delayed, not allowed",
            allowed: &["zone=c"],
            selected: Some("n3"),
            strict: false,
            immediate: true,
            expected: Err("is not in allowedTopologies of the StorageClass (zone=c)"),
        },
        Case {
            what: "a node that is gone",
            allowed: &[],
            selected: Some("n9"),
            strict: false,
            immediate: true,
            expected: Err("n9 does not exist"),
        },
        Case {
            what: "a node without a CSINode",
            allowed: &[],
            selected: Some("fresh"),
            strict: false,
            immediate: true,
            expected: Err("fresh has no CSINode"),
        },
        Case {
            what: "a node without the driver",
            allowed: &[],
            selected: Some("bare"),
            strict: true,
            immediate: true,
            expected: Err("no topology keys on node bare"),
        },
        Case {
            what: "a node whose labels are gone",
            allowed: &[],
            selected: Some("unlabelled"),
            strict: true,
            immediate: true,
            expected: Err("registered: zone"),
        },
        Case {
            what: "immediate: every node's place, by each set of keys there is",
            allowed: &[],
            selected: None,
            strict: false,
            immediate: true,
            expected: Ok(Some((
                &[
                    "site=x",
                    "zone=a",
                    "zone=b",
                    "rack=1 zone=a",
                    "rack=1 zone=b",
                    "rack=2 zone=a",
                ],
                &[],
            ))),
        },
        Case {
            what: "immediate, but nodes are not to be told",
            allowed: &[],
            selected: None,
            strict: false,
            immediate: false,
            expected: Ok(None),
        },
        Case {
            what: "immediate, not to be told, but the class limits them",
            allowed: &["zone=b"],
            selected: None,
            strict: true,
            immediate: false,
            expected: Ok(Some((&["zone=b"], &["zone=b"]))),
        },
    ];
    for case in cases {
        let allowed: Vec<_> = case.allowed.iter().map(|text| term(text)).collect();
        let ask = TopologyRequest {
            claim: "claim",
            allowed: &allowed,
            selected: case.selected,
            strict: case.strict,
            immediate: case.immediate,
            nodes: &nodes,
        };
        let made = requirement(ask, None).map(|(made, _)| made);
        let what = case.what;
        match (made, case.expected) {
            (Ok(made), Ok(expected)) => {
                assert_eq!(made.is_some(), expected.is_some(), "{what}");
                let Some((made, (requisite, preferred))) = made.zip(expected) else {
                    continue;
                };
                assert_eq!(list(&made.requisite), requisite, "{what}");
                if !preferred.is_empty() {
                    assert_eq!(list(&made.preferred), preferred, "{what}");
                }
            }
            (Err(problem), Err(part)) => {
                let text = problem.to_string();
                assert!(text.contains(part), "{what}: {text}");
            }
            (made, _) => panic!("{what}: {made:?}"),
        }
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
fn without_a_registered_place_there_is_nothing_to_make() {
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
            Err("registered: rack, zone"),
        ),
        // An empty term restricts nothing, so there is no requirement.
        ("an empty term", vec![], vec![no_term], Ok(None)),
    ] {
        let ask = TopologyRequest {
            allowed: &allowed,
            ..anywhere(&nodes)
        };
        let made = requirement(ask, None).map(|(made, _)| made);
        match expected {
            Ok(expected) => assert_eq!(made, Ok(expected), "{what}"),
            Err(part) => {
                let text = made.expect_err(what).to_string();
                assert!(text.contains(part), "{what}: {text}");
            }
        }
    }
}

#[test]
fn a_place_is_told_only_by_keys_registered_there() {
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
fn what_was_asked_for_is_asked_for_again() {
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
fn a_class_is_read_anew() {
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
    let nodes = ["a", "b", "c"].map(|zone| place(zone, &format!("zone={zone}")));
    let firsts: BTreeSet<_> = (0..3)
        .map(|ordinal| {
            let claim = format!("data-web-{ordinal}");
            let ask = TopologyRequest {
                claim: &claim,
                ..anywhere(&nodes)
            };
            let (made, _) = requirement(ask, None).expect("nodes");
            list(&made.expect("a requirement").preferred)[0].clone()
        })
        .collect();
    assert_eq!(firsts.len(), 3);
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
