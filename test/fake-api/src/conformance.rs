//! Cases for the behaviour of an API server that hostloop relies on. They run on the in-memory
//! server and on kube-apiserver (`test/tests/controllers/conformance.rs`). A case that fails on only one
//! of them shows that the two servers differ, so tests on one prove nothing about the other.

use std::time::Duration;

use futures::{Stream, StreamExt};
use http::Request;
use kube::api::{DynamicObject, WatchEvent, WatchParams};
use kube::client::Body;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

mod applies;
mod ends;
mod rules;
mod server;
mod writes;

use applies::*;
use ends::*;
use rules::*;
use server::*;
use writes::*;

/// The time limit of each wait.
const PATIENCE: Duration = Duration::from_secs(300);
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const NODES: &str = "/api/v1/nodes";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// Runs cases, each on its own, and fails if one of them does.
macro_rules! run {
    ($client:ident $namespace:ident $($case:ident)+) => {
        let mut failed = Vec::new();
        $(
            let site = Site::new($client, $namespace, stringify!($case));
            let case = tokio::spawn(async move { $case(&site).await });
            if case.await.is_err() {
                failed.push(stringify!($case));
            }
        )+
        assert_eq!(failed, [""; 0]);
    };
}

/// Runs the cases of what a server of a cluster completes, checks and ends. The namespace
/// exists.
pub async fn conforms_in_cluster(client: &Client, namespace: &str) {
    run! { client namespace
        times_are_those_of_the_clock
        custom_objects_count_their_changes
        a_claim_is_completed
        a_claim_needs_modes_and_a_size
        a_claim_changes_only_in_size_and_class
        a_claim_grows_if_its_class_allows_it_and_not_below_its_size
        a_claim_has_no_health_without_the_feature_gate
        a_volume_is_completed_and_keeps_its_source
        classes_and_attachments_stay_as_they_are
        a_watch_ends_in_its_time
        an_object_waits_for_what_it_owns_if_asked
        an_ending_namespace_takes_nothing_new
        a_pod_is_assigned_once_and_ends_in_its_time
    }
}

/// Runs the cases of every server. Objects are in this namespace; names of cluster-wide objects
/// begin with it.
pub async fn conforms(client: &Client, namespace: &str) {
    run! { client namespace
        a_name_is_taken_once
        a_create_without_a_name_gets_one
        what_is_missing_is_not_found
        the_kinds_of_a_version_are_listed
        the_version_has_numbers
        a_definition_brings_a_kind
        a_refused_request_names_the_right
        a_review_of_a_right_is_answered
        a_review_of_an_unknown_token_is_answered
        a_list_follows_its_selectors
        events_are_selected_by_their_fields
        a_list_of_metadata_has_nothing_else
        pages_show_one_version
        every_change_has_a_version_and_no_change_has_none
        a_dry_run_checks_a_create_and_makes_nothing
        a_write_names_the_version_it_depends_on
        a_write_names_the_uid_it_depends_on
        a_json_patch_tests_first
        an_update_replaces_all_but_what_the_server_sets
        a_status_is_written_apart
        a_status_leaves_the_metadata_of_some_kinds_alone
        conditions_are_merged_by_type
        a_delete_minds_its_preconditions
        an_object_goes_with_its_last_finalizer
        an_apply_creates_and_then_changes_what_it_has_set
        an_apply_takes_fields_of_others_only_by_force
        a_watch_follows_changes
        a_watch_sees_what_its_selector_selects
    }
}

/// The answer to a request.
struct Answer {
    what: String,
    code: u16,
    body: Value,
}

impl Answer {
    /// Returns the body, after checking the code.
    #[track_caller]
    fn code(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}: {}", self.what, self.body);
        self.body
    }

    /// Returns the message of a failure, after checking its code and reason.
    #[track_caller]
    fn failed(self, code: u16, reason: &str) -> String {
        assert_eq!(self.code, code, "{}: {}", self.what, self.body);
        assert_eq!(self.body["reason"], reason, "{}: {}", self.what, self.body);
        assert_eq!(self.body["code"], code, "{}: {}", self.what, self.body);
        self.body["message"].as_str().unwrap_or_default().to_owned()
    }
}

/// The namespace and names of a case's objects.
struct Site {
    client: Client,
    namespace: String,
    /// The path of the namespace's ConfigMaps.
    maps: String,
    /// The prefix of names: cases share one server and leave their objects behind.
    prefix: String,
}

impl Site {
    fn new(client: &Client, namespace: &str, case: &str) -> Site {
        Site {
            client: client.clone(),
            namespace: namespace.to_owned(),
            maps: format!("/api/v1/namespaces/{namespace}/configmaps"),
            prefix: case.replace('_', "-"),
        }
    }

    /// Sends a request; `content` is the content type of its body.
    async fn ask(&self, method: &str, path: &str, content: &str, body: Value) -> Answer {
        self.send(method, path, ("content-type", content), body)
            .await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        (header, value): (&str, &str),
        body: Value,
    ) -> Answer {
        let body = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header, value);
        let request = request.body(Body::from(body)).expect("a request");
        let answer = self.client.send(request).await.expect("an answer");
        let code = answer.status().as_u16();
        let body = answer.into_body().collect_bytes().await.expect("a body");
        Answer {
            what: format!("{method} {path}"),
            code,
            // The answer about an unknown group is plain text.
            body: serde_json::from_slice(&body).unwrap_or_default(),
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask("POST", path, "application/json", body).await
    }

    async fn put(&self, path: &str, body: Value) -> Answer {
        self.ask("PUT", path, "application/json", body).await
    }

    async fn merge(&self, path: &str, body: Value) -> Answer {
        self.ask("PATCH", path, MERGE, body).await
    }

    async fn delete(&self, path: &str, body: Value) -> Answer {
        self.ask("DELETE", path, "application/json", body).await
    }

    /// Creates a ConfigMap for the case, and returns its path and content.
    async fn map(&self, name: &str, metadata: Value) -> (String, Value) {
        let name = format!("{}-{name}", self.prefix);
        let mut metadata = metadata;
        metadata["name"] = json!(name);
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {"a": "1"}});
        let made = self.post(&self.maps, map).await.code(201);
        (format!("{}/{name}", self.maps), made)
    }

    /// Watches the ConfigMaps with a label, starting at this version.
    async fn watch(
        &self,
        label: &str,
        version: &str,
    ) -> impl Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + use<> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &kind);
        let params = WatchParams::default().labels(label).timeout(30);
        api.watch(&params, version).await.expect("a watch").boxed()
    }
}

fn version(object: &Value) -> String {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.expect("a version").to_owned()
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("items");
    items
        .iter()
        .filter_map(|item| Some(item["metadata"]["name"].as_str()?.rsplit_once('-')?.1))
        .collect()
}

/// Returns the next event that is not a bookmark, as `Added name`.
async fn next(
    events: &mut (impl Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Unpin),
) -> (String, DynamicObject) {
    loop {
        let next = tokio::time::timeout(PATIENCE, events.next());
        let event = next
            .await
            .expect("an event")
            .expect("no end")
            .expect("an event");
        let (kind, object) = match event {
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => panic!("{status:?}"),
            WatchEvent::Added(object) => ("Added", object),
            WatchEvent::Modified(object) => ("Modified", object),
            WatchEvent::Deleted(object) => ("Deleted", object),
        };
        let name = object.metadata.name.clone().unwrap_or_default();
        let (_, name) = name.rsplit_once('-').expect("a name of the case");
        return (format!("{kind} {name}"), object);
    }
}

async fn a_name_is_taken_once(site: &Site) {
    let (path, made) = site
        .map("x", json!({"uid": "mine", "labels": {"l": "1"}}))
        .await;
    let metadata = &made["metadata"];
    assert!(
        metadata["uid"].is_string() && metadata["uid"] != "mine",
        "{made}"
    );
    assert!(metadata["creationTimestamp"].is_string(), "{made}");
    assert_eq!(metadata["namespace"], site.namespace.as_str());
    let again = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": metadata["name"]}});
    let message = site
        .post(&site.maps, again)
        .await
        .failed(409, "AlreadyExists");
    let name = metadata["name"].as_str().expect("a name");
    assert_eq!(message, format!("configmaps {name:?} already exists"));
    assert_eq!(version(&site.get(&path).await.code(200)), version(&made));
}

async fn a_create_without_a_name_gets_one(site: &Site) {
    let map =
        |metadata: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    let mut made = Vec::new();
    for _ in 0..2 {
        let map = map(json!({"generateName": "generated-"}));
        let object = site.post(&site.maps, map).await.code(201);
        made.push(
            object["metadata"]["name"]
                .as_str()
                .expect("a name")
                .to_owned(),
        );
    }
    assert!(
        made.iter().all(|name| name.len() == "generated-".len() + 5),
        "{made:?}"
    );
    assert_ne!(made[0], made[1]);
    site.post(&site.maps, map(json!({})))
        .await
        .failed(422, "Invalid");
}

async fn what_is_missing_is_not_found(site: &Site) {
    let path = format!("{}/missing", site.maps);
    let patch = json!({"data": {"b": "2"}});
    for answer in [
        site.get(&path).await,
        site.merge(&path, patch).await,
        site.delete(&path, json!({})).await,
    ] {
        assert_eq!(
            answer.failed(404, "NotFound"),
            "configmaps \"missing\" not found"
        );
    }
    // ConfigMaps have no status.
    let (path, _) = site.map("x", json!({})).await;
    site.merge(&format!("{path}/status"), json!({}))
        .await
        .failed(404, "NotFound");
}

async fn a_list_follows_its_selectors(site: &Site) {
    for (name, labels) in [
        ("a", json!({"of": "select", "k": "1"})),
        ("b", json!({"of": "select", "k": "2"})),
        ("c", json!({"of": "select"})),
    ] {
        site.map(name, json!({"labels": labels})).await;
    }
    for (selector, expected) in [
        ("of=select", "a b c"),
        ("of=select,!k", "c"),
        ("of=select,k=1", "a"),
        ("k+in+(1,+2),of=select", "a b"),
        ("of=other", ""),
    ] {
        let path = format!("{}?labelSelector={selector}", site.maps);
        let list = site.get(&path).await.code(200);
        assert_eq!(names(&list).join(" "), expected, "{selector}");
    }
    let field = format!("fieldSelector=metadata.name={}-b", site.prefix);
    let list = site
        .get(&format!("{}?labelSelector=of=select&{field}", site.maps))
        .await
        .code(200);
    assert_eq!(names(&list), ["b"]);
    assert_eq!(list["kind"], "ConfigMapList");
    assert!(list["items"][0]["kind"].is_null(), "{list}");
}

async fn events_are_selected_by_their_fields(site: &Site) {
    let events = format!("/api/v1/namespaces/{}/events", site.namespace);
    for (name, kind, uid) in [
        ("a", "Normal", "u1"),
        ("b", "Warning", "u1"),
        ("c", "Warning", "u2"),
    ] {
        let about = json!({"kind": "Pod", "namespace": site.namespace, "name": "p", "uid": uid});
        let event = json!({"apiVersion": "v1", "kind": "Event", "type": kind,
            "metadata": {"name": format!("{}-{name}", site.prefix)}, "involvedObject": about});
        site.post(&events, event).await.code(201);
    }
    for (selector, expected) in [
        ("involvedObject.uid=u1", "a b"),
        ("type=Warning,involvedObject.name=p", "b c"),
        ("type=Warning,involvedObject.uid=u1", "b"),
    ] {
        let list = site
            .get(&format!("{events}?fieldSelector={selector}"))
            .await
            .code(200);
        assert_eq!(names(&list).join(" "), expected, "{selector}");
    }
}

async fn a_list_of_metadata_has_nothing_else(site: &Site) {
    let (_, made) = site.map("a", json!({"labels": {"of": "metadata"}})).await;
    let path = format!("{}?labelSelector=of=metadata", site.maps);
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let list = site
        .send("GET", &path, ("accept", accept), Value::Null)
        .await
        .code(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    let expected = json!([{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": made["metadata"]}]);
    assert_eq!(list["items"], expected);
}

async fn pages_show_one_version(site: &Site) {
    for name in ["a", "b", "c"] {
        site.map(name, json!({"labels": {"of": "pages"}})).await;
    }
    let path = format!("{}?labelSelector=of=pages&limit=2", site.maps);
    let first = site.get(&path).await.code(200);
    assert_eq!(names(&first), ["a", "b"]);
    site.map("d", json!({"labels": {"of": "pages"}})).await;
    let token = first["metadata"]["continue"].as_str().expect("more");
    let token = token.replace(' ', "+");
    let second = site
        .get(&format!("{path}&continue={token}"))
        .await
        .code(200);
    assert_eq!(names(&second), ["c"]);
    assert_eq!(version(&first), version(&second));
    assert!(
        second["metadata"]["continue"]
            .as_str()
            .is_none_or(str::is_empty)
    );
}

async fn a_watch_follows_changes(site: &Site) {
    let labels = json!({"labels": {"of": "watch"}});
    site.map("a", labels.clone()).await;
    let list = site
        .get(&format!("{}?labelSelector=of=watch", site.maps))
        .await
        .code(200);
    let mut events = site.watch("of=watch", &version(&list)).await;
    let (path, _) = site.map("b", labels.clone()).await;
    assert_eq!(next(&mut events).await.0, "Added b");
    site.merge(&path, json!({"data": {"a": "1"}}))
        .await
        .code(200);
    let changed = site
        .merge(&path, json!({"data": {"a": "2"}}))
        .await
        .code(200);
    let (event, object) = next(&mut events).await;
    assert_eq!(
        event, "Modified b",
        "a write that changes nothing sends no event"
    );
    let seen = object.metadata.resource_version;
    assert_eq!(seen, Some(version(&changed)));
    site.delete(&path, json!({})).await.code(200);
    let (event, object) = next(&mut events).await;
    assert_eq!(event, "Deleted b");
    let seen = object.metadata.resource_version;
    assert_ne!(
        seen,
        Some(version(&changed)),
        "a deletion has a version of its own"
    );
    // A watch from the version of a list reports all later changes.
    let mut late = site.watch("of=watch", &version(&list)).await;
    for expected in ["Added b", "Modified b", "Deleted b"] {
        assert_eq!(next(&mut late).await.0, expected);
    }
    // A watch from version 0 starts with the existing objects.
    let mut all = site.watch("of=watch", "0").await;
    assert_eq!(next(&mut all).await.0, "Added a");
}

async fn a_watch_sees_what_its_selector_selects(site: &Site) {
    let (path, made) = site.map("a", json!({"labels": {"of": "other"}})).await;
    let mut events = site.watch("of=selected", &version(&made)).await;
    let label = |value: &str| json!({"metadata": {"labels": {"of": value}}});
    site.merge(&path, label("selected")).await.code(200);
    assert_eq!(next(&mut events).await.0, "Added a");
    site.merge(&path, label("other")).await.code(200);
    assert_eq!(next(&mut events).await.0, "Deleted a");
    site.delete(&path, json!({})).await.code(200);
    site.map("b", json!({"labels": {"of": "selected"}})).await;
    assert_eq!(
        next(&mut events).await.0,
        "Added b",
        "the other's end was no event"
    );
}
