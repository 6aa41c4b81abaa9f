//! The steps of Velero's block mover: it gives a snapshot of the user's namespace a content in its own,
//! deletes the user's objects, asks as its own account, and deletes the snapshot. The next backup names
//! that one as its base, by its handle.

use serde_json::{Value, json};

use crate::listing::Listing;
use crate::site::Site;
use crate::volume::{Volume, content_of};
use crate::{KIB, MIB, write};

/// The namespace and the account of Velero.
const VELERO: &str = "velero";
/// The label of a content with the node that has the snapshot.
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// A full backup, and one of what has changed since.
pub(crate) async fn asks_from_its_own_namespace(block: &Volume<'_>) {
    let site = block.site;
    let cluster = &site.cluster;
    cluster.kubectl(&["create", "namespace", VELERO]);
    let (_, velero) = cluster.account(VELERO, VELERO, site.dir());
    let list = |arguments: &[&str]| {
        let printed = site.tool_as(&velero, &[&["-n", VELERO][..], arguments].concat());
        Listing::read(&printed.unwrap_or_else(|why| panic!("{arguments:?}: {why}")))
    };

    let base = expose(block, "backup-1").await;
    let all = list(&["-s", "backup-1"]);
    clean_up(site, "backup-1");
    block.sh(&write(24 * 1024, 16));
    expose(block, "backup-2").await;
    let changed = list(&["-s", "backup-2", "-P", &base]);
    assert!(changed.covers(24 * MIB, 24 * MIB + 16 * KIB), "{changed:?}");
    assert!(changed.bytes() < all.bytes(), "{changed:?} of {all:?}");
    clean_up(site, "backup-2");
    let binding = format!("{VELERO}-{VELERO}");
    cluster.kubectl(&["delete", "clusterrolebinding", &binding]);
    cluster.kubectl(&["delete", "namespace", VELERO, "--timeout=300s"]);
}

/// Takes a snapshot in the user's namespace and moves it to Velero's. Returns its handle.
async fn expose(block: &Volume<'_>, name: &str) -> String {
    let cluster = &block.site.cluster;
    let handle = block.snapshot("moved", "kept").await;
    let content = content_of(block.site, "moved");
    let found = cluster.kubectl(&["get", "volumesnapshotcontent", &content, "-o", "json"]);
    let found: Value = serde_json::from_str(&found).expect("kubectl prints JSON");
    let snapshot = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": VELERO},
        "spec": {
            "volumeSnapshotClassName": "kept", "source": {"volumeSnapshotContentName": name},
        },
    });
    cluster.apply(&snapshot.to_string());
    let uid = "jsonpath={.metadata.uid}";
    let uid = cluster.kubectl(&["get", "volumesnapshot", "-n", VELERO, name, "-o", uid]);
    let exposed = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {
            "name": name,
            "labels": {MANAGED_BY: found["metadata"]["labels"][MANAGED_BY]},
            "annotations": {"snapshot.storage.kubernetes.io/allow-volume-mode-change": "true"},
        },
        "spec": {
            "driver": found["spec"]["driver"], "deletionPolicy": "Delete",
            "volumeSnapshotClassName": "kept", "source": {"snapshotHandle": handle},
            "volumeSnapshotRef": {"name": name, "namespace": VELERO, "uid": uid},
        },
    });
    cluster.apply(&exposed.to_string());
    // The snapshot stays when the user's objects go.
    let retain = r#"{"spec": {"deletionPolicy": "Retain"}}"#;
    let patch = ["patch", "volumesnapshotcontent", &content, "--type=merge"];
    cluster.kubectl(&[&patch[..], &["--patch", retain]].concat());
    cluster.kubectl(&["delete", "volumesnapshot", "moved", "--timeout=300s"]);
    let delete = ["delete", "volumesnapshotcontent", &content];
    cluster.kubectl(&[&delete[..], &["--timeout=300s"]].concat());
    let ready = "--for=jsonpath={.status.readyToUse}=true";
    let snapshot = format!("volumesnapshot/{name}");
    cluster.kubectl(&["wait", "-n", VELERO, ready, &snapshot, "--timeout=300s"]);
    handle
}

/// Deletes the snapshot. The driver has deleted it once its content is gone.
fn clean_up(site: &Site, name: &str) {
    let snapshot = ["delete", "volumesnapshot", "-n", VELERO, name];
    let cluster = &site.cluster;
    cluster.kubectl(&[&snapshot[..], &["--timeout=300s"]].concat());
    let content = format!("volumesnapshotcontent/{name}");
    cluster.kubectl(&["wait", "--for=delete", &content, "--timeout=300s"]);
}
