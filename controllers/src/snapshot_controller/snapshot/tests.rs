use serde_json::{Value, json};

use super::decide::decide;
use super::decide::tests::{DELETED, of, with};
use super::*;

mod deletion;

const UID: &str = "11-22";

pub(crate) fn snapshot(changes: Value) -> Value {
    with(
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshot",
            "metadata": {"name": "snap", "namespace": "team", "uid": UID, "resourceVersion": "7",
                "finalizers": [names::SNAPSHOT_AS_SOURCE, names::SNAPSHOT_BOUND]},
            "spec": {"source": {"persistentVolumeClaimName": "data"},
                "volumeSnapshotClassName": "fast"},
        }),
        &changes,
    )
}

pub(crate) fn content(changes: Value) -> Value {
    with(
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": format!("snapcontent-{UID}")},
            "spec": {
                "volumeSnapshotRef": {"namespace": "team", "name": "snap", "uid": UID},
                "deletionPolicy": "Delete", "driver": "csi.example",
                "source": {"volumeHandle": "vol-1"},
            },
        }),
        &changes,
    )
}

fn class(name: &str, changes: Value) -> Value {
    with(
        json!({"metadata": {"name": name}, "driver": "csi.example",
        "deletionPolicy": "Delete"}),
        &changes,
    )
}

fn claim(changes: Value) -> Value {
    with(
        json!({
            "metadata": {"name": "data", "namespace": "team", "uid": "c",
                "finalizers": [names::CLAIM_AS_SOURCE]},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"},
        }),
        &changes,
    )
}

fn volume(changes: Value) -> Value {
    with(
        json!({
            "metadata": {"name": "pv"},
            "spec": {
                "claimRef": {"namespace": "team", "name": "data", "uid": "c"},
                "csi": {"driver": "csi.example", "volumeHandle": "vol-1"},
                "volumeMode": "Filesystem",
            },
        }),
        &changes,
    )
}

/// Facts with everything except the content.
pub(crate) fn facts(it: Value) -> Facts {
    Facts {
        snapshot: of(it),
        content: None,
        classes: vec![of(class("fast", json!({}))), of(class("slow", json!({})))],
        nodes: None,
        own: SnapshotFacts {
            claim: Some(of(claim(json!({})))),
            released_claim: None,
            volume: Some(of(volume(json!({})))),
            restoring: 0,
            group: None,
            group_of_content: GroupOfContent::None,
        },
    }
}

#[track_caller]
pub(crate) fn expect(facts: &Facts, expected: &str) {
    decide::tests::expect(facts, expected, |step| match step {
        SnapshotStep::Adopt(owner) => format!("adopt {} {}", owner.name, owner.uid),
        SnapshotStep::ClaimFinalizers(list) => format!("claim finalizers {}", list.len()),
    });
}

#[test]
fn before_there_is_a_content() {
    for (metadata, expected) in [
        (json!({}), "create of {\"volumeHandle\":\"vol-1\"}"),
        (
            json!({"finalizers": null}),
            "finalizers 2: volumesnapshot-as-source-protection volumesnapshot-bound-protection",
        ),
        (
            json!({"finalizers": ["x/y"]}),
            "finalizers 3: y volumesnapshot-as-source-protection volumesnapshot-bound-protection",
        ),
        (
            json!({"ownerReferences": [{"apiVersion": "groupsnapshot.storage.k8s.io/v1",
                "kind": "VolumeGroupSnapshot", "name": "g", "uid": "g"}]}),
            "wait",
        ),
    ] {
        expect(&facts(snapshot(json!({"metadata": metadata}))), expected);
    }
}

#[test]
fn what_a_snapshot_is_of() {
    let deleting = json!({"metadata": {"deletionTimestamp": DELETED}});
    let mut unheld = deleting.clone();
    unheld["metadata"]["finalizers"] = json!(["x"]);
    for (claim_is, volume_is, expected) in [
        (json!({"metadata": {"finalizers": ["x"]}}), json!({}), "claim finalizers 2"),
        (deleting, json!({}), "create"),
        (unheld, json!({}), "claim data is being deleted"),
        (json!({"status": {"phase": "Pending"}}), json!({}), "not bound to a volume yet"),
        (
            json!({}),
            json!({"spec": {"claimRef": {"uid": "other"}}}),
            "volume pv is not bound to claim data",
        ),
        (json!({}), json!({"spec": {"csi": null}}), "volume pv is not of a CSI driver"),
        (
            json!({}),
            json!({"spec": {"csi": {"driver": "other.example"}}}),
            "VolumeSnapshotClass fast is of driver csi.example, but volume pv is of other.example",
        ),
    ] {
        let mut facts = facts(snapshot(json!({})));
        facts.own.claim = Some(of(claim(claim_is)));
        facts.own.volume = Some(of(volume(volume_is)));
        expect(&facts, expected);
    }
    let mut facts = facts(snapshot(json!({})));
    facts.own.volume = None;
    expect(&facts, "the volume of claim data does not exist");
    facts.own.claim = None;
    expect(&facts, "SnapshotContentCreationFailed: there is no claim \"data\"");
}

#[test]
fn the_content_made() {
    let mut facts = facts(snapshot(json!({})));
    facts.nodes = Some(vec![of(json!({"metadata": {"name": "node-1", "labels": {"on": "1"}}}))]);
    facts.own.volume = Some(of(volume(json!({"spec": {"nodeAffinity": {"required": {
        "nodeSelectorTerms": [{"matchExpressions": [
            {"key": "on", "operator": "In", "values": ["1"]}]}]}}}}))));
    facts.classes = vec![of(class(
        "fast",
        json!({"parameters": {
            "csi.storage.k8s.io/snapshotter-secret-name": "key-${volumesnapshot.name}",
            "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}"}}),
    ))];
    let Step::Create(made) = decide(&facts) else {
        panic!("{:?}", decide(&facts));
    };
    assert_eq!(
        serde_json::to_value(made).unwrap(),
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotContent",
            "metadata": {
                "name": "snapcontent-11-22",
                "annotations": {
                    "snapshot.storage.kubernetes.io/deletion-secret-name": "key-snap",
                    "snapshot.storage.kubernetes.io/deletion-secret-namespace": "team",
                },
                "labels": {"snapshot.storage.kubernetes.io/managed-by": "node-1"},
                "finalizers": [
                    "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
            },
            "spec": {
                "volumeSnapshotRef": {"apiVersion": "snapshot.storage.k8s.io/v1",
                    "kind": "VolumeSnapshot", "namespace": "team", "name": "snap", "uid": "11-22",
                    "resourceVersion": "7"},
                "deletionPolicy": "Delete",
                "driver": "csi.example",
                "volumeSnapshotClassName": "fast",
                "source": {"volumeHandle": "vol-1"},
                "sourceVolumeMode": "Filesystem",
            },
        })
    );
}

#[test]
fn with_a_content() {
    let bound = json!({"boundVolumeSnapshotContentName": "snapcontent-11-22",
        "readyToUse": false});
    let unprotected = json!({"finalizers": [names::SNAPSHOT_AS_SOURCE]});
    for (changes, content_is, expected) in [
        (
            json!({"status": bound}),
            json!({"status": {"readyToUse": true, "restoreSize": 1024, "creationTime": 0}}),
            "status {\"creationTime\":\"1970-01-01T00:00:00Z\",\"readyToUse\":true,\
             \"restoreSize\":\"1Ki\"}",
        ),
        (
            json!({"metadata": unprotected}),
            json!({}),
            "finalizers 2: volumesnapshot-as-source-protection volumesnapshot-bound-protection",
        ),
        (
            json!({"metadata": unprotected, "status": bound}),
            json!({"spec": {"deletionPolicy": "Retain"}}),
            "done",
        ),
    ] {
        let mut facts = facts(snapshot(changes));
        facts.content = Some(of(content(content_is)));
        expect(&facts, expected);
    }
}

#[test]
fn members_of_groups() {
    let owner = json!([{"apiVersion": "groupsnapshot.storage.k8s.io/v1beta2",
        "kind": "VolumeGroupSnapshot", "name": "g", "uid": "g"}]);
    let group = || {
        of::<VolumeGroupSnapshot>(json!({"apiVersion": "groupsnapshot.storage.k8s.io/v1",
            "kind": "VolumeGroupSnapshot", "metadata": {"name": "g", "namespace": "team",
            "uid": "g"}, "spec": {"source": {}}}))
    };
    let owned = json!({"metadata": {"ownerReferences": owner}});
    let ready = json!({"status": {"readyToUse": true, "volumeGroupSnapshotName": "g",
        "boundVolumeSnapshotContentName": "snapcontent-11-22"}});
    let mut adopted = ready.clone();
    adopted["metadata"]["ownerReferences"] = owner;
    for (changes, content_is, of_content, expected) in [
        (&owned, json!({}), GroupOfContent::None, "status"),
        (
            &owned,
            json!({"spec": {"volumeSnapshotRef": {"uid": null}}}),
            GroupOfContent::None,
            "wait",
        ),
        (&owned, json!({}), GroupOfContent::Unknown, "wait"),
        (
            &owned,
            json!({}),
            GroupOfContent::Named("g".to_owned()),
            "\"volumeGroupSnapshotName\":\"g\"",
        ),
        (&ready, json!({}), GroupOfContent::None, "adopt g g"),
        (&adopted, json!({}), GroupOfContent::None, "done"),
    ] {
        let mut facts = facts(snapshot(changes.clone()));
        facts.content = Some(of(content(content_is)));
        facts.own.group = Some(group());
        facts.own.group_of_content = of_content;
        expect(&facts, expected);
    }
    let mut facts = facts(snapshot(ready));
    facts.content = Some(of(content(json!({}))));
    expect(&facts, "done");
}
