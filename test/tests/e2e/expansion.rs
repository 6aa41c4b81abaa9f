//! Expansion of volumes.

use crate::node::Writer;
use crate::objects::{assert_text, name, text};
use crate::space::Space;
use crate::world::World;

/// XFS, mounted.
pub(crate) fn xfs_grows_while_its_pod_writes(world: &World) {
    online(world, "xfs");
}

/// btrfs, mounted.
pub(crate) fn btrfs_grows_while_its_pod_writes(world: &World) {
    online(world, "btrfs");
}

fn online(world: &World, fs: &str) {
    let space = Space::new(world, &format!("grow-{fs}"));
    let writer = Writer::start(&space, &format!("hostloop-{fs}"));
    let before = space.mib("writer", "/data");
    space.grow_in("writer", "data", "1Gi");
    let after = space.mib("writer", "/data");
    assert!(after >= before + 480, "{before} MiB, then {after}");
    let volume = space.volume("data");
    assert_text(&volume, "/spec/capacity/storage", "1Gi");
    assert_settled(&space);

    writer.assert_writes();
    space.end();
}

/// Conditions of a change of size, and of its errors.
const RESIZING: [&str; 4] = [
    "Resizing",
    "FileSystemResizePending",
    "ControllerResizeError",
    "NodeResizeError",
];

/// A claim with its requested size has no resize status or condition left. It may have others:
/// since Kubernetes 1.37, `Unused` tells whether a pod uses it.
fn assert_settled(space: &Space<'_>) {
    space.until_claim("not resizing", "data", |claim| {
        let mut conditions = claim["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten();
        let is_left = conditions.any(|c| RESIZING.iter().any(|kind| c["type"] == *kind));
        !is_left && claim["status"]["allocatedResourceStatuses"]["storage"].is_null()
    });
}

/// Without a pod only the volume grows. Its filesystem grows when the next pod starts.
pub(crate) fn ext4_grows_before_its_next_pod(world: &World) {
    let space = Space::new(world, "grow-ext4");
    space.run_data("one", "hostloop-ext4");
    let before = space.mib("one", "/data");
    space.sh("one", "echo kept > /data/file && sync");
    let volume = space.volume("data");
    space.delete_pod("one");
    space.off_node(&volume);

    space.grow("data", "1Gi");
    space.until_claim("waiting for a pod", "data", |claim| {
        claim["status"]["conditions"]
            .to_string()
            .contains("FileSystemResizePending")
    });
    let at = ("PersistentVolume", "", name(&volume));
    world.until_is("larger", at, |v| text(v, "/spec/capacity/storage") == "1Gi");
    space.run("two", &["data"]);
    assert_eq!(space.sh("two", "cat /data/file"), "kept");
    let after = space.mib("two", "/data");
    assert!(after >= before + 450, "{before} MiB, then {after}");
    assert_settled(&space);
    assert_text(&space.claim_now("data"), "/status/capacity/storage", "1Gi");
    space.end();
}
