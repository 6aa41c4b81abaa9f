//! Claims: creation and deletion of their volumes.

use serde_json::{Value, json};

use crate::objects::text;
use crate::space::{Space, attached};
use crate::world::{DRIVER, NAMESPACE, TOPOLOGY, World};

/// A claim waits for its pod, gets a volume on the pod's node, and keeps its data over pods. Its
/// deletion leaves nothing.
pub(crate) fn a_claim_goes_through_a_pod_and_back(world: &World) {
    let space = Space::new(world, "claim");
    space.claim("data", "hostloop-ext4", json!({}));
    space.event("data", "WaitForFirstConsumer", "waiting for first consumer");
    let claim = space.claim_now("data");
    assert_eq!(text(&claim, "/status/phase"), "Pending");

    space.pod("writer", &["data"]);
    space.ready("writer");
    space.sh("writer", "echo here > /data/file && sync");
    let volume = space.volume("data");
    assert_what_a_volume_says(&space, &volume);
    let handle = text(&volume, "/spec/csi/volumeHandle");
    assert_eq!(attached(handle), 1, "one loop device");

    space.delete_pod("writer");
    space.off_node(&volume);
    space.pod("reader", &["data"]);
    space.ready("reader");
    assert_eq!(space.sh("reader", "cat /data/file"), "here");

    // The claim disappears only after its pod, and its volume after that.
    world.delete("PersistentVolumeClaim", &space.name, "data");
    assert_eq!(space.sh("reader", "cat /data/file"), "here");
    space.delete_pod("reader");
    world.gone("PersistentVolumeClaim", &space.name, "data");
    world.gone("PersistentVolume", "", text(&volume, "/metadata/name"));
    assert!(
        !world
            .home(&volume)
            .pool()
            .join("volumes")
            .join(handle)
            .exists()
    );
    space.end();
}

fn assert_what_a_volume_says(space: &Space, volume: &Value) {
    let claim = space.claim_now("data");
    let uid = text(&claim, "/metadata/uid");
    assert_eq!(text(volume, "/metadata/name"), format!("hostloop-{uid}"));
    assert_eq!(
        text(
            volume,
            "/metadata/annotations/pv.kubernetes.io~1provisioned-by"
        ),
        DRIVER
    );
    assert_eq!(text(volume, "/spec/csi/driver"), DRIVER);
    assert_eq!(text(volume, "/spec/csi/fsType"), "ext4");
    assert_eq!(text(volume, "/spec/capacity/storage"), "512Mi");
    assert_eq!(text(volume, "/spec/claimRef/uid"), uid);
    assert_eq!(
        text(volume, "/spec/persistentVolumeReclaimPolicy"),
        "Delete"
    );
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": TOPOLOGY, "operator": "In", "values": [text(&space.pod_now("writer"), "/spec/nodeName")]}]}]}});
    assert_eq!(volume.pointer("/spec/nodeAffinity"), Some(&affinity));
    let finalizers = volume.pointer("/metadata/finalizers").map(Value::to_string);
    let finalizers = finalizers.unwrap_or_default();
    assert!(finalizers.contains("external-provisioner.volume.kubernetes.io/finalizer"));
}

/// A claim of an Immediate class is bound without a pod, and serves one afterwards.
pub(crate) fn an_immediate_claim_is_bound_without_a_pod(world: &World) {
    let space = Space::new(world, "immediate");
    let class = space.class("now", json!({}));
    space.claim("data", &class, json!({}));
    space.volume("data");
    space.pod("pod", &["data"]);
    space.ready("pod");
    assert_eq!(space.sh("pod", "echo x > /data/x && cat /data/x"), "x");
    space.end();
}

/// Claims that are deleted at any moment of their provisioning leave neither volumes nor files.
pub(crate) fn claims_deleted_while_they_are_provisioned_leave_nothing(world: &World) {
    let space = Space::new(world, "fleeting");
    let class = space.class("now", json!({}));
    for i in 0..12u64 {
        let named = format!("c{i}");
        space.claim(&named, &class, json!({}));
        std::thread::sleep(std::time::Duration::from_millis(i * 20));
        world.delete("PersistentVolumeClaim", &space.name, &named);
    }
    for i in 0..12 {
        world.gone("PersistentVolumeClaim", &space.name, &format!("c{i}"));
    }
    // Files are checked after the parallel tests are done.
    space.end();
}

/// The capacity for a class is published for as long as the class exists.
pub(crate) fn the_room_for_a_class_is_told(world: &World) {
    let space = Space::new(world, "room");
    let waits = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    let class = space.class("room", waits);
    let told = || {
        let mut all = world.list("CSIStorageCapacity", NAMESPACE);
        all.retain(|c| text(c, "/storageClassName") == class);
        all
    };
    for site in world.sites() {
        let of = json!({"matchLabels": {TOPOLOGY: site.name()}});
        let capacity = world.until("the room on each node", || {
            let found = told().into_iter().find(|c| c["nodeTopology"] == of);
            found.ok_or_else(|| format!("{:?}", told()))
        });
        assert_ne!(text(&capacity, "/capacity"), "0");
        let owner = text(&capacity, "/metadata/ownerReferences/0/kind");
        assert_eq!(
            owner, "DaemonSet",
            "it is there for as long as the driver is"
        );
    }
    space.end();
    world.until("the end of what was told", || match told() {
        all if all.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
}
