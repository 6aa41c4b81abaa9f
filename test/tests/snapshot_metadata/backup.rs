//! `kubectl hostloop backup` and `restore`: a full backup, a smaller one of what has changed, and a new
//! claim with the same bytes.

use std::path::Path;

use hostloop_test::PATIENCE;
use hostloop_test::cluster::wait_for;
use hostloop_test::front::fields::list;
use hostloop_test::machine::text;
use hostloop_test::plugin::Plugin;
use serde_json::Value;

use crate::volume::Volume;
use crate::write;

/// The label of what `backup` makes.
const LABEL: &str = "hostloop.csi.dev/backup";

/// A namespace of administrators.
const VAULT: &str = "vault";

/// Backs up both volumes, and restores them: the filesystem by way of another namespace.
pub(crate) async fn restores_the_same_bytes(block: &Volume<'_>, files: &Volume<'_>) {
    let cluster = &block.site.cluster;
    cluster.kubectl(&["create", "namespace", VAULT]);
    let more = "dd if=/dev/urandom of=/files/three bs=16k count=1 && sync";
    let via: &[&str] = &["--via", VAULT];
    for (volume, mode, again, change, options) in [
        (block, "Block", "block-again", write(48 * 1024, 16), &[][..]),
        (files, "Filesystem", "files-again", more.to_owned(), via),
    ] {
        let site = volume.site;
        let plugin = Plugin::of(&site.cluster);
        let dir = site.dir().join(again);
        let (name, to) = (volume.name(), text(&dir));
        let back_up = [&["backup", name, "--to", to][..], options].concat();
        plugin.succeeds(&back_up, &["what is allocated"]);
        volume.sh(&change);
        plugin.succeeds(&back_up, &["what has changed"]);
        let backups = backups(&dir);
        let [full, next] = &backups[..] else {
            panic!("{backups:?}");
        };
        assert_eq!(next["base"], full["snapshot"]);
        let (all, changed) = (bytes(full), bytes(next));
        assert!(changed >= 16 << 10 && changed < all, "{all}, {changed}");

        let restore = [&["restore", to, "--claim", again][..], options].concat();
        plugin.succeeds(&restore, &["has the last state"]);
        let restored = Volume::of_claim(site, again, mode);
        let contents = |volume: &Volume<'_>| {
            let name = volume.name();
            volume.sh(&if mode == "Block" {
                format!("sha256sum </dev/{name}")
            } else {
                format!("cd /{name} && find . -type f | sort | xargs sha256sum")
            })
        };
        assert_eq!(contents(&restored), contents(volume), "{mode}");
        plugin.fails(&restore, &["exists"]);
        restored.delete();
        // The base of a next backup is all that stays.
        let kinds = "pods,pvc,volumesnapshots";
        let left = ["get", kinds, "-l", LABEL, "-o", "name"];
        wait_for("the end of what was made", PATIENCE, async || {
            match site.cluster.try_kubectl(&left)? {
                left if left.lines().count() == 1 => Ok(()),
                left => Err(left),
            }
        })
        .await;
        let delete = ["delete", "volumesnapshots", "-l", LABEL, "--timeout=300s"];
        site.cluster.kubectl(&delete);
    }
    let contents = ["get", "volumesnapshotcontents", "-l", LABEL, "-o", "name"];
    wait_for(
        "the end of the contents",
        PATIENCE,
        async || match cluster.try_kubectl(&contents)? {
            left if left.is_empty() => Ok(()),
            left => Err(left),
        },
    )
    .await;
    let in_vault = ["get", "pods,pvc,volumesnapshots", "-n", VAULT, "-o", "name"];
    wait_for("an empty namespace", PATIENCE, async || {
        match cluster.try_kubectl(&in_vault)? {
            left if left.is_empty() => Ok(()),
            left => Err(left),
        }
    })
    .await;
    cluster.kubectl(&["delete", "namespace", VAULT, "--timeout=300s"]);
}

/// The backups in a directory's manifest.
fn backups(dir: &Path) -> Vec<Value> {
    let manifest = std::fs::read(dir.join("backup.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("a manifest of JSON");
    list(&manifest["backups"]).cloned().collect()
}

fn bytes(backup: &Value) -> u64 {
    backup["bytes"].as_u64().expect("a number of bytes")
}
