use super::*;
use crate::api::node_fitness::UnfitNode;

const GI: i64 = 1 << 30;

fn room(available: i64, largest: Option<i64>) -> Option<NodeRoom> {
    Some(NodeRoom {
        available: available * GI,
        largest: largest.map(|largest| largest * GI),
        version: 5,
    })
}

fn node(name: &str, available: i64) -> Candidate {
    Candidate {
        node: name.to_owned(),
        unfit: None,
        room: room(available, None),
    }
}

fn without_room(name: &str) -> Candidate {
    Candidate {
        room: None,
        ..node(name, 0)
    }
}

/// A node that makes volumes up to a size.
fn small(name: &str, available: i64, largest: i64) -> Candidate {
    Candidate {
        room: room(available, Some(largest)),
        ..node(name, 0)
    }
}

fn cordoned(candidate: Candidate) -> Candidate {
    Candidate {
        unfit: Some(UnfitNode::Cordoned.into()),
        ..candidate
    }
}

fn ask(bytes: i64) -> Request<'static> {
    Request {
        uid: "u",
        bytes: bytes * GI,
        among: None,
        is_published: true,
    }
}

fn books(assigned: &[(&str, &str, i64)]) -> Reservations {
    let mut reservations = Reservations::default();
    for (uid, node, bytes) in assigned {
        reservations.assign(uid, node, bytes * GI, Instant::now());
    }
    reservations
}

fn chosen(ask: Request<'_>, all: &[Candidate], reservations: &Reservations) -> String {
    let chosen = choose(ask, all, reservations, Instant::now());
    chosen.unwrap_or_else(|nowhere| nowhere.to_string())
}

#[test]
fn the_node_with_the_most_room() {
    let all = [
        node("c", 20),
        node("b", 20),
        node("a", 10),
        cordoned(node("d", 90)),
        without_room("e"),
        small("f", 50, 2),
    ];
    for (what, assigned, bytes, node) in [
        ("most room, then by name", &[][..], 5, "b"),
        ("less the reservations", &[("x", "b", 1)], 5, "c"),
        (
            "the same room, fewer claims",
            &[("x", "b", 1), ("y", "b", 1), ("z", "c", 2)],
            5,
            "c",
        ),
        ("both reserved", &[("x", "b", 12), ("y", "c", 12)], 5, "a"),
        ("a small volume fits on f", &[], 2, "f"),
        ("but not when f is full", &[("x", "f", 50)], 2, "b"),
    ] {
        assert_eq!(chosen(ask(bytes), &all, &books(assigned)), node, "{what}");
    }
    let among = BTreeSet::from(["c".to_owned()]);
    let ask = Request {
        among: Some(&among),
        ..ask(5)
    };
    assert_eq!(chosen(ask, &all, &Reservations::default()), "c");
}

#[test]
fn no_node_has_room() {
    let full = [node("a", 10), node("b", 20), small("c", 90, 21)];
    // The reservations belong to other classes: node a has no room at all for this class.
    let without = [node("a", 0), node("b", -1)];
    for (nodes, bytes, message) in [
        (
            &full[..],
            30,
            "30Gi: c makes volumes up to 21Gi, b has 20Gi left, a has 6Gi left",
        ),
        (
            &without,
            1,
            "1Gi: a has none for volumes of this class, b has 0 left",
        ),
        (&[], 30, "30Gi: there are no nodes"),
    ] {
        let found = chosen(ask(bytes), nodes, &books(&[("x", "a", 4)]));
        assert_eq!(found, format!("no node has room for {message}"));
    }
    let many: Vec<_> = (0..100).map(|n| node(&format!("n{n:03}"), 1)).collect();
    let text = chosen(ask(30), &many, &Reservations::default());
    assert!(text.ends_with("n005 has 1Gi left, and 94 more"), "{text}");
}

#[test]
fn a_node_that_refused_is_passed_over() {
    let mut reservations = books(&[("u", "b", 5)]);
    reservations.refused("u", 5, Instant::now());
    let all = [node("a", 10), node("b", 20)];
    assert_eq!(chosen(ask(5), &all, &reservations), "a");
    // Other claims still go to that node.
    let other = Request { uid: "v", ..ask(5) };
    assert_eq!(chosen(other, &all, &reservations), "b");
    let error = chosen(ask(15), &all, &reservations);
    assert!(error.contains("b had no room for it a moment ago"));
}

#[test]
fn without_published_capacity_nodes_take_turns() {
    let cordoned = cordoned(without_room("b"));
    let [a, c, d] = ["a", "c", "d"].map(without_room);
    let all = [c, cordoned, a, d];
    let mut reservations = Reservations::default();
    let ask = Request {
        is_published: false,
        ..ask(5)
    };
    for expected in ["a", "c", "d", "a"] {
        let node = chosen(ask, &all, &reservations);
        reservations.set_last(&node);
        assert_eq!(node, expected);
    }
}
