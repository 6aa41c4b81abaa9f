//! Behaviour that only a driver with attachment has.

use std::time::Duration;

use hostloop_test::deployed::DRIVER;
use hostloop_test::front::objects::attachment_name;
use serde_json::{Value, json};

use crate::objects::{assert_text, handle_of, name};
use crate::site::Site;
use crate::snapshots::{content_of, snapshot};
use crate::space::Space;
use crate::world::{World, check};

/// A volume has a VolumeAttachment, and finalizers, for as long as a pod uses it.
pub(crate) fn volumes_are_attached_and_detached(world: &World) {
    let space = Space::new(world, "attach");
    space.run_data("pod", "hostloop-ext4");
    let volume = space.volume("data");
    let handle = handle_of(&volume);
    let site = world.home(&volume);
    let attachment = attachment_name(handle, DRIVER, site.name());
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
    let site = world.site(1);
    world.until("the node's limit", || {
        let driver = site.driver_of_node().unwrap_or_default();
        let limited = driver.pointer("/allocatable/count") == Some(&json!(2));
        check(limited, || driver.to_string())
    });
    let space = Space::new(world, "full");
    for named in ["a", "b", "c"] {
        space.selected(named, site.name(), "512Mi");
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
}

/// A controller that is left out does nothing, on the nodes or in the controller's pod. The others
/// work, also the snapshot controller, which the manifest appends to the list.
pub(crate) fn controllers_that_are_left_out_do_nothing(world: &World) {
    let space = Space::new(world, "fewer");
    space.selected("data", world.site(1).name(), "512Mi");
    let volume = space.volume("data");
    space.grow("data", "1Gi");
    let class = space.class("now", json!({}));
    space.claim("unplaced", &class, json!({}));
    snapshot(&space, "snap", "data");
    content_of(&space, "snap");
    // All controllers have noticed by then.
    space.selected("later", world.site(1).name(), "512Mi");
    space.volume("later");
    std::thread::sleep(Duration::from_secs(5));
    let unplaced = space.claim_now("unplaced");
    assert_text(&unplaced, "/status/phase", "Pending");
    assert_text(
        &unplaced,
        "/metadata/annotations/volume.kubernetes.io~1selected-node",
        "",
    );
    let small = space.claim_now("data");
    assert_text(&small, "/status/capacity/storage", "512Mi");
    assert_eq!(small["status"]["allocatedResourceStatuses"], Value::Null);
    let volume = world.get("PersistentVolume", "", name(&volume));
    assert_text(&volume, "/spec/capacity/storage", "512Mi");
    world.remove("VolumeSnapshot", &space.name, "snap");
    space.end();
}
