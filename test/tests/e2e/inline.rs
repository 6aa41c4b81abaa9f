//! Inline ephemeral volumes.

use serde_json::json;

use crate::objects::text;
use crate::space::{FS_GROUP, Space};
use crate::world::{World, check};

/// The filesystems, and a size in MiB for each.
const VOLUMES: [(&str, u64); 3] = [("ext4", 256), ("xfs", 512), ("btrfs", 512)];

/// They come with their pod, without a claim, no larger than was asked for, belong to its fsGroup,
/// and go with it.
pub(crate) fn inline_volumes_come_and_go_with_their_pod(world: &World) {
    let space = Space::new(world, "inline");
    let volumes = VOLUMES.map(|(fs, mib)| (fs, json!({"size": format!("{mib}Mi")})));
    space.inline_pod("pod", &volumes);
    let pod = space.ready("pod");
    for (fs, asked) in VOLUMES {
        let mib = space.mib("pod", &format!("/{fs}"));
        assert!((asked * 5 / 8..=asked).contains(&mib), "{fs}: {mib} MiB");
        let mounted = format!("awk '$2 == \"/{fs}\" {{ print $3 }}' /proc/mounts");
        assert_eq!(space.sh("pod", &mounted), fs);
        let written = format!("echo x > /{fs}/x && sync && stat -c %g /{fs}/x");
        assert_eq!(space.sh("pod", &written), FS_GROUP, "{fs}");
    }

    let uid = text(&pod, "/metadata/uid").to_owned();
    let site = world.site_of(text(&pod, "/spec/nodeName"));
    let folder = site.kubelet_dir().join("pods").join(&uid);
    assert_eq!(
        site.mounts_with(&uid).len(),
        VOLUMES.len(),
        "each has a loop device"
    );
    space.delete_pod("pod");
    world.until("the end of the pod's folder", || {
        check(!folder.exists(), || folder.display().to_string())
    });
    space.end();
}
