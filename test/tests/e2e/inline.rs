//! Inline ephemeral volumes.

use serde_json::json;

use crate::objects::text;
use crate::space::Space;
use crate::world::{World, check};

/// It comes with its pod, without a claim, no larger than was asked for, and goes with it.
pub(crate) fn an_inline_volume_comes_and_goes_with_its_pod(world: &World) {
    let space = Space::new(world, "inline");
    space.inline_pod("pod", json!({"size": "256Mi"}));
    let pod = space.ready("pod");
    let mib = space.mib("pod", "/scratch");
    assert!((150..=256).contains(&mib), "{mib} MiB");
    space.sh("pod", "echo x > /scratch/x && sync");

    let uid = text(&pod, "/metadata/uid").to_owned();
    let site = world.site_of(text(&pod, "/spec/nodeName"));
    let folder = site.kubelet_dir().join("pods").join(&uid);
    let mounts = || {
        let all = site.mounts().into_iter();
        all.filter(|m| m.on_loop() && m.at.to_string_lossy().contains(&uid)).count()
    };
    assert_eq!(mounts(), 1, "it has a loop device");
    space.delete_pod("pod");
    world.until("the end of the pod's folder", || {
        check(!folder.exists(), || folder.display().to_string())
    });
    space.end();
}
