//! The component `csi-hostpath` has the names that scripts for the host-path driver look for, and
//! no other name of hostloop's own classes and namespace.

use hostloop_test::deployed;
use hostloop_test::machine::{root, text, try_run};
use serde_json::{Value, json};

use crate::objects::{Objects, pod, read};

const NAME: &str = "hostpath.csi.k8s.io";

fn drop_in() -> Objects {
    read(&deployed::render(&["--overlay", "csi-hostpath"]))
}

#[test]
fn scripts_find_what_they_look_for() {
    let objects = drop_in();
    let class = "StorageClass /csi-hostpath-sc";
    let snapshots = "VolumeSnapshotClass /csi-hostpath-snapclass";
    let driver = "CSIDriver /hostpath.csi.k8s.io";
    let controller = "StatefulSet default/csi-hostpathplugin";
    let nodes = "DaemonSet default/hostloop";
    let instance = "/metadata/labels/app.kubernetes.io~1instance";
    let linked = "/metadata/annotations/storage.kubernetes.io~1default-snapshot-class";
    for (object, field, value) in [
        (class, "/provisioner", json!(NAME)),
        (class, "/volumeBindingMode", json!("Immediate")),
        (class, "/reclaimPolicy", json!("Delete")),
        (class, "/allowVolumeExpansion", json!(true)),
        (class, linked, json!("csi-hostpath-snapclass")),
        (snapshots, "/driver", json!(NAME)),
        (snapshots, "/deletionPolicy", json!("Delete")),
        (driver, "/spec/fsGroupPolicy", json!("File")),
        (controller, "/spec/replicas", json!(1)),
        (controller, "/spec/serviceName", json!("csi-hostpathplugin")),
        (controller, instance, json!(NAME)),
        (nodes, instance, json!(NAME)),
    ] {
        let found = objects.get(object).and_then(|of| of.pointer(field));
        assert_eq!(found, Some(&value), "{object} {field}");
    }
    let (container, _) = pod(&objects, nodes);
    for (variable, value) in [
        ("DRIVER_NAME", NAME),
        ("HOSTLOOP_TOPOLOGY_KEY", "topology.hostpath.csi/node"),
        ("HOSTLOOP_IGNORE_UNKNOWN_PARAMETERS", "true"),
    ] {
        let expected = json!({"name": variable, "value": value});
        let all = container["env"].as_array().expect("it has variables");
        assert!(all.contains(&expected), "{variable}: {all:?}");
    }
}

/// Scripts bring the snapshot API themselves, and mark a default class themselves or count those
/// that have the mark.
#[test]
fn nothing_else_is_installed() {
    let objects = drop_in();
    for kind in [
        "CustomResourceDefinition",
        "Namespace",
        "VolumeAttributesClass",
        "VolumeGroupSnapshotClass",
        "Deployment",
    ] {
        let found = objects.keys().find(|key| key.starts_with(kind));
        assert_eq!(found, None);
    }
    for kind in ["StorageClass ", "VolumeSnapshotClass "] {
        let of_kind = objects.keys().filter(|key| key.starts_with(kind));
        assert_eq!(of_kind.count(), 1, "{kind}");
    }
    for (key, object) in &objects {
        let all = object.to_string();
        for mark in ["is-default-class", "velero.io/", "snapshot-controller"] {
            assert!(!all.contains(mark), "{key} has {mark}");
        }
    }
}

/// The admission policies, too, are about this driver and this namespace.
#[test]
fn every_object_has_the_names() {
    let before = ["registry", "pod-monitor", "snapshot-controller"];
    let mut components: Vec<&str> = before
        .iter()
        .flat_map(|component| ["--component", component])
        .collect();
    components.extend(["--component", "csi-hostpath"]);
    let on_top = ["--overlay", "csi-hostpath", "--component", "attach"];
    for objects in [
        drop_in(),
        read(&deployed::render(&on_top)),
        read(&deployed::render(&components)),
    ] {
        has_the_names(&objects);
    }
}

/// A snapshot controller has a Lease in kube-system.
fn has_the_names(objects: &Objects) {
    for (key, object) in objects {
        each_text(object, &mut |text: &str| {
            let rest = [
                "hostloop.csi.dev/node",
                "hostloop.csi.dev/pools",
                "hostloop.csi.dev/snapshot-metadata",
                "hostloop.csi.dev/metrics",
                "hostloop.csi.dev/hostloop:",
            ]
            .iter()
            .fold(text.to_owned(), |text, own| text.replace(own, ""));
            for usual in [
                "hostloop.csi.dev",
                "hostloop-csi-dev",
                "serviceaccount:hostloop:",
            ] {
                assert!(!rest.contains(usual), "{key}: {text}");
            }
        });
        let namespace = object.pointer("/metadata/namespace");
        assert!(
            namespace.is_none_or(|name| name == "default" || name == "kube-system"),
            "{key}: {namespace:?}"
        );
        for subject in object["subjects"].as_array().into_iter().flatten() {
            assert_eq!(subject["namespace"], "default", "{key}");
        }
    }
}

/// Calls `see` with every key and every text in a value.
fn each_text(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| each_text(item, see)),
        Value::Object(fields) => {
            for (key, field) in fields {
                see(key);
                each_text(field, see);
            }
        }
        _ => {}
    }
}

/// The driver would have two names.
#[test]
fn a_second_name_is_refused() {
    let script = root().join("scripts/render");
    let itself = "names the driver itself";
    let before = "--component snapshot-class --component csi-hostpath";
    for (options, says) in [
        (
            "--driver-name d.example.com --component place-claims",
            itself,
        ),
        ("--driver-name d.example.com --component alerts", itself),
        (
            "--driver-name d.example.com --component csi-hostpath",
            itself,
        ),
        ("--driver-name d.example.com --overlay csi-hostpath", itself),
        ("--overlay csi-hostpath --component snapshot-class", before),
        (
            "--component csi-hostpath --component snapshot-class",
            before,
        ),
        ("--overlay csi-hostpath --component alerts", "Leave one out"),
        (
            "--component alerts --component csi-hostpath",
            "Leave one out",
        ),
        (
            "--overlay csi-hostpath --component csi-hostpath",
            "chosen twice",
        ),
    ] {
        let line: Vec<&str> = options.split(' ').chain(["--output", "-"]).collect();
        let error = try_run(text(&script), &line).expect_err(options);
        assert!(error.contains(says), "{error}");
    }
}
