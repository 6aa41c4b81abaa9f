use super::*;
use crate::api::node_fitness::UnfitNode;
use crate::placement::choosing::unfit::Unfit;
use crate::placement::room::NodeRoom;

fn left(node: &str, bytes: i64, largest: i64) -> Left<'_> {
    Left {
        node,
        bytes,
        largest,
    }
}

fn node(name: &str, available: i64, largest: Option<i64>, unfit: Option<Unfit>) -> Candidate {
    Candidate {
        node: name.to_owned(),
        unfit,
        room: Some(NodeRoom {
            available,
            largest,
            version: 1,
        }),
    }
}

/// Number of turns of each node.
fn turns(table: &Table) -> BTreeMap<&str, usize> {
    let mut turns = BTreeMap::new();
    for node in &table.nodes {
        *turns.entry(node.as_str()).or_default() += 1;
    }
    turns
}

#[test]
fn what_is_left() {
    let (long, longest) = ("l".repeat(63), "l".repeat(64));
    let unpublished = Candidate {
        room: None,
        ..node("unpublished", 0, None, None)
    };
    let candidates = [
        node("booked", 100, None, None),
        node("overbooked", 5, None, None),
        node("small", 100, Some(7), None),
        node("empty", 0, None, None),
        node("cordoned", 100, None, Some(UnfitNode::Cordoned.into())),
        unpublished,
        node(&long, 9, None, None),
        node(&longest, 9, None, None),
    ];
    let mut reservations = Reservations::default();
    let now = Instant::now();
    for (uid, node, bytes) in [
        ("a", "booked", 30),
        ("b", "booked", 10),
        ("c", "overbooked", 4),
        ("d", "overbooked", 5),
    ] {
        reservations.assign(uid, node, bytes, now);
    }
    assert_eq!(
        super::left(&candidates, &reservations, now),
        [
            left("booked", 60, 60),
            left("small", 100, 7),
            left(&long, 9, 9)
        ]
    );
}

#[test]
fn turns_go_where_the_room_is() {
    let many: Vec<_> = (0..1000).map(|n| format!("n{n:03}")).collect();
    let same = |a, b| vec![left("a", a, a), left("b", b, b)];
    let small = || vec![left("a", 5120, 3), left("b", 5120, 2)];
    let all_many = || many.iter().map(|node| left(node, 8, 8)).collect();
    let some_many = || many[..256].iter().map(|node| (&**node, 1)).collect();
    for (what, nodes, size, expected) in [
        ("no nodes", vec![], None, vec![]),
        ("too little", vec![left("a", 511, 511)], None, vec![]),
        ("one", vec![left("a", 512, 512)], Some(1), vec![("a", 256)]),
        (
            "equal",
            same(5120, 5120),
            Some(20),
            vec![("a", 128), ("b", 128)],
        ),
        (
            "three times: levelled",
            same(7680, 2560),
            Some(20),
            vec![("a", 256)],
        ),
        (
            "a bit more",
            same(5520, 4720),
            Some(20),
            vec![("a", 148), ("b", 108)],
        ),
        ("small volumes only", small(), Some(3), vec![("a", 256)]),
        ("more nodes than turns", all_many(), Some(4), some_many()),
    ] {
        let table = Table::new(&nodes);
        assert_eq!(table.as_ref().map(|table| table.size), size, "{what}");
        let turns = table.as_ref().map(turns).unwrap_or_default();
        assert_eq!(turns, expected.into_iter().collect(), "{what}");
        assert!(table.is_none_or(|table| table.holds(&nodes)), "{what}");
    }
}

/// Sums that overflow do not fail.
#[test]
fn no_room_is_too_much() {
    let huge = [left("a", i64::MAX, i64::MAX), left("b", i64::MAX, i64::MAX)];
    let table = Table::new(&huge).expect("room");
    assert_eq!(turns(&table), [("a", 128), ("b", 128)].into());
    assert!(table.holds(&huge));
}

#[test]
fn a_table_holds_while_the_nodes_have_room() {
    let table = Table {
        size: 10,
        nodes: ["a", "b", "a"].map(str::to_owned).into(),
    };
    let (a, b) = (left("a", 20, 10), left("b", 10, 10));
    for (what, nodes, holds) in [
        ("exactly enough", vec![a, b], true),
        ("a new node, as large", vec![a, b, left("c", 20, 20)], true),
        ("a larger one", vec![a, b, left("c", 21, 21)], false),
        (
            "for smaller volumes only",
            vec![a, b, left("c", 21, 9)],
            true,
        ),
        ("less room", vec![left("a", 19, 10), b], false),
        ("smaller volumes only", vec![left("a", 20, 9), b], false),
        ("a node is gone", vec![left("a", 20, 20)], false),
    ] {
        assert_eq!(table.holds(&nodes), holds, "{what}");
    }
    assert_eq!(table.to_string(), "10 a b a");
}
