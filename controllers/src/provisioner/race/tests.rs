use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::provisioner::names::PROVISIONER;
use crate::runtime::csi::Csi;
use crate::runtime::driver::Service;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const BACKOFF: Backoff = Backoff {
    start: Duration::from_secs(20),
    max: Duration::from_secs(60),
};

#[test]
fn waits() {
    let races = Races::default();
    let now = Instant::now();
    // A quarter is left out by chance.
    assert_eq!(races.left("u", BACKOFF, 0.25, now), Some(seconds(15)));
    // What was drawn first holds.
    let later = now + seconds(10);
    assert_eq!(races.left("u", BACKOFF, 0.9, later), Some(seconds(5)));
    assert_eq!(races.left("u", BACKOFF, 0.9, now + seconds(15)), None);
    for (chance, wait) in [(0.0, 40), (0.5, 30), (0.0, 60)] {
        assert_eq!(races.lost("u", BACKOFF, chance, now), seconds(wait));
    }
    assert_eq!(races.left("u", BACKOFF, 0.0, now), Some(seconds(60)));
    races.forget("u");
    assert_eq!(races.left("u", BACKOFF, 0.0, now), Some(seconds(20)));
}

#[tokio::test]
async fn claims_nodes_race_for() {
    let driver = Driver::with(
        Csi::at_socket("/nonexistent"),
        "d",
        &[Service::ControllerService],
        &[ControllerCapability::CreateDeleteSnapshot],
        &[],
    );
    let here = Scope::Node {
        name: "n1".to_owned(),
        segments: BTreeMap::from([("t/node".to_owned(), "n1".to_owned())]),
    };
    let term =
        |node: &str| json!([{"matchLabelExpressions": [{"key": "t/node", "values": [node]}]}]);
    let class = |mode: &str, allowed: Value| -> StorageClass {
        serde_json::from_value(json!({"metadata": {"name": "fast"}, "provisioner": "d",
            "volumeBindingMode": mode, "allowedTopologies": allowed}))
        .expect("a class")
    };
    let claim = |selected: Value, kind: Option<&str>| -> PersistentVolumeClaim {
        let group = kind
            .filter(|kind| *kind == "VolumeSnapshot")
            .map(|_| "snapshot.storage.k8s.io");
        let source = kind.map(|kind| json!({"apiGroup": group, "kind": kind, "name": "s"}));
        let mut claim = json!({"metadata": {"name": "c", "annotations": {PROVISIONER: "d"}},
            "spec": {"dataSource": source}});
        if !selected.is_null() {
            claim["metadata"]["annotations"][SELECTED_NODE] = selected;
        }
        serde_json::from_value(claim).expect("a claim")
    };
    let (now, late) = ("Immediate", "WaitForFirstConsumer");
    let plain = claim(Value::Null, None);
    for (what, claim, class, scope, raced) in [
        ("plain", &plain, class(now, Value::Null), &here, true),
        ("late", &plain, class(late, Value::Null), &here, false),
        ("allowed", &plain, class(now, term("n1")), &here, true),
        ("not allowed", &plain, class(now, term("n2")), &here, false),
        (
            "central",
            &plain,
            class(now, Value::Null),
            &Scope::Cluster,
            false,
        ),
        (
            "selected",
            &claim(json!("n2"), None),
            class(now, Value::Null),
            &here,
            false,
        ),
        (
            "a source",
            &claim(Value::Null, Some("VolumeSnapshot")),
            class(now, Value::Null),
            &here,
            false,
        ),
        // Whoever wins says that it can't be made.
        (
            "a source nobody can use",
            &claim(Value::Null, Some("PersistentVolumeClaim")),
            class(now, Value::Null),
            &here,
            true,
        ),
    ] {
        assert_eq!(is_raced_for(claim, &class, &driver, scope), raced, "{what}");
    }
}

#[test]
fn rooms_that_do() {
    for (size, available, largest, does) in [
        (5, 5, None, true),
        (6, 5, None, false),
        (5, 9, Some(4), false),
        (4, 9, Some(4), true),
    ] {
        let room = csi::GetCapacityResponse {
            available_capacity: available,
            maximum_volume_size: largest,
            ..csi::GetCapacityResponse::default()
        };
        assert_eq!(fits(size, &room), does, "{size} {room:?}");
    }
}
