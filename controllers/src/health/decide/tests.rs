use serde_json::{Value, json};

use super::*;

fn finding(reason: &str, message: &str) -> Finding {
    Finding {
        status: "Degraded",
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

fn abnormal(text: &str) -> Option<Change> {
    Some(Change::Abnormal(text.to_owned()))
}

#[test]
fn a_condition_is_reported_when_it_changes() {
    let full = |percent: &str| vec![finding("Full", percent)];
    let both = || vec![finding("Full", "91%"), finding("Slow", "")];
    let repeat = REPEAT.as_secs();
    // Case, time in seconds, findings, and the expected change.
    let steps: [(&str, u64, Vec<Finding>, Option<Change>); 12] = [
        ("well at first", 0, vec![], None),
        ("ill", 1, full("90%"), abnormal("Degraded: Full: 90%")),
        ("as it was", 2, full("90%"), None),
        ("the same, in other words", 3, full("91%"), None),
        (
            "worse",
            4,
            both(),
            abnormal("Degraded: Full: 91%; Degraded: Slow"),
        ),
        (
            "in another order",
            5,
            both().into_iter().rev().collect(),
            None,
        ),
        ("still", 3 + repeat, both(), None),
        (
            "for long",
            4 + repeat,
            both(),
            abnormal("Degraded: Full: 91%; Degraded: Slow"),
        ),
        (
            "better",
            5 + repeat,
            full("80%"),
            abnormal("Degraded: Full: 80%"),
        ),
        ("well again", 6 + repeat, vec![], Some(Change::Normal)),
        ("still well", 7 + repeat, vec![], None),
        (
            "ill again",
            8 + repeat,
            full("90%"),
            abnormal("Degraded: Full: 90%"),
        ),
    ];
    let start = Instant::now();
    let mut known = None;
    for (what, at, found, expected) in steps {
        let now = start + Duration::from_secs(at);
        assert_eq!(judge_one(&mut known, &found, now), expected, "{what}");
        let findings = known.as_ref().map(|known| known.findings.clone());
        assert_eq!(findings.unwrap_or_default(), found, "{what}");
    }
}

fn volume(uid: &str, handle: &str) -> Volume {
    let claim = ObjectReference {
        name: Some(format!("claim-{uid}")),
        ..ObjectReference::default()
    };
    Volume {
        uid: uid.to_owned(),
        name: format!("pv-{uid}"),
        handle: handle.to_owned(),
        claim,
    }
}

#[test]
fn claims_get_the_events_of_their_volumes() {
    let ill = || vec![finding("Full", "")];
    type Found = Vec<(&'static str, Vec<Finding>)>;
    type Reported = &'static [(&'static str, bool)];
    type Step = (
        &'static str,
        Vec<Volume>,
        Found,
        Reported,
        &'static [&'static str],
    );
    // Case, volumes, findings by handle, expected events by claim, and the volumes unhealthy after
    // that.
    let steps: [Step; 7] = [
        (
            "all well",
            vec![volume("a", "1"), volume("b", "2")],
            vec![("1", vec![]), ("2", vec![])],
            &[],
            &[],
        ),
        (
            "one ill",
            vec![volume("a", "1"), volume("b", "2")],
            vec![("1", ill()), ("2", vec![])],
            &[("claim-a", false)],
            &["a"],
        ),
        (
            "not answered for",
            vec![volume("a", "1"), volume("b", "2")],
            vec![],
            &[],
            &["a"],
        ),
        (
            "two of one handle",
            vec![volume("a", "1"), volume("c", "1")],
            vec![("1", ill())],
            &[("claim-c", false)],
            &["a", "c"],
        ),
        (
            "one gone, one well again",
            vec![volume("c", "1")],
            vec![("1", vec![])],
            &[("claim-c", true)],
            &[],
        ),
        (
            "unknown ones do not matter",
            vec![volume("c", "1")],
            vec![("9", ill())],
            &[],
            &[],
        ),
        (
            "recreated",
            vec![volume("d", "1")],
            vec![("1", vec![])],
            &[],
            &[],
        ),
    ];
    let mut known = Known::new();
    for (what, volumes, found, reported, left) in steps {
        let found = found
            .into_iter()
            .map(|(handle, found)| (handle.to_owned(), found))
            .collect();
        let changes = judge(&mut known, &volumes, &found, Instant::now());
        let names = changes
            .iter()
            .map(|(claim, change)| (claim.name.as_deref().unwrap(), *change == Change::Normal));
        assert_eq!(names.collect::<Vec<_>>(), reported, "{what}");
        assert_eq!(known.keys().collect::<Vec<_>>(), left, "{what}");
        for (uid, condition) in &known {
            assert_eq!(condition.volume, format!("pv-{uid}"), "{what}");
            assert_eq!(condition.claim.name, Some(format!("claim-{uid}")), "{what}");
        }
    }
}

#[test]
fn volumes_of_interest_are_bound_and_the_drivers() {
    let pv = |change: fn(&mut Value)| {
        let mut value = json!({
            "metadata": {"name": "pv", "uid": "u"},
            "spec": {
                "csi": {"driver": "d", "volumeHandle": "h"},
                "claimRef": {
                    "kind": "PersistentVolumeClaim", "namespace": "ns", "name": "c", "uid": "cu",
                    "resourceVersion": "5",
                },
            },
            "status": {"phase": "Bound"},
        });
        change(&mut value);
        Volume::bound(&serde_json::from_value(value).unwrap(), "d")
    };
    let claim = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some("ns".to_owned()),
        name: Some("c".to_owned()),
        uid: Some("cu".to_owned()),
        ..ObjectReference::default()
    };
    let expected = Volume {
        uid: "u".to_owned(),
        name: "pv".to_owned(),
        handle: "h".to_owned(),
        claim,
    };
    assert_eq!(pv(|_| {}), Some(expected));
    type Change = fn(&mut Value);
    let others: [(&str, Change); 6] = [
        ("another driver's", |pv| {
            pv["spec"]["csi"]["driver"] = json!("e")
        }),
        ("no CSI volume", |pv| pv["spec"]["csi"] = Value::Null),
        ("released", |pv| pv["status"]["phase"] = json!("Released")),
        ("no status", |pv| pv["status"] = Value::Null),
        ("no claim", |pv| pv["spec"]["claimRef"] = Value::Null),
        ("deleting", |pv| {
            pv["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")
        }),
    ];
    for (what, change) in others {
        assert_eq!(pv(change), None, "{what}");
    }
}

#[test]
fn statuses_have_words() {
    let volume = [
        (0, "Unknown"),
        (1, "Degraded"),
        (2, "Inaccessible"),
        (3, "DataLoss"),
        (9, "Unknown"),
    ];
    for (status, word) in volume {
        let entry = VolumeHealthEntry {
            status,
            reason: "R".to_owned(),
            message: String::new(),
        };
        assert_eq!(Finding::from(entry).status, word, "{status}");
    }
    for (status, word) in [
        (0, "Unknown"),
        (1, "Degraded"),
        (2, "Unreachable"),
        (9, "Unknown"),
    ] {
        let entry = StorageBackendHealth {
            status,
            ..StorageBackendHealth::default()
        };
        assert_eq!(Finding::from(entry).status, word, "{status}");
    }
}
