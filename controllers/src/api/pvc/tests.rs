use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

fn claim(value: Value) -> PersistentVolumeClaim {
    serde_json::from_value(value).expect("a claim")
}

fn class(mode: &str) -> StorageClass {
    crate::testing::read(json!({
        "metadata": {"name": "fast"}, "provisioner": "d", "volumeBindingMode": mode,
    }))
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
    let (all, n1) = (&Scope::Cluster, &node("n1"));
    // Annotations: `for`, `beta` and `migrated` name the driver, `on` the selected node.
    for (what, annotations, mode, scope, leads, due) in [
        ("for this driver", "for=d", NOW, all, true, true),
        ("by the beta annotation", "beta=d", NOW, all, true, true),
        ("migrated", "migrated=d", NOW, all, true, true),
        ("for another", "for=e", NOW, all, true, false),
        ("for no driver yet", "", NOW, all, true, false),
        ("another leads", "for=d", NOW, all, false, false),
        ("no node yet", "for=d", LATE, all, true, false),
        ("an empty node", "for=d on=", LATE, all, true, false),
        ("a node", "for=d on=n7", LATE, all, true, true),
        ("this node", "for=d on=n1", LATE, n1, false, true),
        ("this node, now", "for=d on=n1", NOW, n1, false, true),
        ("another node", "for=d on=n2", LATE, n1, true, false),
        ("another node, now", "for=d on=n2", NOW, n1, true, false),
        ("no node, on a node", "for=d", LATE, n1, true, false),
        ("no node, now", "for=d", NOW, n1, true, false),
    ] {
        let pairs = annotations.split_whitespace();
        let pairs = pairs.filter_map(|pair| pair.split_once('='));
        let annotations: BTreeMap<_, _> = pairs
            .map(|(key, value)| match key {
                "for" => (PROVISIONER, value),
                "beta" => (PROVISIONER_BETA, value),
                "migrated" => (MIGRATED_TO, value),
                _ => (SELECTED_NODE, value),
            })
            .collect();
        let claim = claim(json!({"metadata": {"name": "c", "annotations": annotations}}));
        let context = ClaimContext {
            driver: "d",
            scope,
            leads,
        };
        assert_eq!(is_due(&claim, &class(mode), context), due, "{what}");
    }
}

#[test]
fn claims_older_than_the_deletion_of_their_source() {
    let at = |second: u8| format!("2026-01-01T00:00:0{second}Z");
    let claim = |created: Option<String>| {
        claim(json!({"metadata": {"name": "c", "creationTimestamp": created}}))
    };
    for (created, deleted, precedes) in [
        (Some(at(1)), None, true),
        (Some(at(1)), Some(at(2)), true),
        (Some(at(2)), Some(at(2)), true),
        (Some(at(3)), Some(at(2)), false),
        (None, Some(at(2)), true),
    ] {
        let source: ObjectMeta =
            crate::testing::read(json!({"name": "s", "deletionTimestamp": deleted}));
        let found = precedes_deletion(&claim(created.clone()), &source);
        assert_eq!(found, precedes, "{created:?} {deleted:?}");
    }
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
    for (annotations, field, written) in [
        (json!({CLASS_BETA: "old"}), json!("new"), Some("old")),
        (json!({CLASS_BETA: ""}), json!("new"), Some("")),
        (json!({}), json!(""), Some("")),
        (json!({}), json!(null), None),
    ] {
        let claim = claim(json!({
            "metadata": {"name": "c", "annotations": annotations},
            "spec": {"storageClassName": field},
        }));
        assert_eq!(written_class(&claim), written, "{annotations} {field}");
        assert_eq!(class_name(&claim), written.filter(|name| !name.is_empty()));
    }
}

#[test]
fn fields_of_a_claim() {
    let new = claim(json!({
        "metadata": {"name": "c", "annotations": {CLASS_BETA: "old"}},
        "spec": {"storageClassName": "new", "volumeAttributesClassName": "",
                 "resources": {"requests": {"storage": "1500M"}}},
    }));
    assert_eq!(class_name(&new), Some("old"));
    assert_eq!(attributes_class(&new), None);
    assert_eq!(volume_mode(&new), volume_mode::FILESYSTEM);
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
fn data_sources() {
    let snapshot = || Ok(DataSource::Snapshot("a".to_owned()));
    let of_claim = || Ok(DataSource::Claim("a".to_owned()));
    let other = |kind: &str| Ok(DataSource::Other(kind.to_owned()));
    let far = Err(DataSourceError::OtherNamespace {
        namespace: "far".to_owned(),
    });
    let source = |group: &str, kind: &str, name: &str| {
        let group = (group != "none").then_some(group);
        json!({"apiGroup": group, "kind": kind, "name": name})
    };
    let old = |source: Value| json!({"dataSource": source});
    let new = |source: Value| json!({"dataSourceRef": source});
    let with = |mut source: Value, namespace: &str| {
        source["namespace"] = json!(namespace);
        source
    };
    let (group, vs, pvc) = (SNAPSHOT_GROUP, "VolumeSnapshot", "PersistentVolumeClaim");
    let of_snapshot = || source(group, vs, "a");
    let both = json!({"dataSourceRef": of_snapshot(), "dataSource": source("none", pvc, "b")});
    for (spec, expected) in [
        (json!({}), Ok(DataSource::Nothing)),
        (old(source("none", pvc, "a")), of_claim()),
        (old(source("", pvc, "a")), of_claim()),
        (old(of_snapshot()), snapshot()),
        (both, snapshot()),
        (new(with(of_snapshot(), "ns")), snapshot()),
        (new(with(of_snapshot(), "far")), far),
        (old(source(group, vs, "")), Err(DataSourceError::NoName)),
        (new(source("a.b", "Image", "a")), other("Image.a.b")),
        (old(source("none", vs, "a")), other("VolumeSnapshot")),
    ] {
        let claim = claim(json!({
            "metadata": {"name": "c", "namespace": "ns"}, "spec": spec,
        }));
        assert_eq!(data_source(&claim), expected, "{spec}");
    }
}
