use super::*;

const THEN: &str = "2026-01-02T03:04:05Z";
const NOW: &str = "2026-02-03T04:05:06Z";

fn claim(status: Value) -> PersistentVolumeClaim {
    crate::testing::read(json!({
        "metadata": {
            "name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "5",
            "annotations": {"a": "b"},
        },
        "spec": {"volumeName": "pv", "resources": {"requests": {"storage": "2Gi"}}},
        "status": status,
    }))
}

fn condition(kind: &str) -> Value {
    json!({"type": kind, "status": "True", "lastTransitionTime": THEN, "message": "m"})
}

fn patched(status: Value, change: impl FnOnce(&mut StatusPatch<'_>)) -> Option<Value> {
    let claim = claim(status);
    let mut patch = StatusPatch::of(&claim);
    patch.now = NOW.parse().unwrap();
    change(&mut patch);
    patch.finish(true)
}

#[test]
fn only_differences_are_written() {
    let status = json!({
        "conditions": [condition(RESIZING)],
        "allocatedResourceStatuses": {"storage": "X"},
        "allocatedResources": {"storage": "2Gi"}, "capacity": {"storage": "1Gi"},
    });
    let same = patched(status.clone(), |patch| {
        patch
            .hold(RESIZING, None, Some("m"))
            .drop(&[NODE_RESIZE_ERROR])
            .resize_status(Some("X"))
            .allocated(&Quantity("2Gi".to_owned()))
            .capacity(&Quantity("1Gi".to_owned()))
            .annotation("a", Some("b"))
            .annotation("gone", None);
    });
    assert_eq!(same, None);
    let other = patched(status, |patch| {
        patch
            .hold(NODE_RESIZE_ERROR, Some("r"), Some("n"))
            .drop(&[RESIZING])
            .resize_status(None)
            .allocated(&Quantity("3Gi".to_owned()))
            .annotation("a", None);
    });
    let new = json!({
        "type": NODE_RESIZE_ERROR, "status": "True", "reason": "r", "message": "n",
        "lastProbeTime": NOW, "lastTransitionTime": NOW,
    });
    assert_eq!(
        other,
        Some(json!({
            "metadata": {"uid": "u", "resourceVersion": "5", "annotations": {"a": null}},
            "status": {
                "conditions": [new, {"$patch": "delete", "type": RESIZING}],
                "allocatedResourceStatuses": {"storage": null},
                "allocatedResources": {"storage": "3Gi"},
            },
        }))
    );
}

#[test]
fn a_condition_that_stays_true_keeps_its_time() {
    for (reason, message, since) in [
        (None, Some("other"), THEN),
        (None, None, THEN),
        (Some("r"), Some("m"), NOW),
    ] {
        let patch = patched(json!({"conditions": [condition(RESIZING)]}), |patch| {
            patch.hold(RESIZING, reason, message);
        });
        let written = patch.unwrap()["status"]["conditions"][0].clone();
        assert_eq!(
            written["lastTransitionTime"], since,
            "{reason:?} {message:?}"
        );
        assert_eq!(written["message"], json!(message));
    }
    // A condition that was false becomes true.
    let mut over = condition(RESIZING);
    over["status"] = json!("False");
    let patch = patched(json!({"conditions": [over]}), |patch| {
        patch.hold(RESIZING, None, Some("m"));
    });
    let written = patch.unwrap()["status"]["conditions"][0].clone();
    assert_eq!(written["lastTransitionTime"], NOW);
}

/// The admission policies accept no longer one, and an unchanged one is not written again.
#[test]
fn a_long_message_is_cut() {
    let long = "x".repeat(message::MAX_STATUS + 1);
    let hold = |status| {
        let patch = patched(status, |patch| {
            patch.hold(RESIZING, None, Some(&long));
        });
        patch.map(|patch| patch["status"]["conditions"][0].clone())
    };
    let written = hold(json!({})).expect("a new condition");
    let text = written["message"].as_str().expect("a message");
    assert!(text.len() <= message::MAX_STATUS && text.ends_with("x…"));
    assert_eq!(hold(json!({"conditions": [written]})), None);
}

#[test]
fn sizes() {
    for (quantity, expected) in [
        (None, 0),
        (Some("1Gi"), 1 << 30),
        (Some("1024Mi"), 1 << 30),
        (Some("what"), i64::MAX),
    ] {
        let quantity = quantity.map(|text| Quantity(text.to_owned()));
        assert_eq!(size(quantity.as_ref()), expected);
    }
}

#[test]
fn a_volume_is_bound_to_one_claim() {
    let claim = claim(json!({"phase": "Bound"}));
    assert!(is_bound(&claim));
    for (namespace, uid, expected) in [
        ("ns", "u", true),
        ("ns", "other", false),
        ("other", "u", false),
    ] {
        let volume = crate::testing::read(json!({
            "metadata": {"name": "pv"},
            "spec": {"claimRef": {"namespace": namespace, "name": "c", "uid": uid}},
        }));
        assert_eq!(is_bound_to(&claim, &volume), expected);
    }
}
