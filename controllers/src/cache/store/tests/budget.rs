//! The limits of the large objects of a namespace, and of all of them.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::*;
use crate::cache::store::budget;

/// The label of a large claim.
const LARGE: usize = 15_000;

/// A claim with a label of this length.
fn labelled(
    namespace: &str,
    number: usize,
    version: usize,
    length: usize,
) -> PersistentVolumeClaim {
    crate::testing::read(json!({"metadata": {
        "namespace": namespace, "name": format!("c{number}"),
        "resourceVersion": version.to_string(), "labels": {"l": "x".repeat(length)},
    }}))
}

/// A user can make any number of claims that are not too large by themselves.
#[test]
fn the_large_objects_of_a_namespace_have_a_limit_together() {
    const MANY: usize = 1_000;
    let watch = Store::in_form(Encoding::packed());
    for number in 0..MANY {
        watch.take(Event::Apply(labelled("team", number, number + 1, LARGE)));
    }
    let kept: usize = watch.each().map(|claim| budget::size(&*claim, true)).sum();
    assert!(
        kept > budget::MAX - 2 * LARGE && kept <= budget::MAX,
        "{kept} bytes"
    );
    let count = watch.each().count();
    assert_eq!(watch.left_out().len(), MANY - count);
    assert!(watch.leaves_out("team", "c999") && !watch.is_whole());
    // What is small is kept, and so are those of others.
    watch.take(Event::Apply(labelled("team", MANY, MANY + 1, 100)));
    watch.take(Event::Apply(labelled("teams", 0, MANY + 2, LARGE)));
    assert_eq!(watch.each().count(), count + 2);
    // A large one is kept again when there is room for it.
    watch.take(Event::Delete(labelled("team", 0, MANY + 3, LARGE)));
    watch.take(Event::Apply(labelled("team", 999, MANY + 4, LARGE)));
    watch.take(Event::Apply(labelled("team", 998, MANY + 5, LARGE)));
    assert!(!watch.leaves_out("team", "c999") && watch.leaves_out("team", "c998"));
    // One that is kept becomes small, and another one has its room.
    watch.take(Event::Apply(labelled("team", 1, MANY + 6, 100)));
    watch.take(Event::Apply(labelled("team", 998, MANY + 7, LARGE)));
    assert!(watch.get_in("team", "c998").is_some());
}

/// Claims that fill the budget of a namespace, and the number of the one that has no room.
fn filled() -> (Store<PersistentVolumeClaim>, usize) {
    let watch = Store::in_form(Encoding::packed());
    let mut number = 0;
    while watch.left_out().is_empty() {
        watch.take(Event::Apply(labelled("team", number, number + 1, 15_000)));
        number += 1;
    }
    (watch, number - 1)
}

/// An object that was left out because of others waits for a new list.
#[test]
fn what_was_left_out_has_room_once_others_are_gone() {
    let (watch, last) = filled();
    assert!(!watch.has_room());
    let first = labelled("team", 0, last + 2, 15_000);
    watch.take(Event::Delete(first));
    assert!(watch.has_room());
    // A new list has it, and another one that has no room.
    watch.take(Event::Init);
    for number in 1..=last + 1 {
        let claim = labelled("team", number, number + 1, 15_000);
        watch.take(Event::InitApply(claim));
    }
    watch.take(Event::InitDone);
    assert!(watch.get_in("team", &format!("c{last}")).is_some());
    assert!(watch.leaves_out("team", &format!("c{}", last + 1)) && !watch.has_room());
    // What is deleted needs no room, and neither does what a list does not have.
    watch.take(Event::Delete(labelled("team", last + 1, last + 3, 15_000)));
    watch.take(Event::Delete(labelled("team", 1, last + 4, 15_000)));
    assert!(watch.is_whole() && !watch.has_room());
    let (watch, _) = filled();
    watch.take(Event::Init);
    watch.take(Event::InitDone);
    assert!(watch.is_whole() && !watch.has_room());
}

/// What has become too large by itself waits for no room.
#[test]
fn what_is_too_large_by_itself_has_no_room() {
    let (watch, last) = filled();
    watch.take(Event::Delete(labelled("team", 0, last + 2, 15_000)));
    assert!(watch.has_room());
    watch.note_left_out("team", &format!("c{last}"));
    assert!(watch.leaves_out("team", &format!("c{last}")) && !watch.has_room());
}

/// The watch reports what an own write has made too large, and its user learns of it once.
#[test]
fn an_own_write_that_is_left_out_is_still_announced() {
    let (watch, last) = filled();
    let grown = |version: usize| labelled("team", last + 1, version, 15_000);
    watch.take(Event::Apply(labelled("team", last + 1, last + 2, 100)));
    watch.apply_write(grown(last + 3));
    assert!(watch.leaves_out("team", &format!("c{}", last + 1)));
    for (version, is_new) in [(last + 3, true), (last + 4, false)] {
        let event = Event::Apply(grown(version));
        assert_eq!(watch.take(event).is_some(), is_new);
    }
    // Another own write of what is left out changes nothing.
    watch.apply_write(grown(last + 5));
    assert!(watch.take(Event::Apply(grown(last + 5))).is_none());
    // Neither a deletion nor a list leaves anything behind.
    watch.apply_write(labelled("team", last + 2, last + 6, 15_000));
    assert_eq!(watch.lock().untold.len(), 1);
    watch.take(Event::Delete(labelled("team", last + 2, last + 7, 15_000)));
    assert!(watch.lock().untold.is_empty());
    watch.apply_write(labelled("team", last + 3, last + 8, 15_000));
    watch.take(Event::Init);
    watch.take(Event::InitDone);
    assert!(watch.lock().untold.is_empty());
}

/// Claims of namespaces that together have more than there is room for, a claim of each in turn.
fn crowded(namespaces: usize) -> (Store<PersistentVolumeClaim>, usize) {
    let watch = Store::in_form(Encoding::packed());
    let each = 2 * budget::TOTAL / LARGE / namespaces;
    let mut version = 0;
    for number in 0..each {
        for namespace in 0..namespaces {
            version += 1;
            let claim = labelled(&format!("hostile-{namespace}"), number, version, LARGE);
            watch.take(Event::Apply(claim));
        }
    }
    (watch, version)
}

fn bytes_of(watch: &Store<PersistentVolumeClaim>) -> usize {
    watch.each().map(|claim| budget::size(&*claim, true)).sum()
}

/// However many namespaces a user has, a namespace that has less than the largest is served.
#[rstest]
#[case::two(2)]
#[case::many(100)]
#[case::more_than_fit(1_500)]
fn the_large_objects_of_all_namespaces_have_a_limit_together(#[case] namespaces: usize) {
    let (watch, last) = crowded(namespaces);
    let kept = bytes_of(&watch);
    assert!(
        kept > budget::TOTAL - 2 * LARGE && kept <= budget::TOTAL,
        "{kept} bytes"
    );
    assert!(watch.pushed_out().is_empty(), "they take the same share");
    watch.take(Event::Apply(labelled("modest", 0, last + 1, LARGE)));
    watch.take(Event::Apply(labelled("small", 0, last + 2, 100)));
    assert!(watch.get_in("modest", "c0").is_some() && watch.get_in("small", "c0").is_some());
    assert!(bytes_of(&watch) <= budget::TOTAL);
    let pushed_out = watch.pushed_out();
    assert_eq!(pushed_out.len(), 1, "its user learns of it at once");
    let (namespace, name) = (pushed_out[0].namespace(), pushed_out[0].name_any());
    let namespace = namespace.expect("a claim has one");
    assert!(namespace.starts_with("hostile-") && watch.leaves_out(&namespace, &name));
    assert!(watch.pushed_out().is_empty(), "and once only");
}

/// The watch reports the object once more.
fn again(claim: &PersistentVolumeClaim, version: usize) -> Event<PersistentVolumeClaim> {
    let mut claim = claim.clone();
    claim.metadata.resource_version = Some(version.to_string());
    Event::Apply(claim)
}

/// What was pushed out does not come back in the place of others, only once there is room.
#[test]
fn what_was_pushed_out_waits_for_room() {
    let (watch, last) = crowded(4);
    watch.take(Event::Apply(labelled("modest", 0, last + 1, LARGE)));
    let pushed_out = watch.pushed_out();
    let [claim] = &*pushed_out else {
        panic!("{} are pushed out", pushed_out.len());
    };
    assert!(!watch.has_room());
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    assert!(
        watch.take(again(claim, last + 2)).is_none(),
        "its user knows"
    );
    assert!(watch.leaves_out(&namespace, &name) && watch.get_in("modest", "c0").is_some());
    watch.take(Event::Delete(labelled("modest", 0, last + 3, LARGE)));
    assert!(watch.has_room());
    watch.take(again(claim, last + 4));
    assert!(watch.get_in(&namespace, &name).is_some());
}

/// The next event of the watch tells its user, whatever it is about.
#[tokio::test(start_paused = true)]
async fn users_learn_of_an_object_that_was_pushed_out() {
    let api = crate::testing::FakeApi::default();
    let metrics = Arc::new(Metrics::default());
    let (events, mut emitted) = Events::collected(metrics.clone());
    let reports = Reports {
        metrics: Some(metrics.clone()),
        events: Some(events),
    };
    let watch = Store::<PersistentVolumeClaim>::new();
    let claim = Arc::new(labelled("team", 0, 1, LARGE));
    watch.lock().pushed_out.push(claim);
    let stop = CancellationToken::new();
    let client = crate::testing::client(&api);
    let run = watch
        .clone()
        .run_within(client, Range::default(), reports, stop.clone());
    let run = tokio::spawn(run);
    watch.synced().await;
    stop.cancel();
    run.await.expect("it ends");
    assert_eq!(metrics.too_large("PersistentVolumeClaim").get(), 1);
    let about: Vec<_> = emitted
        .drain()
        .into_iter()
        .map(|event| (event.about.name, event.reason))
        .collect();
    assert_eq!(about, [(Some("c0".to_owned()), "TooLarge".to_owned())]);
}

/// Objects that are not packed count with what their values take in memory.
#[test]
fn values_count_if_they_are_not_packed() {
    let finalizers = vec!["example.com/f"; 400];
    let claim: PersistentVolumeClaim =
        crate::testing::read(json!({"metadata": {"finalizers": finalizers}}));
    let [packed, open] = [true, false].map(|is_packed| budget::size(&claim, is_packed));
    assert!(
        packed > 400 * 15 && open > packed + 400 * 32,
        "{packed} {open}"
    );
    let finalizers = vec!["example.com/f"; 100];
    let small: PersistentVolumeClaim =
        crate::testing::read(json!({"metadata": {"finalizers": finalizers}}));
    assert_eq!([true, false].map(|is| budget::size(&small, is)), [0, 0]);
}
