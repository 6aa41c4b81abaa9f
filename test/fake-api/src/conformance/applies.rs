//! Cases of server-side apply.

use serde_json::{Value, json};

use super::{Answer, Site, version};

/// Applies a ConfigMap with this data as a manager.
async fn apply(site: &Site, path: &str, query: &str, data: Value) -> Answer {
    let (_, name) = path.rsplit_once('/').expect("a path");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": data});
    let path = format!("{path}?fieldManager={query}");
    site.ask("PATCH", &path, "application/apply-patch+yaml", map)
        .await
}

pub(super) async fn an_apply_creates_and_then_changes_what_it_has_set(site: &Site) {
    let path = format!("{}/{}", site.maps, site.prefix);
    let both = json!({"a": "1", "b": "1"});
    let made = apply(site, &path, "first", both.clone()).await.code(201);
    let managers = &made["metadata"]["managedFields"];
    assert_eq!(
        (&managers[0]["manager"], &managers[0]["operation"]),
        (&json!("first"), &json!("Apply"))
    );
    let again = apply(site, &path, "first", both).await.code(200);
    assert_eq!(version(&made), version(&again));
    let theirs = json!({"metadata": {"labels": {"l": "1"}}, "data": {"c": "1"}});
    site.merge(&path, theirs).await.code(200);
    let changed = apply(site, &path, "first", json!({"a": "2"}))
        .await
        .code(200);
    assert_eq!(changed["data"], json!({"a": "2", "c": "1"}));
    assert_eq!(changed["metadata"]["labels"]["l"], "1");
}

pub(super) async fn an_apply_takes_fields_of_others_only_by_force(site: &Site) {
    let (path, made) = site.map("x", json!({})).await;
    // The map has been created with this value.
    apply(site, &path, "first", json!({"a": "1"}))
        .await
        .code(200);
    let refused = apply(site, &path, "second", json!({"a": "2"})).await;
    let message = refused.failed(409, "Conflict");
    assert!(message.starts_with("Apply failed with "), "{message}");
    assert!(
        message.contains("conflict") && message.contains(".data.a"),
        "{message}"
    );
    let forced = apply(site, &path, "second&force=true", json!({"a": "2"}))
        .await
        .code(200);
    assert_eq!(forced["data"], json!({"a": "2"}));
    assert_ne!(version(&made), version(&forced));
    apply(site, &path, "first", json!({"a": "1"}))
        .await
        .failed(409, "Conflict");
    apply(site, &path, "first", json!({"a": "2"}))
        .await
        .code(200);
}
