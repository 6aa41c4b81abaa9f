use serde_json::{Value, json};

use super::*;

fn claim(value: Value) -> PersistentVolumeClaim {
    serde_json::from_value(value).expect("a claim")
}

fn class(mode: &str) -> StorageClass {
    serde_json::from_value(json!({
        "metadata": {"name": "fast"}, "provisioner": "d", "volumeBindingMode": mode,
    }))
    .expect("a class")
}

fn node(name: &str) -> Scope {
    Scope::Node {
        name: name.to_owned(),
        segments: BTreeMap::new(),
    }
}

const LATE: &str = "WaitForFirstConsumer";
const NOW: &str = "Immediate";

#[test]
fn due_claims() {
    let asked = "volume.kubernetes.io/storage-provisioner";
    let asked_beta = "volume.beta.kubernetes.io/storage-provisioner";
    let migrated = "pv.kubernetes.io/migrated-to";
    let (all, n1) = (Scope::Cluster, node("n1"));
    type Case<'a> = (
        &'a str,
        &'a [(&'a str, &'a str)],
        &'a str,
        &'a Scope,
        bool,
        bool,
    );
    let cases: &[Case<'_>] = &[
        ("asked of us", &[(asked, "d")], NOW, &all, true, true),
        (
            "in the old way",
            &[(asked_beta, "d")],
            NOW,
            &all,
            true,
            true,
        ),
        ("migrated", &[(migrated, "d")], NOW, &all, true, true),
        ("of another", &[(asked, "e")], NOW, &all, true, false),
        ("of nobody yet", &[], NOW, &all, true, false),
        ("another leads", &[(asked, "d")], NOW, &all, false, false),
        ("no node yet", &[(asked, "d")], LATE, &all, true, false),
        (
            "an empty node",
            &[(asked, "d"), (SELECTED_NODE, "")],
            LATE,
            &all,
            true,
            false,
        ),
        (
            "a node",
            &[(asked, "d"), (SELECTED_NODE, "n7")],
            LATE,
            &all,
            true,
            true,
        ),
        (
            "our node",
            &[(asked, "d"), (SELECTED_NODE, "n1")],
            LATE,
            &n1,
            false,
            true,
        ),
        (
            "our node, now",
            &[(asked, "d"), (SELECTED_NODE, "n1")],
            NOW,
            &n1,
            false,
            true,
        ),
        (
            "other node",
            &[(asked, "d"), (SELECTED_NODE, "n2")],
            LATE,
            &n1,
            true,
            false,
        ),
        (
            "other node, now",
            &[(asked, "d"), (SELECTED_NODE, "n2")],
            NOW,
            &n1,
            true,
            false,
        ),
        ("no node for nodes", &[(asked, "d")], LATE, &n1, true, false),
        ("now, no node", &[(asked, "d")], NOW, &n1, true, false),
    ];
    for (what, annotations, mode, scope, leads, due) in cases {
        let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
        let claim = claim(json!({"metadata": {"name": "c", "annotations": annotations}}));
        let standing = ClaimContext {
            driver: "d",
            scope,
            leads: *leads,
        };
        assert_eq!(is_due(&claim, &class(mode), standing), *due, "{what}");
    }
}

#[test]
fn bound_claims_are_not_due() {
    let claim = claim(json!({
        "metadata": {"name": "c", "annotations": {PROVISIONER: "d"}},
        "spec": {"volumeName": "pv"},
    }));
    assert!(!is_for(&claim, "d"));
}

/// The beta provisioner annotation counts only without the current one. The beta class annotation
/// always wins over the field, even if it is empty.
#[test]
fn beta_annotations() {
    for (annotations, ours) in [
        (json!({PROVISIONER_BETA: "d"}), true),
        (json!({PROVISIONER: "d", PROVISIONER_BETA: "e"}), true),
        (json!({PROVISIONER: "e", PROVISIONER_BETA: "d"}), false),
        (json!({PROVISIONER: "", PROVISIONER_BETA: "d"}), false),
        (json!({PROVISIONER: "e", MIGRATED_TO: "d"}), true),
    ] {
        let claim = claim(json!({"metadata": {"name": "c", "annotations": annotations}}));
        assert_eq!(is_for(&claim, "d"), ours, "{annotations}");
    }
    for (annotations, field, told) in [
        (json!({CLASS_BETA: "old"}), json!("new"), Some("old")),
        (json!({CLASS_BETA: ""}), json!("new"), Some("")),
        (json!({}), json!(""), Some("")),
        (json!({}), json!(null), None),
    ] {
        let claim = claim(json!({
            "metadata": {"name": "c", "annotations": annotations},
            "spec": {"storageClassName": field},
        }));
        assert_eq!(written_class(&claim), told, "{annotations} {field}");
        assert_eq!(class_name(&claim), told.filter(|name| !name.is_empty()));
    }
}

#[test]
fn a_class_of_another_driver_is_not_ours() {
    let claim = claim(json!({"metadata": {"name": "c", "annotations": {PROVISIONER: "d"}}}));
    let mut class = class(NOW);
    class.provisioner = "e".to_owned();
    let standing = ClaimContext {
        driver: "d",
        scope: &Scope::Cluster,
        leads: true,
    };
    assert!(!is_due(&claim, &class, standing));
}

#[test]
fn what_claims_say() {
    let new = claim(json!({
        "metadata": {"name": "c", "annotations": {CLASS_BETA: "old"}},
        "spec": {"storageClassName": "new", "volumeAttributesClassName": "",
                 "resources": {"requests": {"storage": "1500M"}}},
    }));
    assert_eq!(class_name(&new), Some("old"));
    assert_eq!(attributes_class(&new), None);
    assert_eq!(volume_mode(&new), FILESYSTEM);
    assert_eq!(requested(&new), Ok(1_500_000_000));
    for bad in ["0", "-1Gi", "much", "8Ei"] {
        let claim = claim(json!({"metadata": {},
            "spec": {"resources": {"requests": {"storage": bad}}}}));
        assert_eq!(requested(&claim), Err(bad.to_owned()));
    }
    assert_eq!(
        requested(&claim(json!({"metadata": {}}))),
        Err(String::new())
    );
}

#[test]
fn what_is_asked() {
    let snapshot = |name: &str| Ok(DataSource::Snapshot(name.to_owned()));
    let other = |kind: &str| Ok(DataSource::Other(kind.to_owned()));
    let group = SNAPSHOT_GROUP;
    for (spec, expected) in [
        (json!({}), Ok(DataSource::Nothing)),
        (
            json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}}),
            Ok(DataSource::Claim("a".to_owned())),
        ),
        (
            json!({"dataSource": {"apiGroup": "", "kind": "PersistentVolumeClaim", "name": "a"}}),
            Ok(DataSource::Claim("a".to_owned())),
        ),
        (
            json!({"dataSource": {"apiGroup": group, "kind": "VolumeSnapshot", "name": "a"}}),
            snapshot("a"),
        ),
        (
            json!({"dataSourceRef": {"apiGroup": group, "kind": "VolumeSnapshot", "name": "a"},
                   "dataSource": {"kind": "PersistentVolumeClaim", "name": "b"}}),
            snapshot("a"),
        ),
        (
            json!({"dataSourceRef": {"apiGroup": group, "kind": "VolumeSnapshot", "name": "a",
                                     "namespace": "ns"}}),
            snapshot("a"),
        ),
        (
            json!({"dataSourceRef": {"apiGroup": group, "kind": "VolumeSnapshot", "name": "a",
                                     "namespace": "far"}}),
            Err(DataSourceError::OtherNamespace {
                namespace: "far".to_owned(),
            }),
        ),
        (
            json!({"dataSource": {"apiGroup": group, "kind": "VolumeSnapshot", "name": ""}}),
            Err(DataSourceError::NoName),
        ),
        (
            json!({"dataSourceRef": {"apiGroup": "a.b", "kind": "Image", "name": "a"}}),
            other("Image.a.b"),
        ),
        (
            json!({"dataSource": {"kind": "VolumeSnapshot", "name": "a"}}),
            other("VolumeSnapshot"),
        ),
    ] {
        let claim: PersistentVolumeClaim = claim(json!({
            "metadata": {"name": "c", "namespace": "ns"}, "spec": spec,
        }));
        assert_eq!(data_source(&claim), expected, "{spec}");
    }
}
