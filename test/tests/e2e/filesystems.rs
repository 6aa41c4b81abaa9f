//! What a volume can be: each filesystem, a device, read-only.

use serde_json::json;

use crate::objects::assert_text;
use crate::space::Space;
use crate::world::World;

/// Prints the type of the filesystem at /data.
pub(crate) const MOUNTED: &str = "awk '$2 == \"/data\" { print $3 }' /proc/mounts";

pub(crate) fn xfs(world: &World) {
    filesystem(world, "xfs");
}

pub(crate) fn btrfs(world: &World) {
    filesystem(world, "btrfs");
}

fn filesystem(world: &World, fs: &str) {
    let space = Space::new(world, fs);
    space.run_data("one", &format!("hostloop-{fs}"));
    assert_eq!(space.sh("one", MOUNTED), fs);
    let write = "dd if=/dev/urandom of=/data/bytes bs=1M count=8 && sync";
    space.sh("one", write);
    let sum = space.sh("one", "sha256sum /data/bytes");
    space.delete_pod("one");
    space.run("two", &["data"]);
    assert_eq!(space.sh("two", "sha256sum /data/bytes"), sum);
    space.volume("data");
    space.end();
}

/// A raw device keeps what is written to it, and has the size that was asked for.
pub(crate) fn block(world: &World) {
    let space = Space::new(world, "block");
    space.device("disk", "hostloop-ext4");
    space.run("one", &["disk"]);
    let size = space.sh("one", "blockdev --getsize64 /dev/disk");
    assert_eq!(size, (512 << 20).to_string());
    let write = "echo written | dd of=/dev/disk bs=4096 seek=3 conv=sync,fsync";
    space.sh("one", write);
    space.delete_pod("one");
    space.run("two", &["disk"]);
    let read = space.sh("two", "dd if=/dev/disk bs=4096 skip=3 count=1 | head -n 1");
    assert_eq!(read, "written");
    assert_text(&space.volume("disk"), "/spec/volumeMode", "Block");
    space.end();
}

/// A pod that asks for its claim read-only can read it, and not write to it.
pub(crate) fn read_only(world: &World) {
    let space = Space::new(world, "read-only");
    space.run_data("writer", "hostloop-ext4");
    space.sh("writer", "echo here > /data/file && sync");
    let volumes = json!([{"name": "data",
        "persistentVolumeClaim": {"claimName": "data", "readOnly": true}}]);
    // Beside the one that writes, and after it.
    space.run_with("beside", &["data"], json!({"volumes": volumes}));
    space.delete_pod("writer");
    space.run_with("after", &["data"], json!({"volumes": volumes}));
    for pod in ["beside", "after"] {
        assert_eq!(space.sh(pod, "cat /data/file"), "here");
        let refused = space.try_sh(pod, "echo more > /data/more");
        let why = refused.expect_err("it is read-only");
        assert!(why.contains("Read-only file system"), "{why}");
    }
    space.volume("data");
    space.end();
}
