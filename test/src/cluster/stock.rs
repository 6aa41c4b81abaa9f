//! What a test on a cluster left behind: objects, loop devices, mounts, files in pools.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::PATIENCE;
use crate::cluster::{Cluster, Node, wait_for};
use crate::leaks::files_in;
use crate::loop_devices;

/// The kinds of objects that volumes leave and every cluster has.
const OBJECTS: [&str; 3] = [
    "persistentvolumeclaims",
    "persistentvolumes",
    "volumeattachments",
];

/// API groups of kinds that exist once their CRDs are applied.
const SNAPSHOT_GROUPS: [&str; 2] = ["snapshot.storage.k8s.io", "groupsnapshot.storage.k8s.io"];

/// The objects, devices, mounts and files at the beginning of a test.
pub struct Stock {
    pools: Vec<PathBuf>,
    before: BTreeSet<String>,
}

impl Stock {
    /// Records the current state. `pools` are the roots of the driver's pools, as this machine sees
    /// them.
    pub fn take(cluster: &Cluster, pools: &[&Path]) -> Stock {
        let pools: Vec<_> = pools.iter().map(|p| p.to_path_buf()).collect();
        let before = things(cluster, &pools).unwrap_or_else(|why| panic!("{why}"));
        Stock { pools, before }
    }

    /// Everything that has appeared since [`Stock::take`], one line each.
    pub fn left(&self, cluster: &Cluster) -> Result<Vec<String>, String> {
        let now = things(cluster, &self.pools)?;
        Ok(now.difference(&self.before).cloned().collect())
    }

    /// Waits until nothing is left; panics with a list otherwise.
    pub async fn assert_nothing_left(&self, cluster: &Cluster) {
        wait_for("a clean cluster", PATIENCE, async || {
            let left = self.left(cluster)?;
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("left behind:\n  {}", left.join("\n  ")))
            }
        })
        .await;
    }
}

fn things(cluster: &Cluster, pools: &[PathBuf]) -> Result<BTreeSet<String>, String> {
    let mut things = objects(cluster)?;
    for node in cluster.all_nodes() {
        things.extend(mounts(&node));
        // Devices are compared by their file, because the kernel reuses a device's number.
        let devices = node.loops_beneath(&node.kubelet_dir).into_iter();
        things.extend(devices.map(|l| format!("loop device over {} on {}", l.backing, node.name)));
    }
    let devices = pools.iter().flat_map(|pool| loop_devices::beneath(pool));
    things.extend(devices.map(|l| format!("loop device over {}", l.backing)));
    let files = pools.iter().flat_map(|pool| files_in(pool));
    things.extend(files.map(|file| format!("file {}", file.display())));
    Ok(things)
}

fn objects(cluster: &Cluster) -> Result<BTreeSet<String>, String> {
    let mut kinds: Vec<String> = OBJECTS.map(str::to_owned).into();
    for group in SNAPSHOT_GROUPS {
        let group = format!("--api-group={group}");
        // Classes belong to the cluster; a volume does not leave them.
        let listed =
            cluster.try_kubectl(&["api-resources", &group, "-o", "name", "--cached=false"])?;
        let found = listed.lines().filter(|kind| !kind.contains("classes."));
        kinds.extend(found.map(str::to_owned));
    }
    let listed = cluster.try_kubectl(&["get", &kinds.join(","), "-A", "-o", "name"])?;
    Ok(listed.lines().map(str::to_owned).collect())
}

/// The mounts of volumes, without other mounts of pods.
fn mounts(node: &Node) -> Vec<String> {
    let of_volume = |at: &Path| {
        let at = at.to_string_lossy();
        at.contains("/plugins/kubernetes.io/csi/") || at.contains("/volumes/kubernetes.io~csi/")
    };
    let ours = node.mounts().into_iter().filter(|mount| {
        mount.at.starts_with(&node.kubelet_dir) && (mount.on_loop() || of_volume(&mount.at))
    });
    ours.map(|m| {
        format!(
            "mount of {} at {} on {}",
            m.source,
            m.at.display(),
            node.name
        )
    })
    .collect()
}
