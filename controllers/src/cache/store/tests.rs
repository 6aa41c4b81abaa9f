use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::watcher;
use rstest::rstest;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::client::Events;
use crate::metrics::Metrics;

mod budget;
mod going_back;

fn class(name: &str, version: u64, provisioner: &str) -> StorageClass {
    crate::testing::read(json!({
        "metadata": {"name": name, "resourceVersion": version.to_string()},
        "provisioner": provisioner,
    }))
}

/// What `what` finds in each reported change.
fn record<K: Resource, T: Send + 'static>(
    watch: &Store<K>,
    what: impl Fn(&Change<K>) -> T + Send + Sync + 'static,
) -> Arc<Mutex<Vec<T>>> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let list = found.clone();
    watch.on_change(move |change| list.lock().push(what(change)));
    found
}

fn provisioner(watch: &Store<StorageClass>, name: &str) -> Option<String> {
    watch.get(name).map(|class| class.provisioner.clone())
}

#[test]
fn the_newest_version_is_kept() {
    let watch = Store::new();
    watch.take(Event::Init);
    watch.take(Event::InitApply(class("a", 5, "old")));
    assert!(!watch.is_synced());
    watch.take(Event::InitDone);
    assert!(watch.is_synced());
    watch.apply_write(class("a", 9, "written"));
    watch.take(Event::Apply(class("a", 7, "between")));
    assert_eq!(provisioner(&watch, "a").as_deref(), Some("written"));
    watch.take(Event::Apply(class("a", 9, "written")));
    watch.take(Event::Apply(class("a", 10, "later")));
    watch.apply_write(class("a", 9, "written"));
    assert_eq!(provisioner(&watch, "a").as_deref(), Some("later"));
    // A late answer to a write does not restore a deleted object.
    watch.take(Event::Delete(class("a", 12, "later")));
    watch.apply_write(class("a", 11, "late"));
    assert_eq!(provisioner(&watch, "a"), None);
}

#[test]
fn objects_missing_from_a_new_list_are_deleted() {
    let watch = Store::new();
    let deleted = record(&watch, |change| matches!(change, Change::Deleted(_)));
    watch.take(Event::Apply(class("a", 1, "p")));
    watch.take(Event::Apply(class("b", 2, "p")));
    watch.take(Event::Init);
    watch.take(Event::InitApply(class("b", 3, "p")));
    // This write happens during the list and is newer than it.
    watch.apply_write(class("c", 9, "p"));
    watch.take(Event::InitDone);
    let names: Vec<_> = watch.all().iter().map(|class| class.name_any()).collect();
    assert_eq!(names, ["b", "c"]);
    let deleted = deleted.lock();
    assert_eq!(deleted.iter().filter(|deleted| **deleted).count(), 1);
}

#[test]
fn an_index_follows() {
    let watch = Store::new();
    watch.take(Event::Apply(class("a", 1, "p")));
    let index = watch.index(|class: &StorageClass| vec![class.provisioner.clone()]);
    watch.take(Event::Apply(class("b", 2, "q")));
    let names = |key| {
        let found = index.get(key);
        found
            .iter()
            .map(|class| class.name_any())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!((names("p"), names("q")), ("a".to_owned(), "b".to_owned()));
    watch.take(Event::Apply(class("a", 3, "q")));
    assert_eq!((names("p"), names("q")), (String::new(), "a b".to_owned()));
    watch.take(Event::Delete(class("b", 4, "q")));
    assert_eq!(names("q"), "a");
}

#[test]
fn a_text_that_is_too_long_for_a_name_is_no_key() {
    let watch = Store::new();
    let index = watch.index(|class: &StorageClass| vec![class.provisioner.clone()]);
    let long = "x".repeat(8_000);
    watch.take(Event::Apply(class("a", 1, &long)));
    watch.take(Event::Apply(class("b", 2, "p")));
    assert_eq!(index.keys(), ["p"]);
    assert!(index.get(&long).is_empty());
    watch.take(Event::Apply(class("a", 3, "q")));
    watch.take(Event::Apply(class("b", 4, &long)));
    assert_eq!(index.keys(), ["q"]);
}

#[rstest]
#[case::none(0)]
#[case::one_step(STEP)]
#[case::one_more(STEP + 1)]
#[case::several_steps(3 * STEP)]
fn an_iterator_goes_through_all_steps(#[case] count: usize) {
    let watch = Store::new();
    let index = watch.index(|claim: &PersistentVolumeClaim| vec![claim.namespace().unwrap()]);
    for (namespace, number) in ["a", "b", "c"]
        .iter()
        .flat_map(|of| (0..count).map(move |n| (of, n)))
    {
        let metadata = json!({"namespace": namespace, "name": format!("claim-{number:04}")});
        watch.apply_write(crate::testing::read(json!({"metadata": metadata})));
    }
    assert_eq!(watch.each().count(), 3 * count);
    for within in [
        &mut watch.each_in("b") as &mut dyn Iterator<Item = _>,
        &mut index.each("b"),
    ] {
        let names: Vec<String> = within.map(|claim| claim.name_any()).collect();
        let expected: Vec<String> = (0..count).map(|n| format!("claim-{n:04}")).collect();
        assert_eq!(names, expected);
    }
}

#[test]
fn an_iterator_goes_on_although_its_last_object_is_gone() {
    let watch = Store::new();
    for number in 0..=STEP as u64 {
        watch.take(Event::Apply(class(&format!("class-{number:04}"), 1, "p")));
    }
    let mut each = watch.each();
    let last = each.by_ref().take(STEP).last().expect("a whole step");
    watch.take(Event::Delete((*last).clone()));
    assert_eq!(each.count(), 1);
}

#[test]
fn all_in_lists_one_namespace() {
    let watch = Store::new();
    for (namespace, name) in [
        ("a", "x"),
        ("a-b", "y"),
        ("b", "x"),
        ("a", "w"),
        ("ab", "z"),
    ] {
        let claim = json!({"metadata": {"namespace": namespace, "name": name}});
        watch.apply_write(serde_json::from_value::<PersistentVolumeClaim>(claim).expect("a claim"));
    }
    let within = |namespace: &str| {
        let claims = watch.all_in(namespace);
        let names: Vec<_> = claims.iter().map(|claim| claim.name_any()).collect();
        names.join(" ")
    };
    for (namespace, expected) in [("a", "w x"), ("a-b", "y"), ("b", "x"), ("c", ""), ("", "")] {
        assert_eq!(within(namespace), expected, "{namespace:?}");
    }
}

#[test]
fn a_text_is_there_once() {
    let watch = Store::new();
    let keys_of = |class: &StorageClass| vec![class.provisioner.clone()];
    let indexes = [watch.index(keys_of), watch.index(keys_of)];
    for (name, version, provisioner) in [("a", 1, "p"), ("b", 2, "q"), ("b", 3, "p")] {
        watch.take(Event::Apply(class(name, version, provisioner)));
    }
    let state = watch.lock();
    let entries = indexes
        .iter()
        .flat_map(|index| index.entries(&state.indexes));
    let texts: Vec<_> = entries.map(|(text, _)| text).collect();
    assert_eq!(texts.len(), 4);
    assert!(texts.iter().all(|text| Arc::ptr_eq(text, texts[0])));
}

#[test]
fn what_is_packed_is_as_it_was() {
    let volume = |version: u64, phase: &str| -> PersistentVolume {
        crate::testing::read(json!({
            "metadata": {"name": "v", "resourceVersion": version.to_string(), "uid": "u",
                         "labels": {"a": "b"}, "finalizers": ["f/g"],
                         "creationTimestamp": "2026-01-01T00:00:00Z",
                         "managedFields": [{"manager": "m"}]},
            "spec": {"capacity": {"storage": "1Gi"}, "claimRef": {"name": "c", "uid": "d"},
                     "csi": {"driver": "d", "volumeHandle": "h", "volumeAttributes": {"x": "y"}}},
            "status": {"phase": phase},
        }))
    };
    fn phase(volume: &PersistentVolume) -> Option<String> {
        volume.status.as_ref()?.phase.clone()
    }
    let phases = |form: Encoding<PersistentVolume>| {
        let watch = Store::in_form(form);
        let reported = record(&watch, |change| {
            let old = match change {
                Change::Applied { old, .. } => old.clone(),
                Change::Deleted(_) => None,
            };
            (old.as_deref().and_then(phase), phase(change.object()))
        });
        let index = watch.index(|volume: &PersistentVolume| phase(volume).into_iter().collect());
        watch.take(Event::Apply(volume(4, "Pending")));
        watch.take(Event::Apply(volume(7, "Bound")));
        // Older than the stored version.
        watch.apply_write(volume(5, "Available"));
        let kept = watch.get("v").expect("it is there");
        assert_eq!(index.keys(), ["Bound"]);
        assert_eq!(index.first("Bound"), Some(kept.clone()));
        assert_eq!(index.first("Bind"), None);
        assert_eq!(index.get("Bound"), watch.all());
        watch.take(Event::Delete(volume(9, "Bound")));
        assert!(index.keys().is_empty() && watch.all().is_empty());
        let reported = reported.lock().clone();
        (kept, reported)
    };
    let open = phases(Encoding::Open);
    let said = |text: &str| Some(text.to_owned());
    let reported = [
        (None, said("Pending")),
        (said("Pending"), said("Bound")),
        (None, said("Bound")),
    ];
    assert_eq!(open.1, reported);
    assert_eq!(open.0.metadata.managed_fields, None);
    assert_eq!(open, phases(Encoding::packed()));
}

#[test]
fn all_but_the_last_changed_objects_are_packed() {
    let volume = |number: u64, version: u64| -> PersistentVolume {
        crate::testing::read(json!({
            "metadata": {"name": format!("v{number}"), "resourceVersion": version.to_string()},
            "spec": {"csi": {"driver": "d", "volumeHandle": format!("h{number}")}},
        }))
    };
    let watch = Store::<PersistentVolume>::in_form(Encoding::packed());
    let is_packed = |number: u64| {
        let state = watch.lock();
        let kept = &state.objects[&named("", &format!("v{number}"))];
        kept.rest().is_some()
    };
    let get = |number: u64| {
        watch
            .get(&format!("v{number}"))
            .map(|volume| (*volume).clone())
    };
    for number in 0..100 {
        watch.take(Event::Apply(volume(number, number + 1)));
    }
    assert_eq!((0..100).filter(|number| is_packed(*number)).count(), 68);
    assert!(is_packed(0) && !is_packed(99));
    for number in 0..100 {
        assert_eq!(get(number), Some(volume(number, number + 1)));
    }
    watch.apply_write(volume(0, 101));
    watch.take(Event::Delete(volume(1, 102)));
    assert!(!is_packed(0) && is_packed(68));
    assert_eq!((get(0), get(1)), (Some(volume(0, 101)), None));
}

#[test]
fn a_late_handler_gets_the_known_objects() {
    let watch = Store::new();
    watch.take(Event::Apply(class("a", 1, "p")));
    let reported = record(&watch, |change| change.object().name_any());
    watch.take(Event::Apply(class("b", 2, "p")));
    assert_eq!(*reported.lock(), ["a", "b"]);
}

#[test]
fn a_part_is_not_taken_for_the_whole() {
    let labelled = |name: &str, version: u64, node: &str| {
        let mut class = class(name, version, "p");
        class.metadata.labels = Some([("node".to_owned(), node.to_owned())].into());
        class
    };
    let watch = Store::new();
    assert!(watch.is_whole());
    watch.select(Selector::label("node", "n1".to_owned()));
    watch.take(Event::Init);
    watch.take(Event::InitApply(labelled("a", 1, "n1")));
    watch.take(Event::InitDone);
    assert!(!watch.is_whole());
    let names = || {
        let all = watch.all();
        let names: Vec<_> = all.iter().map(|class| class.name_any()).collect();
        names.join(" ")
    };
    // A write is stored only if the watch will report changes of the object.
    watch.apply_write(labelled("b", 2, "n2"));
    watch.apply_write(labelled("c", 3, "n1"));
    assert_eq!(names(), "a c");
    watch.apply_write(labelled("a", 4, "n2"));
    watch.apply_write(labelled("c", 2, "n2"));
    assert_eq!(names(), "c");
    // The store is incomplete until everything is listed.
    watch.select(Selector::all());
    assert!(!watch.is_whole());
    watch.take(Event::Init);
    watch.take(Event::InitApply(labelled("b", 2, "n2")));
    watch.take(Event::InitApply(labelled("c", 3, "n1")));
    watch.apply_write(labelled("d", 9, "n2"));
    watch.take(Event::InitDone);
    assert!(watch.is_whole());
    assert_eq!(names(), "b c d");
    // A recent write does not keep an object that is outside the selection.
    watch.select(Selector::label("node", "n1".to_owned()));
    watch.take(Event::Init);
    watch.take(Event::InitApply(labelled("c", 3, "n1")));
    watch.take(Event::InitDone);
    assert_eq!((names().as_str(), watch.is_whole()), ("c", false));
}

/// A running watch, and a future that stops it.
fn running(api: &crate::testing::FakeApi) -> (Store<PersistentVolume>, impl Future<Output = ()>) {
    let watch = Store::<PersistentVolume>::new();
    let stop = CancellationToken::new();
    let run = watch.clone();
    let run = run.run_within(
        api.client(),
        Range::default(),
        Reports::default(),
        stop.clone(),
    );
    let run = tokio::spawn(run);
    let ended = async move {
        stop.cancel();
        run.await.expect("it ends");
    };
    (watch, ended)
}

/// A long list comes in pages, and the objects on the last page are stored too.
#[tokio::test(start_paused = true)]
async fn a_list_comes_in_pages() {
    let api = crate::testing::FakeApi::default();
    for number in 0..250 {
        let metadata = json!({"name": format!("pv-{number}")});
        api.put(json!({"kind": "PersistentVolume", "apiVersion": "v1", "metadata": metadata}));
    }
    let (watch, ended) = running(&api);
    watch.synced().await;
    assert_eq!(watch.all().len(), 250);
    assert_eq!(api.lists().len(), 3);
    ended.await;
}

/// Users learn once that an object is too large, unless a node's watch was widened to all nodes' objects.
#[tokio::test(start_paused = true)]
async fn users_learn_of_an_object_that_is_too_large() {
    let widened = Selectors::by_label("node", "n1".to_owned());
    for (selectors, events_of_it) in [(Selectors::default(), 1), (widened, 0)] {
        let api = crate::testing::FakeApi::default();
        let volume = |name: &str, finalizers: usize| {
            let finalizers = vec!["example.com/f"; finalizers];
            let metadata = json!({"name": name, "finalizers": finalizers});
            json!({"kind": "PersistentVolume", "apiVersion": "v1", "metadata": metadata})
        };
        api.put(volume("small", 1));
        api.put(volume("large", 100_000));
        let metrics = Arc::new(Metrics::default());
        let (events, mut emitted) = Events::collected(metrics.clone());
        let reports = Reports {
            metrics: Some(metrics.clone()),
            events: Some(events),
        };
        let (watch, stop) = (Store::<PersistentVolume>::new(), CancellationToken::new());
        let range = Range {
            selectors,
            ..Range::default()
        };
        let client = crate::testing::client(&api);
        let run = watch
            .clone()
            .run_within(client, range, reports, stop.clone());
        let run = tokio::spawn(run);
        watch.synced().await;
        api.put(volume("large", 100_001));
        api.put(volume("last", 1));
        while watch.get("last").is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
        run.await.expect("it ends");
        assert_eq!(metrics.too_large("PersistentVolume").get(), 1);
        let about: Vec<_> = emitted
            .drain()
            .into_iter()
            .map(|e| (e.about.name, e.reason))
            .collect();
        let expected = (Some("large".to_owned()), "TooLarge".to_owned());
        assert_eq!(about, vec![expected; events_of_it]);
    }
}

/// A failing list, or a list of an unknown kind, is retried less and less often.
#[tokio::test(start_paused = true)]
async fn lists_that_fail_are_tried_ever_more_seldom() {
    for code in [404, 500] {
        let api = crate::testing::FakeApi::default();
        api.hide("/persistentvolumes", code);
        let watch = Store::<PersistentVolume>::new();
        let stop = CancellationToken::new();
        let config = watcher::Config::default();
        let running = watch
            .clone()
            .run(api.client(), kube::Api::all, config, stop.clone());
        let running = tokio::spawn(running);
        tokio::time::sleep(Duration::from_secs(120)).await;
        let tries = api.lists().len();
        assert!((5..=15).contains(&tries), "{tries} tries in two minutes");
        assert_eq!(watch.is_synced(), code == 404, "no kind, no objects");
        stop.cancel();
        running.await.expect("it ends");
    }
}

/// A watch without changes recovers too: it does not need an event to clear its error.
#[tokio::test(start_paused = true)]
async fn a_watch_is_well_once_the_server_accepts_it() {
    let api = crate::testing::FakeApi::default();
    api.refuse("/persistentvolumes?watch", 429);
    let (watch, ended) = running(&api);
    watch.synced().await;
    while watch.trouble().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(watch.trouble().is_none(), "{:?}", watch.trouble());
    ended.await;
}

/// Successive objects with one name differ by UID.
#[test]
fn objects_of_one_name_differ_by_uid() {
    let of = |uid: &str, version: u64| {
        let mut class = class("a", version, uid);
        class.metadata.uid = Some(uid.to_owned());
        class
    };
    let watch = Store::<StorageClass>::new();
    let reported = record(&watch, |change| {
        let what = match change {
            Change::Applied { old: None, .. } => "new",
            Change::Applied { old: Some(_), .. } => "changed",
            Change::Deleted(_) => "gone",
        };
        format!("{what} {}", change.object().uid().unwrap_or_default())
    });
    watch.take(Event::Apply(of("first", 5)));
    // The create call returns before the watch reports the deletion of the first object.
    watch.apply_write(of("second", 9));
    watch.take(Event::Delete(of("first", 8)));
    assert_eq!(provisioner(&watch, "a").as_deref(), Some("second"));
    watch.take(Event::Apply(of("second", 10)));
    watch.take(Event::Delete(of("second", 11)));
    assert_eq!(provisioner(&watch, "a"), None);
    let expected = [
        "new first",
        "gone first",
        "new second",
        "changed second",
        "gone second",
    ];
    assert_eq!(*reported.lock(), expected);
}

/// A volume of which the client passes on only the name, because it is too large.
fn left_out(name: &str, version: u64) -> PersistentVolume {
    crate::testing::kept(json!({"metadata": {
        "name": name, "resourceVersion": version.to_string(), "uid": "u",
        "finalizers": vec!["example.com/f"; 100_000],
    }}))
}

#[test]
fn an_object_that_is_too_large_is_not_taken_for_a_missing_one() {
    let small = |version: u64| -> PersistentVolume {
        let metadata = json!({"name": "a", "resourceVersion": version.to_string(), "uid": "u"});
        crate::testing::kept(json!({ "metadata": metadata }))
    };
    let watch = Store::new();
    let deleted = record(&watch, |change| matches!(change, Change::Deleted(_)));
    watch.take(Event::Init);
    watch.take(Event::InitApply(left_out("a", 1)));
    watch.take(Event::InitDone);
    assert!(watch.is_synced() && !watch.is_whole() && watch.get("a").is_none());
    watch.take(Event::Apply(small(2)));
    assert!(
        watch.is_whole() && watch.get("a").is_some(),
        "it is small by now"
    );
    watch.take(Event::Apply(left_out("a", 3)));
    assert!(
        !watch.is_whole() && watch.get("a").is_none(),
        "it is too large again"
    );
    assert_eq!(*deleted.lock(), [false, true]);
    watch.take(Event::Delete(left_out("a", 4)));
    assert!(watch.is_whole(), "it is deleted");
    watch.take(Event::Apply(left_out("b", 5)));
    assert!(!watch.is_whole());
    watch.take(Event::Init);
    watch.take(Event::InitDone);
    assert!(watch.is_whole(), "it is missing in a new list");
}
