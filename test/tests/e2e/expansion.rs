//! Expansion of volumes.

use serde_json::{Value, json};

use crate::objects::text;
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

/// The size of the filesystem at `/data`.
fn mebibytes(space: &Space<'_>, pod: &str) -> u64 {
    let printed = space.sh(pod, "df -m /data | awk 'END { print $2 }'");
    printed
        .parse()
        .unwrap_or_else(|_| panic!("df: {printed:?}"))
}

fn grow(space: &Space<'_>, to: &str) {
    let more = json!({"spec": {"resources": {"requests": {"storage": to}}}});
    space
        .world
        .patch("PersistentVolumeClaim", &space.name, "data", &more);
}

fn online(world: &World, fs: &str) {
    let space = Space::new(world, &format!("grow-{fs}"));
    space.claim("data", &format!("hostloop-{fs}"), json!({}));
    // The pod ends at the first failed write.
    let script = "set -e; while :; do date +%s%N >> /data/log; sleep 0.05; done";
    space.script("writer", &["data"], script);
    space.ready("writer");
    let before = mebibytes(&space, "writer");
    let lines = || {
        space
            .sh("writer", "wc -l < /data/log")
            .parse::<u64>()
            .unwrap_or(0)
    };
    let written = lines();

    grow(&space, "1Gi");
    let mut looks = 0;
    world.until("the claim's new size", || {
        looks += 1;
        if looks % 10 == 0 {
            // Kubelet checks a pod's volumes when the pod changes, otherwise every minute.
            let change = json!({"metadata": {"annotations": {"e2e/look": looks.to_string()}}});
            world.patch("Pod", &space.name, "writer", &change);
        }
        let claim = space.claim_now("data");
        if text(&claim, "/status/capacity/storage") == "1Gi"
            && text(&claim, "/status/allocatedResources/storage") != "512Mi"
        {
            return Ok(());
        }
        Err(format!("{}; {}", claim["status"], space.events()))
    });
    let after = mebibytes(&space, "writer");
    assert!(after >= before + 480, "{before} MiB, then {after}");
    let volume = space.volume("data");
    assert_eq!(text(&volume, "/spec/capacity/storage"), "1Gi");
    assert_settled(&space);

    world.until("more lines", || {
        let now = lines();
        if now > written {
            Ok(())
        } else {
            Err(now.to_string())
        }
    });
    let pod = space.pod_now("writer");
    assert_eq!(
        pod.pointer("/status/containerStatuses/0/restartCount"),
        Some(&json!(0))
    );
    space.end();
}

/// A claim with its requested size has no resize status or condition left.
fn assert_settled(space: &Space<'_>) {
    space.world.until("the end of resizing", || {
        let status = &space.claim_now("data")["status"];
        let conditions = status["conditions"].as_array().map_or(0, Vec::len);
        let resizing = status.pointer("/allocatedResourceStatuses/storage");
        if conditions == 0 && resizing.is_none_or(Value::is_null) {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
}

/// Without a pod only the volume grows. Its filesystem grows when the next pod starts.
pub(crate) fn ext4_grows_before_its_next_pod(world: &World) {
    let space = Space::new(world, "grow-ext4");
    space.claim("data", "hostloop-ext4", json!({}));
    space.pod("one", &["data"]);
    space.ready("one");
    let before = mebibytes(&space, "one");
    space.sh("one", "echo kept > /data/file && sync");
    let volume = space.volume("data");
    space.delete_pod("one");
    space.off_node(&volume);

    grow(&space, "1Gi");
    world.until("the volume's new size", || {
        let claim = space.claim_now("data");
        let conditions = claim["status"]["conditions"].to_string();
        let volume = world.get("PersistentVolume", "", text(&volume, "/metadata/name"));
        if conditions.contains("FileSystemResizePending")
            && text(&volume, "/spec/capacity/storage") == "1Gi"
        {
            return Ok(());
        }
        Err(format!("{conditions}; {}", space.events()))
    });
    space.pod("two", &["data"]);
    space.ready("two");
    assert_eq!(space.sh("two", "cat /data/file"), "kept");
    let after = mebibytes(&space, "two");
    assert!(after >= before + 450, "{before} MiB, then {after}");
    assert_settled(&space);
    assert_eq!(
        text(&space.claim_now("data"), "/status/capacity/storage"),
        "1Gi"
    );
    space.end();
}
