use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use rstest::rstest;

use super::*;
use crate::cache::store::compress::StoredObject;
use crate::cache::store::named;

const KIB: usize = 1024;

/// An object of 16 KiB, in a namespace with so much beside it, while all have so much, and the
/// namespace that has most so much, with a largest object of this size.
#[rstest]
#[case::the_first(0, 0, 0, 0, BudgetRoom::Free)]
#[case::the_last_of_a_namespace(MAX - 16 * KIB, MAX, MAX, 16 * KIB, BudgetRoom::Free)]
#[case::one_too_many_in_a_namespace(MAX - 15 * KIB, MAX, MAX, 16 * KIB, BudgetRoom::None)]
#[case::the_last_of_all(MAX / 2, TOTAL - 16 * KIB, MAX, 16 * KIB, BudgetRoom::Free)]
#[case::a_modest_namespace(0, TOTAL, MAX, 16 * KIB, BudgetRoom::OfMost)]
#[case::a_namespace_with_less(MAX / 2, TOTAL, MAX, 16 * KIB, BudgetRoom::OfMost)]
#[case::a_namespace_with_as_much(MAX / 2 - 16 * KIB, TOTAL, MAX / 2, 16 * KIB, BudgetRoom::None)]
#[case::a_namespace_with_more(MAX / 2, TOTAL, MAX / 2, 16 * KIB, BudgetRoom::None)]
#[case::many_small_ones_give_way(0, TOTAL, MAX, 3 * KIB, BudgetRoom::OfMost)]
#[case::one_small_one_does_not_suffice(0, TOTAL, 20 * KIB, 3 * KIB, BudgetRoom::None)]
#[case::one_small_one_suffices(0, TOTAL - 14 * KIB, 20 * KIB, 3 * KIB, BudgetRoom::OfMost)]
#[case::namespaces_with_one_large_one_each(0, TOTAL, 17 * KIB, 17 * KIB, BudgetRoom::OfMost)]
#[case::namespaces_with_one_small_one_each(0, TOTAL, 3 * KIB, 3 * KIB, BudgetRoom::None)]
fn the_largest_namespace_gives_way(
    #[case] own: usize,
    #[case] all: usize,
    #[case] most: usize,
    #[case] largest: usize,
    #[case] expected: BudgetRoom,
) {
    let shares = Shares {
        own,
        all,
        most,
        largest,
    };
    assert_eq!(shares.room(16 * KIB, Limits::OF_NAMESPACES), expected);
}

/// An object of 16 KiB that was left out, in a namespace with so much beside it.
#[rstest]
#[case::free(MAX / 2, TOTAL - 16 * KIB, MAX / 2, true)]
#[case::a_modest_namespace(MAX - MAX / 16 - 16 * KIB, TOTAL, MAX, true)]
#[case::a_similar_namespace(MAX - MAX / 16, TOTAL, MAX, false)]
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
    assert_eq!(
        shares.is_worth_a_list(16 * KIB, Limits::OF_NAMESPACES),
        expected
    );
}

/// A budget in which each of these namespaces keeps so many objects that take 16 KiB each, the
/// first one of them together with its namespace.
fn filled(namespaces: &[(&str, usize)]) -> Budget {
    let mut budget = Budget::new(Limits::OF_NAMESPACES);
    for (namespace, count) in namespaces {
        for number in 0..*count {
            let key = named(namespace, &format!("{number:04}"));
            let of_holder = if number == 0 { OF_HOLDER } else { 0 };
            budget.note(&key, Some(*namespace), 16 * KIB - of_holder);
        }
    }
    budget
}

#[rstest]
#[case::objects_without_a_holder_have_no_limit(None, "new", 16 * KIB, ObjectAdmission::Keep)]
#[case::the_largest_namespace(Some("a"), "new", 16 * KIB, ObjectAdmission::LeaveOut)]
#[case::a_small_one_of_it(Some("a"), "new", KIB, ObjectAdmission::LeaveOut)]
#[case::the_largest_namespace_keeps_its_size(Some("a"), "0001", 16 * KIB, ObjectAdmission::Keep)]
#[case::the_largest_namespace_grows(Some("a"), "0001", 17 * KIB, ObjectAdmission::LeaveOut)]
#[case::the_largest_namespace_shrinks(Some("a"), "0001", 3 * KIB, ObjectAdmission::Keep)]
#[case::another_one(Some("b"), "new", 16 * KIB, ObjectAdmission::PushOut(named("a", "0599")))]
#[case::a_small_one_of_another(Some("b"), "new", KIB, ObjectAdmission::PushOut(named("a", "0599")))]
#[case::a_new_one(Some("c"), "new", 16 * KIB, ObjectAdmission::PushOut(named("a", "0599")))]
fn the_largest_object_of_the_largest_namespace_is_pushed_out(
    #[case] holder: Option<&str>,
    #[case] name: &str,
    #[case] size: usize,
    #[case] expected: ObjectAdmission,
) {
    let budget = filled(&[("a", 600), ("b", 56), ("d", 400), ("e", 599), ("f", 9)]);
    assert_eq!(budget.total, TOTAL);
    let key = named(holder.unwrap_or_default(), name);
    assert_eq!(budget.admission(&key, holder, size), expected);
}

/// The sums follow what is kept.
#[test]
fn the_sums_are_those_of_the_objects() {
    let mut budget = filled(&[("a", 3), ("b", 1)]);
    budget.note(&named("a", "0000"), Some("a"), 20 * KIB);
    budget.note(&named("a", "0001"), None, 20 * KIB);
    budget.resize(&named("a", "0002"), 2 * KIB);
    budget.resize(&named("a", "never"), 2 * KIB);
    let forgotten = budget.forget(&named("b", "0000"));
    assert_eq!(
        forgotten.map(|counted| counted.size),
        Some(16 * KIB - OF_HOLDER)
    );
    assert!(budget.forget(&named("b", "0000")).is_none());
    assert_eq!(budget.total, OF_HOLDER + 22 * KIB);
    let by_bytes: BTreeSet<(usize, Arc<str>)> =
        BTreeSet::from([(OF_HOLDER + 22 * KIB, "a".into())]);
    assert_eq!(budget.by_bytes, by_bytes);
    let sizes: Vec<_> = budget.holdings["a"].by_size.iter().collect();
    let expected = [
        (2 * KIB, named("a", "0002")),
        (20 * KIB, named("a", "0000")),
    ];
    assert_eq!(sizes, expected.iter().collect::<Vec<_>>());
    assert_eq!((budget.holdings.len(), budget.kept.len()), (1, 2));
}

/// An object can change its holder.
#[test]
fn an_object_counts_for_one_node_at_a_time() {
    const ALL: usize = MAX_OF_NODE - OF_HOLDER;
    let mut budget = Budget::new(Limits::OF_NODES);
    let key = named("", "v");
    budget.note(&key, Some("n1"), ALL);
    assert_eq!(
        budget.admission(&key, Some("n2"), ALL),
        ObjectAdmission::Keep
    );
    budget.note(&key, Some("n2"), ALL);
    let other = named("", "w");
    for (node, expected) in [
        ("n1", ObjectAdmission::Keep),
        ("n2", ObjectAdmission::LeaveOut),
    ] {
        assert_eq!(
            budget.admission(&other, Some(node), KIB),
            expected,
            "{node}"
        );
    }
    assert_eq!(budget.total, MAX_OF_NODE);
}

/// A stolen node can make any number of volumes and capacities of its own.
#[test]
fn each_node_has_a_limit_and_all_together_have_none() {
    assert_eq!(Limits::of::<PersistentVolume>(), Limits::OF_NODES);
    assert_eq!(Limits::of::<PersistentVolumeClaim>(), Limits::OF_NAMESPACES);
    let mut budget = Budget::new(Limits::OF_NODES);
    for node in 0..10 {
        let name = format!("n{node}");
        let holder = Some(name.as_str());
        for number in 0..MAX_OF_NODE / (16 * KIB) {
            let key = named("", &format!("v{node}-{number}"));
            let of_holder = if number == 0 { OF_HOLDER } else { 0 };
            let size = 16 * KIB - of_holder;
            assert_eq!(budget.admission(&key, holder, size), ObjectAdmission::Keep);
            budget.note(&key, holder, size);
        }
        let key = named("", &format!("v{node}"));
        assert_eq!(
            budget.admission(&key, holder, KIB),
            ObjectAdmission::LeaveOut
        );
        assert!(!budget.is_worth_a_list(&key, &name, KIB));
        budget.forget(&named("", &format!("v{node}-0")));
        assert!(budget.is_worth_a_list(&key, &name, KIB));
    }
}

/// What [`OVERHEAD`] says.
#[test]
fn the_overhead_is_that_of_maps_and_indexes() {
    let entries = size_of::<(Key, StoredObject<PersistentVolumeClaim>)>()
        + BYTES_OF_ENTRIES
        + 3 * size_of::<(Arc<str>, Key)>();
    // The key, the packed bytes and the UID in an index have counts of their references each.
    let taken = entries * 3 / 2 + 3 * 2 * size_of::<usize>() + 36;
    assert!(
        taken <= OVERHEAD && taken > OVERHEAD * 3 / 4,
        "{taken} bytes"
    );
}

/// The controller may take 256 MiB.
#[test]
fn the_budgets_leave_a_third_of_the_memory() {
    const { assert!(4 * TOTAL + 2 * MAX_OF_NODE + 6 * MAX_NAMES < 160 * 1024 * KIB) }
}
