use rstest::rstest;

use super::*;

const LOST: &str = "data lost: vol has";
const FOREIGN: &str = "a stranger's data: vol has";

/// What happens to a volume, one after the other.
fn note(events: &[What]) -> (StampHistories, Vec<String>) {
    let mut histories = StampHistories::default();
    let events = (10..).step_by(10).zip(events);
    let wrong = events.filter_map(|(at, what)| {
        histories.note(&StampEvent {
            node: "n1",
            handle: "vol".to_owned(),
            at,
            what: *what,
        })
    });
    let wrong = wrong.collect();
    (histories, wrong)
}

use What::{Left, Read, Synced, Written};

#[rstest]
#[case::as_written(&[Read(0), Written(1), Read(1)], None)]
#[case::restarted(&[Read(0), Written(1), Left(1), Read(1)], None)]
#[case::not_synced(&[Read(0), Written(1), Written(2), Left(0), Read(0), Written(3)], None)]
#[case::partly_synced(&[Read(0), Written(1), Synced, Written(2), Left(1), Read(1)], None)]
#[case::written_back(&[Read(0), Written(1), Synced, Written(2), Left(2), Read(2)], None)]
#[case::gone(
    &[Read(0), Written(1), Read(0)],
    Some("data lost: vol has nothing instead of write 1")
)]
#[case::old(
    &[Read(0), Written(1), Written(2), Read(1)],
    Some("data lost: vol has write 1 instead of write 2")
)]
#[case::synced_and_gone(
    &[Read(0), Written(1), Synced, Written(2), Left(0)],
    Some("data lost: vol has nothing instead of write 1 or write 2")
)]
#[case::gone_later(
    &[Read(0), Written(1), Left(1), Read(0)],
    Some("data lost: vol has nothing instead of write 1")
)]
#[case::of_another(
    &[Read(0), Written(1), Read(7)],
    Some("a stranger's data: vol has write 7 instead of write 1")
)]
fn what_pods_wrote_is_there(#[case] events: &[What], #[case] expected: Option<&str>) {
    let (_, wrong) = note(events);
    let expected: Vec<&str> = expected.into_iter().collect();
    assert_eq!(wrong, expected, "{events:?}");
}

#[test]
fn an_image_never_goes_back() {
    let (mut histories, wrong) = note(&[Read(0), Written(1), Written(2), Written(3)]);
    assert!(wrong.is_empty(), "{wrong:?}");
    let history = histories.0.get_mut("vol").expect("a history");
    for (synced, expected) in [
        (0, None),
        (2, None),
        (1, Some(LOST)),
        (1, None),
        (9, Some(FOREIGN)),
    ] {
        let wrong = history.has_on_disk("vol", 100, synced);
        match (&wrong, expected) {
            (None, None) => {}
            (Some(wrong), Some(expected)) => assert!(wrong.starts_with(expected), "{wrong}"),
            other => panic!("{synced}: {other:?}"),
        }
    }
}

/// Its source had nothing, then 1 from 20 on, and 2 from 30 on.
#[rstest]
#[case::before(Some("vol"), 15, 0, true)]
#[case::early(Some("vol"), 25, 1, true)]
#[case::at_the_same_time(Some("vol"), 30, 1, true)]
#[case::at_the_same_time_after(Some("vol"), 30, 2, true)]
#[case::late(Some("vol"), 35, 2, true)]
#[case::without_the_last_write(Some("vol"), 35, 1, false)]
#[case::with_a_later_write(Some("vol"), 25, 2, false)]
#[case::empty(Some("vol"), 35, 0, false)]
#[case::of_another(Some("vol"), 35, 7, false)]
#[case::of_something_never_seen(Some("snap"), 35, 7, true)]
#[case::new(None, 35, 0, true)]
#[case::new_with_data(None, 35, 7, false)]
fn a_copy_begins_as_its_source_was(
    #[case] source: Option<&str>,
    #[case] at: u64,
    #[case] found: u64,
    #[case] is_right: bool,
) {
    let (mut histories, _) = note(&[Read(0), Written(1), Written(2)]);
    let begun = Beginning {
        handle: "copy".to_owned(),
        node: "n1",
        folder: VOLUMES,
        source: source.map(str::to_owned),
        at,
    };
    let wrong = histories.begin(&begun, found);
    assert_eq!(wrong.is_none(), is_right, "{wrong:?}");
    // What is wrong is said once.
    let history = histories.0.get_mut("copy").expect("a history");
    assert!(history.is_known);
    assert_eq!(history.reads("copy", 100, found), None);
}

#[test]
fn a_pod_may_write_before_the_record_is_read() {
    let (mut histories, _) = note(&[Read(7), Written(8)]);
    let begun = Beginning {
        handle: "vol".to_owned(),
        node: "n1",
        folder: VOLUMES,
        source: None,
        at: 5,
    };
    let wrong = histories.begin(&begun, 8).expect("a stranger's data");
    assert!(
        wrong.starts_with(FOREIGN) && wrong.ends_with("instead of nothing"),
        "{wrong}"
    );
    assert_eq!(histories.0["vol"].last(), 8);
}
