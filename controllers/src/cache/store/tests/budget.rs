//! The limits of the objects of a namespace, and of all of them.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::*;
use crate::cache::store::budget;
use crate::snapshots::VolumeSnapshot;
use crate::testing::noise;

/// The label of a large claim.
const LARGE: usize = 15_000;

fn name(number: usize) -> String {
    format!("c{number:04}")
}

/// Versions have the same number of digits, so claims with labels of the same length take the same.
fn written(version: usize) -> String {
    (10_000 + version).to_string()
}

/// A claim with a label of this length.
fn labelled(
    namespace: &str,
    number: usize,
    version: usize,
    length: usize,
) -> PersistentVolumeClaim {
    crate::testing::read(json!({"metadata": {
        "namespace": namespace, "name": name(number),
        "resourceVersion": written(version), "labels": {"l": "x".repeat(length)},
    }}))
}

/// A user can make any number of claims that are not too large by themselves.
#[test]
fn the_objects_of_a_namespace_have_a_limit_together() {
    const MANY: usize = 1_200;
    let watch = Store::new();
    for number in 0..MANY {
        watch.take(Event::Apply(labelled("team", number, number + 1, LARGE)));
    }
    let kept = bytes_of(&watch);
    assert!(
        kept > budget::MAX - 2 * LARGE && kept <= budget::MAX,
        "{kept} bytes"
    );
    let count = watch.each().count();
    assert_eq!(watch.left_out().len(), MANY - count);
    assert!(watch.leaves_out("team", "c1199") && !watch.is_whole());
    // Those of others are kept.
    watch.take(Event::Apply(labelled("teams", 0, MANY + 1, LARGE)));
    assert_eq!(watch.each().count(), count + 1);
    // One is kept again when there is room for it.
    watch.take(Event::Delete(labelled("team", 0, MANY + 2, LARGE)));
    watch.take(Event::Apply(labelled("team", 1_199, MANY + 3, LARGE)));
    watch.take(Event::Apply(labelled("team", 1_198, MANY + 4, LARGE)));
    assert!(!watch.leaves_out("team", "c1199") && watch.leaves_out("team", "c1198"));
    // One that is kept becomes small, and others have its room.
    watch.take(Event::Apply(labelled("team", 1, MANY + 5, 100)));
    watch.take(Event::Apply(labelled("team", 1_198, MANY + 6, LARGE / 2)));
    watch.take(Event::Apply(labelled("team", MANY, MANY + 7, 100)));
    assert!(!watch.leaves_out("team", "c1198") && !watch.leaves_out("team", "c1200"));
}

/// Claims that fill the budget of a namespace, and the number of the one that has no room.
fn filled() -> (Store<PersistentVolumeClaim>, usize) {
    let watch = Store::new();
    let mut number = 0;
    while watch.left_out().is_empty() {
        watch.take(Event::Apply(labelled("team", number, number + 1, LARGE)));
        number += 1;
    }
    (watch, number - 1)
}

/// An object that was left out because of others waits for a new list.
#[test]
fn what_was_left_out_has_room_once_others_are_gone() {
    let (watch, last) = filled();
    assert!(!watch.has_room());
    let first = labelled("team", 0, last + 2, LARGE);
    watch.take(Event::Delete(first));
    assert!(watch.has_room());
    // A new list has it, and another one that has no room.
    watch.take(Event::Init);
    for number in 1..=last + 1 {
        let claim = labelled("team", number, number + 1, LARGE);
        watch.take(Event::InitApply(claim));
    }
    watch.take(Event::InitDone);
    assert!(watch.get_in("team", &name(last)).is_some());
    assert!(watch.leaves_out("team", &name(last + 1)) && !watch.has_room());
    // What is deleted needs no room, and neither does what a list does not have.
    watch.take(Event::Delete(labelled("team", last + 1, last + 3, LARGE)));
    watch.take(Event::Delete(labelled("team", 1, last + 4, LARGE)));
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
    watch.take(Event::Delete(labelled("team", 0, last + 2, LARGE)));
    assert!(watch.has_room());
    watch.note_left_out("team", &name(last));
    assert!(watch.leaves_out("team", &name(last)) && !watch.has_room());
}

/// The watch reports what an own write has made too large, and its user learns of it once.
#[test]
fn an_own_write_that_is_left_out_is_still_announced() {
    const GROWN: usize = 3 * LARGE;
    let (watch, last) = filled();
    let grown = |version: usize| labelled("team", last + 1, version, GROWN);
    watch.take(Event::Delete(labelled("team", 0, last + 2, LARGE)));
    watch.take(Event::Apply(labelled("team", last + 1, last + 3, 100)));
    watch.apply_write(grown(last + 4));
    assert!(watch.leaves_out("team", &name(last + 1)));
    for (version, is_new) in [(last + 4, true), (last + 5, false)] {
        let event = Event::Apply(grown(version));
        assert_eq!(watch.take(event).is_some(), is_new);
    }
    // Another own write of what is left out changes nothing.
    watch.apply_write(grown(last + 6));
    assert!(watch.take(Event::Apply(grown(last + 6))).is_none());
    // Neither a deletion nor a list leaves anything behind.
    watch.apply_write(labelled("team", last + 2, last + 7, GROWN));
    assert!(watch.lock().left_out.has_unannounced());
    watch.take(Event::Delete(labelled("team", last + 2, last + 8, GROWN)));
    assert!(!watch.lock().left_out.has_unannounced());
    watch.apply_write(labelled("team", last + 3, last + 9, GROWN));
    watch.take(Event::Init);
    watch.take(Event::InitDone);
    assert!(!watch.lock().left_out.has_unannounced());
}

/// A user can make any number of objects that are left out, with any names.
#[test]
fn of_many_objects_that_are_left_out_the_names_are_forgotten() {
    const MANY: usize = 20_000;
    let watch = Store::<PersistentVolumeClaim>::new();
    let mut version = 0;
    let mut report = |namespace: &str, name: String| {
        version += 1;
        let claim = crate::testing::read(json!({"metadata": {
            "namespace": namespace, "name": name, "resourceVersion": written(version),
            "annotations": {"hostloop.csi.dev/left-out": ""},
        }}));
        watch.take(Event::Apply(claim)).is_some()
    };
    assert!(
        report("modest", "c0000".to_owned()),
        "its user learns of it"
    );
    let announced = (0..MANY).filter(|number| report("hostile", format!("{number:0>250}")));
    let announced = announced.count();
    assert!(announced < MANY / 2, "{announced} names");
    assert_eq!(watch.left_out().len(), announced + 1);
    let named = watch.first_left_out("modest");
    assert_eq!(named.as_deref(), Some("c0000"));
    // None is taken for one that does not exist.
    let last = format!("{:0>250}", MANY - 1);
    assert!(watch.leaves_out("hostile", &last) && !watch.is_whole());
    assert!(!watch.leaves_out("modest", "c0001") && watch.leaves_out_any("hostile"));
    assert!(!watch.has_room());
    watch.take(Event::Init);
    watch.take(Event::InitDone);
    assert!(watch.is_whole() && watch.left_out().is_empty());
}

/// How many keys the list that is going on remembers.
fn missing_from_list(watch: &Store<PersistentVolumeClaim>) -> Option<usize> {
    let state = watch.lock();
    let listing = state.listing.as_ref();
    listing.map(|listing| listing.missing.len())
}

/// A list that is going on does not grow with what it leaves out.
#[test]
fn a_list_remembers_what_is_kept_only() {
    let (watch, last) = filled();
    watch.take(Event::Init);
    let kept = watch.each().count();
    assert_eq!(missing_from_list(&watch), Some(kept));
    for number in 0..last + 100 {
        let claim = labelled("team", number, number + 1, LARGE);
        watch.take(Event::InitApply(claim));
    }
    assert_eq!(missing_from_list(&watch), Some(0));
    // An own write of what the list leaves out stays.
    watch.apply_write(labelled("team", last + 50, last + 200, 100));
    watch.take(Event::InitDone);
    assert!(watch.get_in("team", &name(last + 50)).is_some());
    assert_eq!(watch.each().count(), kept + 1);
}

/// Claims of namespaces that together have more than there is room for, a claim of each in turn.
fn crowded(namespaces: usize) -> (Store<PersistentVolumeClaim>, usize) {
    let watch = Store::new();
    let each = 2 * budget::TOTAL / LARGE / namespaces;
    let mut version = 0;
    for number in 0..each {
        for namespace in 0..namespaces {
            version += 1;
            let claim = labelled(&format!("hostile-{namespace:04}"), number, version, LARGE);
            watch.take(Event::Apply(claim));
        }
    }
    (watch, version)
}

fn bytes_of(watch: &Store<PersistentVolumeClaim>) -> usize {
    watch.lock().budget.total()
}

/// However many namespaces a user has, a namespace that has less than the largest is served.
#[rstest]
#[case::two(2)]
#[case::many(100)]
#[case::more_than_fit(3_500)]
fn the_objects_of_all_namespaces_have_a_limit_together(#[case] namespaces: usize) {
    let (watch, last) = crowded(namespaces);
    let kept = bytes_of(&watch);
    assert!(
        kept > budget::TOTAL - 2 * LARGE && kept <= budget::TOTAL,
        "{kept} bytes"
    );
    assert!(watch.pushed_out().is_empty(), "they take the same share");
    watch.take(Event::Apply(labelled("modest", 0, last + 1, LARGE)));
    assert!(watch.get_in("modest", "c0000").is_some() && bytes_of(&watch) <= budget::TOTAL);
    let pushed_out = watch.pushed_out();
    assert_eq!(pushed_out.len(), 1, "its user learns of it at once");
    let (namespace, name) = (pushed_out[0].namespace(), pushed_out[0].name_any());
    let namespace = namespace.expect("a claim has one");
    assert!(namespace.starts_with("hostile-") && watch.leaves_out(&namespace, &name));
    assert!(watch.pushed_out().is_empty(), "and once only");
    watch.take(Event::Apply(labelled("small", 0, last + 2, 100)));
    assert!(watch.get_in("small", "c0000").is_some() && bytes_of(&watch) <= budget::TOTAL);
    assert!(watch.pushed_out().len() <= 1);
}

/// The watch reports the object once more.
fn again(claim: &PersistentVolumeClaim, version: usize) -> Event<PersistentVolumeClaim> {
    let mut claim = claim.clone();
    claim.metadata.resource_version = Some(written(version));
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
    assert!(watch.leaves_out(&namespace, &name) && watch.get_in("modest", "c0000").is_some());
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
    assert_eq!(about, [(Some("c0000".to_owned()), "TooLarge".to_owned())]);
}

/// Objects that are not packed count with what their values take in memory.
#[test]
fn values_count_if_they_are_not_packed() {
    let finalizers = vec!["example.com/f"; 400];
    let claim: PersistentVolumeClaim =
        crate::testing::read(json!({"metadata": {"finalizers": finalizers}}));
    let [packed, open] = [true, false].map(|is_packed| budget::bytes(&claim, is_packed));
    assert!(
        packed > 400 * 15 && open > packed + 390 * 32,
        "{packed} {open}"
    );
}

/// A claim as most are, and a snapshot.
fn usual(number: usize) -> (PersistentVolumeClaim, VolumeSnapshot) {
    let uid = format!("0c4f{number:04x}-5a31-4f0b-9d31-{:012x}", number * 770_077);
    let metadata = json!({
        "namespace": "team", "name": name(number), "uid": uid,
        "resourceVersion": written(number), "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": "db", "tier": "backend"}, "finalizers": ["kubernetes.io/pvc-protection"],
    });
    let claim = json!({
        "metadata": metadata,
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "hostloop",
            "resources": {"requests": {"storage": "64Mi"}}, "volumeMode": "Filesystem",
            "volumeName": format!("hostloop-{uid}")},
        "status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "64Mi"}},
    });
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": metadata,
        "spec": {"volumeSnapshotClassName": "hostloop",
            "source": {"persistentVolumeClaimName": "data"}},
        "status": {"boundVolumeSnapshotContentName": format!("snapcontent-{uid}"),
            "creationTime": "2026-01-01T00:00:00Z", "readyToUse": true, "restoreSize": "64Mi"},
    });
    (crate::testing::read(claim), crate::testing::read(snapshot))
}

/// What a thousand take shows that a namespace may have fifteen thousand.
#[test]
fn many_usual_objects_of_a_namespace_are_kept() {
    const SOME: usize = 1_000;
    let claims = Store::in_form(Encoding::packed());
    let snapshots = Store::in_form(Encoding::packed());
    for number in 0..SOME {
        let (claim, snapshot) = usual(number);
        claims.take(Event::Apply(claim));
        snapshots.take(Event::Apply(snapshot));
    }
    let totals = [
        claims.lock().budget.total(),
        snapshots.lock().budget.total(),
    ];
    assert!(
        totals
            .iter()
            .all(|total| total / SOME * 15_000 < budget::MAX),
        "{SOME} of each take {totals:?} bytes"
    );
}

/// A user can make any number of small objects, with texts that do not compress.
#[test]
fn a_small_object_counts_what_it_takes() {
    const LENGTH: usize = 1_600;
    let watch = Store::in_form(Encoding::packed());
    for number in 0..200 {
        let mut claim = labelled("team", number, number, 0);
        let labels = claim.metadata.labels.get_or_insert_default();
        labels.insert("l".to_owned(), noise(number, LENGTH));
        watch.take(Event::Apply(claim));
    }
    let kept = bytes_of(&watch);
    assert!(kept > 200 * (LENGTH + 448), "{kept} bytes");
    for number in 0..200 {
        watch.take(Event::Delete(labelled("team", number, 200 + number, 0)));
    }
    assert_eq!(bytes_of(&watch), 0);
}
