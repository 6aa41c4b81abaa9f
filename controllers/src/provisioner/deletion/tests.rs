use serde_json::{Value, json};

use super::*;

fn volume(policy: &str, phase: &str, change: Value) -> PersistentVolume {
    let mut value = json!({
        "metadata": {"name": "pv", "finalizers": [VOLUME_FINALIZER]},
        "spec": {"persistentVolumeReclaimPolicy": policy,
                 "csi": {"driver": "d", "volumeHandle": "h"}},
        "status": {"phase": phase},
    });
    merge(&mut value, change);
    serde_json::from_value(value).expect("a volume")
}

fn merge(value: &mut Value, change: Value) {
    match (value, change) {
        (Value::Object(value), Value::Object(change)) => {
            for (key, change) in change {
                merge(value.entry(key).or_insert(Value::Null), change);
            }
        }
        (value, change) => *value = change,
    }
}

#[test]
fn work() {
    let bare = json!({"metadata": {"finalizers": []}});
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let going_bare = json!({"metadata": {
        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": []}});
    let foreign = json!({"spec": {"csi": {"driver": "e"}}});
    let by = |key: &str, of: &str| json!({"metadata": {"annotations": {key: of}}});
    let migrated = json!({"metadata": {"annotations": {
        PROVISIONED_BY: "in-tree", MIGRATED_TO: "d"}}});
    let in_tree = |key: &str| {
        json!({
            "metadata": {"annotations": {key: "d"}, "finalizers": []},
            "spec": {"csi": null, "hostPath": {"path": "/x"}},
        })
    };
    let none = json!({});
    for (what, policy, phase, change, expected) in [
        ("released", "Delete", "Released", none.clone(), Work::Delete),
        ("static", "Delete", "Released", bare.clone(), Work::Delete),
        (
            "by its maker",
            "Delete",
            "Released",
            by(PROVISIONED_BY, "d"),
            Work::Delete,
        ),
        (
            "of another maker",
            "Delete",
            "Released",
            by(PROVISIONED_BY, "e"),
            Work::Nothing,
        ),
        ("migrated", "Delete", "Released", migrated, Work::Delete),
        (
            "in-tree",
            "Delete",
            "Bound",
            in_tree(PROVISIONED_BY),
            Work::Nothing,
        ),
        (
            "in-tree, migrated",
            "Delete",
            "Bound",
            in_tree(MIGRATED_TO),
            Work::Nothing,
        ),
        (
            "deleted, kept",
            "Delete",
            "Released",
            going.clone(),
            Work::Delete,
        ),
        (
            "deleted, not kept",
            "Delete",
            "Released",
            going_bare.clone(),
            Work::Nothing,
        ),
        (
            "another's",
            "Delete",
            "Released",
            foreign.clone(),
            Work::Nothing,
        ),
        (
            "another's, kept",
            "Retain",
            "Released",
            foreign,
            Work::Nothing,
        ),
        ("bound", "Delete", "Bound", none.clone(), Work::Nothing),
        (
            "bound, static",
            "Delete",
            "Bound",
            bare.clone(),
            Work::AddFinalizer,
        ),
        ("bound, going", "Delete", "Bound", going_bare, Work::Nothing),
        ("new", "Delete", "Available", bare.clone(), Work::Nothing),
        ("pending", "Delete", "Pending", none.clone(), Work::Nothing),
        ("failed", "Delete", "Failed", none.clone(), Work::Nothing),
        (
            "retained",
            "Retain",
            "Released",
            bare.clone(),
            Work::Nothing,
        ),
        (
            "to be retained",
            "Retain",
            "Bound",
            none.clone(),
            Work::RemoveFinalizer,
        ),
        (
            "retained, deleted",
            "Retain",
            "Released",
            going,
            Work::RemoveFinalizer,
        ),
        (
            "recycled",
            "Recycle",
            "Released",
            none,
            Work::RemoveFinalizer,
        ),
        ("recycled, bare", "Recycle", "Bound", bare, Work::Nothing),
    ] {
        assert_eq!(
            decide(&volume(policy, phase, change), "d"),
            expected,
            "{what}"
        );
    }
}

#[test]
fn secrets_told_by_objects() {
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
        assert_eq!(
            annotated_secret(&volume("Delete", "Released", change)),
            expected
        );
    }
}
