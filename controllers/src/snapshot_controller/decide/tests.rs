//! Helpers for tests of both kinds, and the test cases that hold for both.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::snapshot_controller::group::{self, Groups};
use crate::snapshot_controller::snapshot::{self, Snapshots};
use crate::testing::{read, with};

pub(crate) const DELETED: &str = "2026-01-01T00:00:00Z";

pub(crate) fn of<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(read(value))
}

/// A class of the driver, with these changes merged.
pub(crate) fn class<T: serde::de::DeserializeOwned>(name: &str, changes: Value) -> Arc<T> {
    let class = json!({"metadata": {"name": name}, "driver": "csi.example",
        "deletionPolicy": "Delete"});
    of(with(class, &changes))
}

/// Checks the short form of the next step; `own` formats steps that only this kind has.
#[track_caller]
pub(crate) fn expect<K: SnapshotKind>(
    facts: &Facts<K>,
    expected: &str,
    own: impl FnOnce(K::OwnStep) -> String,
) {
    let step = match decide(facts) {
        Step::Done => "done".to_owned(),
        Step::Wait(_) => "wait".to_owned(),
        Step::BlockDeletion(why) => format!("block deletion: {why}"),
        Step::SetClass(class) => format!("class {class}"),
        Step::Finalizers(list) => {
            let short = list.iter().map(|name| name.split('/').nth(1).unwrap());
            let short: Vec<_> = short.collect();
            format!("finalizers {}: {}", list.len(), short.join(" "))
        }
        Step::Create(content) => {
            let content = serde_json::to_value(content).unwrap();
            format!("create of {}", content["spec"]["source"])
        }
        Step::Bind(class) => format!("bind {}", class.unwrap_or_default()),
        Step::Status(change) => format!("status {}", change.patch),
        Step::Mark => "mark".to_owned(),
        Step::DeleteContent => "delete content".to_owned(),
        Step::Fail(failure) => {
            let ready = if failure.unready {
                ""
            } else {
                " (still ready)"
            };
            format!("{}{ready}: {}", failure.reason, failure.message)
        }
        Step::Own(step) => own(step),
    };
    assert!(step.contains(expected), "{step}\nnot {expected}");
}

/// A kind with sample objects, called `snap` in the namespace `team`. Test cases use the names of
/// VolumeSnapshots.
trait Sample: SnapshotKind {
    /// Facts about a snapshot without a content.
    fn facts(snapshot: Value) -> Facts<Self>;
    fn snapshot() -> Value;
    /// A content that is bound to the snapshot.
    fn content() -> Value;
    /// The source of a pre-provisioned content.
    fn handles() -> Value;
    /// The spec field that selects volumes.
    const SELECTOR: &'static str;
    /// Translates a text about VolumeSnapshots to one about this kind.
    fn translate(text: &str) -> String;
    fn expect(facts: &Facts<Self>, expected: &str);

    fn value(value: &Value) -> Value {
        serde_json::from_str(&Self::translate(&value.to_string())).unwrap()
    }
}

impl Sample for Snapshots {
    const SELECTOR: &'static str = "persistentVolumeClaimName";

    fn facts(snapshot: Value) -> Facts<Self> {
        snapshot::tests::facts(snapshot)
    }

    fn snapshot() -> Value {
        snapshot::tests::snapshot(json!({}))
    }

    fn content() -> Value {
        snapshot::tests::content(json!({}))
    }

    fn handles() -> Value {
        json!({"volumeHandle": null, "snapshotHandle": "s-1"})
    }

    fn translate(text: &str) -> String {
        text.to_owned()
    }

    fn expect(facts: &Facts<Self>, expected: &str) {
        snapshot::tests::expect(facts, expected);
    }
}

impl Sample for Groups {
    const SELECTOR: &'static str = "selector";

    fn facts(group: Value) -> Facts<Self> {
        group::tests::facts(group)
    }

    fn snapshot() -> Value {
        group::tests::group(json!({}))
    }

    fn content() -> Value {
        group::tests::content(json!({}))
    }

    fn handles() -> Value {
        json!({"volumeHandles": null, "groupSnapshotHandles":
            {"volumeGroupSnapshotHandle": "gs", "volumeSnapshotHandles": ["s"]}})
    }

    fn translate(text: &str) -> String {
        text.replace("SnapshotClassFailed", "GroupSnapshotClassFailed")
            .replace("SnapshotContentM", "GroupSnapshotContentM")
            .replace("SnapshotM", "GroupSnapshotM")
            .replace("SnapshotV", "GroupSnapshotV")
            .replace("olumeSnapshot", "olumeGroupSnapshot")
            .replace("olumeGroupSnapshotHandles", "olumeSnapshotHandles")
            .replace(
                "default snapshot class of",
                "default group snapshot class of",
            )
            .replace(
                "snapshot.storage.kubernetes.io/is-default",
                "groupsnapshot.storage.kubernetes.io/is-default",
            )
    }

    fn expect(facts: &Facts<Self>, expected: &str) {
        group::tests::expect(facts, expected);
    }
}

/// Runs a test case for one kind: changes of the snapshot, changes of its content if it exists, and
/// the next step.
#[track_caller]
fn run<K: Sample>(snapshot: &Value, content: Option<&Value>, expected: &str) {
    let mut facts = K::facts(with(K::snapshot(), K::value(snapshot)));
    facts.content = content.map(|content| of(with(K::content(), K::value(content))));
    K::expect(&facts, &K::translate(expected));
}

fn without_a_content<K: Sample>() {
    let given = "volumeSnapshotContentName";
    let class = |name: Value| json!({"spec": {"volumeSnapshotClassName": name}});
    let source = |source: Value| json!({"spec": {"source": source}});
    let ready = json!({"status": {"readyToUse": true, "boundVolumeSnapshotContentName": "c"}});
    let no_class = "GetSnapshotClassFailed (still ready): there is no VolumeSnapshotClass none";
    let no_default =
        "SetDefaultSnapshotClassFailed (still ready): cannot find default snapshot class of";
    let no_content = "SnapshotContentMissing: there is no VolumeSnapshotContent c";
    for (snapshot, expected) in [
        (class(json!("none")), no_class),
        (class(Value::Null), no_default),
        (
            source(json!({K::SELECTOR: null})),
            "SnapshotValidationError: exactly one",
        ),
        (
            source(json!({given: "c"})),
            "SnapshotValidationError: exactly one",
        ),
        (source(json!({K::SELECTOR: null, given: "c"})), no_content),
        (
            ready,
            "SnapshotContentMissing: its VolumeSnapshotContent is missing",
        ),
    ] {
        run::<K>(&snapshot, None, expected);
    }
}

fn with_a_content<K: Sample>() {
    let reference = |changes: Value| json!({"spec": {"volumeSnapshotRef": changes}});
    let name = K::content()["metadata"]["name"].clone();
    let status = |ready: bool| json!({"boundVolumeSnapshotContentName": name, "readyToUse": ready});
    let (new, bound) = (json!({}), json!({"status": status(false)}));
    let ready = json!({"status": status(true)});
    let taken = json!({"status": {"snapshotHandle": "s", "volumeGroupSnapshotHandle": "g"}});
    let others = with(taken.clone(), reference(json!({"uid": "other"})));
    // A missing class does not block a snapshot that has its content.
    let unclassed = with(
        bound.clone(),
        json!({"spec": {"volumeSnapshotClassName": "gone"}}),
    );
    let mismatch = json!({"spec": {"source": K::handles()}});
    let first = format!("status {}", status(false));
    for (snapshot, content, expected) in [
        (&new, json!({}), first.as_str()),
        (&bound, json!({}), "done"),
        (&unclassed, json!({}), "done"),
        (&new, mismatch, "SnapshotContentMismatch"),
        (
            &new,
            reference(json!({"uid": "other"})),
            "SnapshotContentMisbound",
        ),
        (
            &new,
            reference(json!({"uid": null})),
            "SnapshotContentMisbound",
        ),
        (
            &new,
            reference(json!({"namespace": "n"})),
            "SnapshotContentMisbound",
        ),
        (&ready, taken, "done"),
        (&ready, others, "SnapshotMisbound"),
        // The API server went back to a backup from before it was taken.
        (&ready, json!({}), "status {\"readyToUse\":false}"),
    ] {
        run::<K>(snapshot, Some(&content), expected);
    }
}

fn with_a_content_made_beforehand<K: Sample>() {
    let given = json!({"source": K::handles(), "volumeSnapshotRef": {"uid": null}});
    let uid = K::snapshot()["metadata"]["uid"].clone();
    let bound = json!({"volumeSnapshotRef": {"uid": uid}});
    let classed = json!({"volumeSnapshotRef": {"uid": uid}, "volumeSnapshotClassName": "x"});
    let of_volumes = K::content()["spec"]["source"].clone();
    let mut mismatch = json!({"source": K::handles()});
    for (_, handle) in mismatch["source"].as_object_mut().unwrap() {
        *handle = Value::Null;
    }
    let mismatch = with(mismatch, json!({"source": of_volumes}));
    let reference = |changes: Value| json!({"volumeSnapshotRef": changes});
    for (class, changes, expected) in [
        (json!("fast"), json!({}), "bind fast"),
        (Value::Null, json!({}), "bind "),
        (json!("gone"), json!({}), "GetSnapshotClassFailed"),
        (json!("fast"), bound.clone(), "bind fast"),
        (Value::Null, bound, "status"),
        (json!("fast"), classed, "status"),
        (json!("fast"), mismatch, "SnapshotContentMismatch"),
        (
            json!("fast"),
            reference(json!({"name": "other"})),
            "SnapshotContentMisbound",
        ),
        (
            json!("fast"),
            reference(json!({"uid": "other"})),
            "SnapshotContentMisbound",
        ),
    ] {
        let source = json!({K::SELECTOR: null, "volumeSnapshotContentName": "c"});
        let snapshot = json!({"spec": {"source": source, "volumeSnapshotClassName": class}});
        let content = with(given.clone(), &changes);
        run::<K>(&snapshot, Some(&json!({"spec": content})), expected);
    }
}

fn default_classes<K: Sample>() {
    let key = "snapshot.storage.kubernetes.io/is-default-class";
    let class = |name: &str, driver: &str, default: &str| {
        of(K::value(
            &json!({"metadata": {"name": name, "annotations": {key: default}},
            "driver": driver, "deletionPolicy": "Delete"}),
        ))
    };
    let (own, other) = ("csi.example", "other.example");
    let two = "2 default snapshot classes were found of driver csi.example";
    let none = "cannot find default snapshot class of driver csi.example";
    for (fast, slow, expected) in [
        ((own, "true"), (own, ""), "class fast"),
        ((other, "true"), (own, "true"), "class slow"),
        ((own, "true"), (own, "true"), two),
        ((own, "false"), (other, "true"), none),
    ] {
        let unclassed = K::value(&json!({"spec": {"volumeSnapshotClassName": null}}));
        let mut facts = K::facts(with(K::snapshot(), &unclassed));
        facts.classes = vec![class("fast", fast.0, fast.1), class("slow", slow.0, slow.1)];
        K::expect(&facts, &K::translate(expected));
    }
}

#[test]
fn both_kinds() {
    without_a_content::<Snapshots>();
    without_a_content::<Groups>();
    with_a_content::<Snapshots>();
    with_a_content::<Groups>();
    with_a_content_made_beforehand::<Snapshots>();
    with_a_content_made_beforehand::<Groups>();
    default_classes::<Snapshots>();
    default_classes::<Groups>();
}
