//! Claims: creation and deletion of their volumes.

use hostloop_test::deployed::{DRIVER, NAMESPACE};
use serde_json::{Value, json};

use crate::filesystems::MOUNTED;
use crate::objects::{assert_text, handle_of, name, text};
use crate::space::{Space, attached};
use crate::world::{TOPOLOGY, World, check};

/// A claim waits for its pod, gets a volume on the pod's node, and keeps its data over pods. Its
/// deletion leaves nothing.
pub(crate) fn a_claim_goes_through_a_pod_and_back(world: &World) {
    let space = Space::new(world, "claim");
    space.claim("data", "hostloop-ext4", json!({}));
    space.event("data", "WaitForFirstConsumer", "waiting for first consumer");
    assert_text(&space.claim_now("data"), "/status/phase", "Pending");

    space.run("writer", &["data"]);
    space.sh("writer", "echo here > /data/file && sync");
    assert_eq!(space.sh("writer", MOUNTED), "ext4");
    let volume = space.volume("data");
    assert_fields(&space, &volume);
    let handle = handle_of(&volume);
    assert_eq!(attached(handle), 1, "one loop device");

    space.delete_pod("writer");
    space.off_node(&volume);
    space.run("reader", &["data"]);
    assert_eq!(space.sh("reader", "cat /data/file"), "here");

    // The claim disappears only after its pod, and its volume after that.
    world.delete("PersistentVolumeClaim", &space.name, "data");
    assert_eq!(space.sh("reader", "cat /data/file"), "here");
    space.delete_pod("reader");
    world.gone("PersistentVolumeClaim", &space.name, "data");
    world.gone("PersistentVolume", "", name(&volume));
    let files = world.home(&volume).pool().join("volumes").join(handle);
    assert!(!files.exists());
    space.end();
}

fn assert_fields(space: &Space, volume: &Value) {
    let claim = space.claim_now("data");
    let uid = text(&claim, "/metadata/uid");
    const PROVISIONER: &str = "/metadata/annotations/pv.kubernetes.io~1provisioned-by";
    for (field, expected) in [
        ("/metadata/name", &*format!("hostloop-{uid}")),
        (PROVISIONER, DRIVER),
        ("/spec/csi/driver", DRIVER),
        ("/spec/csi/fsType", "ext4"),
        ("/spec/capacity/storage", "512Mi"),
        ("/spec/claimRef/uid", uid),
        ("/spec/persistentVolumeReclaimPolicy", "Delete"),
    ] {
        assert_text(volume, field, expected);
    }
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": TOPOLOGY, "operator": "In", "values": [space.node_of("writer")]}]}]}});
    assert_eq!(volume.pointer("/spec/nodeAffinity"), Some(&affinity));
    let finalizers = volume.pointer("/metadata/finalizers").map(Value::to_string);
    let finalizers = finalizers.unwrap_or_default();
    assert!(finalizers.contains("external-provisioner.volume.kubernetes.io/finalizer"));
}

/// The capacity for a class is published for as long as the class exists.
pub(crate) fn capacity_is_published_for_a_class(world: &World) {
    let space = Space::new(world, "room");
    let waits = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    let class = space.class("room", waits);
    let published = || {
        let mut all = world.list("CSIStorageCapacity", NAMESPACE);
        all.retain(|c| text(c, "/storageClassName") == class);
        all
    };
    for site in world.sites() {
        let of = json!({"matchLabels": {TOPOLOGY: site.name()}});
        let capacity = world.until("the room on each node", || {
            let found = published().into_iter().find(|c| c["nodeTopology"] == of);
            found.ok_or_else(|| format!("{:?}", published()))
        });
        assert_ne!(text(&capacity, "/capacity"), "0");
        // It exists for as long as the driver does.
        assert_text(&capacity, "/metadata/ownerReferences/0/kind", "DaemonSet");
    }
    space.end();
    world.until("the end of the published capacity", || {
        let left = published();
        check(left.is_empty(), || format!("{left:?}"))
    });
}
