//! Pods' expectations of their volumes.

use serde_json::json;

use crate::objects::{assert_text, handle_of, name};
use crate::space::{FS_GROUP, Space, ordinary_user};
use crate::world::{World, check};

/// ReadWriteOncePod: a second pod waits until the first is gone.
pub(crate) fn one_pod_at_a_time_has_a_read_write_once_pod_volume(world: &World) {
    let space = Space::new(world, "rwop");
    let one_pod = json!({"spec": {"accessModes": ["ReadWriteOncePod"]}});
    space.claim("data", "hostloop-ext4", one_pod);
    space.run("first", &["data"]);
    space.pod("second", &["data"]);
    space.event("second", "FailedScheduling", "ReadWriteOncePod");
    assert_text(&space.pod_now("second"), "/status/phase", "Pending");
    space.sh("first", "echo first > /data/file && sync");
    space.delete_pod("first");
    space.ready("second");
    assert_eq!(space.sh("second", "cat /data/file"), "first");
    space.volume("data");
    space.end();
}

/// A pod that is not root writes as a member of its fsGroup, also to files of other users.
pub(crate) fn an_ordinary_user_writes_by_its_fs_group(world: &World) {
    const FILESYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];
    let space = Space::new(world, "fsgroup");
    for fs in FILESYSTEMS {
        space.claim(fs, &format!("hostloop-{fs}"), json!({}));
    }
    space.run("root", &FILESYSTEMS);
    for fs in FILESYSTEMS {
        let write = format!("mkdir -m 0700 /{fs}/private && echo old > /{fs}/private/file && sync");
        space.sh("root", &write);
    }
    space.delete_pod("root");
    space.run_with("user", &FILESYSTEMS, ordinary_user());
    assert_eq!(space.sh("user", "id -u"), "1000");
    for fs in FILESYSTEMS {
        let groups = space.sh("user", &format!("stat -c %g /{fs} /{fs}/private"));
        assert_eq!(groups, format!("{FS_GROUP}\n{FS_GROUP}"), "{fs}");
        let write = "cat private/file && echo new > private/file && echo x > own";
        let owner = space.sh("user", &format!("cd /{fs} && {write} && stat -c %u:%g own"));
        assert_eq!(owner, format!("old\n1000:{FS_GROUP}"), "{fs}");
        space.volume(fs);
    }
    space.end();
}

/// A pod is deleted by force while it writes: its volume serves the next pod, and can be deleted.
pub(crate) fn forced_deletion_leaves_nothing(world: &World) {
    let space = Space::new(world, "forced");
    space.claim("data", "hostloop-xfs", json!({}));
    space.run_script("one", &["data"], "while :; do date >> /data/log; done");
    space.sh("one", "until [ -s /data/log ]; do sleep 0.1; done; sync");
    world.force_delete(&space.name, "one");
    space.run("two", &["data"]);
    space.sh("two", "[ -s /data/log ] && echo more >> /data/log");
    world.force_delete(&space.name, "two");
    // The claim's protection ends with the pod's object, while kubelet still has the volume
    // mounted.
    let volume = space.volume("data");
    space.delete_claim("data");
    world.gone("PersistentVolume", "", name(&volume));
    let staging = world.home(&volume).staging(handle_of(&volume));
    let folder = staging.parent().expect("it is in the volume's folder");
    let end = || check(!folder.exists(), || folder.display().to_string());
    world.until("the staging folder's end", end);
    space.end();
}

/// Kubelet's metrics show a volume's capacity and usage.
pub(crate) fn volume_stats_are_in_kubelets_metrics(world: &World) {
    let space = Space::new(world, "stats");
    space.run_data("pod", "hostloop-ext4");
    let write = "dd if=/dev/zero of=/data/zeros bs=1M count=64 && sync";
    space.sh("pod", write);
    let site = world.home(&space.volume("data"));
    let path = format!("/api/v1/nodes/{}/proxy/metrics", site.name());
    let labels = format!(
        "namespace=\"{}\",persistentvolumeclaim=\"data\"",
        space.name
    );
    let of = |metrics: &str, metric: &str| {
        let labels = format!("kubelet_volume_stats_{metric}_bytes{{{labels}}} ");
        let value = metrics.lines().find_map(|l| l.strip_prefix(&labels))?;
        value.parse::<f64>().ok()
    };
    // Kubelet collects volume stats once a minute.
    let (capacity, used) = world.until("the volume's figures", || {
        let metrics = world.cluster().try_kubectl(&["get", "--raw", &path])?;
        match (of(&metrics, "capacity"), of(&metrics, "used")) {
            (Some(capacity), Some(used)) if used > 60e6 => Ok((capacity, used)),
            seen => Err(format!("{seen:?}")),
        }
    });
    assert!((400e6..540e6).contains(&capacity), "capacity {capacity}");
    assert!((60e6..120e6).contains(&used), "used {used}");
    space.end();
}
