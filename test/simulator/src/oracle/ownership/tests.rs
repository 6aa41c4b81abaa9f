use rstest::rstest;
use serde_json::json;

use super::*;

fn volume(node: &str, claim: &str) -> Value {
    let term = json!({"matchExpressions": [
        {"key": TOPOLOGY, "operator": "In", "values": [node]}]});
    json!({"kind": "PersistentVolume", "metadata": {"name": "hostloop-uid",
            "annotations": {PROVISIONED_BY: DRIVER}},
        "spec": {"csi": {"driver": DRIVER}, "storageClassName": "ext4",
            "claimRef": {"uid": claim},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}})
}

fn claim(driver: &str, selected: &str, labelled: &str) -> Value {
    json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "u",
        "annotations": {PROVISIONERS[0]: driver, SELECTED_NODE: selected},
        "labels": {NODE: labelled}}})
}

fn capacity(node: &str, manager: &str) -> Value {
    json!({"kind": "CSIStorageCapacity", "metadata": {"labels": {
            "csi.storage.k8s.io/drivername": DRIVER,
            "csi.storage.k8s.io/managed-by": format!("external-provisioner-{manager}")}},
        "nodeTopology": {"matchLabels": {TOPOLOGY: node}}})
}

fn content(node: &str) -> Value {
    json!({"kind": "VolumeSnapshotContent", "metadata": {"labels": {MANAGED_BY: node}},
        "spec": {"driver": DRIVER}})
}

fn event(host: &str, kind: &str, about: &str) -> Value {
    json!({"kind": "Event", "involvedObject": {"kind": kind, "name": about},
        "source": {"component": DRIVER, "host": host},
        "reportingComponent": DRIVER, "reportingInstance": host})
}

fn some(kind: &str) -> Value {
    json!({"kind": kind, "metadata": {"name": "x"}})
}

#[rstest]
#[case::short("n3", "external-provisioner-n3", true)]
#[case::of_another("n3", "external-provisioner-n1", false)]
#[case::cut(
    "n2-in-the-second-hall-of-the-data-centre-in-delft",
    "exte-53f40b57-n2-in-the-second-hall-of-the-data-centre-in-delft",
    true
)]
#[case::cut_of_another(
    "n2-in-the-second-hall-of-the-data-centre-in-delft",
    "external-provisioner-n1",
    false
)]
#[case::left_out(
    "n3-on-the-top-floor-of-the-office-building-beside-the-harbour",
    "external-provisioner-0123abcd",
    true
)]
#[case::left_out_of_another(
    "n3-on-the-top-floor-of-the-office-building-beside-the-harbour",
    "external-provisioner-n1",
    false
)]
fn managers_of_capacities(#[case] node: &str, #[case] manager: &str, #[case] expected: bool) {
    assert_eq!(is_manager_on(node, manager), expected);
}

#[rstest]
#[case::own_volume("node-2", "POST", volume("n2", "uid"), true)]
#[case::volume_elsewhere("node-2", "POST", volume("n1", "uid"), false)]
#[case::volume_with_another_name("node-2", "POST", volume("n2", "other"), false)]
#[case::delete_own_volume("node-2", "DELETE", volume("n2", "uid"), true)]
#[case::delete_volume_elsewhere("node", "DELETE", volume("n2", "uid"), false)]
#[case::put_own_volume("node-2", "PUT", volume("n2", "uid"), false)]
#[case::selected_claim("node", "PATCH", claim(DRIVER, "n1", ""), true)]
#[case::labelled_claim("node", "PATCH", claim(DRIVER, "", "n1"), true)]
#[case::claim_elsewhere("node", "PATCH", claim(DRIVER, "n2", "n3"), false)]
#[case::claim_of_no_node("node", "PATCH", claim(DRIVER, "", ""), false)]
#[case::claim_of_another_driver("node", "PATCH", claim("d", "n1", "n1"), false)]
#[case::delete_claim("node", "DELETE", claim(DRIVER, "n1", "n1"), false)]
#[case::capacity("node-3", "POST", capacity("n3", "n3"), true)]
#[case::capacity_elsewhere("node-3", "PATCH", capacity("n1", "n3"), false)]
#[case::capacity_of_another_manager("node-3", "DELETE", capacity("n3", "n1"), false)]
#[case::own_content("node", "PATCH", content("n1"), true)]
#[case::content_elsewhere("node", "PATCH", content("n2"), false)]
#[case::content_of_no_node("node", "PATCH", content(""), false)]
#[case::make_content("node", "POST", content("n1"), false)]
#[case::snapshot("node", "PATCH", some("VolumeSnapshot"), true)]
#[case::delete_snapshot("node", "DELETE", some("VolumeSnapshot"), false)]
#[case::event("node", "POST", event("n1", "PersistentVolume", "v"), true)]
#[case::event_of_another("node", "POST", event("n2", "PersistentVolume", "v"), false)]
#[case::event_about_a_pod("node", "POST", event("n1", "Pod", "p"), false)]
#[case::event_about_itself("node", "POST", event("n1", "Node", "n1"), true)]
#[case::event_about_another("node", "POST", event("n1", "Node", "n2"), false)]
#[case::lease("node", "PUT", some("Lease"), false)]
#[case::registration("node", "PATCH", some("CSINode"), false)]
#[case::leaders_lease("leader-2", "PUT", some("Lease"), true)]
#[case::leaders_label("leader", "PATCH", volume("n2", "uid"), true)]
#[case::leaders_volume("leader", "POST", volume("n2", "uid"), false)]
#[case::leaders_content("leader", "POST", content("n2"), true)]
#[case::leaders_capacity("leader", "PATCH", capacity("n1", "n1"), false)]
#[case::leaders_secret("leader", "PATCH", some("Secret"), false)]
fn writes(#[case] actor: &str, #[case] verb: &str, #[case] object: Value, #[case] expected: bool) {
    let kind = text(&object, "/kind").to_owned();
    assert_eq!(may_write(actor, verb, &kind, &object), expected, "{object}");
}

/// A foreign object of this kind with this change.
fn foreign_one(kind: &str, change: &Value) -> Value {
    let mut object = json!({"kind": kind, "metadata": {"name": "x", "finalizers": ["f"]},
        "spec": {"driver": foreign::DRIVER}});
    for (field, value) in change.as_object().into_iter().flatten() {
        object[field] = value.clone();
    }
    object
}

#[rstest]
#[case::snapshot("leader", "VolumeSnapshot", json!({"status": {"readyToUse": true}}), true)]
#[case::snapshot_by_a_node("node", "VolumeSnapshot", json!({}), false)]
#[case::reference("leader", "VolumeSnapshotContent",
    json!({"spec": {"driver": foreign::DRIVER, "volumeSnapshotRef": {"uid": "u"}}}), true)]
#[case::protection("leader", "VolumeSnapshotContent",
    json!({"metadata": {"finalizers": ["f", "g"]}}), true)]
#[case::release("leader", "VolumeSnapshotContent", json!({"metadata": {}}), false)]
#[case::status("leader", "VolumeSnapshotContent", json!({"status": {"error": {}}}), false)]
#[case::label("leader", "VolumeSnapshotContent",
    json!({"metadata": {"finalizers": ["f"], "labels": {"a": "b"}}}), false)]
#[case::content_by_a_node("node-2", "VolumeSnapshotContent", json!({}), false)]
#[case::source("leader", "PersistentVolumeClaim",
    json!({"metadata": {"name": "x", "finalizers": ["f", AS_SOURCE]}}), true)]
#[case::claims_finalizer("leader", "PersistentVolumeClaim",
    json!({"metadata": {"name": "x", "finalizers": []}}), false)]
#[case::claims_label("leader", "PersistentVolumeClaim",
    json!({"metadata": {"name": "x", "finalizers": ["f"], "labels": {NODE: "n1"}}}), false)]
#[case::volume("leader", "PersistentVolume", json!({}), false)]
#[case::class("leader", "StorageClass", json!({}), false)]
#[case::attachment("leader", "VolumeAttachment", json!({}), false)]
#[case::capacity("leader", "CSIStorageCapacity", json!({}), false)]
fn writes_to_foreign_objects(
    #[case] actor: &str,
    #[case] kind: &str,
    #[case] change: Value,
    #[case] expected: bool,
) {
    let (old, new) = (foreign_one(kind, &json!({})), foreign_one(kind, &change));
    let write = Write {
        who: actor,
        method: "PATCH",
        path: "/x",
        old: Some(&old),
        new: Some(&new),
    };
    assert_eq!(
        breach(&write, &ForeignContents::default()).is_none(),
        expected,
        "{change}"
    );
}

/// An event about a content: of the other driver from the start, of its users, or of hostloop.
#[rstest]
#[case::there_before("node", "snapcontent-uid-of-other-taken", false)]
#[case::named_by_its_users("node", "other-existing", false)]
#[case::new("node-2", "snapcontent-1", false)]
#[case::by_the_leader("leader", "snapcontent-1", true)]
#[case::of_hostloop("node", "snapcontent-2", true)]
#[case::of_hostloop_after_a_restore("node", "snapcontent-3", true)]
fn events_about_contents(#[case] actor: &str, #[case] about: &str, #[case] expected: bool) {
    let mut contents = ForeignContents::there_before();
    for (name, driver) in [
        ("snapcontent-1", foreign::DRIVER),
        ("snapcontent-2", DRIVER),
        ("snapcontent-3", foreign::DRIVER),
        ("snapcontent-3", DRIVER),
    ] {
        contents.note(
            &json!({"kind": "VolumeSnapshotContent", "metadata": {"name": name},
            "spec": {"driver": driver}}),
        );
    }
    let host = node_of(actor).unwrap_or_default();
    let event = event(host, "VolumeSnapshotContent", about);
    let write = Write {
        who: actor,
        method: "POST",
        path: "/x",
        old: None,
        new: Some(&event),
    };
    assert_eq!(breach(&write, &contents).is_none(), expected, "{about}");
}

#[test]
fn other_actors_and_unlabelled_contents_are_free() {
    let (old, new) = (content(""), content("n1"));
    for (who, is_free) in [
        ("user", true),
        ("binder", true),
        ("node", true),
        ("node-2", false),
    ] {
        let write = Write {
            who,
            method: "PATCH",
            path: "/x",
            old: Some(&old),
            new: Some(&new),
        };
        assert_eq!(
            breach(&write, &ForeignContents::default()).is_none(),
            is_free,
            "{who}"
        );
    }
}
