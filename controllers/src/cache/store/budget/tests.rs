use rstest::rstest;

use super::*;

const KIB: usize = 1024;

/// An object of 16 KiB, in a namespace with so much beside it, while all have so much, and the
/// namespace that has most so much, with a largest object of this size.
#[rstest]
#[case::the_first(0, 0, 0, 0, Room::Free)]
#[case::the_last_of_a_namespace(MAX - 16 * KIB, MAX, MAX, 16 * KIB, Room::Free)]
#[case::one_too_many_in_a_namespace(MAX - 15 * KIB, MAX, MAX, 16 * KIB, Room::None)]
#[case::the_last_of_all(MAX / 2, TOTAL - 16 * KIB, MAX, 16 * KIB, Room::Free)]
#[case::a_modest_namespace(0, TOTAL, MAX, 16 * KIB, Room::OfMost)]
#[case::a_namespace_with_less(MAX / 2, TOTAL, MAX, 16 * KIB, Room::OfMost)]
#[case::a_namespace_with_as_much(MAX / 2 - 16 * KIB, TOTAL, MAX / 2, 16 * KIB, Room::None)]
#[case::a_namespace_with_more(MAX / 2, TOTAL, MAX / 2, 16 * KIB, Room::None)]
#[case::many_small_ones_give_way(0, TOTAL, MAX, 3 * KIB, Room::OfMost)]
#[case::one_small_one_does_not_suffice(0, TOTAL, 20 * KIB, 3 * KIB, Room::None)]
#[case::one_small_one_suffices(0, TOTAL - 14 * KIB, 20 * KIB, 3 * KIB, Room::OfMost)]
#[case::namespaces_with_one_large_one_each(0, TOTAL, 17 * KIB, 17 * KIB, Room::OfMost)]
#[case::namespaces_with_one_small_one_each(0, TOTAL, 3 * KIB, 3 * KIB, Room::None)]
fn the_largest_namespace_gives_way(
    #[case] own: usize,
    #[case] all: usize,
    #[case] most: usize,
    #[case] largest: usize,
    #[case] expected: Room,
) {
    let shares = Shares {
        own,
        all,
        most,
        largest,
    };
    assert_eq!(shares.room(16 * KIB), expected);
}

/// An object of 16 KiB that was left out, in a namespace with so much beside it.
#[rstest]
#[case::free(MAX / 2, TOTAL - 16 * KIB, MAX / 2, true)]
#[case::a_modest_namespace(MAX / 2 - 16 * KIB, TOTAL, MAX, true)]
#[case::a_similar_namespace(MAX / 2, TOTAL, MAX, false)]
#[case::the_largest_namespace(MAX / 2, TOTAL, MAX / 2, false)]
fn lists_are_for_free_room_and_modest_namespaces(
    #[case] own: usize,
    #[case] all: usize,
    #[case] most: usize,
    #[case] expected: bool,
) {
    let shares = Shares {
        own,
        all,
        most,
        largest: 16 * KIB,
    };
    assert_eq!(shares.is_worth_a_list(16 * KIB), expected);
}

/// A budget in which each of these namespaces keeps so many objects of 16 KiB.
fn filled(namespaces: &[(&str, usize)]) -> Budget {
    let mut budget = Budget::default();
    for (namespace, count) in namespaces {
        for number in 0..*count {
            budget.note(&named(namespace, &format!("{number:04}")), 16 * KIB);
        }
    }
    budget
}

#[rstest]
#[case::small_objects_do_not_count("a", "new", 0, Admission::Keep)]
#[case::objects_without_a_namespace_do_not_count("", "new", 16 * KIB, Admission::Keep)]
#[case::the_largest_namespace("a", "new", 16 * KIB, Admission::LeaveOut)]
#[case::the_largest_namespace_keeps_its_size("a", "0000", 16 * KIB, Admission::Keep)]
#[case::the_largest_namespace_grows("a", "0000", 17 * KIB, Admission::LeaveOut)]
#[case::the_largest_namespace_shrinks("a", "0000", 3 * KIB, Admission::Keep)]
#[case::another_one("b", "new", 16 * KIB, Admission::PushOut(named("a", "0255")))]
#[case::a_new_one("c", "new", 16 * KIB, Admission::PushOut(named("a", "0255")))]
fn the_largest_object_of_the_largest_namespace_is_pushed_out(
    #[case] namespace: &str,
    #[case] name: &str,
    #[case] size: usize,
    #[case] expected: Admission,
) {
    let budget = filled(&[("a", 256), ("b", 56), ("d", 200), ("e", 255), ("f", 1)]);
    assert_eq!(budget.total, TOTAL);
    let key = named(namespace, name);
    assert_eq!(budget.admission(&key, size), expected);
}

/// The sums follow what is kept.
#[test]
fn the_sums_are_those_of_the_objects() {
    let mut budget = filled(&[("a", 3), ("b", 1)]);
    budget.note(&named("a", "0000"), 20 * KIB);
    budget.note(&named("a", "0001"), 0);
    budget.note(&named("", "cluster"), 20 * KIB);
    assert_eq!(budget.forget(&named("b", "0000")), 16 * KIB);
    assert_eq!(budget.forget(&named("b", "0000")), 0);
    assert_eq!(budget.total, 36 * KIB);
    let of_namespaces: BTreeMap<Box<str>, usize> = BTreeMap::from([("a".into(), 36 * KIB)]);
    assert_eq!(budget.of_namespaces, of_namespaces);
}
