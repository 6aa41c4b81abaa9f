use serde_json::json;

use super::*;
use crate::cache::Caches;
use crate::testing::read;

/// Labels of claims over a cache that a test fills.
fn labels() -> ClaimLabels {
    ClaimLabels::new(Caches::unwatched().claims())
}

impl ClaimLabels {
    /// Stores a claim of this name and label, bound or not, in a namespace.
    fn stores(&self, namespace: &str, name: &str, app: &str, phase: &str, version: u32) {
        self.claims.apply_write(read(json!({
            "metadata": {"namespace": namespace, "name": name, "labels": {"app": app},
                "uid": name, "resourceVersion": version.to_string()},
            "spec": {"volumeName": "v"}, "status": {"phase": phase}})));
    }

    /// The claims of a namespace with this label; all for an empty one.
    async fn selected(&self, namespace: &str, app: &str) -> Vec<String> {
        let labels = (!app.is_empty()).then(|| ("app".to_owned(), app.to_owned()));
        let selector = labels.into_iter().collect::<Selector>();
        let names = self.select(namespace, &selector).await;
        names.iter().map(ToString::to_string).collect()
    }
}

#[tokio::test]
async fn claims_by_their_labels() {
    let labels = labels();
    for (namespace, name, app, phase) in [
        ("team", "a", "db", "Bound"),
        ("team", "b", "web", "Bound"),
        ("team", "c", "db", "Bound"),
        ("team", "d", "new", "Pending"),
        ("team", "e", "new", "Bound"),
        ("other", "f", "db", "Bound"),
    ] {
        labels.stores(namespace, name, app, phase, 1);
    }
    for (namespace, app, expected) in [
        ("team", "db", &["a", "c"][..]),
        ("team", "none", &[]),
        ("team", "new", &["d"]),
        ("team", "", &["d"]),
        ("other", "", &["f"]),
        ("empty", "", &[]),
    ] {
        assert_eq!(labels.selected(namespace, app).await, expected, "{app} in {namespace}");
    }
    // From now on, they follow the claims.
    labels.stores("team", "d", "new", "Bound", 2);
    labels.stores("team", "a", "web", "Bound", 2);
    labels.stores("other", "g", "db", "Bound", 2);
    assert_eq!(labels.selected("team", "new").await, ["d", "e"]);
    assert_eq!(labels.selected("team", "db").await, ["c"]);
    assert_eq!(labels.selected("other", "db").await, ["f", "g"]);
}

/// Changes during the first read are newer than what it reads. Other tasks run during it.
#[tokio::test]
async fn claims_change_while_they_are_read() {
    const MANY: usize = 1000;
    let labels = labels();
    for number in 0..MANY {
        labels.stores("team", &format!("c{number:04}"), "old", "Bound", 1);
    }
    let reading = labels.clone();
    let selected = tokio::spawn(async move { reading.selected("team", "old").await });
    tokio::task::yield_now().await;
    assert!(!selected.is_finished(), "it pauses");
    labels.stores("team", "c0000", "new", "Bound", 2);
    labels.stores("team", "c0999", "new", "Bound", 2);
    labels.stores("team", "d", "old", "Bound", 2);
    let selected = selected.await.expect("no panic");
    assert_eq!(selected.len(), MANY - 1);
    assert!(!selected.contains(&"c0999".to_owned()) && selected.contains(&"d".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn unused_namespaces_are_forgotten() {
    let labels = labels();
    labels.stores("team", "a", "db", "Bound", 1);
    labels.stores("other", "b", "db", "Bound", 1);
    labels.selected("team", "db").await;
    tokio::time::advance(KEPT).await;
    assert_eq!(labels.selected("other", "db").await, ["b"]);
    assert_eq!(labels.namespaces.lock().keys().collect::<Vec<_>>(), ["other"]);
    assert_eq!(labels.selected("team", "db").await, ["a"]);
}

/// A user can make any number of claims with long labels. None of these labels is kept, and groups still
/// select by them.
#[tokio::test]
async fn the_labels_of_a_namespace_take_little_memory() {
    const CLAIMS: usize = 400;
    let labels = labels();
    let store = |number: usize, app: &str, version: u32| {
        let many = (0..120)
            .map(|n| (format!("{}.example.com/{n}", "x".repeat(40)), json!("y".repeat(63))));
        let mut all: serde_json::Value = many.collect();
        all["app"] = json!(app);
        labels.claims.apply_write(read(json!({
            "metadata": {"namespace": "team", "name": format!("c{number:03}"), "labels": all,
                "uid": number.to_string(), "resourceVersion": version.to_string()},
            "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}})));
    };
    let kept = || {
        let namespaces = labels.namespaces.lock();
        let entries = namespaces["team"].claims.values();
        entries.map(|entry| entry.size()).sum::<usize>()
    };
    (0..CLAIMS / 2).for_each(|number| store(number, "db", 1));
    assert_eq!(labels.selected("team", "db").await.len(), CLAIMS / 2);
    assert!(kept() > MOST / 2, "they are few");
    (CLAIMS / 2..CLAIMS).for_each(|number| store(number, "db", 1));
    assert_eq!(kept(), 0, "they are many");
    store(7, "web", 2);
    assert_eq!(labels.selected("team", "db").await.len(), CLAIMS - 1);
    assert_eq!(labels.selected("team", "web").await, ["c007"]);
    labels.stores("other", "a", "db", "Bound", 1);
    assert_eq!(labels.selected("other", "db").await, ["a"]);
}
