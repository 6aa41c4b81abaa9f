use rstest::rstest;
use serde_json::json;

use super::*;
use crate::Records;

fn found() -> FoundObjects {
    let records = Records {
        volumes: vec![json!({
            "id": "vol-1", "name": "hostloop-6", "created_ns": 1, "capacity_bytes": 10_485_760,
            "requested_bytes": 10_000_000, "format": {"done": "ext4"}, "fresh": true,
            "settings": {"direct_io": false}, "source": {"snapshot": "snap-1"},
            "parameters": {"csi.storage.k8s.io/pvc/name": "c1"}})],
        snapshots: vec![json!({
            "id": "snap-1", "created_ns": 2, "size_bytes": 10_485_760, "format": "raw",
            "provisioning": "thin",
            "parameters": {"csi.storage.k8s.io/volumesnapshot/name": "s1"}})],
    };
    let mut found = FoundObjects::new(records);
    found.add(
        "PersistentVolumeClaim",
        vec![json!({
            "metadata": {"name": "c1", "namespace": "u", "uid": "6", "resourceVersion": "8",
                "finalizers": ["b", "a"]},
            "spec": {"volumeName": "hostloop-6", "storageClassName": "ext4",
                "resources": {"requests": {"storage": "10M"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "10Mi"},
                "accessModes": ["ReadWriteOnce"],
                "conditions": [{"type": "Resizing", "status": "True", "lastProbeTime": null},
                    {"type": "ModifyingVolume", "status": "False"}]}})],
    );
    found.add(
        "PersistentVolume",
        vec![json!({
            "metadata": {"name": "hostloop-6", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"persistentVolumeReclaimPolicy": "Delete", "claimRef": {"name": "c1"},
                "capacity": {"storage": "10Mi"}, "csi": {"volumeHandle": "vol-1"}},
            "status": {"phase": "Bound"}})],
    );
    found.add(
        "VolumeSnapshot",
        vec![json!({
            "metadata": {"name": "s1", "namespace": "u"},
            "status": {"readyToUse": false, "error": {"message": "no"},
                "boundVolumeSnapshotContentName": "snapcontent-7"}})],
    );
    found.add(
        "VolumeSnapshotContent",
        vec![json!({
            "metadata": {"name": "snapcontent-8"},
            "spec": {"deletionPolicy": "Retain", "volumeSnapshotRef": {"name": "s2"}},
            "status": {"readyToUse": true, "restoreSize": 1024, "snapshotHandle": "snap-2"}})],
    );
    found.add(
        "Pod",
        vec![json!({
            "metadata": {"name": "p1", "namespace": "u"}, "spec": {"nodeName": "n1"},
            "status": {"phase": "Running"}})],
    );
    found
}

#[rstest]
#[case::claim(
    "claim c1",
    "access=ReadWriteOnce, capacity=10485760, class=ext4, conditions=Resizing, \
     finalizers=a and b, phase=Bound, request=10000000, volume=volume of claim c1"
)]
#[case::volume(
    "volume of claim c1",
    "capacity=10485760, claim=c1, deleted=yes, phase=Bound, policy=Delete"
)]
#[case::snapshot("snapshot s1", "content=one that is gone, error=yes, ready=false")]
#[case::content(
    "content of snapshot s2",
    "handle=yes, policy=Retain, ready=true, restore size=1024"
)]
#[case::pod("pod p1", "node=yes, phase=Running")]
#[case::volume_record(
    "data of claim c1",
    "format={\"done\":\"ext4\"}, never used=yes, requested=10000000, \
     settings={\"direct_io\":false}, size=10485760, snapshot=data of snapshot s1"
)]
#[case::snapshot_record("data of snapshot s1", "format=raw, provisioning=thin, size=10485760")]
fn an_object_has_these_fields(#[case] object: &str, #[case] expected: &str) {
    assert_eq!(ClusterState::of(&found()).line(object), expected);
}

fn event(kind: &str, namespace: &str, name: &str, reason: &str) -> Value {
    json!({"metadata": {"name": "e", "namespace": "default"}, "reason": reason, "count": 7,
        "involvedObject": {"kind": kind, "namespace": namespace, "name": name}})
}

#[rstest]
#[case::about_a_claim(
    event("PersistentVolumeClaim", "u", "c1", "Resizing"),
    "claim c1",
    true
)]
#[case::about_one_that_is_gone(event("Pod", "u", "p9", "Scheduled"), "pod p9", true)]
#[case::of_another_namespace(event("Pod", "x", "p9", "Scheduled"), "pod p9", false)]
#[case::about_a_volume(
    event("PersistentVolume", "", "hostloop-6", "VolumeDelete"),
    "volume of claim c1",
    true
)]
#[case::about_a_volume_that_is_gone(
    event("PersistentVolume", "", "hostloop-9", "VolumeDelete"),
    "hostloop-9",
    false
)]
#[case::about_a_node(event("Node", "", "n1", "OrphanedVolumes"), "n1", false)]
#[case::of_the_new_kind(
    json!({"metadata": {"name": "e"}, "reason": "Scheduled",
        "regarding": {"kind": "Pod", "namespace": "u", "name": "p1"}}),
    "pod p1",
    true
)]
fn events_about_the_users_objects_count(
    #[case] event: Value,
    #[case] object: &str,
    #[case] expected: bool,
) {
    let mut found = found();
    found.add("Event", vec![event.clone()]);
    let line = ClusterState::of(&found).line(object);
    let reason = event["reason"].as_str().unwrap();
    assert_eq!(line.contains(reason), expected, "{line}");
}

fn state(objects: &[(&str, &[(&str, &str)])]) -> ClusterState {
    let objects = objects.iter().map(|(object, fields)| {
        let fields = fields.iter();
        let fields = fields.map(|(field, value)| ((*field).to_owned(), (*value).to_owned()));
        ((*object).to_owned(), fields.collect())
    });
    ClusterState(objects.collect())
}

#[rstest]
#[case::the_same(
    state(&[("claim c1", &[("phase", "Bound")])]),
    state(&[("claim c1", &[("phase", "Bound")])]),
    &[]
)]
#[case::a_field(
    state(&[("claim c1", &[("phase", "Bound")])]),
    state(&[("claim c1", &[("phase", "Pending"), ("class", "ext4")])]),
    &["claim c1: class is missing in the simulator and ext4 on the cluster",
      "claim c1: phase is Bound in the simulator and Pending on the cluster"]
)]
#[case::an_object(
    state(&[]),
    state(&[("pod p1", &[("phase", "Running"), ("event Scheduled", "sent")])]),
    &["pod p1 exists only on the cluster",
      "pod p1: the event Scheduled was sent only on the cluster"]
)]
#[case::an_event_about_what_is_gone(
    state(&[("pod p1", &[("event Scheduled", "sent")])]),
    state(&[]),
    &["pod p1: the event Scheduled was sent only in the simulator"]
)]
fn states_differ(
    #[case] simulated: ClusterState,
    #[case] real: ClusterState,
    #[case] expected: &[&str],
) {
    let differences = simulated.differences(&real);
    let sentences: Vec<String> = differences.iter().map(ToString::to_string).collect();
    assert_eq!(sentences, expected);
}

#[test]
fn a_state_is_the_same_after_its_export() {
    let state = ClusterState::of(&found());
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<ClusterState>(&text).unwrap(), state);
}
