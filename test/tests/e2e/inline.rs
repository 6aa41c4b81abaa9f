//! Inline ephemeral volumes.

use hostloop_test::cluster::BUSYBOX;
use serde_json::json;

use crate::objects::text;
use crate::space::Space;
use crate::world::{DRIVER, World};

/// It comes with its pod, without a claim, no larger than was asked for, and goes with it.
pub(crate) fn an_inline_volume_comes_and_goes_with_its_pod(world: &World) {
    let space = Space::new(world, "inline");
    let pod = space.pod_with(
        "pod",
        &[],
        json!({
        "containers": [{
            "name": "main", "image": BUSYBOX, "command": ["sleep", "1000000"],
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
        "volumes": [{"name": "scratch", "csi": {
            "driver": DRIVER, "fsType": "ext4", "volumeAttributes": {"size": "256Mi"}}}]}),
    );
    space.ready("pod");
    let mib = space.sh("pod", "df -m /scratch | awk 'END { print $2 }'");
    assert!(
        mib.parse::<u64>().is_ok_and(|m| (150..=256).contains(&m)),
        "{mib} MiB"
    );
    space.sh("pod", "echo x > /scratch/x && sync");

    let uid = text(&pod, "/metadata/uid").to_owned();
    let site = world.site_of(text(&space.pod_now("pod"), "/spec/nodeName"));
    let folder = site.kubelet_dir().join("pods").join(&uid);
    let mounts = || {
        let all = site.mounts().into_iter();
        all.filter(|m| m.on_loop() && m.at.to_string_lossy().contains(&uid))
            .count()
    };
    assert_eq!(mounts(), 1, "it has a loop device");
    space.delete_pod("pod");
    world.until("the end of the pod's folder", || match folder.exists() {
        false => Ok(()),
        true => Err(folder.display().to_string()),
    });
    space.end();
}
