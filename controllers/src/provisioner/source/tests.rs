use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::cache::scope::MANAGED_BY;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

/// Returns the object with changes at paths such as `/spec/driver`.
fn changed(mut value: Value, changes: &[(&str, Value)]) -> Value {
    for (path, new) in changes {
        let (parent, key) = path.rsplit_once('/').expect("a path");
        let parent = value.pointer_mut(parent).expect("a parent");
        parent[key] = new.clone();
    }
    value
}

fn target() -> PersistentVolumeClaim {
    read(json!({
        "metadata": {"name": "copy", "namespace": "ns"},
        "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "2Gi"}}},
    }))
}

fn snapshot() -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "snap", "namespace": "ns", "uid": "u"},
        "spec": {"source": {}},
        "status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true,
                   "restoreSize": "1Gi"},
    })
}

fn content() -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "content", "annotations": {}},
        "spec": {"driver": "d", "deletionPolicy": "Delete", "source": {},
                 "volumeSnapshotRef": {"name": "snap", "namespace": "ns", "uid": "u"}},
        "status": {"snapshotHandle": "handle"},
    })
}

#[test]
fn snapshots() {
    type Changes<'a> = Vec<(&'a str, Value)>;
    let time = json!("2026-01-01T00:00:00Z");
    let block = || ("/spec/sourceVolumeMode", json!("Block"));
    let allow = json!({ALLOW_MODE_CHANGE: "True"});
    let cases: Vec<(Changes<'_>, Changes<'_>, Option<&str>)> = vec![
        (vec![], vec![], None),
        (vec![("/status/restoreSize", json!("2Gi"))], vec![], None),
        (
            vec![("/status/restoreSize", json!("3Gi"))],
            vec![],
            Some("storage is 2Gi, but"),
        ),
        (vec![("/status/restoreSize", json!(null))], vec![], None),
        (
            vec![("/status/readyToUse", json!(false))],
            vec![],
            Some("not ready to use"),
        ),
        (
            vec![("/status", json!(null))],
            vec![],
            Some("not bound to a VolumeSnapshotContent"),
        ),
        (
            vec![("/metadata/deletionTimestamp", time.clone())],
            vec![],
            Some("being deleted"),
        ),
        (
            vec![
                ("/metadata/deletionTimestamp", time),
                ("/metadata/finalizers", json!([SNAPSHOT_FINALIZER])),
            ],
            vec![],
            None,
        ),
        (
            vec![],
            vec![("/spec/driver", json!("e"))],
            Some("taken by the driver e"),
        ),
        (
            vec![],
            vec![("/spec/volumeSnapshotRef/uid", json!("v"))],
            Some("content is not bound to it"),
        ),
        (
            vec![],
            vec![("/status", json!(null))],
            Some("no status.snapshotHandle"),
        ),
        (vec![], vec![block()], Some("allow-volume-mode-change=true")),
        (
            vec![],
            vec![block(), ("/metadata/annotations", allow)],
            None,
        ),
        (
            vec![],
            vec![("/spec/sourceVolumeMode", json!("Filesystem"))],
            None,
        ),
    ];
    let claim = target();
    let target = Target {
        claim: &claim,
        prevent_mode_change: true,
        size: 2 << 30,
        driver: "d",
        scope: &Scope::Cluster,
        pools: &Pools::default(),
    };
    for (of_snapshot, of_content, expected) in cases {
        let one: VolumeSnapshot = read(changed(snapshot(), &of_snapshot));
        let two: VolumeSnapshotContent = read(changed(content(), &of_content));
        let made = from_snapshot(target, "snap", Some(&one), Some(&two));
        let what = format!("{of_snapshot:?} {of_content:?}: {made:?}");
        match (made, expected) {
            (Ok(source), None) => {
                let id = SnapshotSource {
                    snapshot_id: "handle".to_owned(),
                };
                assert_eq!(source.r#type, Some(Type::Snapshot(id)));
            }
            (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{what}"),
            _ => panic!("{what}"),
        }
    }
    let (one, two) = (read(snapshot()), read(changed(content(), &[block()])));
    let lenient = Target {
        prevent_mode_change: false,
        ..target
    };
    assert!(from_snapshot(lenient, "snap", Some(&one), Some(&two)).is_ok());
    let missing = from_snapshot(target, "snap", None, None).expect_err("missing");
    assert!(
        missing
            .to_string()
            .contains("VolumeSnapshot ns/snap, does not exist")
    );
    let missing = from_snapshot(target, "snap", Some(&one), None).expect_err("missing");
    assert!(
        missing
            .to_string()
            .contains("VolumeSnapshotContent content of")
    );
}

fn source_claim() -> Value {
    json!({
        "metadata": {"name": "origin", "namespace": "ns", "uid": "u"},
        "spec": {"storageClassName": "slow", "volumeName": "pv",
                 "resources": {"requests": {"storage": "2Gi"}}},
        "status": {"phase": "Bound"},
    })
}

fn source_volume() -> Value {
    json!({
        "metadata": {"name": "pv"},
        "spec": {"csi": {"driver": "d", "volumeHandle": "handle"},
                 "claimRef": {"name": "origin", "namespace": "ns", "uid": "u"}},
        "status": {"phase": "Bound"},
    })
}

#[test]
fn claims() {
    type Changes<'a> = Vec<(&'a str, Value)>;
    let time = json!("2026-01-01T00:00:00Z");
    let cases: Vec<(Changes<'_>, Changes<'_>, Option<&str>)> = vec![
        (vec![], vec![], None),
        (
            vec![("/status/phase", json!("Pending"))],
            vec![],
            Some("not bound to a volume yet"),
        ),
        (
            vec![("/status/phase", json!("Lost"))],
            vec![],
            Some("not bound to a volume yet"),
        ),
        (
            vec![("/metadata/deletionTimestamp", time)],
            vec![],
            Some("being deleted"),
        ),
        (
            vec![("/spec/storageClassName", json!(null))],
            vec![],
            Some("must name a StorageClass"),
        ),
        // This claim is bound to a volume that an administrator created.
        (vec![("/spec/storageClassName", json!(""))], vec![], None),
        (
            vec![],
            vec![("/status/phase", json!("Released"))],
            Some("PersistentVolume pv is not Bound yet"),
        ),
        (
            vec![("/spec/resources/requests/storage", json!("3Gi"))],
            vec![],
            Some("needs at least 3Gi"),
        ),
        (
            vec![],
            vec![("/spec/csi", json!(null))],
            Some("not of the driver"),
        ),
        (
            vec![],
            vec![("/spec/csi/driver", json!("e"))],
            Some("not of the driver"),
        ),
        (
            vec![],
            vec![("/spec/claimRef/uid", json!("v"))],
            Some("pv is not bound to it"),
        ),
        (
            vec![],
            vec![("/spec/claimRef", json!(null))],
            Some("pv is not bound to it"),
        ),
        (
            vec![],
            vec![("/spec/volumeMode", json!("Block"))],
            Some("the mode of its source"),
        ),
    ];
    let claim = target();
    let target = Target {
        claim: &claim,
        prevent_mode_change: true,
        size: 2 << 30,
        driver: "d",
        scope: &Scope::Cluster,
        pools: &Pools::default(),
    };
    for (of_claim, of_volume, expected) in cases {
        let one: PersistentVolumeClaim = read(changed(source_claim(), &of_claim));
        let two: PersistentVolume = read(changed(source_volume(), &of_volume));
        let made = from_claim(target, "origin", Some(&one), Some(&two));
        let what = format!("{of_claim:?} {of_volume:?}: {made:?}");
        match (made, expected) {
            (Ok(source), None) => {
                let id = VolumeSource {
                    volume_id: "handle".to_owned(),
                };
                assert_eq!(source.r#type, Some(Type::Volume(id)));
            }
            (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{what}"),
            _ => panic!("{what}"),
        }
    }
    let one = read(source_claim());
    let missing = from_claim(target, "origin", Some(&one), None).expect_err("missing");
    assert!(
        missing.to_string().contains("PersistentVolume pv of"),
        "{missing}"
    );
    let missing = from_claim(target, "origin", None, None).expect_err("missing");
    assert!(
        missing
            .to_string()
            .contains("PersistentVolumeClaim ns/origin, does not exist")
    );
}

/// A node can create a PersistentVolume with its own affinity and the handle of another node's
/// volume. It can also write another node's snapshot handle into its own content.
#[test]
fn a_source_is_one_only_if_all_say_that_it_is_here() {
    let scope = Scope::Node {
        name: "n1".to_owned(),
        segments: BTreeMap::from([("t/node".to_owned(), "n1".to_owned())]),
    };
    let told = || Pools::reported(|| vec!["a1".to_owned()]);
    let at = |node: &str| {
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "t/node", "operator": "In", "values": [node]}]}]}})
    };
    let managed = |node: &str| json!({MANAGED_BY: node});
    let claim = target();
    // Columns: the node in the affinity or label, then the handle, with and without known pools.
    for (pools, node, handle, is_source) in [
        (told(), Some("n1"), "vol-a1-0", true),
        (told(), Some("n2"), "vol-a1-0", false),
        (told(), Some("n1"), "vol-b2-0", false),
        (told(), Some("n2"), "vol-b2-0", false),
        (told(), None, "vol-a1-0", true),
        (told(), None, "vol-b2-0", false),
        (Pools::default(), Some("n1"), "x", true),
        (Pools::default(), Some("n2"), "x", false),
        (Pools::default(), None, "x", true),
    ] {
        let target = Target {
            claim: &claim,
            prevent_mode_change: true,
            size: 2 << 30,
            driver: "d",
            scope: &scope,
            pools: &pools,
        };
        let volume = changed(
            source_volume(),
            &[
                ("/spec/csi/volumeHandle", json!(handle)),
                ("/spec/nodeAffinity", node.map_or(Value::Null, at)),
            ],
        );
        let (one, volume) = (read(source_claim()), read(volume));
        let made = from_claim(target, "origin", Some(&one), Some(&volume));
        assert_eq!(
            made.is_ok(),
            is_source,
            "{pools:?} {node:?} {handle}: {made:?}"
        );
        let content = changed(
            content(),
            &[
                ("/status/snapshotHandle", json!(handle)),
                ("/metadata/labels", node.map_or(Value::Null, managed)),
            ],
        );
        let of_volume = changed(
            content.clone(),
            &[("/spec/source", json!({"volumeHandle": "v"}))],
        );
        let one = read(snapshot());
        let made = from_snapshot(target, "snap", Some(&one), Some(&read(content)));
        assert_eq!(
            made.is_ok(),
            is_source,
            "{pools:?} {node:?} {handle}: {made:?}"
        );
        let made = from_snapshot(target, "snap", Some(&one), Some(&read(of_volume)));
        assert_eq!(
            made.is_ok(),
            is_source && node.is_some(),
            "of a volume: {pools:?} {node:?} {handle}: {made:?}"
        );
    }
}
