//! Attacks on the node by a user who may only create pods.

use hostloop_test::attacks;
use hostloop_test::cluster::BUSYBOX;
use serde_json::{Value, json};

use crate::objects::text;
use crate::space::{Space, on_node};
use crate::world::{DRIVER, World};

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
            space.pod_with(&named, &[], inline(attribute, value));
            (named, attribute)
        })
        .collect();
    for (named, attribute) in &tried {
        let field = format!("volume_context[{attribute:?}]");
        space.event(named, "FailedMount", &field);
        assert_eq!(text(&space.pod_now(named), "/status/phase"), "Pending");
    }
    let uids: Vec<_> = tried
        .iter()
        .map(|(named, _)| text(&space.pod_now(named), "/metadata/uid").to_owned())
        .collect();
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
        space.claim(claim, &class, json!({"volumeMode": "Block"}));
    }
    space.pod_with(
        "attacker",
        &["own"],
        json!({"containers": [{
            "name": "main", "image": BUSYBOX, "command": ["sleep", "1000000"],
            "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "volumeDevices": [{"name": "own", "devicePath": "/dev/own"}]}]}),
    );
    space.ready("attacker");
    space.sh(
        "attacker",
        "echo mine | dd of=/dev/own bs=4096 conv=sync,fsync",
    );
    // The kernel accepts it, and detaches the device at its last close.
    space.sh("attacker", "losetup -d /dev/own");
    space.pod("victim", &["other"]);
    space.ready("victim");
    space.sh(
        "victim",
        "echo secret | dd of=/dev/other bs=4096 conv=sync,fsync",
    );
    let seen = space.sh("attacker", "dd if=/dev/own bs=4096 count=1 | head -n 1");
    assert_eq!(seen, "mine");
    // The next pod finds the first volume intact, and the other volume unchanged.
    space.delete_pod("attacker");
    space.pod("after", &["own"]);
    space.ready("after");
    for (pod, device, data) in [("after", "own", "mine"), ("victim", "other", "secret")] {
        let read = format!("dd if=/dev/{device} bs=4096 count=1 | head -n 1");
        assert_eq!(space.sh(pod, &read), data, "{pod}");
    }
    for claim in ["own", "other"] {
        space.volume(claim);
    }
    space.end();
}

/// A pod with one inline volume that has this attribute.
fn inline(attribute: &str, value: &str) -> Value {
    json!({
        "containers": [{
            "name": "main", "image": BUSYBOX, "command": ["sleep", "1000000"],
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
        "volumes": [{"name": "scratch", "csi": {
            "driver": DRIVER, "fsType": "ext4", "volumeAttributes": {attribute: value}}}]})
}
