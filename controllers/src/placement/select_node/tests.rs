use super::*;

const GI: i64 = 1 << 30;

fn room(available: i64, largest: Option<i64>) -> Option<Room> {
    Some(Room {
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

#[test]
fn the_node_with_the_most_room() {
    let (a, b, c) = (node("a", 10), node("b", 20), node("c", 20));
    let cordoned = Candidate {
        unfit: Some(Unfit::Cordoned),
        ..node("d", 90)
    };
    let untold = Candidate {
        room: None,
        ..node("e", 0)
    };
    let small = Candidate {
        room: room(50, Some(2)),
        ..node("f", 0)
    };
    let all = [c.clone(), b, a, cordoned, untold, small];
    for (what, assigned, bytes, chosen) in [
        ("most room, then by name", &[][..], 5, "b"),
        ("less what is on its way", &[("x", "b", 1)], 5, "c"),
        (
            "the same room, fewer claims",
            &[("x", "b", 1), ("y", "b", 1), ("z", "c", 2)],
            5,
            "c",
        ),
        ("it all depends", &[("x", "b", 12), ("y", "c", 12)], 5, "a"),
        ("a small one fits where no large one does", &[], 2, "f"),
        ("but not when it is full", &[("x", "f", 50)], 2, "b"),
    ] {
        let found = choose(ask(bytes), &all, &books(assigned), Instant::now());
        assert_eq!(found.as_deref(), Ok(chosen), "{what}");
    }
    let among = BTreeSet::from(["c".to_owned()]);
    let ask = Request {
        among: Some(&among),
        ..ask(5)
    };
    let found = choose(ask, &all, &Reservations::default(), Instant::now());
    assert_eq!(found.as_deref(), Ok("c"));
}

#[test]
fn nowhere() {
    let now = Instant::now();
    let full = [
        node("a", 10),
        node("b", 20),
        Candidate {
            room: room(90, Some(21)),
            ..node("c", 0)
        },
    ];
    let error = choose(ask(30), &full, &books(&[("x", "a", 4)]), now).expect_err("no room");
    assert_eq!(
        error.to_string(),
        "no node has room for 30Gi: c makes volumes up to 21Gi, b has 20Gi left, a has 6Gi left"
    );
    // The reservations belong to other classes: node a has no room at all for this class.
    let without = [node("a", 0), node("b", -1)];
    let error = choose(ask(1), &without, &books(&[("x", "a", 4)]), now).expect_err("no room");
    assert_eq!(
        error.to_string(),
        "no node has room for 1Gi: a has none for volumes of this class, b has 0 left"
    );
    let none = choose(ask(30), &[], &Reservations::default(), now).expect_err("no nodes");
    assert_eq!(
        none.to_string(),
        "no node has room for 30Gi: there are no nodes"
    );
    let many: Vec<_> = (0..100).map(|n| node(&format!("n{n:03}"), 1)).collect();
    let error = choose(ask(30), &many, &Reservations::default(), now).expect_err("no room");
    let text = error.to_string();
    assert!(text.ends_with("n005 has 1Gi left, and 94 more"), "{text}");
}

#[test]
fn a_node_that_refused_is_passed_over() {
    let now = Instant::now();
    let mut reservations = books(&[("u", "b", 5)]);
    reservations.refused("u", 5, now);
    let all = [node("a", 10), node("b", 20)];
    assert_eq!(choose(ask(5), &all, &reservations, now).as_deref(), Ok("a"));
    // Other claims still go to that node.
    let other = Request { uid: "v", ..ask(5) };
    assert_eq!(choose(other, &all, &reservations, now).as_deref(), Ok("b"));
    let error = choose(ask(15), &all, &reservations, now).expect_err("no room");
    assert!(
        error
            .to_string()
            .contains("b had no room for it a moment ago")
    );
}

#[test]
fn each_in_turn_where_room_is_not_told() {
    let now = Instant::now();
    let untold = |name: &str| Candidate {
        room: None,
        ..node(name, 0)
    };
    let cordoned = Candidate {
        unfit: Some(Unfit::Cordoned),
        ..untold("b")
    };
    let all = [untold("c"), cordoned, untold("a"), untold("d")];
    let mut reservations = Reservations::default();
    let ask = Request {
        is_published: false,
        ..ask(5)
    };
    let mut chosen = Vec::new();
    for _ in 0..4 {
        let node = choose(ask, &all, &reservations, now).expect("a node");
        reservations.set_last(&node);
        chosen.push(node);
    }
    assert_eq!(chosen, ["a", "c", "d", "a"]);
}
