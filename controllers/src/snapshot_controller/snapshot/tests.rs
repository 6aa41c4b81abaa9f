use serde_json::{Value, json};

use super::decide::decide;
use super::decide::tests::{DELETED, class, of};
use super::*;
use crate::testing::{self, DRIVER, with};

mod deletion;
mod status;

const UID: &str = "11-22";
const BOTH: &str =
    "finalizers 2: volumesnapshot-as-source-protection volumesnapshot-bound-protection";

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
    let of_claim = json!({"spec": {
        "claimRef": {"namespace": "team", "name": "data", "uid": "c"}, "volumeMode": "Filesystem",
    }});
    with(
        with(testing::volume("pv", DRIVER, "vol-1"), &of_claim),
        &changes,
    )
}

/// Facts with everything except the content.
pub(crate) fn facts(it: Value) -> Facts {
    Facts {
        snapshot: of(it),
        content: None,
        classes: vec![class("fast", json!({})), class("slow", json!({}))],
        nodes: None,
        own: SnapshotFacts {
            claim: Some(of(claim(json!({})))),
            released_claim: None,
            volume: Some(of(volume(json!({})))),
            restoring: Vec::new(),
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
    let owners = json!([{"apiVersion": "groupsnapshot.storage.k8s.io/v1",
        "kind": "VolumeGroupSnapshot", "name": "g", "uid": "g"}]);
    let further =
        "finalizers 3: y volumesnapshot-as-source-protection volumesnapshot-bound-protection";
    for (metadata, expected) in [
        (json!({}), "create of {\"volumeHandle\":\"vol-1\"}"),
        (json!({"finalizers": null}), BOTH),
        (json!({"finalizers": ["x/y"]}), further),
        (json!({"ownerReferences": owners}), "wait"),
    ] {
        expect(&facts(snapshot(json!({"metadata": metadata}))), expected);
    }
}

#[test]
fn what_a_snapshot_is_of() {
    let deleting = json!({"metadata": {"deletionTimestamp": DELETED}});
    let spec = |spec: Value| json!({"spec": spec});
    let of_other =
        "VolumeSnapshotClass fast is of driver csi.example, but volume pv is of other.example";
    let mut unheld = deleting.clone();
    unheld["metadata"]["finalizers"] = json!(["x"]);
    for (claim_is, volume_is, expected) in [
        (
            json!({"metadata": {"finalizers": ["x"]}}),
            json!({}),
            "claim finalizers 2",
        ),
        (deleting, json!({}), "create"),
        (unheld, json!({}), "claim data is being deleted"),
        (
            json!({"status": {"phase": "Pending"}}),
            json!({}),
            "not bound to a volume yet",
        ),
        (
            json!({}),
            spec(json!({"claimRef": {"uid": "other"}})),
            "pv is not bound to claim data",
        ),
        (
            json!({}),
            spec(json!({"csi": null})),
            "volume pv is not of a CSI driver",
        ),
        (
            json!({}),
            spec(json!({"csi": {"driver": "other.example"}})),
            of_other,
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
    expect(
        &facts,
        "SnapshotContentCreationFailed: there is no claim \"data\"",
    );
}

/// All nodes of a kernel fit its affinity, and only one of them can take the snapshot.
#[test]
fn the_content_of_a_shared_volume_is_of_its_owner() {
    let node = |name: &str| json!({"metadata": {"name": name, "labels": {"on": name}}});
    let shared = json!({
        "metadata": {"labels": {"hostloop.csi.dev/node": "node-2"}},
        "spec": {
            "csi": {"volumeAttributes": {"reach": "kernel"}},
            "nodeAffinity": testing::affinity("on", &["node-1", "node-2"]),
        },
    });
    let unlabelled = with(shared.clone(), json!({"metadata": {"labels": null}}));
    for (volume_is, expected) in [(shared, Some("node-2")), (unlabelled, None)] {
        let mut facts = facts(snapshot(json!({})));
        facts.nodes = Some(vec![of(node("node-1")), of(node("node-2"))]);
        facts.own.volume = Some(of(volume(volume_is)));
        let Step::Create(made) = decide(&facts) else {
            panic!("{:?}", decide(&facts));
        };
        let labels = made.metadata.labels.unwrap_or_default();
        let label = labels.get("snapshot.storage.kubernetes.io/managed-by");
        assert_eq!(label.map(String::as_str), expected);
    }
}

#[test]
fn the_content_made() {
    let mut facts = facts(snapshot(json!({})));
    facts.nodes = Some(vec![of(
        json!({"metadata": {"name": "node-1", "labels": {"on": "1"}}}),
    )]);
    let affinity = testing::affinity("on", &["1"]);
    facts.own.volume = Some(of(volume(json!({"spec": {"nodeAffinity": affinity}}))));
    let secret = json!({"parameters": {
        "csi.storage.k8s.io/snapshotter-secret-name": "key-${volumesnapshot.name}",
        "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}"}});
    facts.classes = vec![class("fast", secret)];
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
    let kept = json!({"metadata": unprotected, "status": bound});
    let taken = json!({"status": {"readyToUse": true, "restoreSize": 1024, "creationTime": 0}});
    let copied = "status {\"creationTime\":\"1970-01-01T00:00:00Z\",\"readyToUse\":true,\
                  \"restoreSize\":\"1Ki\"}";
    for (changes, content_is, expected) in [
        (json!({"status": bound}), taken, copied),
        (json!({"metadata": unprotected}), json!({}), BOTH),
        (kept, json!({"spec": {"deletionPolicy": "Retain"}}), "done"),
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
    let unbound = json!({"spec": {"volumeSnapshotRef": {"uid": null}}});
    let named = GroupOfContent::Named("g".to_owned());
    let taken = json!({"status": {"snapshotHandle": "s-1"}});
    for (changes, content_is, of_content, expected) in [
        (&owned, json!({}), GroupOfContent::None, "status"),
        (&owned, unbound, GroupOfContent::None, "wait"),
        (&owned, json!({}), GroupOfContent::Unknown, "wait"),
        (
            &owned,
            json!({}),
            named,
            "\"volumeGroupSnapshotName\":\"g\"",
        ),
        (&ready, taken.clone(), GroupOfContent::None, "adopt g g"),
        (&adopted, taken.clone(), GroupOfContent::None, "done"),
    ] {
        let mut facts = facts(snapshot(changes.clone()));
        facts.content = Some(of(content(content_is)));
        facts.own.group = Some(group());
        facts.own.group_of_content = of_content;
        expect(&facts, expected);
    }
    let mut facts = facts(snapshot(ready));
    facts.content = Some(of(content(taken)));
    expect(&facts, "done");
}

/// A snapshot that had an error may have lost the protection of its claim.
#[test]
fn a_claim_is_protected_again() {
    let unheld = json!({"metadata": {"finalizers": ["x"]}});
    let deleting = json!({"metadata": {"deletionTimestamp": DELETED, "finalizers": ["x"]}});
    let bound = "status {\"boundVolumeSnapshotContentName\"";
    for (claim_is, taken_of, expected) in [
        (&unheld, "vol-1", "claim finalizers 2"),
        // The claim is another one of the same name.
        (&unheld, "vol-0", bound),
        (&deleting, "vol-1", bound),
        (&json!({}), "vol-1", bound),
    ] {
        let mut facts = facts(snapshot(
            json!({"status": {"error": {"message": "no class"}}}),
        ));
        facts.own.claim = Some(of(claim(claim_is.clone())));
        let source = json!({"spec": {"source": {"volumeHandle": taken_of}}});
        facts.content = Some(of(content(source)));
        expect(&facts, expected);
    }
}
