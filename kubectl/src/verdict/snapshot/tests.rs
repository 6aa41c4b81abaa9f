use serde_json::{Value, json};

use super::*;
use crate::test_objects::read;
use crate::verdict::testing::{NOW, ago, warning};

#[test]
fn snapshots() {
    let snapshot = |age: u64, status: Value| {
        json!({
            "metadata": {"name": "s", "uid": "s", "creationTimestamp": ago(age)},
            "spec": {"source": {}}, "status": status,
        })
    };
    let content = |status: Value| {
        json!({
            "metadata": {"name": "c"},
            "spec": {
                "driver": "d", "deletionPolicy": "Delete", "source": {}, "volumeSnapshotRef": {},
            },
            "status": status,
        })
    };
    let error = || json!({"error": {"message": "full", "time": ago(6)}});
    let new = |age| snapshot(age, Value::Null);
    let absent = "500s: not taken yet; does a snapshot controller run in the cluster?";
    let unexplained = "500s: not taken yet, and no event says why; see the log of hostloop's pods";
    let deleted = |age: u64| {
        let mut snapshot = snapshot(900, json!({"readyToUse": true}));
        snapshot["metadata"]["deletionTimestamp"] = json!(ago(age));
        snapshot["metadata"]["finalizers"] = json!(["a", "b"]);
        snapshot
    };
    let failed = vec![warning("s", "SnapshotCreationFailed", 2)];
    for (snapshot, content, events, stuck) in [
        (new(5), Value::Null, vec![], None),
        (new(500), Value::Null, vec![], Some(absent)),
        (
            snapshot(500, json!({"readyToUse": true})),
            Value::Null,
            vec![],
            None,
        ),
        (
            snapshot(500, json!({"readyToUse": false})),
            Value::Null,
            vec![],
            Some(unexplained),
        ),
        (snapshot(5, error()), Value::Null, vec![], Some("6s: full")),
        (new(5), content(error()), vec![], Some("6s: full")),
        (new(5), content(json!({"readyToUse": true})), vec![], None),
        (
            new(5),
            Value::Null,
            failed,
            Some("2s: SnapshotCreationFailed: why"),
        ),
        (Value::Null, content(json!({})), vec![], None),
        (deleted(5), Value::Null, vec![], None),
        (
            deleted(500),
            Value::Null,
            vec![],
            Some("500s: its deletion waits for the finalizers a, b"),
        ),
    ] {
        let said = format!("{snapshot} {content}");
        let snapshot: Option<VolumeSnapshot> = read(snapshot);
        let content: Option<VolumeSnapshotContent> = read(content);
        let events: Vec<Event> = events.into_iter().map(read).collect();
        let now = NOW * 1_000_000_000;
        let judged = snapshot_stuck(snapshot.as_ref(), content.as_ref(), &events, now);
        assert_eq!(judged.map(in_words).as_deref(), stuck, "{said}");
    }
}

#[test]
fn groups() {
    let group = |age: u64, status: Value| {
        json!({
            "metadata": {"name": "g", "uid": "g", "creationTimestamp": ago(age)},
            "spec": {"source": {}}, "status": status,
        })
    };
    let failed = || vec![read(warning("g", "GroupSnapshotCreationFailed", 2))];
    let unexplained = "500s: not taken yet, and no event says why; see the log of hostloop's pods";
    for (group, events, stuck) in [
        (group(5, Value::Null), vec![], None),
        (group(500, json!({"readyToUse": true})), failed(), None),
        (group(500, json!({})), vec![], Some(unexplained)),
        (
            group(5, json!({"error": {"message": "full", "time": ago(6)}})),
            failed(),
            Some("6s: full"),
        ),
        (
            group(5, Value::Null),
            failed(),
            Some("2s: GroupSnapshotCreationFailed: why"),
        ),
    ] {
        let said = group.to_string();
        let now = NOW * 1_000_000_000;
        let judged = group_stuck(&read(group), None, &events, now);
        assert_eq!(judged.map(in_words).as_deref(), stuck, "{said}");
    }
}

/// `SINCE: REASON`, with `since` in seconds ago.
fn in_words(stuck: Stuck) -> String {
    let since = NOW - stuck.since_ns.unwrap_or_default() / 1_000_000_000;
    format!("{since}s: {}", stuck.why)
}
