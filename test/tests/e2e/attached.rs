//! Behaviour that only a driver with attachment has.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::objects::{assert_text, handle_of, name};
use crate::site::Site;
use crate::space::{Space, on_node};
use crate::world::{DRIVER, NAMESPACE, World, check};

/// The name that the attach-detach controller and kubelet give a VolumeAttachment.
fn attachment_name(handle: &str, node: &str) -> String {
    let digest = Sha256::digest(format!("{handle}{DRIVER}{node}").as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{hex}")
}

/// A volume has a VolumeAttachment, and finalizers, for as long as a pod uses it.
pub(crate) fn volumes_are_attached_and_detached(world: &World) {
    let space = Space::new(world, "attach");
    space.run_data("pod", "hostloop-ext4");
    let volume = space.volume("data");
    let handle = handle_of(&volume);
    let site = world.home(&volume);
    let attachment = attachment_name(handle, site.name());
    let seen = world.get("VolumeAttachment", "", &attachment);
    assert_eq!(seen.pointer("/status/attached"), Some(&json!(true)));
    assert_text(&seen, "/spec/source/persistentVolumeName", name(&volume));
    const FINALIZER: &str = "external-attacher/hostloop-csi-dev";
    let finalizers = |object: &Value| object["metadata"]["finalizers"].to_string();
    assert!(finalizers(&seen).contains(FINALIZER), "{seen}");
    let now = || world.get("PersistentVolume", "", name(&volume));
    assert!(finalizers(&now()).contains(FINALIZER));
    let published = || record(&site, handle).contains(site.name());
    assert!(published(), "the publication is recorded");

    space.delete_pod("pod");
    world.gone("VolumeAttachment", "", &attachment);
    assert!(!published(), "the record has no publication");
    world.delete("PersistentVolumeClaim", &space.name, "data");
    world.gone("PersistentVolume", "", name(&volume));
    space.end();
}

/// The volume's record, which has its publications.
pub(crate) fn record(site: &Site<'_>, handle: &str) -> String {
    let file = site.pool().join("volumes").join(handle).join("volume.json");
    let read = std::fs::read_to_string(&file).expect("the record can be read");
    let record: Value = serde_json::from_str(&read).expect("the record is JSON");
    record["publications"].to_string()
}

/// The scheduler skips a node at its volume limit until one of its pods is gone.
pub(crate) fn a_full_node_takes_no_more_volumes(world: &World) {
    let limit = |setting: &str| {
        let set = ["set", "env", "-n", NAMESPACE, "daemonset/hostloop", setting];
        world.cluster().kubectl(&set);
        world.drivers_ready();
    };
    limit("HOSTLOOP_ATTACH_LIMIT=2");
    let site = world.site(2);
    world.until("the node's limit", || {
        let driver = site.driver_of_node().unwrap_or_default();
        let limited = driver.pointer("/allocatable/count") == Some(&json!(2));
        check(limited, || driver.to_string())
    });
    let space = Space::new(world, "full");
    let class = space.class("now", on_node(site.name()));
    let names = ["a", "b", "c"];
    for named in names {
        space.claim(named, &class, json!({}));
        space.volume(named);
    }
    for named in ["a", "b"] {
        space.run(named, &[named]);
    }
    space.pod("c", &["c"]);
    space.event("c", "FailedScheduling", "max volume count");
    space.delete_pod("a");
    space.ready("c");
    space.end();
    // Only a cluster that stays up needs the change reverted.
    if std::env::var_os("HOSTLOOP_CLUSTER").is_some() {
        limit("HOSTLOOP_ATTACH_LIMIT-");
    }
}
