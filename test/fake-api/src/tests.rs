use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{DynamicObject, ListParams, PostParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{FakeApi, Fault, conformance};

#[tokio::test(start_paused = true)]
async fn it_is_as_the_real_one() {
    let api = FakeApi::default();
    conformance::conforms(&api.client(), "conformance").await;
}

#[tokio::test(start_paused = true)]
async fn that_of_a_cluster_is_as_the_real_one() {
    let api = FakeApi::cluster();
    api.put(json!({"kind": "Namespace", "metadata": {"name": "conformance"}}));
    conformance::conforms(&api.client(), "conformance").await;
    conformance::conforms_in_cluster(&api.client(), "conformance").await;
}

fn maps(client: Client) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
    Api::namespaced_with(client, "default", &kind)
}

fn map(name: &str) -> DynamicObject {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    serde_json::from_value(map).expect("a map")
}

async fn create(client: &Client, name: &str) -> kube::Result<DynamicObject> {
    maps(client.clone())
        .create(&PostParams::default(), &map(name))
        .await
}

/// The events of a watch from this version on.
async fn watched(
    client: &Client,
    watch: &WatchParams,
    version: &str,
) -> BoxStream<'static, kube::Result<WatchEvent<DynamicObject>>> {
    let events = maps(client.clone()).watch(watch, version).await;
    events.expect("a watch").boxed()
}

#[tokio::test(start_paused = true)]
async fn a_watch_has_bookmarks_each_minute_and_before_its_end() {
    let api = FakeApi::cluster();
    let client = api.client();
    create(&client, "a").await.expect("a map");
    let watch = WatchParams::default().timeout(150);
    let version = api.version().to_string();
    let mut events = watched(&client, &watch, &version).await;
    let start = tokio::time::Instant::now();
    let mut bookmarks = Vec::new();
    while let Some(event) = events.next().await {
        let event = event.expect("an event");
        let WatchEvent::Bookmark(bookmark) = event else {
            panic!("{event:?}")
        };
        assert_eq!(bookmark.metadata.resource_version, version);
        bookmarks.push(start.elapsed().as_secs());
    }
    assert_eq!(bookmarks, [60, 120, 148]);
    assert_eq!(start.elapsed().as_secs(), 150);
}

/// A watch from a version that is still to come is silent, as on the real one.
#[tokio::test(start_paused = true)]
async fn a_watch_from_the_future_has_no_bookmarks() {
    let api = FakeApi::cluster();
    let client = api.client();
    let future = (api.version() + 1).to_string();
    let watch = WatchParams::default().timeout(150);
    let mut events = watched(&client, &watch, &future).await;
    assert!(events.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_has_an_effect_and_a_broken_connection_has_none() {
    let api = FakeApi::cluster();
    let client = api.client();
    for (name, fault, is_there) in [
        ("lost", Fault::LoseAnswer, true),
        ("broken", Fault::Disconnect, false),
    ] {
        api.fault(&["POST"], "configmaps", Some(1), fault);
        let failed = create(&client, name).await.expect_err("no answer");
        assert!(matches!(failed, kube::Error::Service(_)), "{failed:?}");
        assert_eq!(
            api.get(&format!("configmaps/{name}")).is_some(),
            is_there,
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_breaks_watches_and_refuses_requests() {
    let api = FakeApi::cluster();
    let client = api.client();
    let watch = WatchParams::default();
    let mut events = watched(&client, &watch, "0").await;
    api.go_away();
    events
        .next()
        .await
        .expect("an end")
        .expect_err("a broken connection");
    create(&client, "a").await.expect_err("no server");
    api.come_back();
    create(&client, "a").await.expect("a server");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_cut_off_hears_and_does_nothing_more() {
    let api = FakeApi::cluster();
    let connection = api.connect("a");
    let client = connection.client();
    let watch = WatchParams::default();
    let mut events = watched(&client, &watch, "0").await;
    connection.cut();
    create(&api.client(), "other")
        .await
        .expect("a map of another");
    let soon = Duration::from_secs(1000);
    tokio::time::timeout(soon, create(&client, "own"))
        .await
        .expect_err("no answer");
    tokio::time::timeout(soon, events.next())
        .await
        .expect_err("no event");
    assert!(api.get("configmaps/own").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_restored_server_forgets_what_was_made_since() {
    let api = FakeApi::cluster();
    let client = api.client();
    let before = create(&client, "before").await.expect("a map");
    let backup = api.backup();
    let version = api.version();
    let since = create(&client, "since").await.expect("a map");
    let seen = api.version().to_string();
    let watch = WatchParams::default().timeout(5).disable_bookmarks();
    let mut events = watched(&client, &watch, &seen).await;
    api.restore(&backup);
    assert!(events.next().await.is_none(), "watches end");
    assert_eq!(api.version(), version);
    let list = maps(client.clone())
        .list(&ListParams::default())
        .await
        .expect("a list");
    let names: Vec<_> = list.items.iter().map(|map| &map.metadata.name).collect();
    assert_eq!(names, [&before.metadata.name]);
    // A watch from a version that is still to come misses what happens until then.
    let mut blind = watched(&client, &watch, &seen).await;
    // A new object is another one, even if it has the version of one that is forgotten.
    let again = create(&client, "since").await.expect("a map");
    assert_ne!(again.metadata.uid, since.metadata.uid);
    assert_eq!(
        again.metadata.resource_version,
        since.metadata.resource_version
    );
    assert!(blind.next().await.is_none(), "it ends without an event");
    let mut events = watched(&client, &watch, &version.to_string()).await;
    let event = events.next().await.expect("an event").expect("an event");
    assert!(matches!(event, WatchEvent::Added(_)), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn pages_and_watches_from_forgotten_versions_expire() {
    let api = FakeApi::cluster();
    let client = api.client();
    for name in ["a", "b"] {
        create(&client, name).await.expect("a map");
    }
    let maps = maps(client.clone());
    let page = maps
        .list(&ListParams::default().limit(1))
        .await
        .expect("a page");
    create(&client, "c").await.expect("a map");
    api.compact();
    let token = page.metadata.continue_.expect("more");
    let next = maps
        .list(&ListParams::default().limit(1).continue_token(&token))
        .await;
    assert!(matches!(next, Err(kube::Error::Api(status)) if status.code == 410));
    // A watch says so by its first event.
    let watch = WatchParams::default();
    let mut events = maps.watch(&watch, "1").await.expect("a watch").boxed();
    let event = events.next().await.expect("an event").expect("an event");
    assert!(
        matches!(&event, WatchEvent::Error(status) if status.code == 410),
        "{event:?}"
    );
    api.keep(2);
    for name in ["d", "e", "f"] {
        create(&client, name).await.expect("a map");
    }
    let store = &api.0.lock().store;
    assert_eq!(
        store
            .changes_since(store.version - 2)
            .expect("changes")
            .count(),
        2
    );
    assert!(store.changes_since(store.version - 3).is_err());
}

#[tokio::test(start_paused = true)]
async fn requests_and_writes_have_the_name_of_their_client() {
    let api = FakeApi::cluster();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let requests = seen.clone();
    api.on_request(move |request| {
        let line = format!("{} asks {}", request.who, request.method);
        requests.lock().push(line);
        (request.who == "b").then_some(Fault::Refuse(503))
    });
    let number = Arc::new(Mutex::new(0));
    let counted = number.clone();
    api.on_write(move |_| *counted.lock() += 1);
    let writes = seen.clone();
    api.on_write(move |write| {
        let name = |object: Option<&serde_json::Value>| {
            object.map_or(String::new(), |object| {
                object["metadata"]["name"].to_string()
            })
        };
        let line = format!(
            "{} writes {}→{}",
            write.who,
            name(write.old),
            name(write.new)
        );
        writes.lock().push(line);
    });
    create(&api.connect("a").client(), "x")
        .await
        .expect("a map");
    create(&api.connect("b").client(), "y")
        .await
        .expect_err("refused");
    maps(api.connect("a").client())
        .delete("x", &Default::default())
        .await
        .expect("a deletion");
    let expected = [
        "a asks POST",
        "a writes →\"x\"",
        "b asks POST",
        "a asks DELETE",
        "a writes \"x\"→",
    ];
    assert_eq!(*seen.lock(), expected);
    assert_eq!(*number.lock(), 2, "each one sees all writes");
}

#[tokio::test(start_paused = true)]
async fn the_latest_requests_are_remembered() {
    let api = FakeApi::cluster();
    api.remember(2);
    for name in ["a", "b", "c"] {
        create(&api.client(), name).await.expect("a map");
    }
    assert_eq!(
        api.writes(),
        ["create default/configmaps/b", "create default/configmaps/c"]
    );
}

/// The name and the value of a map.
fn value(object: Option<&Arc<Value>>) -> String {
    object.map_or("none".to_owned(), |object| {
        format!("{} {}", object["metadata"]["name"], object["data"]["x"])
    })
}

#[test]
fn each_change_is_seen_as_it_was_and_as_it_is() {
    let api = FakeApi::default();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let changes = seen.clone();
    api.on_change(move |old, new| {
        let change = format!("{} → {}", value(old), value(new));
        changes.lock().push(change);
    });
    let backup = {
        api.set(
            "/api/v1/namespaces/d/configmaps/a",
            json!({"data": {"x": 1}}),
        );
        api.set(
            "/api/v1/namespaces/d/configmaps/b",
            json!({"data": {"x": 1}}),
        );
        api.backup()
    };
    api.set(
        "/api/v1/namespaces/d/configmaps/a",
        json!({"data": {"x": 2}}),
    );
    api.set(
        "/api/v1/namespaces/d/configmaps/c",
        json!({"data": {"x": 1}}),
    );
    api.take("configmaps/b");
    api.restore(&backup);
    assert_eq!(
        *seen.lock(),
        [
            "none → \"a\" 1",
            "none → \"b\" 1",
            "\"a\" 1 → \"a\" 2",
            "none → \"c\" 1",
            "\"b\" 1 → none",
            "\"c\" 1 → none",
            "\"a\" 2 → \"a\" 1",
            "none → \"b\" 1",
        ]
    );
}

#[test]
fn objects_of_a_kind_are_found_in_all_its_versions() {
    let api = FakeApi::with_snapshots();
    for (version, kind, name) in [
        ("v1", "Event", "a"),
        ("events.k8s.io/v1", "Event", "b"),
        ("v1", "ConfigMap", "c"),
        ("v1", "Secret", "d"),
    ] {
        api.put(json!({"apiVersion": version, "kind": kind,
            "metadata": {"name": name, "namespace": "default"}}));
    }
    for (plural, names) in [
        ("events", &["b", "a"][..]),
        ("configmaps", &["c"]),
        ("pods", &[]),
    ] {
        let found = api.all(plural);
        let shared = api.shared(plural);
        let found = found
            .iter()
            .map(|object| object["metadata"]["name"].clone());
        assert_eq!(found.collect::<Vec<_>>(), names, "{plural}");
        assert_eq!(shared.len(), names.len());
    }
    assert!(api.get("/api/v1/namespaces/default/events/a").is_some());
    assert!(api.get("/api/v1/namespaces/default/events/b").is_none());
    assert!(api.get("events/b").is_some());
}
