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
    ] {
        let said = format!("{snapshot} {content}");
        let snapshot: Option<VolumeSnapshot> = read(snapshot);
        let content: Option<VolumeSnapshotContent> = read(content);
        let events: Vec<Event> = events.into_iter().map(read).collect();
        let now = NOW * 1_000_000_000;
        let judged = snapshot_stuck(snapshot.as_ref(), content.as_ref(), &events, now);
        let judged = judged.map(|stuck| {
            let since = NOW - stuck.since_ns.unwrap_or_default() / 1_000_000_000;
            format!("{since}s: {}", stuck.why)
        });
        assert_eq!(judged.as_deref(), stuck, "{said}");
    }
}
