use super::*;

/// Adds items, named by their namespace and number, in this order.
fn added(items: &str) -> Turns<String> {
    let mut turns = Turns::default();
    for (number, item) in (0..).zip(items.split_whitespace()) {
        turns.add(&item[..1], number, item.to_owned());
    }
    turns
}

impl<T> Turns<T> {
    fn keeps_nothing(&self) -> bool {
        self.lines.is_empty() && self.order.is_empty() && self.rounds.is_empty()
    }
}

#[test]
fn namespaces_take_turns() {
    for (items, expected) in [
        ("a1 a2 a3", "a1 a2 a3"),
        ("a1 a2 a3 b1 b2 c1", "a1 b1 c1 a2 b2 a3"),
        ("a1 a2 a3 a4 b1", "a1 b1 a2 a3 a4"),
        ("", ""),
    ] {
        let mut turns = added(items);
        let taken: Vec<_> = turns.by_ref().collect();
        assert_eq!(taken.join(" "), expected);
        assert!(turns.keeps_nothing(), "{turns:?}");
    }
}

#[test]
fn an_item_is_second_however_many_another_namespace_has_and_adds() {
    for many in [1, 10, 1000] {
        let mut turns = Turns::default();
        (0..many).for_each(|number| turns.add("a", number, "a"));
        turns.add("b", many, "b");
        let mut taken = Vec::new();
        for number in many + 1.. {
            taken.extend(turns.next());
            turns.add("a", number, "a");
            if taken.len() == 4 {
                break;
            }
        }
        assert_eq!(taken, ["a", "b", "a", "a"], "{many}");
    }
}

#[test]
fn a_namespace_that_may_not_keeps_its_turn() {
    let mut turns = added("a1 a2 b1 c1");
    assert_eq!(
        turns.take_if(|namespace, _| namespace != "a").as_deref(),
        Some("b1")
    );
    assert_eq!(turns.take_if(|_, _| false), None);
    assert_eq!(
        turns.take_if(|_, number| number == 3).as_deref(),
        Some("c1")
    );
    assert_eq!(turns.len(), 2);
    assert_eq!(turns.collect::<Vec<_>>(), ["a1", "a2"]);
}

#[test]
fn the_namespace_with_the_most_items_gives_way() {
    for (items, to, expected) in [
        ("a1 a2 a3 b1", "b", Some("a3")),
        ("a1 a2 b1", "c", Some("a2")),
        ("a1 a2 b1", "b", None),
        ("a1 a2 b1", "a", None),
        ("a1 b1", "a", None),
        ("", "a", None),
    ] {
        assert_eq!(
            added(items).give_way(to).as_deref(),
            expected,
            "{items} to {to}"
        );
    }
}

#[test]
fn an_item_that_leaves_takes_no_turn() {
    let mut turns = added("a1 a2 b1");
    assert_eq!(turns.remove("a", 0).as_deref(), Some("a1"));
    assert_eq!(turns.remove("b", 2).as_deref(), Some("b1"));
    assert_eq!(turns.remove("b", 2), None);
    assert_eq!(
        (turns.len(), turns.order.len(), turns.lines.len()),
        (1, 1, 1)
    );
    assert_eq!(turns.next().as_deref(), Some("a2"));
    assert!(turns.is_empty() && turns.keeps_nothing());
}

/// A namespace that comes back after each of its turns has the next one, until it has had as many as
/// the others had rounds.
#[test]
fn a_namespace_with_little_work_goes_first() {
    // The rounds before it comes, and the turns that it then has in a row.
    for (rounds, saved) in [(0, 1), (1, 1), (3, 3), (8, 8), (9, 9), (1000, 9)] {
        let mut turns = Turns::default();
        for number in 0..2000 {
            turns.add("a", number, "a");
            turns.add("b", number, "b");
        }
        for _ in 0..2 * rounds {
            turns.next();
        }
        let mut taken = Vec::new();
        for number in 0..30 {
            turns.add("small", number, "small");
            for next in turns.by_ref() {
                taken.push(next);
                if next == "small" {
                    break;
                }
            }
        }
        let first = taken
            .iter()
            .take_while(|namespace| **namespace == "small")
            .count();
        assert_eq!(
            first,
            if rounds == 0 { 0 } else { saved },
            "after {rounds} rounds"
        );
        // From then on, each has a turn in each round.
        let rest = &taken[taken.len() - 9..];
        assert_eq!(
            rest.iter()
                .filter(|namespace| **namespace == "small")
                .count(),
            3,
            "{rest:?}"
        );
        assert!(turns.rounds.len() <= 1, "{:?}", turns.rounds);
    }
}

/// Those that can't save up more are forgotten.
#[test]
fn it_keeps_no_namespace_for_long() {
    let mut turns = Turns::default();
    for number in 0..10_000 {
        turns.add("many", number, String::new());
    }
    for number in 0..2000 {
        turns.add(&number.to_string(), 0, number.to_string());
        turns.next();
        turns.next();
    }
    assert!(
        turns.rounds.len() <= 2 * SAVED as usize,
        "{}",
        turns.rounds.len()
    );
}
