use rstest::rstest;

use super::*;
use crate::cache::store::budget;

/// Adds so many objects of a namespace, which others leave no room.
fn add(left_out: &mut LeftOut, namespace: &str, count: usize) {
    for number in 0..count {
        let key = named(namespace, &format!("{number:06}"));
        left_out.add(key, namespace, Some(1), true);
    }
}

/// More than there is room for.
const MANY: usize = MAX_NAMES / OVERHEAD;

#[test]
fn names_have_a_limit() {
    let mut left_out = LeftOut::new();
    add(&mut left_out, "hostile", MANY);
    let count = left_out.count();
    assert!(count > 13_000 && count < MANY, "{count}");
    assert!(left_out.budget.total() <= MAX_NAMES);
    // What is not known by its name may be anything in that namespace, and only there.
    assert!(left_out.may_contain(&named("hostile", "any")));
    assert!(!left_out.may_contain(&named("hostile-2", "any")));
    assert!(left_out.has_any_in("hostile") && !left_out.has_any_in("host"));
}

#[test]
fn the_namespace_with_the_most_names_gives_way() {
    let mut left_out = LeftOut::new();
    add(&mut left_out, "hostile", MANY);
    let before = left_out.count();
    add(&mut left_out, "modest", 3);
    assert_eq!(left_out.names_in("modest").count(), 3);
    assert!(!left_out.unnamed.contains("modest"));
    assert!(left_out.count() <= before && left_out.budget.total() <= MAX_NAMES);
    assert_eq!(left_out.names_in("modest").next(), Some("000000"));
}

#[rstest]
#[case::few(MAX_NAMESPACES, false)]
#[case::too_many(MAX_NAMESPACES + 1, true)]
fn beyond_many_namespaces_it_may_be_any(#[case] count: usize, #[case] expected: bool) {
    let mut namespaces = Namespaces::default();
    assert!(namespaces.is_empty());
    for number in 0..count {
        namespaces.insert(&format!("hostile-{number}"));
        namespaces.insert("hostile-0");
    }
    assert!(!namespaces.is_empty() && namespaces.contains("hostile-0"));
    assert_eq!(namespaces.contains("other"), expected);
}

/// Names that were given up are listed again once half of the room is free, and not before.
#[test]
fn names_come_back_once_there_is_room() {
    let mut left_out = LeftOut::new();
    add(&mut left_out, "hostile", MANY);
    let count = left_out.count();
    for number in 0..count {
        let has_room = left_out.has_room_for_names();
        assert_eq!(has_room, left_out.budget.total() <= MAX_NAMES / 2);
        left_out.remove(&named("hostile", &format!("{number:06}")));
    }
    assert!(left_out.has_room_for_names() && !left_out.is_empty());
    left_out.begin_list();
    add(&mut left_out, "hostile", 2);
    assert!(
        left_out.may_contain(&named("hostile", "any")),
        "until the list ends"
    );
    left_out.end_list();
    assert!(!left_out.may_contain(&named("hostile", "any")));
    assert!(left_out.may_contain(&named("hostile", "000001")));
    assert!(!left_out.has_room_for_names());
}

#[test]
fn a_list_ends_what_it_does_not_have() {
    let mut left_out = LeftOut::new();
    add(&mut left_out, "team", 3);
    left_out.begin_list();
    let kept = named("team", "000001");
    assert!(!left_out.is_listed(&kept));
    left_out.add(kept.clone(), "team", None, true);
    assert!(left_out.is_listed(&kept));
    left_out.end_list();
    assert_eq!(left_out.names().collect::<Vec<_>>(), [("team", "000001")]);
    left_out.remove(&kept);
    assert!(left_out.is_empty());
    assert_eq!(left_out.budget.total(), 0);
}

/// What was known before a list began may be gone.
#[test]
fn what_a_list_has_not_shown_is_gone_at_its_end() {
    let mut left_out = LeftOut::new();
    left_out.begin_list();
    for (name, is_listed) in [("a", false), ("b", true)] {
        left_out.add(named("team", name), "team", None, is_listed);
    }
    left_out.end_list();
    assert_eq!(left_out.names().collect::<Vec<_>>(), [("team", "b")]);
}

#[test]
fn users_learn_of_an_object_once() {
    let mut left_out = LeftOut::new();
    let key = named("team", "data");
    assert!(left_out.add(key.clone(), "team", None, true));
    assert!(left_out.announce(&key) && !left_out.announce(&key));
    assert!(!left_out.add(key.clone(), "team", Some(1), true));
    assert!(!left_out.announce(&key), "its size changed");
    left_out.announce_again();
    assert!(left_out.announce(&key) && !left_out.announce(&key));
    left_out.remove(&key);
    assert!(left_out.add(key.clone(), "team", None, true) && left_out.announce(&key));
    add(&mut left_out, "hostile", MANY);
    assert!(
        !left_out.announce(&named("hostile", "999999")),
        "its name is not known"
    );
}

#[test]
fn the_smallest_of_each_holder_waits_for_room() {
    let mut left_out = LeftOut::new();
    for (holder, name, size) in [
        ("n1", "a", Some(5)),
        ("n1", "b", Some(3)),
        ("n1", "c", None),
        ("n2", "d", Some(7)),
        ("n3", "e", None),
    ] {
        left_out.add(named("", name), holder, size, true);
    }
    let smallest: Vec<_> = left_out
        .smallest()
        .map(|(holder, key, size)| (holder, &key[1..], size))
        .collect();
    assert_eq!(smallest, [("n1", "b", 3), ("n2", "d", 7)]);
}

/// What [`OVERHEAD`] says.
#[test]
fn the_overhead_is_that_of_three_maps() {
    let entries = size_of::<(Key, LeftOutObject)>() + budget::BYTES_OF_ENTRIES;
    let taken = entries * 3 / 2 + 2 * size_of::<usize>();
    assert!(taken <= OVERHEAD && taken > OVERHEAD / 2, "{taken} bytes");
}
