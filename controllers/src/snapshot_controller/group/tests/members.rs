//! Tests of the members of groups.

use super::*;
use crate::snapshots::SnapshotInfo;

/// A group that has been snapshotted, with these objects of one member.
fn with_member(snapshot: Option<Value>, member_content: Option<Value>) -> Facts {
    let mut facts = facts(group(json!({})));
    facts.content = Some(of(content(json!({
        "metadata": {
            "labels": {"snapshot.storage.kubernetes.io/managed-by": "node-1"},
            "annotations": {GROUP.secret_name: "key",
                GROUP.secret_namespace: "keys"},
        },
        "status": {"volumeGroupSnapshotHandle": "gs", "readyToUse": true},
    }))));
    facts.own.members = vec![Member {
        info: SnapshotInfo {
            volume_handle: Some("vol-1".to_owned()),
            snapshot_handle: Some("s-1".to_owned()),
            creation_time: Some(5),
            ready_to_use: Some(true),
            restore_size: Some(1024),
        },
        snapshot: snapshot.map(of),
        content: member_content.map(of),
        volume: claim(1, json!({}), json!({})).1,
    }];
    facts
}

#[test]
fn members_of_a_group() {
    let snapshot = |status: Value| {
        Some(json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": "s", "namespace": "team", "uid": "s-uid"},
            "spec": {"source": {}}, "status": status}))
    };
    let content = |uid: Option<&str>, status: Value| {
        Some(json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "c"}, "spec": {"driver": "csi.example", "deletionPolicy": "Delete",
            "volumeSnapshotRef": {"name": "s", "namespace": "team", "uid": uid},
            "source": {"volumeHandle": "vol-1"}}, "status": status}))
    };
    let whole = json!({"snapshotHandle": "s-1", "volumeGroupSnapshotHandle": "gs",
        "readyToUse": false});
    let bound = json!({"boundVolumeSnapshotContentName": "c"});
    for (member, member_content, expected) in [
        (None, None, "member"),
        (None, content(None, json!(null)), "member"),
        (snapshot(json!(null)), None, "member's content"),
        (snapshot(json!(null)), content(None, json!(null)), "bind member's content to s-uid"),
        (
            snapshot(json!(null)),
            content(Some("other"), json!(null)),
            "GroupSnapshotContentCreationFailed",
        ),
        (
            snapshot(json!(null)),
            content(Some("s-uid"), json!(null)),
            "member's content {\"creationTime\":5,\"readyToUse\":true,\"restoreSize\":1024,\
             \"snapshotHandle\":\"s-1\",\"volumeGroupSnapshotHandle\":\"gs\"}",
        ),
        (snapshot(json!(null)), content(Some("s-uid"), whole.clone()), "bind member to c"),
        (snapshot(bound), content(Some("s-uid"), whole), "status"),
    ] {
        expect(&with_member(member, member_content), expected);
    }
}

#[test]
fn the_members_made() {
    let mut facts = with_member(None, None);
    let Step::Own(GroupStep::CreateMember(snapshot)) = decide(&facts) else {
        panic!("{:?}", decide(&facts));
    };
    let digest = names::member_names("g1", "vol-1").0;
    let digest = digest.strip_prefix("snapshot-").unwrap();
    assert_eq!(digest.len(), 64);
    assert_eq!(
        serde_json::to_value(&snapshot).unwrap(),
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshot",
            "metadata": {
                "name": format!("snapshot-{digest}"),
                "namespace": "team",
                "ownerReferences": [{"apiVersion": "groupsnapshot.storage.k8s.io/v1",
                    "kind": "VolumeGroupSnapshot", "name": "all", "uid": "g1"}],
                "finalizers": [
                    "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection",
                    "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection",
                    "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"],
            },
            "spec": {"source": {"persistentVolumeClaimName": "data-1"}},
        })
    );
    let mut made = *snapshot;
    made.metadata.uid = Some("s-uid".to_owned());
    facts.own.members[0].snapshot = Some(Arc::new(made));
    let Step::Own(GroupStep::CreateMemberContent(content)) = decide(&facts) else {
        panic!("{:?}", decide(&facts));
    };
    assert_eq!(
        serde_json::to_value(&content).unwrap(),
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotContent",
            "metadata": {
                "name": format!("snapcontent-{digest}"),
                "annotations": {
                    "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle": "gs",
                    "snapshot.storage.kubernetes.io/deletion-secret-name": "key",
                    "snapshot.storage.kubernetes.io/deletion-secret-namespace": "keys",
                },
                "labels": {"snapshot.storage.kubernetes.io/managed-by": "node-1"},
                "finalizers": [
                    "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"],
            },
            "spec": {
                "volumeSnapshotRef": {"apiVersion": "snapshot.storage.k8s.io/v1",
                    "kind": "VolumeSnapshot", "namespace": "team",
                    "name": format!("snapshot-{digest}"), "uid": "s-uid"},
                "deletionPolicy": "Delete",
                "driver": "csi.example",
                "source": {"volumeHandle": "vol-1"},
                "sourceVolumeMode": "Block",
            },
        })
    );
}

#[test]
fn names_of_members() {
    // The output of `printf g1vol-1 | sha256sum`.
    assert_eq!(
        names::member_names("g1", "vol-1").1,
        "snapcontent-3f24a93f41494e46f899e662d5c3d6377de1f934904867d498983a9a4a233481"
    );
}
