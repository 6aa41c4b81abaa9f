use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity, VolumeAttachment};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::*;
use crate::api::pod::Pod;
use crate::client::Resource;
use crate::client::kube::{is_left_out, trimmed_object};
use crate::snapshots::{
    VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeSnapshot, VolumeSnapshotContent,
};

fn kind(plural: &str) -> &'static KeptFields {
    let found = KEPT_FIELDS.iter().find(|kind| kind.plural == plural);
    found.unwrap_or_else(|| panic!("{plural} is not in the table"))
}

fn trimmed(plural: &str, object: &Value) -> Value {
    let kept = trimmed_object(kind(plural), object.to_string().as_bytes());
    serde_json::from_slice(&kept).expect("JSON")
}

/// The paths of the values in an object.
fn paths(object: &Value) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let mut left = vec![(String::new(), object)];
    while let Some((path, value)) = left.pop() {
        match value {
            Value::Object(members) if !members.is_empty() => {
                left.extend(
                    members
                        .iter()
                        .map(|(key, value)| (format!("{path} {key}"), value)),
                );
            }
            Value::Array(list) if !list.is_empty() => {
                left.extend(list.iter().map(|value| (path.clone(), value)));
            }
            _ => drop(paths.insert(path.trim_start().to_owned())),
        }
    }
    paths
}

/// Metadata as users and the API server fill it.
fn metadata(annotation: &str, label: &str) -> Value {
    json!({
        "name": "x", "generateName": "x-", "namespace": "ns", "uid": "u", "resourceVersion": "1",
        "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z", "selfLink": "/x",
        "deletionTimestamp": "2026-01-02T00:00:00Z", "deletionGracePeriodSeconds": 0,
        "finalizers": ["f"],
        "labels": {"team": "a", label: "n"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", annotation: "v"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "w"}],
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}],
    })
}

#[test]
fn only_these_fields_are_kept() {
    let spec = json!({"a": "b"});
    for (plural, annotation, label, rest, expected) in [
        (
            "persistentvolumeclaims",
            SELECTED_NODE,
            NODE_LABEL,
            json!({
                "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "v", "selector": {"a": 1},
                         "resources": {"requests": {"storage": "1", "cpu": "1"}, "limits": {"storage": "2"}},
                         "dataSource": {"kind": "K", "name": "s"}},
                "status": {"phase": "Bound", "healthStatus": {"healthConditions": []}},
            }),
            "metadata labels team|metadata labels hostloop.csi.dev/node|spec accessModes\
             |spec volumeName|spec selector|spec resources requests storage|spec dataSource kind\
             |spec dataSource name|status phase",
        ),
        (
            "pods",
            "a",
            "b",
            json!({
                "spec": {
                    "nodeName": "n", "nodeSelector": {"a": "b"}, "tolerations": [{"key": "k"}],
                    "affinity": {"nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"a": "b"},
                        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}],
                    }},
                    "containers": [{"name": "c", "env": [{"name": "e"}]}],
                    "volumes": [
                        {"name": "one", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}},
                        {"name": "two", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                        {"name": "three", "configMap": {"name": "m"}},
                    ],
                },
                "status": {"phase": "Running", "message": "m"},
            }),
            "spec nodeName|spec nodeSelector a|spec tolerations key\
             |spec affinity nodeAffinity requiredDuringSchedulingIgnoredDuringExecution a\
             |spec volumes name|spec volumes persistentVolumeClaim claimName\
             |spec volumes ephemeral|status phase|OWNERS",
        ),
        (
            "nodes",
            "a",
            "topology.x/zone",
            json!({
                "spec": {"unschedulable": true, "podCIDR": "p", "taints": [{"key": "k", "value": "v",
                         "effect": "NoSchedule"}]},
                "status": {"conditions": [{"type": "Ready", "status": "True", "message": "m"}],
                           "images": [{"names": ["i"]}]},
            }),
            "metadata labels team|metadata labels topology.x/zone|spec unschedulable\
             |spec taints key|spec taints value|spec taints effect|status conditions type|status conditions status",
        ),
        (
            "volumesnapshots",
            "a",
            "b",
            json!({"spec": spec, "status": spec}),
            "OWNERS|spec a|status a",
        ),
        ("csinodes", "a", "b", json!({"spec": spec}), "spec a"),
        (
            "persistentvolumes",
            PRE_RESIZE_CAPACITY,
            NODE_LABEL,
            json!({"spec": spec, "status": spec}),
            "metadata labels hostloop.csi.dev/node|spec a|status a",
        ),
    ] {
        let mut object =
            json!({"kind": "K", "apiVersion": "v1", "metadata": metadata(annotation, label)});
        object
            .as_object_mut()
            .expect("an object")
            .extend(rest.as_object().cloned().expect("one"));
        let kept = trimmed(plural, &object);
        let usual = "kind|apiVersion|metadata name|metadata namespace|metadata uid\
                     |metadata resourceVersion|metadata creationTimestamp\
                     |metadata deletionTimestamp|metadata finalizers";
        let owners = ["apiVersion", "kind", "name", "uid"]
            .map(|it| format!("metadata ownerReferences {it}"));
        let expected = expected.replace("OWNERS", &owners.join("|"));
        let annotation = (annotation != "a").then(|| format!("metadata annotations {annotation}"));
        let expected = usual
            .split('|')
            .chain(expected.split('|'))
            .map(str::to_owned);
        let expected: BTreeSet<_> = expected.chain(annotation).collect();
        assert_eq!(paths(&kept), expected, "{plural}");
        assert_eq!(
            trimmed(plural, &kept),
            kept,
            "{plural}: nothing more is dropped"
        );
    }
}

/// Every kind in the table can be read when it is too large, and says so.
#[test]
fn an_object_that_is_left_out_is_read() {
    fn check<K: Resource>() {
        let kind = kind(&K::plural(&()));
        let object = json!({
            "kind": K::kind(&()), "apiVersion": K::api_version(&()),
            "metadata": {"name": "x", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                         "finalizers": vec!["a/b"; kind.max / 8]},
        });
        let kept = trimmed_object(kind, object.to_string().as_bytes());
        let kept: K = serde_json::from_slice(&kept).expect(kind.plural);
        assert!(is_left_out(&kept), "{}", kind.plural);
        assert_eq!(kept.name_any(), "x", "{}", kind.plural);
        assert_eq!(kept.uid().as_deref(), Some("u"), "{}", kind.plural);
        assert_eq!(
            kept.resource_version().as_deref(),
            Some("7"),
            "{}",
            kind.plural
        );
    }
    check::<PersistentVolumeClaim>();
    check::<PersistentVolume>();
    check::<Pod>();
    check::<Node>();
    check::<CSINode>();
    check::<CSIStorageCapacity>();
    check::<Secret>();
    check::<VolumeAttachment>();
    check::<VolumeSnapshot>();
    check::<VolumeSnapshotContent>();
    check::<VolumeGroupSnapshot>();
    check::<VolumeGroupSnapshotContent>();
    assert_eq!(KEPT_FIELDS.len(), 12, "a kind is missing here");
}

/// The largest objects that a user of a namespace can write, by each of their parts.
#[test]
fn what_is_kept_of_an_object_is_bounded() {
    let long = "x".repeat(200_000);
    let labels: Value = (0..5_000)
        .map(|i| (format!("l{i}"), json!("v")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let many = |one: Value| Value::from(vec![one; 20_000]);
    let usual: Value = (0..50)
        .map(|i| (format!("{i}.{}", "k".repeat(60)), json!("v".repeat(63))))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let claims = |number| -> Value {
        let volume = |i| {
            json!({"name": format!("data-{i}"),
                                "persistentVolumeClaim": {"claimName": format!("data-of-app-{i}")}})
        };
        (0..number).map(volume).collect()
    };
    for (plural, part, is_left_out) in [
        (
            "persistentvolumeclaims",
            json!({"metadata": {"labels": usual}}),
            false,
        ),
        ("pods", json!({"spec": {"volumes": claims(200)}}), false),
        (
            "persistentvolumeclaims",
            json!({"metadata": {"annotations": {"a": long}}}),
            false,
        ),
        (
            "persistentvolumeclaims",
            json!({"metadata": {"managedFields": many(json!({"m": 1}))}}),
            false,
        ),
        (
            "persistentvolumeclaims",
            json!({"metadata": {"ownerReferences": many(json!({"uid": "u"}))}}),
            false,
        ),
        (
            "persistentvolumeclaims",
            json!({"spec": {"selector": {"matchLabels": labels}}}),
            false,
        ),
        (
            "persistentvolumeclaims",
            json!({"metadata": {"labels": labels}}),
            true,
        ),
        (
            "persistentvolumeclaims",
            json!({"metadata": {"finalizers": many(json!("a/b"))}}),
            true,
        ),
        (
            "persistentvolumeclaims",
            json!({"spec": {"accessModes": many(json!("ReadWriteOnce"))}}),
            true,
        ),
        (
            "persistentvolumeclaims",
            json!({"spec": {"dataSource": {"name": long}}}),
            true,
        ),
        (
            "persistentvolumeclaims",
            json!({"status": {"conditions": many(json!({"type": "t"}))}}),
            true,
        ),
        (
            "persistentvolumeclaims",
            json!({"status": {"healthStatus": {"healthConditions": many(json!({"reason": "r"}))}}}),
            false,
        ),
        (
            "pods",
            json!({"metadata": {"labels": labels, "annotations": {"a": long}}}),
            false,
        ),
        (
            "pods",
            json!({"spec": {"containers": many(json!({"name": "c", "env": []}))}}),
            false,
        ),
        (
            "pods",
            json!({"status": {"containerStatuses": many(json!({"name": "c"}))}}),
            false,
        ),
        (
            "pods",
            json!({"spec": {"volumes": many(json!({"name": "v", "emptyDir": {}}))}}),
            true,
        ),
        (
            "volumesnapshots",
            json!({"metadata": {"annotations": {"a": long}, "labels": labels}}),
            false,
        ),
        (
            "secrets",
            json!({"metadata": {"annotations": {"a": long}}, "data": {"k": "dg=="}}),
            false,
        ),
        ("secrets", json!({"data": {"key": long}}), true),
        (
            "volumesnapshots",
            json!({"status": {"error": {"message": long}}}),
            true,
        ),
        (
            "volumegroupsnapshots",
            json!({"metadata": {"annotations": {"a": long}, "labels": labels}}),
            false,
        ),
        (
            "volumegroupsnapshots",
            json!({"spec": {"source": {"selector": {"matchLabels": labels}}}}),
            true,
        ),
    ] {
        let mut object = json!({"metadata": {"name": "x", "namespace": "ns"}});
        json_patch::merge(&mut object, &part);
        let what: String = part.to_string().chars().take(50).collect();
        let kept = trimmed_object(kind(plural), object.to_string().as_bytes());
        assert!(
            kept.len() <= OF_POD.min(kind(plural).max),
            "{plural} {what}: {}",
            kept.len()
        );
        let kept = String::from_utf8(kept).expect("text");
        assert_eq!(
            kept.contains("left-out"),
            is_left_out,
            "{plural} {what}: {kept}"
        );
    }
}

/// Templates may name any annotation, so all are read, of one claim at a time.
#[test]
fn the_annotations_of_a_claim_can_be_read() {
    let object = json!({"metadata": metadata("team/key", "l"), "spec": {"volumeName": "v"}});
    let kept = trimmed_object(&CLAIM_ANNOTATIONS, object.to_string().as_bytes());
    let kept: PersistentVolumeClaim = serde_json::from_slice(&kept).expect("a claim");
    assert_eq!(kept.annotations()["team/key"], "v");
    assert_eq!(kept.spec, None);
}
