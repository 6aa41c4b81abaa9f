use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use super::*;

fn class(name: &str, version: u64, provisioner: &str) -> StorageClass {
    serde_json::from_value(json!({
        "metadata": {"name": name, "resourceVersion": version.to_string()},
        "provisioner": provisioner,
    }))
    .expect("a class")
}

fn provisioner(watch: &Watch<StorageClass>, name: &str) -> Option<String> {
    watch.get(name).map(|class| class.provisioner.clone())
}

#[test]
fn the_newest_is_kept_whoever_tells_it() {
    let watch = Watch::new();
    watch.take(Event::Init);
    watch.take(Event::InitApply(class("a", 5, "old")));
    assert!(!watch.is_synced());
    watch.take(Event::InitDone);
    assert!(watch.is_synced());
    watch.wrote(class("a", 9, "written"));
    watch.take(Event::Apply(class("a", 7, "between")));
    assert_eq!(provisioner(&watch, "a").as_deref(), Some("written"));
    watch.take(Event::Apply(class("a", 9, "written")));
    watch.take(Event::Apply(class("a", 10, "later")));
    watch.wrote(class("a", 9, "written"));
    assert_eq!(provisioner(&watch, "a").as_deref(), Some("later"));
    // An answer that comes late does not bring back what is gone.
    watch.take(Event::Delete(class("a", 12, "later")));
    watch.wrote(class("a", 11, "late"));
    assert_eq!(provisioner(&watch, "a"), None);
}

#[test]
fn what_a_new_list_does_not_tell_is_gone() {
    let watch = Watch::new();
    let deleted = Arc::new(AtomicUsize::new(0));
    let count = deleted.clone();
    watch.on_change(move |change| {
        if matches!(change, Change::Deleted(_)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    watch.take(Event::Apply(class("a", 1, "p")));
    watch.take(Event::Apply(class("b", 2, "p")));
    watch.take(Event::Init);
    watch.take(Event::InitApply(class("b", 3, "p")));
    // Written while the list was on its way: newer than it.
    watch.wrote(class("c", 9, "p"));
    watch.take(Event::InitDone);
    let names: Vec<_> = watch.all().iter().map(|class| class.name_any()).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(deleted.load(Ordering::Relaxed), 1);
}

#[test]
fn an_index_follows() {
    let watch = Watch::new();
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
fn who_comes_late_is_told_what_is_there() {
    let watch = Watch::new();
    watch.take(Event::Apply(class("a", 1, "p")));
    let told = Arc::new(Mutex::new(Vec::new()));
    let list = told.clone();
    watch.on_change(move |change| {
        list.lock()
            .expect("the list")
            .push(change.object().name_any());
    });
    watch.take(Event::Apply(class("b", 2, "p")));
    assert_eq!(*told.lock().expect("the list"), ["a", "b"]);
}
