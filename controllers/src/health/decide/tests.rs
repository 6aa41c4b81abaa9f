use serde_json::{Value, json};

use super::*;

/// Problems from a text such as `Full 90%; Slow`.
fn problems(text: &str) -> Vec<HealthProblem> {
    let texts = text.split("; ").filter(|text| !text.is_empty());
    let problem = |text: &str| {
        let (reason, message) = text.split_once(' ').unwrap_or((text, ""));
        HealthProblem {
            status: "Degraded",
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    };
    texts.map(problem).collect()
}

#[test]
fn a_condition_is_reported_when_it_changes() {
    let repeat = REPEAT.as_secs();
    let both = "Degraded: Full: 91%; Degraded: Slow";
    let start = Instant::now();
    let mut known = None;
    // Case, time in seconds, problems, and the expected event.
    for (what, at, text, expected) in [
        ("healthy", 0, "", ""),
        ("a problem", 1, "Full 90%", "Degraded: Full: 90%"),
        ("the same", 2, "Full 90%", ""),
        ("another message", 3, "Full 91%", ""),
        ("another problem", 4, "Full 91%; Slow", both),
        ("another order", 5, "Slow; Full 91%", ""),
        ("not yet repeated", 3 + repeat, "Full 91%; Slow", ""),
        ("repeated", 4 + repeat, "Full 91%; Slow", both),
        ("one less", 5 + repeat, "Full 80%", "Degraded: Full: 80%"),
        ("healthy again", 6 + repeat, "", "normal"),
        ("still healthy", 7 + repeat, "", ""),
        ("again", 8 + repeat, "Full 90%", "Degraded: Full: 90%"),
    ] {
        let (found, now) = (problems(text), start + Duration::from_secs(at));
        let change = match condition_change(&mut known, &found, now) {
            None => String::new(),
            Some(HealthChange::Normal) => "normal".to_owned(),
            Some(HealthChange::Abnormal(text)) => text,
        };
        assert_eq!(change, expected, "{what}");
        let kept = known.as_ref().map(|known| known.problems.clone());
        assert_eq!(kept.unwrap_or_default(), found, "{what}");
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
    // Case, handles by volume, problems by handle, the expected events by claim, and the volumes
    // with a condition after that.
    let mut known = KnownConditions::new();
    for (what, volumes, found, events, left) in [
        ("healthy", "a=1 b=2", "1= 2=", "", ""),
        ("one problem", "a=1 b=2", "1=Full 2=", "claim-a+", "a"),
        ("no answer", "a=1 b=2", "", "", "a"),
        ("a shared handle", "a=1 c=1", "1=Full", "claim-c+", "a c"),
        ("one deleted, one healthy", "c=1", "1=", "claim-c-", ""),
        ("unknown handles", "c=1", "9=Full", "", ""),
        ("recreated", "d=1", "1=", "", ""),
    ] {
        let pairs =
            |text: &'static str| text.split_whitespace().filter_map(|it| it.split_once('='));
        let volumes: Vec<_> = pairs(volumes)
            .map(|(uid, handle)| volume(uid, handle))
            .collect();
        let found = pairs(found).map(|(handle, text)| (handle.to_owned(), problems(text)));
        let found = found.collect();
        let facts = Facts { volumes, found };
        let changes = volume_changes(&mut known, &facts, Instant::now());
        let names = changes.iter().map(|(claim, change)| {
            let sign = if *change == HealthChange::Normal {
                '-'
            } else {
                '+'
            };
            format!("{}{sign}", claim.name.as_deref().unwrap())
        });
        assert_eq!(names.collect::<Vec<_>>().join(" "), events, "{what}");
        let kept: Vec<_> = known.keys().map(String::as_str).collect();
        assert_eq!(kept.join(" "), left, "{what}");
        for (uid, condition) in &known {
            assert_eq!(condition.volume, format!("pv-{uid}"), "{what}");
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
        assert_eq!(HealthProblem::from(entry).status, word, "{status}");
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
        assert_eq!(HealthProblem::from(entry).status, word, "{status}");
    }
}
