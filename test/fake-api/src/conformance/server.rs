//! Cases of what the server says about itself, of rights, and of kinds that clients define.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{PATIENCE, STRATEGIC, Site};

pub(super) async fn the_kinds_of_a_version_are_listed(site: &Site) {
    for (path, version, kind) in [
        ("/api/v1", "v1", json!(["configmaps", "ConfigMap", true])),
        ("/api/v1", "v1", json!(["nodes", "Node", false])),
        (
            "/apis/storage.k8s.io/v1",
            "storage.k8s.io/v1",
            json!(["storageclasses", "StorageClass", false]),
        ),
    ] {
        let list = site.get(path).await.code(200);
        assert_eq!(list["kind"], "APIResourceList");
        assert_eq!(list["groupVersion"], version);
        let kinds = list["resources"].as_array().expect("kinds");
        let is_it = |one: &Value| json!([one["name"], one["kind"], one["namespaced"]]) == kind;
        assert!(kinds.iter().any(is_it), "{kind}");
    }
    site.get("/apis/absent.example/v1").await.code(404);
    site.get("/api/v1/absents").await.code(404);
}

pub(super) async fn the_version_has_numbers(site: &Site) {
    let version = site.get("/version").await.code(200);
    assert_eq!(version["major"], "1");
    let minor = version["minor"].as_str().expect("a number");
    let full = version["gitVersion"].as_str().expect("a version");
    assert!(
        full.starts_with(&format!("v1.{}.", minor.trim_end_matches('+'))),
        "{version}"
    );
}

pub(super) async fn a_refused_request_names_the_right(site: &Site) {
    let namespace = &site.namespace;
    let within = format!("in API group \"\" in the namespace {namespace:?}");
    let within = within.as_str();
    let map = format!("{}/x", site.maps);
    let exec = format!("/api/v1/namespaces/{namespace}/pods/x/exec");
    let attachments = "/apis/storage.k8s.io/v1/volumeattachments";
    let cluster = "in API group \"storage.k8s.io\" at the cluster scope";
    for (method, path, object, right, place) in [
        (
            "GET",
            &site.maps,
            "configmaps",
            "list resource \"configmaps\"",
            within,
        ),
        (
            "POST",
            &site.maps,
            "configmaps",
            "create resource \"configmaps\"",
            within,
        ),
        (
            "GET",
            &map,
            "configmaps \"x\"",
            "get resource \"configmaps\"",
            within,
        ),
        (
            "PUT",
            &map,
            "configmaps \"x\"",
            "update resource \"configmaps\"",
            within,
        ),
        (
            "DELETE",
            &map,
            "configmaps \"x\"",
            "delete resource \"configmaps\"",
            within,
        ),
        (
            "POST",
            &exec,
            "pods \"x\"",
            "create resource \"pods/exec\"",
            within,
        ),
        (
            "GET",
            &format!("{attachments}?watch=true"),
            "volumeattachments.storage.k8s.io",
            "watch resource \"volumeattachments\"",
            cluster,
        ),
    ] {
        let user = ("impersonate-user", "conformance");
        let message = site
            .send(method, path, user, Value::Null)
            .await
            .failed(403, "Forbidden");
        let expected =
            format!("{object} is forbidden: User \"conformance\" cannot {right} {place}");
        assert_eq!(message, expected);
    }
}

pub(super) async fn a_review_of_a_right_is_answered(site: &Site) {
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": "conformance", "groups": ["system:masters"],
            "resourceAttributes": {"verb": "list", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let answer = site.post(path, review).await.code(201);
    assert_eq!(answer["status"]["allowed"], true);
}

pub(super) async fn a_review_of_an_unknown_token_is_answered(site: &Site) {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": "unknown", "audiences": ["a"]}});
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let answer = site.post(path, review).await.code(201);
    assert_ne!(answer["status"]["authenticated"], true, "{answer}");
    assert!(answer["status"]["audiences"].is_null(), "{answer}");
}

/// Asks until the answer has this code, because a definition takes effect after some time.
async fn until(site: &Site, path: &str, code: u16) -> Value {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let answer = site.get(path).await;
        if answer.code == code {
            return answer.body;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{path} never answers {code}")
}

pub(super) async fn a_definition_brings_a_kind(site: &Site) {
    let group = format!("{}.test", site.namespace);
    let version = format!("/apis/{group}/v1");
    site.get(&version).await.code(404);
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition", "metadata": {"name": format!("things.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"kind": "Thing", "plural": "things"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    site.post(definitions, definition).await.code(201);
    let things = format!("{version}/namespaces/{}/things", site.namespace);
    until(site, &things, 200).await;
    let kinds = until(site, &version, 200).await;
    assert_eq!(kinds["resources"][0]["kind"], "Thing");
    let stored = site
        .get(&format!("{definitions}/things.{group}"))
        .await
        .code(200);
    let conditions = stored["status"]["conditions"]
        .as_array()
        .expect("conditions");
    let is_met = |one: &Value| one["type"] == "Established" && one["status"] == "True";
    assert!(conditions.iter().any(is_met), "{stored}");

    let thing = json!({"apiVersion": format!("{group}/v1"), "kind": "Thing",
        "metadata": {"name": "x"}, "a": 1, "status": {"b": 1}});
    let made = site.post(&things, thing).await.code(201);
    assert!(made["status"].is_null(), "{made}");
    let list = site.get(&things).await.code(200);
    assert_eq!(
        (&list["kind"], &list["items"][0]["kind"]),
        (&json!("ThingList"), &json!("Thing"))
    );
    let path = format!("{things}/x");
    let status = json!({"metadata": {"labels": {"l": "1"}}, "a": 2, "status": {"b": 2}});
    let written = site
        .merge(&format!("{path}/status"), status)
        .await
        .code(200);
    assert_eq!(
        (&written["a"], &written["status"]["b"]),
        (&json!(1), &json!(2))
    );
    assert!(written["metadata"]["labels"].is_null(), "{written}");
    site.ask("PATCH", &path, STRATEGIC, json!({}))
        .await
        .failed(415, "UnsupportedMediaType");
    site.delete(&format!("{definitions}/things.{group}"), json!({}))
        .await
        .code(200);
    until(site, &things, 404).await;
}
