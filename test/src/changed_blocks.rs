//! Changed blocks on a cluster, a sample: the first backup of a volume, one of what has changed, and the
//! restored bytes. The step `snapshot-metadata` has the rest, with the client of
//! external-snapshot-metadata.

use std::path::Path;

use serde_json::{Value, json};

use crate::cluster::{Cluster, pod};
use crate::fault_table::until;
use crate::front::fields::list;
use crate::machine::{self, text};
use crate::plugin::Plugin;

/// The names of the claim, and of the one that is restored.
const CLAIM: &str = "blocks";
const RESTORED: &str = "blocks-again";
/// A piece of the volume, in bytes.
const PIECE: u64 = 16 << 10;
/// The object with the address of the service.
const OBJECT: &str = "snapshotmetadataservices/hostloop.csi.dev";

/// The driver is installed with `--snapshot-metadata`. `pool` has its files, and `dir` gets those of the
/// test.
pub fn sample(cluster: &Cluster, plugin: &Plugin<'_>, pool: &Path, dir: &Path) {
    let account = machine::root().join("deploy/examples/backup-client.yaml");
    cluster.kubectl(&["apply", "-f", text(&account)]);
    cluster.kubectl(&["create", "serviceaccount", "stranger"]);
    let objects = claim_and_pod();
    cluster.apply(&objects);
    cluster.pod_ready("default", CLAIM);
    until(OBJECT, || cluster.try_kubectl(&["get", OBJECT]).map(drop));

    write(cluster, 0, 32);
    write(cluster, 2048, 32);
    let backups = dir.join("backups");
    let to = text(&backups);
    let back_up = ["backup", CLAIM, "--to", to];
    plugin.succeeds(&back_up, &["what is allocated, of 64 MiB"]);
    write(cluster, 1024, 1);
    plugin.succeeds(&back_up, &["what has changed, of 64 MiB"]);
    let manifest = manifest(&backups);
    let made: Vec<&Value> = list(&manifest["backups"]).collect();
    let [full, next] = made[..] else {
        panic!("{manifest}");
    };
    assert_eq!(next["base"], full["snapshot"]);
    let (all, changed) = (bytes(full), bytes(next));
    assert!(changed >= PIECE && changed < all, "{all}, {changed}");

    plugin.succeeds(
        &["restore", to, "--claim", RESTORED],
        &["has the last state"],
    );
    // Both wrote to their devices with an fsync.
    assert!(
        content(cluster, pool, RESTORED) == content(cluster, pool, CLAIM),
        "{RESTORED} has other bytes than {CLAIM}"
    );
    let of_stranger = dir.join("of-stranger");
    let steal = ["backup", CLAIM, "--to", text(&of_stranger)];
    let stranger = ["--service-account", "stranger"];
    plugin.fails(&[&steal[..], &stranger].concat(), &["(PermissionDenied)"]);

    let label = "hostloop.csi.dev/backup";
    let kept = ["delete", "volumesnapshots", "-l", label, "--timeout=300s"];
    cluster.kubectl(&kept);
    cluster.kubectl(&["delete", "pvc", RESTORED, "--timeout=300s"]);
    cluster.delete(&objects);
    cluster.kubectl(&["delete", "serviceaccount", "stranger"]);
    cluster.kubectl(&["delete", "-f", text(&account)]);
}

/// A block volume of 64 MiB, and a pod that has its device.
fn claim_and_pod() -> String {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": "default"},
        "spec": {
            "storageClassName": "hostloop-ext4", "volumeMode": "Block",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}},
        },
    });
    let command = ["sleep", "1000000"];
    let pod = pod("default", CLAIM, &command, (&[], &[CLAIM]), json!({}));
    json!({"apiVersion": "v1", "kind": "List", "items": [claim, pod]}).to_string()
}

/// Writes these pieces of the volume, of which it has 4096.
fn write(cluster: &Cluster, first: u64, count: u64) {
    let write = format!(
        "dd if=/dev/urandom of=/dev/{CLAIM} bs={PIECE} seek={first} count={count} conv=notrunc,fsync"
    );
    cluster.exec("default", CLAIM, &["sh", "-c", &write]);
}

fn manifest(backups: &Path) -> Value {
    let manifest = std::fs::read(backups.join("backup.json")).expect("a manifest");
    serde_json::from_slice(&manifest).expect("a manifest of JSON")
}

fn bytes(backup: &Value) -> u64 {
    backup["bytes"].as_u64().expect("a number of bytes")
}

/// All bytes of a claim's volume.
fn content(cluster: &Cluster, pool: &Path, claim: &str) -> Vec<u8> {
    let handle = cluster.handle("default", claim);
    let image = pool.join("volumes").join(handle).join("image");
    std::fs::read(&image).unwrap_or_else(|e| panic!("{}: {e}", image.display()))
}
