use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::cache::Caches;
use crate::testing::{read, with};

/// Labels of claims over a cache that a test fills.
fn labels() -> ClaimsByLabel {
    ClaimsByLabel::new(Caches::unwatched().claims())
}

fn selector_of(selector: Value) -> LabelSelector {
    serde_json::from_value(selector).expect("a selector")
}

impl ClaimsByLabel {
    /// Stores a claim of this name and label, bound or not, in a namespace.
    fn stores(&self, namespace: &str, name: &str, app: &str, phase: &str, version: u32) {
        self.claims.apply_write(read(json!({
            "metadata": {"namespace": namespace, "name": name, "labels": {"app": app},
                "uid": name, "resourceVersion": version.to_string()},
            "spec": {"volumeName": "v"}, "status": {"phase": phase}})));
    }

    /// The claims of a namespace that a selector fits.
    async fn fitting(&self, namespace: &str, selector: Value) -> Vec<String> {
        let selector = selector_of(selector);
        let fits = selector.clone().try_into().expect("a valid selector");
        let claims = self.select(namespace, required(&selector), fits).await;
        claims.flatten().map(|claim| claim.name_any()).collect()
    }

    /// The claims of a namespace with this label; all for an empty one.
    async fn selected(&self, namespace: &str, app: &str) -> Vec<String> {
        let labels = if app.is_empty() {
            json!({})
        } else {
            json!({"app": app})
        };
        self.fitting(namespace, json!({"matchLabels": labels}))
            .await
    }

    /// The namespaces with an index, and the number of all entries.
    fn indexed(&self) -> (Vec<String>, usize) {
        let indexes = self.indexes.lock();
        let known = indexes
            .namespaces
            .iter()
            .filter(|(_, known)| known.entries.is_some());
        let mut namespaces: Vec<_> = known.map(|(name, _)| name.clone()).collect();
        namespaces.sort();
        let entries: usize = indexes.namespaces.values().map(Namespace::len).sum();
        assert_eq!(entries, indexes.entries, "as counted");
        (namespaces, entries)
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
        ("team", "new", &["d", "e"]),
        ("team", "", &["d", "a", "b", "c", "e"]),
        ("other", "", &["f"]),
        ("empty", "", &[]),
    ] {
        assert_eq!(
            labels.selected(namespace, app).await,
            expected,
            "{app} in {namespace}"
        );
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
    assert_eq!(labels.indexed(), (vec!["other".to_owned()], 2));
    assert_eq!(labels.selected("team", "db").await, ["a"]);
}

#[tokio::test]
async fn selectors_of_every_kind() {
    let labels = labels();
    for (name, app) in [("a", "db"), ("b", "web"), ("c", "db")] {
        labels.stores("team", name, app, "Bound", 1);
    }
    labels.claims.apply_write(read(json!({"metadata": {
        "namespace": "team", "name": "none", "uid": "none", "resourceVersion": "1"}})));
    let many: BTreeMap<_, _> = (0..=MAX_LABELS)
        .map(|number| (format!("l{number}"), ""))
        .collect();
    let many = with(json!({"app": "db"}), json!(many));
    labels.claims.apply_write(read(json!({
        "metadata": {"namespace": "team", "name": "many", "uid": "many", "resourceVersion": "1",
            "labels": many},
        "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}})));
    let expressions = |operator, values: &[&str]| {
        let expression = json!({"key": "app", "operator": operator, "values": values});
        json!({"matchExpressions": [expression]})
    };
    let both = with(
        expressions("NotIn", &["web"]),
        json!({"matchLabels": {"l3": ""}}),
    );
    for (selector, expected) in [
        (expressions("In", &["db"]), &["a", "c", "many"][..]),
        (expressions("In", &["web", "db"]), &["a", "b", "c", "many"]),
        (expressions("In", &[]), &[]),
        (expressions("NotIn", &["db"]), &["none", "b"]),
        (expressions("Exists", &[]), &["a", "b", "c", "many"]),
        (expressions("DoesNotExist", &[]), &["none"]),
        (json!({}), &["none", "a", "b", "c", "many"]),
        (json!({"matchLabels": {"app": "db", "l3": ""}}), &["many"]),
        (both, &["many"]),
    ] {
        assert_eq!(
            labels.fitting("team", selector.clone()).await,
            expected,
            "{selector}"
        );
    }
}

#[test]
fn labels_that_selectors_require() {
    let within = json!({"key": "a", "operator": "In", "values": ["1", "2"]});
    let exists = json!({"key": "b", "operator": "Exists"});
    for (selector, expected) in [
        (json!({}), None),
        (json!({"matchLabels": {}}), None),
        (
            json!({"matchLabels": {"a": "1", "b": "2"}}),
            Some(("a", vec!["1"])),
        ),
        (json!({"matchExpressions": [exists]}), None),
        (
            json!({"matchExpressions": [exists, within]}),
            Some(("a", vec!["1", "2"])),
        ),
        (
            json!({"matchLabels": {"c": ""}, "matchExpressions": [within]}),
            Some(("c", vec![""])),
        ),
    ] {
        assert_eq!(
            required(&selector_of(selector.clone())),
            expected,
            "{selector}"
        );
    }
}

/// However many claims there are, so many entries are kept. The namespace with the most claims reads
/// them for each of its groups, and the others have their indexes.
#[tokio::test]
async fn many_claims_need_no_memory_for_their_labels() {
    const MAX: usize = 100;
    let labels = ClaimsByLabel::limited(Caches::unwatched().claims(), MAX);
    labels.stores("small", "a", "db", "Bound", 1);
    for number in 0..MAX {
        labels.stores("large", &format!("c{number:03}"), "db", "Bound", 1);
    }
    labels.stores("large", "last", "web", "Bound", 1);
    for _ in 0..2 {
        assert_eq!(labels.selected("small", "db").await, ["a"]);
        assert_eq!(labels.selected("large", "db").await.len(), MAX);
        assert_eq!(labels.selected("large", "web").await, ["last"]);
        assert_eq!(labels.indexed(), (vec!["small".to_owned()], 2));
    }
    // Claims that are made later count, too.
    for number in 0..MAX {
        labels.stores("small", &format!("c{number:03}"), "web", "Bound", 2);
        assert!(labels.indexed().1 <= MAX);
    }
    assert_eq!(labels.selected("small", "web").await.len(), MAX);
    assert_eq!(labels.indexed(), (vec![], 0));
}

/// Each value costs a look at all claims with it.
#[tokio::test]
async fn a_repeated_value_counts_once() {
    let labels = labels();
    for (name, app) in [("a", "db"), ("b", "web"), ("c", "db")] {
        labels.stores("team", name, app, "Bound", 1);
    }
    let repeated = json!({"key": "app", "operator": "In", "values": vec!["db"; 430]});
    let selector = json!({"matchExpressions": [repeated]});
    assert_eq!(labels.fitting("team", selector.clone()).await, ["a", "c"]);
    let selector = selector_of(selector);
    let indexes = labels.indexes.lock();
    let once = indexes.numbers(Some(("app", vec!["db"])));
    assert_eq!(indexes.numbers(required(&selector)), once);
}
