//! Objects and comparisons for tests of the client.

use std::ffi::OsString;

use hostloop_fake_api::FakeApi;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::volume_objects::VolumeObjects;
use super::{Cli, Cluster, PLUGIN, parse};

/// The time limit of each wait for a condition. Only a failing test waits this long: a machine can
/// stand still for half a minute, and several of these pauses can follow each other.
pub(super) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);

/// Reads `kubectl hostloop` with these words, between single blanks.
pub(super) fn parsed(words: &str) -> Result<Cli, clap::Error> {
    let line = format!("{PLUGIN} {words}");
    let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    parse(&line)
}

/// Reads an object, or a part of one, that leaves out what a test does not need.
pub(super) fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

/// The objects of a YAML stream.
pub(super) fn objects(yaml: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(yaml).expect("objects")
}

/// The objects of a kind.
pub(super) fn of_kind<T: DeserializeOwned>(objects: &[Value], kind: &str) -> Vec<T> {
    objects
        .iter()
        .filter(|object| object["kind"] == kind)
        .cloned()
        .map(read)
        .collect()
}

/// The API server in memory as the cluster of a command, with the namespace `demo`.
pub(super) fn cluster_of(api: &FakeApi) -> Cluster {
    Cluster {
        client: api.client(),
        context: Some("test".to_owned()),
        namespace: "demo".to_owned(),
        system_namespace: "hostloop".to_owned(),
        driver_name: "hostloop.csi.dev".to_owned(),
    }
}

/// The writes since the last look, as `PATCH hostloop/roles/hostloop`.
pub(super) fn writes(api: &FakeApi) -> Vec<String> {
    let mut requests = api.log();
    requests.retain(|request| !request.starts_with("GET"));
    requests
}

/// What a person with all rights reads of these objects.
pub(super) fn cluster(all: &[Value]) -> VolumeObjects {
    VolumeObjects {
        claims: of_kind(all, "PersistentVolumeClaim"),
        volumes: of_kind(all, "PersistentVolume"),
        classes: of_kind(all, "StorageClass"),
        attachments: of_kind(all, "VolumeAttachment"),
        pods: of_kind(all, "Pod"),
        events: of_kind(all, "Event"),
        snapshots: of_kind(all, "VolumeSnapshot"),
        contents: of_kind(all, "VolumeSnapshotContent"),
        groups: of_kind(all, "VolumeGroupSnapshot"),
        has_all_volumes: true,
        missing: Vec::new(),
    }
}

/// A running pod of hostloop with this label.
pub(super) fn pod(label: &str, name: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": label}},
        "spec": {"nodeName": node, "containers": [{"name": label, "args": ["run"]}]},
        "status": {"phase": "Running", "containerStatuses": [{
            "name": label, "ready": true, "state": {"running": {}},
        }]},
    })
}

/// A running pod of the DaemonSet.
pub(super) fn node_pod(name: &str, node: &str) -> Value {
    pod("hostloop", name, node)
}

/// The lines without their styles.
pub(super) fn plain(lines: &[String]) -> Vec<String> {
    lines
        .iter()
        .map(|line| hostloop_terminal::terminal::plain(line))
        .collect()
}

/// Checks that a text contains all of these parts.
#[track_caller]
pub(super) fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

/// Checks that a text contains none of these parts.
#[track_caller]
pub(super) fn lacks(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(!text.contains(part), "{part:?} is in:\n{text}");
    }
}
