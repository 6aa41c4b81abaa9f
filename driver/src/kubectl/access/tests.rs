use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;

use super::*;
use crate::kubectl::canned_api::CannedApi;

fn claims(api: &CannedApi) -> Api<PersistentVolumeClaim> {
    Api::namespaced(api.client(), "demo")
}

#[tokio::test]
async fn lists_are_read_to_the_last_page() {
    let api = CannedApi::default();
    let path = "/api/v1/namespaces/demo/persistentvolumeclaims";
    let page = |name: &str, next: &str| {
        json!({
            "metadata": {"continue": next}, "items": [{"metadata": {"name": name}}],
        })
    };
    api.answer(path, 200, page("a", "2"));
    api.answer(&format!("{path}?continue=2"), 200, page("b", ""));
    let found = list(&claims(&api), &ListParams::default()).await.unwrap();
    let names: Vec<_> = found.into_iter().filter_map(|claim| claim.metadata.name).collect();
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test]
async fn refused_requests_name_the_right() {
    let api = CannedApi::default();
    api.forbid("/api/v1/namespaces/demo/persistentvolumeclaims", "list", "persistentvolumeclaims");
    api.forbid("/api/v1/persistentvolumes/pv", "get", "persistentvolumes");
    let error = list(&claims(&api), &ListParams::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "you may not list persistentvolumeclaims in namespace demo; ask for this right"
    );
    let volumes: Api<PersistentVolume> = Api::all(api.client());
    let error = get(&volumes, "pv").await.unwrap_err();
    assert!(error.is_about_one_kind());
    assert_eq!(
        error.to_string(),
        "you may not get persistentvolumes in the whole cluster; ask for this right"
    );
}

#[tokio::test]
async fn missing_objects_and_kinds() {
    let api = CannedApi::default();
    assert!(get(&claims(&api), "data").await.unwrap().is_none());
    let error = list(&claims(&api), &ListParams::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "the API server does not serve persistentvolumeclaims");
    api.answer(
        "/api/v1/namespaces/demo/persistentvolumeclaims",
        500,
        json!({"status": "Failure", "message": "etcd is slow", "code": 500}),
    );
    let error = list(&claims(&api), &ListParams::default()).await.unwrap_err();
    assert!(!error.is_about_one_kind());
    assert_eq!(error.to_string(), "list persistentvolumeclaims in namespace demo: etcd is slow");
}

#[test]
fn verbs_of_refusals() {
    for (message, verb) in [
        (
            r#"pods "a" is forbidden: User "u" cannot get resource "pods/exec" in API group """#,
            "get",
        ),
        (r#"User "u" cannot create resource "pods/exec""#, "create"),
        ("User \"u\" cannot do that", ""),
        ("quota exceeded", ""),
        ("", ""),
    ] {
        let status = Status::failure(message, "Forbidden");
        assert_eq!(forbidden_verb(&status).unwrap_or_default(), verb, "{message}");
    }
}
