use serde_json::json;

use super::*;

const SECRET: &str = "hush-90ab12";

fn names() -> OwnNames {
    OwnNames {
        driver: "d".to_owned(),
        system_namespace: "hostloop".to_owned(),
    }
}

fn show(kind: &str, object: Value) -> Option<Value> {
    let kind = KINDS.iter().find(|known| known.kind == kind).unwrap();
    (kind.show)(&object, &names())
}

/// Metadata with a secret wherever one may be.
fn metadata() -> Value {
    json!({
        "name": "a", "uid": "u", "managedFields": [SECRET],
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": SECRET,
            "snapshot.storage.kubernetes.io/deletion-secret-name": SECRET,
            "volume.kubernetes.io/selected-node": "n1",
        },
    })
}

#[test]
fn nothing_secret_is_shown() {
    let secrets = json!({"key": SECRET});
    let table = [
        (
            "PersistentVolume",
            json!({"metadata": metadata(), "spec": {
                "mountOptions": [SECRET],
                "csi": {"driver": "d", "volumeHandle": "v", "volumeAttributes": secrets,
                    "nodeStageSecretRef": secrets, "controllerExpandSecretRef": secrets},
            }}),
            json!({"csi": {"driver": "d", "volumeHandle": "v"}}),
        ),
        (
            "VolumeAttachment",
            json!({"metadata": metadata(),
                "spec": {"attacher": "d", "source": {"persistentVolumeName": "pv",
                    "inlineVolumeSpec": secrets}},
                "status": {"attached": true, "attachmentMetadata": secrets}}),
            json!({"attacher": "d", "source": {"persistentVolumeName": "pv"}}),
        ),
        (
            "Pod",
            json!({"metadata": metadata(), "spec": {
                "nodeName": "n1",
                "containers": [{"env": [{"value": SECRET}], "args": [SECRET]}],
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
                    {"name": "inline", "csi": {"driver": "d", "volumeAttributes": secrets,
                        "nodePublishSecretRef": secrets}},
                    {"name": "other", "csi": {"driver": "x"}},
                    {"name": "secret", "secret": {"secretName": SECRET}},
                ],
            }, "status": {"containerStatuses": [{"name": "c", "containerID": SECRET}]}}),
            json!({"nodeName": "n1", "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
                {"name": "inline", "csi": {"driver": "d"}},
            ]}),
        ),
        (
            "Node",
            json!({"metadata": metadata(), "spec": {"providerID": SECRET, "unschedulable": true},
                "status": {"addresses": [SECRET]}}),
            json!({"unschedulable": true}),
        ),
    ];
    for (kind, object, spec) in table {
        let shown = show(kind, object).unwrap();
        assert!(!shown.to_string().contains(SECRET), "{shown}");
        assert_eq!(shown["spec"], spec, "{kind}");
        let annotations = json!({"volume.kubernetes.io/selected-node": "n1"});
        assert_eq!(shown["metadata"]["annotations"], annotations, "{kind}");
    }
    let class = json!({"metadata": metadata(), "provisioner": "d", "parameters": secrets,
        "mountOptions": [SECRET]});
    let class = show("StorageClass", class).unwrap();
    assert!(!class.to_string().contains(SECRET), "{class}");
}

#[test]
fn objects_that_have_nothing_to_do_with_the_driver() {
    let pod = |namespace: &str, volumes: Value| {
        json!({"metadata": {"namespace": namespace, "labels": {"app.kubernetes.io/name":
            "hostloop"}}, "spec": {"volumes": volumes}})
    };
    let inline = |driver: &str| json!([{"name": "v", "csi": {"driver": driver}}]);
    let about = |kind: &str| json!({"involvedObject": {"kind": kind}});
    for (kind, object, shown) in [
        (
            "PersistentVolume",
            json!({"spec": {"csi": {"driver": "d"}}}),
            true,
        ),
        (
            "PersistentVolume",
            json!({"spec": {"csi": {"driver": "x"}}}),
            false,
        ),
        ("PersistentVolume", json!({"spec": {"hostPath": {}}}), false),
        ("StorageClass", json!({"provisioner": "d"}), true),
        ("StorageClass", json!({"provisioner": "x"}), false),
        (
            "VolumeAttachment",
            json!({"spec": {"attacher": "x"}}),
            false,
        ),
        (
            "VolumeSnapshotContent",
            json!({"spec": {"driver": "d"}}),
            true,
        ),
        (
            "VolumeSnapshotContent",
            json!({"spec": {"driver": "x"}}),
            false,
        ),
        (
            "CSINode",
            json!({"spec": {"drivers": [{"name": "d"}]}}),
            true,
        ),
        (
            "CSINode",
            json!({"spec": {"drivers": [{"name": "x"}]}}),
            false,
        ),
        ("CSINode", json!({"spec": {}}), false),
        ("CSIDriver", json!({"metadata": {"name": "d"}}), true),
        ("CSIDriver", json!({"metadata": {"name": "x"}}), false),
        ("Pod", pod("demo", json!([])), false),
        ("Pod", pod("hostloop", json!([])), true),
        ("Pod", pod("demo", inline("d")), true),
        ("Pod", pod("demo", inline("x")), false),
        (
            "Pod",
            pod("demo", json!([{"name": "v", "ephemeral": {}}])),
            true,
        ),
        ("Event", about("PersistentVolumeClaim"), true),
        ("Event", about("Deployment"), false),
    ] {
        assert_eq!(
            show(kind, object.clone()).is_some(),
            shown,
            "{kind} {object}"
        );
    }
}
