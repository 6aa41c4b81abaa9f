use std::collections::BTreeSet;

use hostloop_api_objects::snapshots::VolumeSnapshot;
use hostloop_fake_api::FakeApi;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;

use super::*;

const CLAIMS: &str = "/api/v1/namespaces/demo/persistentvolumeclaims";

fn claims(api: &FakeApi) -> Api<PersistentVolumeClaim> {
    Api::namespaced(api.client(), "demo")
}

#[tokio::test]
async fn lists_are_read_to_the_last_page() {
    let api = FakeApi::default();
    for number in 0..=PAGE {
        api.set(&format!("{CLAIMS}/claim-{number}"), json!({}));
    }
    let found = list_all(&claims(&api)).await.unwrap();
    let names: BTreeSet<_> = found
        .into_iter()
        .filter_map(|claim| claim.metadata.name)
        .collect();
    assert_eq!(names.len() as u32, PAGE + 1);
    assert_eq!(api.requests().len(), 2);
}

/// A user of one namespace can write such a time, and an administrator lists all namespaces.
#[tokio::test]
async fn a_time_that_cannot_be_read_hides_no_object() {
    let api = FakeApi::default();
    let late = json!({"metadata": {"managedFields": [{"time": "10000-01-01T00:59:59Z"}]}});
    api.set(&format!("{CLAIMS}/late"), late);
    api.set(&format!("{CLAIMS}/other"), json!({}));
    assert_eq!(list_all(&claims(&api)).await.unwrap().len(), 2);
    assert!(get(&claims(&api), "late").await.unwrap().is_some());
}

/// A user may name any volume in a claim. The request for it reads no object of another kind.
#[tokio::test]
async fn a_name_that_leads_elsewhere_is_of_no_object() {
    let api = FakeApi::default();
    let volumes: Api<PersistentVolume> = Api::all(api.client());
    for name in ["..", "../namespaces/demo/secrets/s", "a%2fb", "a?b", "a#b"] {
        assert!(get(&volumes, name).await.unwrap().is_none(), "{name}");
    }
    assert_eq!(api.requests().len(), 0);
    assert!(!leads_elsewhere("system:node") && !leads_elsewhere("a.b-c"));
}

#[tokio::test]
async fn refused_requests_name_the_right() {
    let api = FakeApi::default();
    api.hide(CLAIMS, 403);
    api.hide("/api/v1/persistentvolumes/pv", 403);
    let error = list_all(&claims(&api)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "you may not list persistentvolumeclaims in namespace demo; ask for this right, or choose \
         another --context"
    );
    let volumes: Api<PersistentVolume> = Api::all(api.client());
    let error = get(&volumes, "pv").await.unwrap_err();
    assert!(error.is_about_one_kind());
    assert_eq!(
        error.to_string(),
        "you may not get persistentvolumes in the whole cluster; ask for this right, or choose \
         another --context"
    );
}

#[tokio::test]
async fn missing_objects_and_kinds() {
    let api = FakeApi::default();
    assert!(get(&claims(&api), "data").await.unwrap().is_none());
    let snapshots: Api<VolumeSnapshot> = Api::all(api.client());
    let error = list_all(&snapshots).await.unwrap_err();
    let kind = "volumesnapshots.snapshot.storage.k8s.io";
    assert_eq!(
        error.to_string(),
        format!("the API server does not serve {kind}")
    );
    assert!(error.is_about_one_kind());
    api.answer(
        CLAIMS,
        500,
        json!({"status": "Failure", "message": "etcd is slow", "code": 500}),
    );
    let error = list_all(&claims(&api)).await.unwrap_err();
    assert!(!error.is_about_one_kind());
    assert_eq!(
        error.to_string(),
        "list persistentvolumeclaims in namespace demo: etcd is slow (HTTP 500)"
    );
}
