use k8s_openapi::api::core::v1::{PersistentVolume, SecretReference};
use serde_json::{Value, json};

use super::decide::{DeletionStep, annotated_secret, decide};
use crate::api::constants::{
    DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, MIGRATED_TO, PROVISIONED_BY, VOLUME_FINALIZER,
};
use crate::testing::{read, with};

fn volume(policy: &str, phase: &str, change: &Value) -> PersistentVolume {
    let value = json!({
        "metadata": {"name": "pv", "finalizers": [VOLUME_FINALIZER]},
        "spec": {"persistentVolumeReclaimPolicy": policy,
                 "csi": {"driver": "d", "volumeHandle": "h"}},
        "status": {"phase": phase},
    });
    read(with(value, change))
}

#[test]
fn work() {
    use DeletionStep::*;
    const TIME: &str = "2026-01-01T00:00:00Z";
    let none = &json!({});
    let bare = &json!({"metadata": {"finalizers": []}});
    let deleted = &json!({"metadata": {"deletionTimestamp": TIME}});
    let deleted_bare = &json!({"metadata": {"deletionTimestamp": TIME, "finalizers": []}});
    let foreign = &json!({"spec": {"csi": {"driver": "e"}}});
    let by = |driver: &str| json!({"metadata": {"annotations": {PROVISIONED_BY: driver}}});
    let migrated = &json!({"metadata": {"annotations": {
        PROVISIONED_BY: "in-tree", MIGRATED_TO: "d"}}});
    let in_tree = |key: &str| {
        json!({
            "metadata": {"annotations": {key: "d"}, "finalizers": []},
            "spec": {"csi": null, "hostPath": {"path": "/x"}},
        })
    };
    for (policy, phase, change, expected) in [
        ("Delete", "Released", none, Delete),
        ("Delete", "Released", bare, Delete),
        ("Delete", "Released", &by("d"), Delete),
        ("Delete", "Released", &by("e"), Nothing),
        ("Delete", "Released", migrated, Delete),
        ("Delete", "Bound", &in_tree(PROVISIONED_BY), Nothing),
        ("Delete", "Bound", &in_tree(MIGRATED_TO), Nothing),
        ("Delete", "Released", deleted, Delete),
        ("Delete", "Released", deleted_bare, Nothing),
        ("Delete", "Released", foreign, Nothing),
        ("Retain", "Released", foreign, Nothing),
        ("Delete", "Bound", none, Nothing),
        ("Delete", "Bound", bare, AddFinalizer),
        ("Delete", "Bound", deleted_bare, Nothing),
        ("Delete", "Available", bare, Nothing),
        ("Delete", "Pending", none, Nothing),
        ("Delete", "Failed", none, Nothing),
        ("Retain", "Released", bare, Nothing),
        ("Retain", "Bound", none, RemoveFinalizer),
        ("Retain", "Released", deleted, RemoveFinalizer),
        ("Recycle", "Released", none, RemoveFinalizer),
        ("Recycle", "Bound", bare, Nothing),
    ] {
        let found = decide(&volume(policy, phase, change), "d");
        assert_eq!(found, expected, "{policy} {phase} {change}");
    }
}

#[test]
fn secrets_in_annotations() {
    let (name, namespace) = (DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE);
    let some = SecretReference {
        name: Some("s".to_owned()),
        namespace: Some("n".to_owned()),
    };
    for (annotations, expected) in [
        (json!({}), None),
        (json!({name: "s"}), None),
        (json!({name: "", namespace: ""}), Some(None)),
        (json!({name: "s", namespace: ""}), Some(None)),
        (json!({name: "s", namespace: "n"}), Some(Some(some))),
    ] {
        let change = json!({"metadata": {"annotations": annotations}});
        let volume = volume("Delete", "Released", &change);
        assert_eq!(annotated_secret(&volume), expected, "{change}");
    }
}
