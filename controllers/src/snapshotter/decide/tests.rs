use serde_json::{Value, json};

use super::*;
use crate::snapshots::VolumeSnapshotContent;
use crate::snapshots::content::{ContentKeys, GROUP, GROUP_HANDLE, SINGLE};

fn check(handle: &str) -> Step {
    Step::Check {
        handle: handle.to_owned(),
    }
}

fn delete(handle: &str) -> Step {
    Step::Delete {
        handle: handle.to_owned(),
    }
}

/// Metadata with annotations by the last part of their keys; `!` sets a deletion timestamp.
fn metadata(keys: &ContentKeys, words: &str) -> Value {
    let mut metadata = json!({"name": "c", "annotations": {}, "finalizers": [keys.finalizer]});
    for word in words.split_whitespace() {
        let annotation = match word {
            "!" => {
                metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                continue;
            }
            "free" => {
                metadata["finalizers"] = json!(["other"]);
                continue;
            }
            "creating" => keys.being_created,
            "deleting" => keys.being_deleted,
            "member" => GROUP_HANDLE,
            other => panic!("{other}"),
        };
        metadata["annotations"][annotation] = json!("yes");
    }
    metadata
}

fn content(words: &str, uid: &str, policy: &str, source: Value, status: Value) -> Value {
    json!({
        "metadata": metadata(&SINGLE, words),
        "spec": {"driver": "d", "deletionPolicy": policy, "source": source,
            "volumeSnapshotRef": {"name": "s", "namespace": "n", "uid": uid}},
        "status": status,
    })
}

#[test]
fn what_contents_need() {
    let volume = || json!({"volumeHandle": "v"});
    let made = || json!({"snapshotHandle": "m"});
    let none = || Value::Null;
    let waiting = || json!({"snapshotHandle": "h", "readyToUse": false});
    let ready = || json!({"snapshotHandle": "h", "readyToUse": true});
    let failed = || json!({"readyToUse": false, "error": {"message": "no"}});
    let grouped = |ready: bool| json!({"snapshotHandle": "h", "readyToUse": ready, "volumeGroupSnapshotHandle": "g"});
    for (words, uid, policy, source, status, step) in [
        // Contents with a volume as their source.
        ("", "u", "Delete", volume(), none(), Step::Create),
        ("creating", "u", "Delete", volume(), none(), Step::Create),
        ("creating", "u", "Delete", volume(), failed(), Step::Create),
        ("", "u", "Delete", volume(), waiting(), Step::Create),
        ("", "u", "Delete", volume(), ready(), Step::Rest),
        ("creating", "u", "Delete", volume(), ready(), Step::Settle),
        // Pre-provisioned contents.
        ("", "u", "Delete", made(), none(), check("m")),
        ("", "", "Delete", made(), none(), check("m")),
        ("", "u", "Delete", made(), failed(), check("m")),
        ("", "u", "Delete", made(), waiting(), check("h")),
        ("", "u", "Delete", made(), ready(), Step::Rest),
        // Members of groups.
        ("member", "u", "Delete", volume(), none(), Step::Rest),
        ("member", "u", "Delete", volume(), failed(), Step::Rest),
        (
            "member",
            "u",
            "Delete",
            volume(),
            grouped(false),
            check("h"),
        ),
        ("", "u", "Delete", volume(), grouped(false), check("h")),
        ("member", "u", "Delete", volume(), grouped(true), Step::Rest),
        // Deleted contents without the snapshot-controller's annotation.
        ("!", "u", "Delete", volume(), ready(), Step::Rest),
        ("!", "u", "Delete", made(), ready(), Step::Rest),
        ("!", "u", "Delete", volume(), waiting(), Step::Create),
        // Deleted contents with the annotation.
        ("! deleting", "u", "Delete", volume(), ready(), delete("h")),
        (
            "! deleting",
            "u",
            "Delete",
            volume(),
            waiting(),
            delete("h"),
        ),
        ("! deleting", "u", "Delete", made(), ready(), delete("h")),
        ("! deleting", "u", "Delete", volume(), none(), Step::Release),
        (
            "! deleting",
            "u",
            "Delete",
            volume(),
            failed(),
            Step::Release,
        ),
        (
            "! deleting",
            "u",
            "Retain",
            volume(),
            ready(),
            Step::Release,
        ),
        (
            "! deleting free",
            "u",
            "Retain",
            volume(),
            ready(),
            Step::Rest,
        ),
        (
            "! deleting free",
            "u",
            "Delete",
            volume(),
            ready(),
            delete("h"),
        ),
        // The driver may still create the snapshot.
        (
            "! deleting creating",
            "u",
            "Delete",
            volume(),
            none(),
            Step::Create,
        ),
        (
            "! deleting creating",
            "u",
            "Delete",
            volume(),
            failed(),
            Step::Create,
        ),
        (
            "! deleting creating",
            "u",
            "Delete",
            volume(),
            ready(),
            Step::Settle,
        ),
        // Members are deleted with their group.
        (
            "! deleting member",
            "u",
            "Delete",
            volume(),
            grouped(true),
            Step::Release,
        ),
        // Unbound contents.
        ("!", "", "Delete", made(), ready(), delete("h")),
        ("!", "", "Retain", made(), ready(), Step::Release),
        ("!", "", "Delete", made(), none(), Step::Release),
        ("!", "", "Delete", volume(), ready(), Step::Rest),
        // Contents with the annotation but no deletion timestamp.
        ("deleting", "u", "Delete", volume(), ready(), Step::Rest),
    ] {
        let what = content(words, uid, policy, source, status);
        let content: VolumeSnapshotContent = serde_json::from_value(what.clone()).unwrap();
        assert_eq!(next_step(&content), step, "{what}");
    }
}

fn group_content(words: &str, uid: &str, policy: &str, source: Value, status: Value) -> Value {
    json!({
        "metadata": metadata(&GROUP, words),
        "spec": {"driver": "d", "deletionPolicy": policy, "source": source,
            "volumeGroupSnapshotRef": {"name": "s", "namespace": "n", "uid": uid}},
        "status": status,
    })
}

#[test]
fn what_group_contents_need() {
    let volumes = || json!({"volumeHandles": ["v", "w"]});
    let made = || {
        json!({"groupSnapshotHandles":
            {"volumeGroupSnapshotHandle": "m", "volumeSnapshotHandles": ["a", "b"]}})
    };
    let none = || Value::Null;
    let waiting = || json!({"volumeGroupSnapshotHandle": "h", "readyToUse": false});
    let ready = || json!({"volumeGroupSnapshotHandle": "h", "readyToUse": true});
    let failed = || json!({"readyToUse": false, "error": {"message": "no"}});
    for (words, uid, policy, source, status, step) in [
        ("", "u", "Delete", volumes(), none(), Step::Create),
        ("creating", "u", "Delete", volumes(), failed(), Step::Create),
        ("", "u", "Delete", volumes(), waiting(), Step::Create),
        ("", "u", "Delete", volumes(), ready(), Step::Rest),
        ("creating", "u", "Delete", volumes(), ready(), Step::Settle),
        ("", "u", "Delete", made(), none(), check("m")),
        ("", "u", "Delete", made(), waiting(), check("h")),
        ("", "u", "Delete", made(), ready(), Step::Rest),
        ("!", "u", "Delete", volumes(), ready(), Step::Rest),
        ("! deleting", "u", "Delete", volumes(), ready(), delete("h")),
        (
            "! deleting",
            "u",
            "Delete",
            volumes(),
            none(),
            Step::Release,
        ),
        (
            "! deleting",
            "u",
            "Retain",
            volumes(),
            ready(),
            Step::Release,
        ),
        (
            "! deleting free",
            "u",
            "Retain",
            volumes(),
            ready(),
            Step::Rest,
        ),
        (
            "! deleting creating",
            "u",
            "Delete",
            volumes(),
            none(),
            Step::Create,
        ),
        ("!", "", "Delete", made(), ready(), delete("h")),
        ("!", "u", "Delete", made(), ready(), Step::Rest),
    ] {
        let what = group_content(words, uid, policy, source, status);
        let content: VolumeGroupSnapshotContent = serde_json::from_value(what.clone()).unwrap();
        assert_eq!(next_step(&content), step, "{what}");
    }
}

#[test]
fn members_of_groups() {
    let volumes = json!({"volumeHandles": ["v", "w"]});
    let made = json!({"groupSnapshotHandles":
        {"volumeGroupSnapshotHandle": "m", "volumeSnapshotHandles": ["a", "b"]}});
    let reported = json!({"volumeSnapshotInfoList":
        [{"volumeHandle": "v", "snapshotHandle": "x"}, {"snapshotHandle": "y"}]});
    for (source, status, expected) in [
        (&volumes, Value::Null, vec![]),
        (&volumes, reported.clone(), vec!["x", "y"]),
        (&made, Value::Null, vec!["a", "b"]),
        (&made, json!({"volumeSnapshotInfoList": []}), vec!["a", "b"]),
        (&made, reported.clone(), vec!["x", "y"]),
    ] {
        let content = group_content("", "u", "Delete", source.clone(), status);
        let content: VolumeGroupSnapshotContent = serde_json::from_value(content).unwrap();
        assert_eq!(members(&content), expected);
    }
}

#[test]
fn changes_worth_a_look() {
    let source = || json!({"volumeHandle": "v"});
    let plain = content("", "u", "Delete", source(), Value::Null);
    let status = |status: Value| content("", "u", "Delete", source(), status);
    let mut versioned = plain.clone();
    versioned["metadata"]["resourceVersion"] = json!("7");
    let mut labelled = plain.clone();
    labelled["metadata"]["labels"] = json!({"snapshot.storage.kubernetes.io/managed-by": "n"});
    let mut replaced = plain.clone();
    replaced["metadata"]["uid"] = json!("another");
    let waiting = status(json!({"snapshotHandle": "h", "readyToUse": false}));
    let failed = status(json!({"readyToUse": false, "error": {"message": "no"}}));
    let ready = status(json!({"snapshotHandle": "h", "readyToUse": true}));
    let grouped = status(json!({"snapshotHandle": "h", "volumeGroupSnapshotHandle": "g"}));
    for (old, new, expected) in [
        (&plain, versioned, false),
        (&plain, labelled, false),
        (
            &plain,
            content("free", "u", "Delete", source(), Value::Null),
            false,
        ),
        (
            &plain,
            content("creating", "u", "Delete", source(), Value::Null),
            false,
        ),
        (&plain, waiting, false),
        (&plain, failed.clone(), false),
        (&ready, failed, false),
        (&plain, ready.clone(), true),
        (&plain, grouped, true),
        (&plain, replaced, true),
        (
            &plain,
            content("!", "u", "Delete", source(), Value::Null),
            true,
        ),
        (
            &plain,
            content("deleting", "u", "Delete", source(), Value::Null),
            true,
        ),
        (
            &plain,
            content("", "", "Delete", source(), Value::Null),
            true,
        ),
        (
            &plain,
            content("", "u", "Retain", source(), Value::Null),
            true,
        ),
    ] {
        let read = |value: &Value| -> VolumeSnapshotContent {
            serde_json::from_value(value.clone()).unwrap()
        };
        assert_eq!(matters(&read(old), &read(&new)), expected, "{new}");
    }
}

#[test]
fn changes_of_groups_worth_a_look() {
    let source = || json!({"volumeHandles": ["v"]});
    let of = |words: &str, status: Value| -> VolumeGroupSnapshotContent {
        let content = group_content(words, "u", "Delete", source(), status);
        serde_json::from_value(content).unwrap()
    };
    let plain = of("", Value::Null);
    for (new, expected) in [
        (of("creating free", Value::Null), false),
        (
            of(
                "",
                json!({"volumeGroupSnapshotHandle": "h", "readyToUse": false}),
            ),
            false,
        ),
        (
            of(
                "",
                json!({"volumeGroupSnapshotHandle": "h", "readyToUse": true}),
            ),
            true,
        ),
        (of("!", Value::Null), true),
        (of("deleting", Value::Null), true),
    ] {
        assert_eq!(matters(&plain, &new), expected, "{new:?}");
    }
}
