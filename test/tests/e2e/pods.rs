//! Pods' expectations of their volumes.

use serde_json::json;

use crate::objects::text;
use crate::space::{Space, staged_as};
use crate::world::World;

/// ReadWriteOncePod: a second pod waits until the first is gone.
pub(crate) fn one_pod_at_a_time_has_a_read_write_once_pod_volume(world: &World) {
    let space = Space::new(world, "rwop");
    space.claim(
        "data",
        "hostloop-ext4",
        json!({"accessModes": ["ReadWriteOncePod"]}),
    );
    space.pod("first", &["data"]);
    space.ready("first");
    space.pod("second", &["data"]);
    space.event("second", "FailedScheduling", "ReadWriteOncePod");
    assert_eq!(text(&space.pod_now("second"), "/status/phase"), "Pending");
    space.sh("first", "echo first > /data/file && sync");
    space.delete_pod("first");
    space.ready("second");
    assert_eq!(space.sh("second", "cat /data/file"), "first");
    space.volume("data");
    space.end();
}

/// A pod that is not root writes as a member of its fsGroup, also to files of other users.
pub(crate) fn an_ordinary_user_writes_by_its_fs_group(world: &World) {
    let space = Space::new(world, "fsgroup");
    space.claim("data", "hostloop-ext4", json!({}));
    space.pod("root", &["data"]);
    space.ready("root");
    space.sh(
        "root",
        "mkdir -m 0700 /data/private && echo old > /data/private/file && sync",
    );
    space.delete_pod("root");
    let security = json!({"securityContext":
        {"runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}});
    space.pod_with("user", &["data"], security);
    space.ready("user");
    assert_eq!(space.sh("user", "id -u"), "1000");
    assert_eq!(
        space.sh("user", "stat -c %g /data /data/private"),
        "2000\n2000"
    );
    space.sh(
        "user",
        "cat /data/private/file && echo new > /data/private/file && echo x > /data/own",
    );
    assert_eq!(space.sh("user", "stat -c %u:%g /data/own"), "1000:2000");
    space.volume("data");
    space.end();
}

/// A pod is deleted by force while it writes: its volume serves the next pod, and can be deleted.
pub(crate) fn forced_deletion_leaves_nothing(world: &World) {
    let space = Space::new(world, "forced");
    space.claim("data", "hostloop-xfs", json!({}));
    space.script("one", &["data"], "while :; do date >> /data/log; done");
    space.ready("one");
    space.sh("one", "until [ -s /data/log ]; do sleep 0.1; done; sync");
    world.force_delete(&space.name, "one");
    space.pod("two", &["data"]);
    space.ready("two");
    space.sh("two", "[ -s /data/log ] && echo more >> /data/log");
    world.force_delete(&space.name, "two");
    // The claim's protection ends with the pod's object, while kubelet still has the volume
    // mounted.
    let volume = space.volume("data");
    space.delete_claim("data");
    world.gone("PersistentVolume", "", text(&volume, "/metadata/name"));
    let staged = staged_as(text(&volume, "/spec/csi/volumeHandle"));
    let kubelet_dir = world.home(&volume).kubelet_dir();
    let folder = kubelet_dir.join("plugins/kubernetes.io/csi/hostloop.csi.dev");
    world.until("the staging folder's end", || {
        match folder.join(&staged).exists() {
            false => Ok(()),
            true => Err(staged.clone()),
        }
    });
    space.end();
}

/// Kubelet's metrics show a volume's capacity and usage.
pub(crate) fn volume_stats_are_in_kubelets_metrics(world: &World) {
    let space = Space::new(world, "stats");
    space.claim("data", "hostloop-ext4", json!({}));
    space.pod("pod", &["data"]);
    space.ready("pod");
    space.sh(
        "pod",
        "dd if=/dev/zero of=/data/zeros bs=1M count=64 && sync",
    );
    let site = world.home(&space.volume("data"));
    let path = format!("/api/v1/nodes/{}/proxy/metrics", site.name());
    let of = |metrics: &str, metric: &str| {
        let labels = format!(
            "{metric}{{namespace=\"{}\",persistentvolumeclaim=\"data\"}} ",
            space.name
        );
        let line = metrics
            .lines()
            .find_map(|l| l.strip_prefix(&labels))?
            .to_owned();
        line.parse::<f64>().ok()
    };
    // Kubelet collects volume stats once a minute.
    let (capacity, used) = world.until("the volume's figures", || {
        let metrics = world.cluster().try_kubectl(&["get", "--raw", &path])?;
        let of = |metric| of(&metrics, metric);
        match (
            of("kubelet_volume_stats_capacity_bytes"),
            of("kubelet_volume_stats_used_bytes"),
        ) {
            (Some(capacity), Some(used)) if used > 60e6 => Ok((capacity, used)),
            seen => Err(format!("{seen:?}")),
        }
    });
    assert!((400e6..540e6).contains(&capacity), "capacity {capacity}");
    assert!((60e6..120e6).contains(&used), "used {used}");
    space.end();
}
