use serde_json::{Value, json};

use super::*;
use crate::snapshots::VolumeSnapshotContent;
use crate::snapshots::content::GROUP_HANDLE;

/// A kind of contents, and the words in which its fields differ.
trait Sample: Content {
    const REFERENCE: &'static str;
    const HANDLE: &'static str;
    fn volume() -> Value;
    fn given() -> Value;
}

impl Sample for VolumeSnapshotContent {
    const REFERENCE: &'static str = "volumeSnapshotRef";
    const HANDLE: &'static str = "snapshotHandle";

    fn volume() -> Value {
        json!({"volumeHandle": "v"})
    }

    fn given() -> Value {
        json!({"snapshotHandle": "m"})
    }
}

impl Sample for VolumeGroupSnapshotContent {
    const REFERENCE: &'static str = "volumeGroupSnapshotRef";
    const HANDLE: &'static str = "volumeGroupSnapshotHandle";

    fn volume() -> Value {
        json!({"volumeHandles": ["v", "w"]})
    }

    fn given() -> Value {
        json!({"groupSnapshotHandles":
            {"volumeGroupSnapshotHandle": "m", "volumeSnapshotHandles": ["a", "b"]}})
    }
}

/// A content with these properties. Without any, it is of a volume, bound, without a status, and
/// has the policy Delete.
fn content<K: Sample>(words: &str) -> K {
    let mut content = json!({
        "metadata": {"name": "c", "annotations": {}, "finalizers": [K::KEYS.finalizer]},
        "spec": {"driver": "d", "deletionPolicy": "Delete", "source": K::volume(),
            K::REFERENCE: {"name": "s", "namespace": "n", "uid": "u"}},
    });
    let status = |ready| json!({K::HANDLE: "h", "readyToUse": ready});
    for word in words.split_whitespace() {
        let (path, value) = match word {
            "given" => ("/spec", json!({"source": K::given()})),
            "unbound" => ("/spec", json!({K::REFERENCE: {"uid": ""}})),
            "retained" => ("/spec", json!({"deletionPolicy": "Retain"})),
            "waiting" => ("", json!({"status": status(false)})),
            "ready" => ("", json!({"status": status(true)})),
            "failed" => {
                let failed = json!({"readyToUse": false, "error": {"message": "no"}});
                ("", json!({"status": failed}))
            }
            "grouped" => ("/status", json!({"volumeGroupSnapshotHandle": "g"})),
            "creating" => (
                "/metadata/annotations",
                json!({K::KEYS.being_created: "yes"}),
            ),
            "deleting" => (
                "/metadata/annotations",
                json!({K::KEYS.being_deleted: "yes"}),
            ),
            "member" => ("/metadata/annotations", json!({GROUP_HANDLE: "yes"})),
            "!" => (
                "/metadata",
                json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            ),
            "released" => ("/metadata", json!({"finalizers": ["other"]})),
            "versioned" => ("/metadata", json!({"resourceVersion": "7"})),
            "labelled" => ("/metadata", json!({"labels": {"managed-by": "n"}})),
            "replaced" => ("/metadata", json!({"uid": "another"})),
            // Only the process knows it.
            "asked" => continue,
            other => panic!("{other}"),
        };
        if word == "given" {
            content["spec"]["source"] = Value::Null;
        }
        json_patch::merge(content.pointer_mut(path).unwrap(), &value);
    }
    serde_json::from_value(content).unwrap()
}

fn step<K: Sample>(words: &str) -> String {
    let is_requested = words.split_whitespace().any(|word| word == "asked");
    match decide(&content::<K>(words), is_requested) {
        Step::Check { handle } => format!("check {handle}"),
        Step::Delete { handle } => format!("delete {handle}"),
        step => format!("{step:?}").to_lowercase(),
    }
}

#[test]
fn next_steps() {
    for (words, expected) in [
        // Contents with volumes as their source.
        ("", "create"),
        ("creating", "create"),
        ("creating failed", "create"),
        ("waiting", "create"),
        ("ready", "rest"),
        ("creating ready", "settle"),
        // Pre-provisioned contents.
        ("given", "check m"),
        ("given unbound", "check m"),
        ("given failed", "check m"),
        ("given waiting", "check h"),
        ("given ready", "rest"),
        // Deleted contents without the snapshot-controller's annotation.
        ("! ready", "rest"),
        ("! given ready", "rest"),
        ("! waiting", "create"),
        // Deleted contents with the annotation.
        ("! deleting ready", "delete h"),
        ("! deleting waiting", "delete h"),
        ("! deleting given ready", "delete h"),
        ("! deleting", "release"),
        ("! deleting failed", "release"),
        ("! deleting retained ready", "release"),
        ("! deleting released retained ready", "rest"),
        ("! deleting released ready", "delete h"),
        // The driver may still create the snapshot.
        ("! deleting creating", "create"),
        ("! deleting creating failed", "create"),
        ("! deleting creating ready", "settle"),
        // A backup of the API server lacks the annotation.
        ("asked", "create"),
        ("! asked", "create"),
        ("! deleting asked", "create"),
        ("! deleting asked failed", "create"),
        ("! deleting asked retained", "create"),
        ("! deleting asked waiting", "delete h"),
        ("! deleting asked retained ready", "release"),
        ("! unbound given asked", "release"),
        // Unbound contents.
        ("! unbound given ready", "delete h"),
        ("! unbound given retained ready", "release"),
        ("! unbound given", "release"),
        ("! unbound ready", "rest"),
        // The annotation without a deletion timestamp.
        ("deleting ready", "rest"),
    ] {
        assert_eq!(step::<VolumeSnapshotContent>(words), expected, "{words}");
        let found = step::<VolumeGroupSnapshotContent>(words);
        assert_eq!(found, expected, "group {words}");
    }
    for (words, expected) in [
        ("member", "rest"),
        ("member failed", "rest"),
        ("member waiting grouped", "check h"),
        ("waiting grouped", "check h"),
        ("member ready grouped", "rest"),
        // Members are deleted with their group.
        ("! deleting member ready grouped", "release"),
    ] {
        assert_eq!(step::<VolumeSnapshotContent>(words), expected, "{words}");
    }
}

#[test]
fn members_of_groups() {
    let reported = json!({"volumeSnapshotInfoList":
        [{"volumeHandle": "v", "snapshotHandle": "x"}, {"snapshotHandle": "y"}]});
    for (words, status, expected) in [
        ("", Value::Null, &[][..]),
        ("", reported.clone(), &["x", "y"]),
        ("given", Value::Null, &["a", "b"]),
        ("given", json!({"volumeSnapshotInfoList": []}), &["a", "b"]),
        ("given", reported, &["x", "y"]),
    ] {
        let mut content: VolumeGroupSnapshotContent = content(words);
        content.status = serde_json::from_value(status).unwrap();
        assert_eq!(members(&content), expected);
    }
}

#[test]
fn changes_that_need_a_reconcile() {
    for (old, new, expected) in [
        ("", "versioned", false),
        ("", "labelled", false),
        ("", "released", false),
        ("", "creating", false),
        ("", "waiting", false),
        ("", "failed", false),
        ("ready", "failed", false),
        ("", "ready", true),
        ("", "replaced", true),
        ("", "!", true),
        ("", "deleting", true),
        ("", "unbound", true),
        ("", "retained", true),
    ] {
        let [was, is] = [old, new].map(content::<VolumeSnapshotContent>);
        assert_eq!(matters(&was, &is), expected, "{old}: {new}");
        let [was, is] = [old, new].map(content::<VolumeGroupSnapshotContent>);
        assert_eq!(matters(&was, &is), expected, "group {old}: {new}");
    }
    let [was, is] = ["waiting", "waiting grouped"].map(content::<VolumeSnapshotContent>);
    assert!(matters(&was, &is));
}
