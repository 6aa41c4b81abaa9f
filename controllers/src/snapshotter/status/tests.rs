use super::*;
use crate::testing::read;

fn reported(ready: bool) -> csi::Snapshot {
    csi::Snapshot {
        snapshot_id: "h".to_owned(),
        source_volume_id: "v".to_owned(),
        size_bytes: 10,
        ready_to_use: ready,
        ..csi::Snapshot::default()
    }
}

/// Sets fields of an object. A field may become null.
fn set(mut object: Value, fields: Value) -> Value {
    for (field, value) in fields.as_object().unwrap() {
        object[field] = value.clone();
    }
    object
}

#[test]
fn news_of_snapshots() {
    let mut timed = reported(true);
    let moment = timed.creation_time.get_or_insert_default();
    (moment.seconds, moment.nanos) = (1_700_000_000, 7);
    let sizeless = csi::Snapshot {
        size_bytes: 0,
        ..reported(true)
    };
    let grouped = csi::Snapshot {
        group_snapshot_id: "g".to_owned(),
        ..reported(true)
    };
    let known = json!({"snapshotHandle": "h", "creationTime": 5, "restoreSize": 10,
        "readyToUse": false, "error": {"message": "no"}});
    let failed = json!({"readyToUse": false, "error": {"message": "no"}});
    let news = |fields| set(json!({"snapshotHandle": "h", "creationTime": 0}), fields);
    let sized = |fields| set(news(json!({"restoreSize": 10})), fields);
    let moment = 1_700_000_000_000_000_007_i64;
    let in_group = json!({"readyToUse": true, "error": null, "volumeGroupSnapshotHandle": "g"});
    for (old, reported, expected) in [
        (
            Value::Null,
            reported(false),
            sized(json!({"readyToUse": false})),
        ),
        (
            Value::Null,
            timed,
            sized(json!({"creationTime": moment, "readyToUse": true})),
        ),
        (Value::Null, sizeless, news(json!({"readyToUse": true}))),
        (
            failed.clone(),
            reported(true),
            sized(json!({"readyToUse": true, "error": null})),
        ),
        // A snapshot that is not ready keeps its last error.
        (failed, reported(false), sized(json!({}))),
        (known.clone(), reported(false), Value::Null),
        (
            known.clone(),
            reported(true),
            json!({"readyToUse": true, "error": null}),
        ),
        (known, grouped, in_group),
    ] {
        let status: Option<VolumeSnapshotContentStatus> = read(old.clone());
        let new = of_snapshot(status.as_ref(), &reported).unwrap_or_default();
        assert_eq!(new, expected, "{old}");
    }
}

#[test]
fn news_of_group_snapshots() {
    let group = |ready| {
        let mut group = csi::VolumeGroupSnapshot {
            group_snapshot_id: "g".to_owned(),
            snapshots: vec![reported(ready), csi::Snapshot::default()],
            ready_to_use: ready,
            ..csi::VolumeGroupSnapshot::default()
        };
        let moment = group.creation_time.get_or_insert_default();
        (moment.seconds, moment.nanos) = (1_700_000_000, 7);
        let moment = group.snapshots[0].creation_time.get_or_insert_default();
        (moment.seconds, moment.nanos) = (1, 1);
        group
    };
    let infos = |ready| {
        json!([
            {"volumeHandle": "v", "snapshotHandle": "h", "creationTime": 1_000_000_001,
                "readyToUse": ready, "restoreSize": 10},
            {"volumeHandle": "", "snapshotHandle": "", "readyToUse": false},
        ])
    };
    let taken = "2023-11-14T22:13:20Z";
    let news = |fields| {
        set(
            json!({"volumeGroupSnapshotHandle": "g", "creationTime": taken}),
            fields,
        )
    };
    let known = news(json!({"readyToUse": false, "volumeSnapshotInfoList": infos(false)}));
    let failed = json!({"readyToUse": false, "error": {"message": "no"}});
    let timeless = csi::VolumeGroupSnapshot {
        creation_time: None,
        ..group(true)
    };
    let of_epoch = news(json!({"creationTime": "1970-01-01T00:00:00Z", "readyToUse": true}));
    for (old, reported, members, expected) in [
        (Value::Null, group(false), true, known.clone()),
        (
            failed,
            group(true),
            false,
            news(json!({"readyToUse": true, "error": null})),
        ),
        (Value::Null, timeless, false, of_epoch),
        (known.clone(), group(false), true, Value::Null),
        (known, group(true), true, json!({"readyToUse": true})),
    ] {
        let status: Option<VolumeGroupSnapshotContentStatus> = read(old.clone());
        let members = if members {
            reported.snapshots.clone()
        } else {
            Vec::new()
        };
        let new = of_group(status.as_ref(), &reported, &members).unwrap_or_default();
        assert_eq!(new, expected, "{old}");
    }
}

#[test]
fn a_known_failure_is_not_written_again() {
    let now = Timestamp::UNIX_EPOCH;
    let said = |message: &str| -> SnapshotError { read(json!({"message": message})) };
    let new = json!({"readyToUse": false,
        "error": {"time": "1970-01-01T00:00:00Z", "message": "no"}});
    for (old, expected) in [
        (None, Some(new.clone())),
        (Some(SnapshotError::default()), Some(new.clone())),
        (Some(said("other")), Some(new)),
        (Some(said("no")), None),
    ] {
        assert_eq!(of_failure(old.as_ref(), "no", now), expected);
    }
}

/// The admission policies accept no longer message, and an unchanged one is not written again.
#[test]
fn a_long_message_is_cut() {
    let now = Timestamp::UNIX_EPOCH;
    let long = "x".repeat(message::MAX_STATUS + 1);
    let written = of_failure(None, &long, now).expect("a new error");
    let error: SnapshotError = serde_json::from_value(written["error"].clone()).expect("an error");
    let text = error.message.clone().expect("a message");
    assert!(text.len() <= message::MAX_STATUS && text.ends_with("x…"));
    assert_eq!(of_failure(Some(&error), &long, now), None);
}
