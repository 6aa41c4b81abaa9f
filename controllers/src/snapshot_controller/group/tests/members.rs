//! Tests of the members of groups.

use super::*;
use crate::api::scope::MANAGED_BY;
use crate::cache::Caches;
use crate::snapshot_controller::group::members::listed;
use crate::snapshots::{SnapshotInfo, VolumeGroupSnapshotContent};

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
        is_left_out: false,
        volume: claim(1, json!({}), json!({})).1,
    }];
    facts
}

#[test]
fn members_of_a_group() {
    let snapshot = |status: Value| {
        Some(
            json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": "s", "namespace": "team", "uid": "s-uid"},
            "spec": {"source": {}}, "status": status}),
        )
    };
    let content = |uid: Option<&str>, status: Value| {
        Some(
            json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "c"}, "spec": {"driver": "csi.example", "deletionPolicy": "Delete",
            "volumeSnapshotRef": {"name": "s", "namespace": "team", "uid": uid},
            "source": {"volumeHandle": "vol-1"}}, "status": status}),
        )
    };
    let whole = json!({"snapshotHandle": "s-1", "volumeGroupSnapshotHandle": "gs",
        "readyToUse": false});
    let bound = json!({"boundVolumeSnapshotContentName": "c"});
    for (member, member_content, expected) in [
        (None, None, "member"),
        (None, content(None, json!(null)), "member"),
        (snapshot(json!(null)), None, "member's content"),
        (
            snapshot(json!(null)),
            content(None, json!(null)),
            "bind member's content to s-uid",
        ),
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
        (
            snapshot(json!(null)),
            content(Some("s-uid"), whole.clone()),
            "bind member to c",
        ),
        (snapshot(bound), content(Some("s-uid"), whole), "status"),
    ] {
        expect(&with_member(member, member_content), expected);
    }
}

/// The API server went back to a backup, and then a leader wrote the status that the group had after
/// it, from a cache that was not listed again yet. Since then the group is found or taken again.
#[test]
fn a_group_that_is_ready_too_early_gets_its_members() {
    let (before, now) = ("2026-01-02T03:04:05Z", "2026-01-02T04:04:05Z");
    let given = json!({"selector": null, "volumeGroupSnapshotContentName": CONTENT});
    for (of_group, handle, is_left_out, more, expected) in [
        (now, Some("gs"), false, json!({}), "member"),
        (before, Some("gs"), false, json!({}), "member"),
        (now, Some("gs"), true, json!({}), "done"),
        (now, Some("gs"), false, json!({"source": given}), "done"),
        (
            before,
            None,
            false,
            json!({}),
            "status {\"readyToUse\":false}",
        ),
    ] {
        let mut facts = with_member(None, None);
        let ready = json!({"boundVolumeGroupSnapshotContentName": CONTENT, "readyToUse": true,
            "creationTime": of_group});
        facts.snapshot = of(group(json!({"spec": more, "status": ready})));
        let taken = json!({"volumeGroupSnapshotHandle": handle, "readyToUse": handle.is_some(),
            "creationTime": handle.map(|_| now)});
        facts.content = Some(of(content(json!({"status": taken}))));
        facts.own.members[0].is_left_out = is_left_out;
        expect(&facts, expected);
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

/// Users can delete claims, and so the volumes' objects, before the contents of the members are made.
#[test]
fn the_mode_of_a_member() {
    let snapshot = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": "s", "namespace": "team", "uid": "s-uid"}, "spec": {"source": {}}});
    // The annotation of the group's content, the mode of the volume if its object is there.
    for (noted, volume, expected) in [
        (Some(r#"["vol-1"]"#), None, Some("Block")),
        (Some(r#"["vol-2","vol-1"]"#), None, Some("Block")),
        (Some(r#"["vol-2"]"#), None, Some("Filesystem")),
        (Some("[]"), None, Some("Filesystem")),
        (
            Some(r#"["vol-1"]"#),
            Some(json!("Filesystem")),
            Some("Block"),
        ),
        (None, Some(json!("Block")), Some("Block")),
        (None, Some(Value::Null), Some("Filesystem")),
        (Some("vol-1"), Some(json!("Block")), Some("Block")),
        (None, None, None),
        (Some("{}"), None, None),
    ] {
        let what = format!("{noted:?} {volume:?}");
        let mut facts = with_member(Some(snapshot.clone()), None);
        facts.content = Some(of(content(json!({
            "metadata": {"annotations": {"hostloop.csi.dev/block-volume-handles": noted}},
            "status": {"volumeGroupSnapshotHandle": "gs"},
        }))));
        facts.own.members[0].volume =
            volume.and_then(|mode| claim(1, json!({}), json!({"spec": {"volumeMode": mode}})).1);
        let Step::Own(GroupStep::CreateMemberContent(made)) = decide(&facts) else {
            panic!("{what}: {:?}", decide(&facts));
        };
        assert_eq!(made.spec.source_volume_mode.as_deref(), expected, "{what}");
    }
}

/// A handle that the group's content was not made of has no noted mode.
#[test]
fn the_noted_modes_are_those_of_the_sources() {
    let noted = json!({"metadata": {"annotations":
        {"hostloop.csi.dev/block-volume-handles": r#"["vol-1","vol-9"]"#}}});
    let made: VolumeGroupSnapshotContent = serde_json::from_value(content(noted)).unwrap();
    for (handle, expected) in [
        ("vol-1", Some("Block")),
        ("vol-2", Some("Filesystem")),
        ("vol-9", None),
    ] {
        assert_eq!(source_modes::of(&made, handle), expected, "{handle}");
    }
}

/// A stolen node can make a volume for itself, with the handle of another node's.
#[tokio::test]
async fn a_member_is_of_the_volume_on_the_node_of_its_group() {
    let caches = Arc::new(Caches::unwatched());
    let watches = Watches::new(caches.clone(), true);
    for (name, node) in [("own", "n1"), ("copied", "n2")] {
        let it = json!({"metadata": {"name": node, "labels": {"on": node}}});
        caches.nodes().apply_write(testing::read(it));
        let affinity = testing::affinity("on", &[node]);
        let claim = json!({"namespace": "team", "name": name, "uid": name});
        let more = json!({"spec": {"nodeAffinity": affinity, "claimRef": claim}});
        let it = with(testing::volume(name, DRIVER, "h"), more);
        caches.volumes().apply_write(testing::read(it));
    }
    let group: VolumeGroupSnapshot = testing::read(group(json!({})));
    for (label, expected) in [("n1", Some("own")), ("n2", Some("copied")), ("n3", None)] {
        let info = json!({"volumeHandle": "h", "snapshotHandle": "s"});
        let content: VolumeGroupSnapshotContent = testing::read(content(json!({
            "metadata": {"labels": {MANAGED_BY: label}},
            "status": {"volumeSnapshotInfoList": [info]},
        })));
        let members = listed(&watches, &group, Some(&content)).await;
        let volume = members[0].volume.as_deref().map(ResourceExt::name_any);
        assert_eq!(volume.as_deref(), expected, "{label}");
    }
}
