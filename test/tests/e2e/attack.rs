//! Attacks on the node by a user who may only create pods.

use hostloop_test::attacks;
use hostloop_test::cluster::BUSYBOX;
use serde_json::json;

use crate::objects::{assert_text, text};
use crate::space::{Space, on_node};
use crate::world::World;

/// A pod never starts if an attribute of its inline volume could reach the node or its space. The
/// event names the attribute, and no volume is made.
pub(crate) fn a_pod_cannot_choose_how_its_volume_is_made(world: &World) {
    let space = Space::new(world, "attack-inline");
    let sizes = attacks::INLINE_SIZES.iter().map(|size| ("size", *size));
    let attributes = attacks::INLINE_ATTRIBUTES.iter().copied().chain(sizes);
    let tried: Vec<_> = attributes
        .enumerate()
        .map(|(number, (attribute, value))| {
            let named = format!("pod-{number}");
            space.inline_pod(&named, &[("ext4", json!({attribute: value}))]);
            (named, attribute)
        })
        .collect();
    for (named, attribute) in &tried {
        let field = format!("volume_context[{attribute:?}]");
        space.event(named, "FailedMount", &field);
        assert_text(&space.pod_now(named), "/status/phase", "Pending");
    }
    let uid = |named: &str| text(&space.pod_now(named), "/metadata/uid").to_owned();
    let uids: Vec<_> = tried.iter().map(|(named, _)| uid(named)).collect();
    for site in world.sites() {
        for mount in site.mounts() {
            let at = mount.at.display().to_string();
            let ours = mount.on_loop() && uids.iter().any(|uid| at.contains(uid));
            assert!(!ours, "{at} is mounted");
        }
    }
    space.end();
}

/// A container without capabilities tries to detach the loop device of its raw block volume. The
/// volume keeps its data, and the device is not reused for another volume.
pub(crate) fn a_pod_that_detaches_its_device_reaches_no_other_volume(world: &World) {
    let space = Space::new(world, "attack-block");
    let class = space.class("here", on_node(world.site(1).name()));
    for claim in ["own", "other"] {
        space.device(claim, &class);
    }
    space.run_with(
        "attacker",
        &["own"],
        json!({"containers": [{
            "name": "main", "image": BUSYBOX, "command": ["sleep", "1000000"],
            "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "volumeDevices": [{"name": "own", "devicePath": "/dev/own"}]}]}),
    );
    let write = |pod: &str, device: &str, data: &str| {
        let write = format!("echo {data} | dd of=/dev/{device} bs=4096 conv=sync,fsync");
        space.sh(pod, &write);
    };
    let read = |pod: &str, device: &str| {
        let read = format!("dd if=/dev/{device} bs=4096 count=1 | head -n 1");
        space.sh(pod, &read)
    };
    write("attacker", "own", "mine");
    // The kernel accepts it, and detaches the device at its last close.
    space.sh("attacker", "losetup -d /dev/own");
    space.run("victim", &["other"]);
    write("victim", "other", "secret");
    assert_eq!(read("attacker", "own"), "mine");
    // The next pod finds the first volume intact, and the other volume unchanged.
    space.delete_pod("attacker");
    space.run("after", &["own"]);
    assert_eq!(read("after", "own"), "mine");
    assert_eq!(read("victim", "other"), "secret");
    for claim in ["own", "other"] {
        space.volume(claim);
    }
    space.end();
}
