use serde_json::{Value, json};

use super::*;
use crate::api::constants::SNAPSHOT_FINALIZER;
use crate::api::scope::MANAGED_BY;
use crate::provisioner::decide::tests::changed;
use crate::snapshots::content::GROUP_HANDLE;
use crate::testing::{affinity, check_result, node_scope, read};

/// A claim that needs a volume.
fn copy() -> PersistentVolumeClaim {
    read(json!({
        "metadata": {"name": "copy", "namespace": "ns", "creationTimestamp": "2026-01-02T00:00:00Z"},
        "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "2Gi"}}},
    }))
}

fn target<'a>(claim: &'a PersistentVolumeClaim, scope: &'a Scope, pools: &'a Pools) -> Target<'a> {
    Target {
        claim,
        prevent_mode_change: true,
        size: 2 << 30,
        driver: "d",
        scope,
        pools,
    }
}

/// Checks that a source is made from this handle, or that the error contains a text.
fn check(
    made: Result<VolumeContentSource, SourceError>,
    handle: Type,
    error: Option<&str>,
    what: &str,
) {
    let expected = error.map_or(Ok(Some(handle)), Err);
    check_result(made.map(|source| source.r#type), expected, what);
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
        "spec": {"driver": "d", "deletionPolicy": "Delete", "source": {"snapshotHandle": "handle"},
                 "volumeSnapshotRef": {"name": "snap", "namespace": "ns", "uid": "u"}},
        "status": {"snapshotHandle": "handle"},
    })
}

#[test]
fn snapshots() {
    let deleted = |day: u8| {
        (
            "/metadata/deletionTimestamp",
            json!(format!("2026-01-0{day}T00:00:00Z")),
        )
    };
    let restore_size = |size: Value| vec![("/status/restoreSize", size)];
    let in_use = ("/metadata/finalizers", json!([SNAPSHOT_FINALIZER]));
    let mode = |mode: &str| vec![("/spec/sourceVolumeMode", json!(mode))];
    let allowed = || {
        let annotations = json!({ALLOW_MODE_CHANGE: "True"});
        [mode("Block"), vec![("/metadata/annotations", annotations)]].concat()
    };
    let bound_to = |uid: &str| vec![("/spec/volumeSnapshotRef/uid", json!(uid))];
    let no_status = || vec![("/status", json!(null))];
    let (claim, pools) = (copy(), Pools::default());
    let target = target(&claim, &Scope::Cluster, &pools);
    let handle = || {
        Type::Snapshot(SnapshotSource {
            snapshot_id: "handle".to_owned(),
        })
    };
    let other_driver = vec![("/spec/driver", json!("e"))];
    let not_ready = vec![("/status/readyToUse", json!(false))];
    for (of_snapshot, of_content, error) in [
        (vec![], vec![], None),
        (restore_size(json!("2Gi")), vec![], None),
        (
            restore_size(json!("3Gi")),
            vec![],
            Some("storage is 2Gi, but"),
        ),
        (restore_size(json!(null)), vec![], None),
        (not_ready, vec![], Some("not ready to use")),
        (no_status(), vec![], Some("not bound to a VolumeSnapshot")),
        // Whatever keeps a snapshot for claims keeps it for the earlier ones only.
        (vec![deleted(1)], vec![], Some("being deleted")),
        (
            vec![deleted(1), in_use.clone()],
            vec![],
            Some("being deleted"),
        ),
        (vec![deleted(3)], vec![], None),
        (vec![deleted(3), in_use], vec![], None),
        (vec![], other_driver, Some("taken by the driver e")),
        (vec![], bound_to("v"), Some("content is not bound to it")),
        (vec![], no_status(), Some("no status.snapshotHandle")),
        (vec![], mode("Block"), Some("allow-volume-mode-change=true")),
        (vec![], allowed(), None),
        (vec![], mode("Filesystem"), None),
    ] {
        let one: VolumeSnapshot = read(changed(snapshot(), &of_snapshot));
        let two: VolumeSnapshotContent = read(changed(content(), &of_content));
        let made = from_snapshot(target, "snap", Some(&one), Some(&two));
        let what = format!("{of_snapshot:?} {of_content:?}");
        check(made, handle(), error, &what);
    }
    let (one, two) = (read(snapshot()), read(changed(content(), &mode("Block"))));
    let lenient = Target {
        prevent_mode_change: false,
        ..target
    };
    let made = from_snapshot(lenient, "snap", Some(&one), Some(&two));
    check(made, handle(), None, "lenient");
    let content_missing = "VolumeSnapshotContent content of";
    for (one, error) in [
        (None, "VolumeSnapshot ns/snap, does not exist"),
        (Some(&one), content_missing),
    ] {
        let made = from_snapshot(target, "snap", one, None);
        check(made, handle(), Some(error), "missing");
    }
}

/// How a content came to be.
#[derive(Clone, Copy, Debug)]
enum Made {
    /// By a snapshot controller, of a volume.
    Dynamic,
    /// By a controller, of a member of a group.
    Member,
    /// As a member, by a controller that writes the snapshot's handle.
    MemberOfHandle,
    /// By an administrator, of a snapshot.
    ByHand,
    /// By an administrator, of a member of a group.
    MemberByHand,
}

/// A filesystem never comes from the bytes of a block device without an administrator's word.
#[test]
fn volume_modes() {
    use Made::{ByHand, Dynamic, Member, MemberByHand, MemberOfHandle};
    for (has, made, requested, error) in [
        (None, Dynamic, "Filesystem", Some("does not say")),
        (None, Member, "Filesystem", Some("does not say")),
        (None, MemberOfHandle, "Filesystem", Some("does not say")),
        (None, ByHand, "Filesystem", None),
        (None, MemberByHand, "Filesystem", None),
        (None, Dynamic, "Block", None),
        (None, Member, "Block", None),
        (None, ByHand, "Block", None),
        (Some("Block"), Dynamic, "Filesystem", Some("has Block")),
        (Some("Block"), Member, "Filesystem", Some("has Block")),
        (Some("Block"), ByHand, "Filesystem", Some("has Block")),
        (Some("Block"), Dynamic, "Block", None),
        (Some("Filesystem"), Dynamic, "Filesystem", None),
        (Some("Filesystem"), Dynamic, "Block", Some("has Filesystem")),
        (Some(""), Dynamic, "Filesystem", Some("has ")),
    ] {
        let what = format!("{has:?} {made:?} {requested}");
        let (source, annotations) = match made {
            Dynamic => (json!({"volumeHandle": "v"}), json!({})),
            Member => (json!({"volumeHandle": "v"}), json!({GROUP_HANDLE: "g"})),
            MemberOfHandle => (json!({"snapshotHandle": "s"}), json!({GROUP_HANDLE: "g"})),
            ByHand | MemberByHand => (json!({"snapshotHandle": "s"}), json!({})),
        };
        let group = matches!(made, MemberByHand).then_some("g");
        let mut claim = copy();
        claim.spec.as_mut().unwrap().volume_mode = Some(requested.to_owned());
        let pools = Pools::default();
        let target = target(&claim, &Scope::Cluster, &pools);
        let with = |target, annotation: Option<&str>| {
            let mut annotations = annotations.clone();
            if let Some(text) = annotation {
                annotations[ALLOW_MODE_CHANGE] = json!(text);
            }
            let changes = [
                ("/spec/source", source.clone()),
                ("/spec/sourceVolumeMode", json!(has)),
                ("/metadata/annotations", annotations),
                ("/status/volumeGroupSnapshotHandle", json!(group)),
            ];
            may_change_mode(target, &changes)
        };
        for no_word in [None, Some("false"), Some("yes"), Some("")] {
            check_result(with(target, no_word), error.map_or(Ok(false), Err), &what);
        }
        check_result(with(target, Some("true")), Ok(true), &what);
        let lenient = Target {
            prevent_mode_change: false,
            ..target
        };
        check_result(with(lenient, None), Ok(true), &what);
    }
}

/// Makes a source from the snapshot, and says whether its mode may change.
fn may_change_mode(target: Target<'_>, content_is: &[(&str, Value)]) -> Result<bool, SourceError> {
    let found = SourceObjects {
        snapshot: Some(Arc::new(read(snapshot()))),
        content: Some(Arc::new(read(changed(content(), content_is)))),
        ..SourceObjects::default()
    };
    let made = content_source(target, &DataSource::Snapshot("snap".to_owned()), &found);
    made.map(|source| source.may_change_mode)
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
    let phase = |phase: &str| vec![("/status/phase", json!(phase))];
    let class = |name: Value| vec![("/spec/storageClassName", name)];
    let deleted = |day: u8| {
        (
            "/metadata/deletionTimestamp",
            json!(format!("2026-01-0{day}T00:00:00Z")),
        )
    };
    let kept = ("/metadata/finalizers", json!([CLONE_FINALIZER]));
    let large = vec![("/spec/resources/requests/storage", json!("3Gi"))];
    let other_driver = vec![("/spec/csi/driver", json!("e"))];
    let no_csi = vec![("/spec/csi", json!(null))];
    let other_claim = vec![("/spec/claimRef/uid", json!("v"))];
    let no_claim = vec![("/spec/claimRef", json!(null))];
    let block = vec![("/spec/volumeMode", json!("Block"))];
    let (claim, pools) = (copy(), Pools::default());
    let target = target(&claim, &Scope::Cluster, &pools);
    let handle = || {
        Type::Volume(VolumeSource {
            volume_id: "handle".to_owned(),
        })
    };
    for (of_claim, of_volume, error) in [
        (vec![], vec![], None),
        (phase("Pending"), vec![], Some("not bound to a volume yet")),
        (phase("Lost"), vec![], Some("not bound to a volume yet")),
        (vec![deleted(1)], vec![], Some("being deleted")),
        (
            vec![deleted(1), kept.clone()],
            vec![],
            Some("being deleted"),
        ),
        (vec![deleted(3)], vec![], Some("being deleted")),
        (vec![deleted(3), kept], vec![], None),
        (class(json!(null)), vec![], Some("must name a StorageClass")),
        // This claim is bound to a volume that an administrator created.
        (class(json!("")), vec![], None),
        (vec![], phase("Released"), Some("pv is not Bound yet")),
        (large, vec![], Some("needs at least 3Gi")),
        (vec![], no_csi, Some("not of the driver")),
        (vec![], other_driver, Some("not of the driver")),
        (vec![], other_claim, Some("pv is not bound to it")),
        (vec![], no_claim, Some("pv is not bound to it")),
        (vec![], block, Some("the mode of its source")),
    ] {
        let one: PersistentVolumeClaim = read(changed(source_claim(), &of_claim));
        let two: PersistentVolume = read(changed(source_volume(), &of_volume));
        let made = from_claim(target, "origin", Some(&one), Some(&two));
        let what = format!("{of_claim:?} {of_volume:?}");
        check(made, handle(), error, &what);
    }
    let claim_missing = "PersistentVolumeClaim ns/origin, does not exist";
    for (one, error) in [
        (Some(read(source_claim())), "PersistentVolume pv of"),
        (None, claim_missing),
    ] {
        let made = from_claim(target, "origin", one.as_ref(), None);
        check(made, handle(), Some(error), "missing");
    }
}

/// A node can create a PersistentVolume with its own affinity and the handle of another node's
/// volume. It can also write another node's snapshot handle into its own content.
#[test]
fn on_a_node_affinity_label_and_handle_must_agree() {
    let scope = node_scope("n1", "t/node");
    let reported = || Pools::reported(|| vec!["a1".to_owned()]);
    let at = |node: &str| affinity("t/node", &[node]);
    let managed = |node: &str| json!({MANAGED_BY: node});
    let claim = copy();
    // Columns: the node in the affinity or label, then the handle, with and without known pools.
    for (pools, node, handle, is_source) in [
        (reported(), Some("n1"), "vol-a1-0", true),
        (reported(), Some("n2"), "vol-a1-0", false),
        (reported(), Some("n1"), "vol-b2-0", false),
        (reported(), Some("n2"), "vol-b2-0", false),
        (reported(), None, "vol-a1-0", true),
        (reported(), None, "vol-b2-0", false),
        (Pools::default(), Some("n1"), "x", true),
        (Pools::default(), Some("n2"), "x", false),
        (Pools::default(), None, "x", true),
    ] {
        let target = target(&claim, &scope, &pools);
        let what = format!("{pools:?} {node:?} {handle}");
        let affinity = node.map_or(Value::Null, at);
        let of_volume = [
            ("/spec/csi/volumeHandle", json!(handle)),
            ("/spec/nodeAffinity", affinity),
        ];
        let volume = changed(source_volume(), &of_volume);
        let (one, volume) = (read(source_claim()), read(volume));
        let made = from_claim(target, "origin", Some(&one), Some(&volume));
        assert_eq!(made.is_ok(), is_source, "{what}: {made:?}");
        let labels = node.map_or(Value::Null, managed);
        let existing = [
            ("/status/snapshotHandle", json!(handle)),
            ("/metadata/labels", labels),
        ];
        let existing = changed(content(), &existing);
        let from_volume = [
            ("/spec/source", json!({"volumeHandle": "v"})),
            ("/spec/sourceVolumeMode", json!("Filesystem")),
        ];
        let taken = changed(existing.clone(), &from_volume);
        let one = read(snapshot());
        for (content, is_source) in [(existing, is_source), (taken, is_source && node.is_some())] {
            let made = from_snapshot(target, "snap", Some(&one), Some(&read(content.clone())));
            assert_eq!(made.is_ok(), is_source, "{what} {content}: {made:?}");
        }
    }
}
