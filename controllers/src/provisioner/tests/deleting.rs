//! Tests of the deletion of volumes.

use super::*;
use crate::api::attachment::expected_name;
use crate::api::constants::VOLUME_FINALIZER;
use crate::api::scope::NODE_LABEL;
use crate::cache::store::Selector;
use crate::csi::Pools;

/// A released PersistentVolume, in the cache and on the server.
pub(super) fn release(rig: &Rig, handle: &str, affinity: Value) -> Value {
    let more = json!({
        "metadata": {"finalizers": ["kubernetes.io/pv-protection", VOLUME_FINALIZER]},
        "spec": {"persistentVolumeReclaimPolicy": "Delete", "nodeAffinity": affinity},
        "status": {"phase": "Released"},
    });
    let volume = testing::with(testing::volume("pvc-u-1", "d", handle), more);
    let volumes = rig.world.context.caches.volumes();
    rig.world.add(&volumes, volume.clone());
    volume
}

impl Rig {
    async fn delete(&self) -> Outcome {
        self.at_work.volume("pvc-u-1").await
    }
}

#[tokio::test]
async fn the_policy_on_the_server_decides() {
    let rig = central();
    let mut volume = release(&rig, "handle", Value::Null);
    volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    rig.world.api.put(volume);
    assert_eq!(rig.delete().await, Outcome::Done);
    assert_eq!(rig.log(), [get(PV)]);
}

/// The attachment has no label yet, so the node's cache lacks it.
#[tokio::test]
async fn a_volume_with_an_attachment_outside_the_watch_is_not_deleted() {
    for (of, outcome) in [("pvc-u-1", Outcome::Failed), ("another", Outcome::Done)] {
        let mut rig = rig(here(), false);
        let label = Selector::label(NODE_LABEL, "n1".to_owned());
        rig.world.context.caches.attachments().note_selected(label);
        release(&rig, "handle", Value::Null);
        let name = expected_name("handle", "d", "n1");
        rig.world.api.put(
            json!({"kind": "VolumeAttachment", "metadata": {"name": name}, "spec": {
            "attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": of}}}),
        );
        assert_eq!(rig.delete().await, outcome, "{of}");
        let deleted = rig.log().contains(&DELETE.to_owned());
        assert_eq!(deleted, outcome == Outcome::Done, "{of}");
        if outcome == Outcome::Failed {
            let event = rig.world.events().pop().expect("an event");
            let start =
                "Normal VolumeDelete: persistentvolume pvc-u-1 is still attached to node n1";
            assert!(event.starts_with(start), "{event}");
        }
    }
}

/// Neither the affinity nor the driver shows the volume's node. Nodes report it even if another
/// process leads.
#[tokio::test]
async fn a_volume_of_no_known_node_is_reported_once() {
    for (leads, outcome) in [(true, Outcome::Failed), (false, Outcome::Done)] {
        let mut rig = rig(here(), true);
        let services = [
            Service::ControllerService,
            Service::VolumeAccessibilityConstraints,
        ];
        let can = [ControllerCapability::CreateDeleteVolume];
        let csi = rig.driver.serve(&rig.world.api);
        rig.at_work.context.driver = Arc::new(Driver::with(csi, "d", &services, &can, &[]));
        let (_lease, follows) = Leadership::elected();
        if !leads {
            rig.at_work.context.leader = follows;
        }
        release(&rig, "handle", Value::Null);
        assert_eq!(rig.delete().await, outcome, "{leads}");
        let events = rig.world.take_events();
        assert_eq!(events.len(), 1);
        let (event, reason) = (&events[0], "VolumeFailedDelete");
        assert_eq!((&*event.reason, event.shared), (reason, true));
        let message = &event.message;
        assert!(
            message.contains("shows the node of the volume"),
            "{message}"
        );
        assert!(!rig.log().contains(&DELETE.to_owned()));
    }
}

#[tokio::test]
async fn nodes_delete_only_their_own() {
    let at = |zone: &str| testing::affinity("zone", &[zone]);
    let anywhere = || Value::Null;
    // Columns: whether the driver reports its pools, whether it knows the volume.
    for (handle, affinity, pools, known, deleted) in [
        ("handle", at("n1"), false, false, true),
        ("handle", at("n2"), false, true, false),
        ("handle", anywhere(), false, true, true),
        ("handle", anywhere(), false, false, false),
        // DeleteVolume succeeds for handles of other pools too.
        ("vol-a1-0", at("n1"), true, false, true),
        ("vol-a1-0", anywhere(), true, false, true),
        ("vol-a1-0", at("n2"), true, false, false),
        ("vol-b2-0", at("n1"), true, false, false),
        ("vol-b2-0", anywhere(), true, false, false),
    ] {
        let mut rig = rig(here(), true);
        if pools {
            rig.at_work.context.pools = Pools::reported(|| vec!["a1".to_owned()]);
        }
        if known {
            rig.driver.state().known.push(handle.to_owned());
        }
        release(&rig, handle, affinity.clone());
        assert_eq!(rig.delete().await, Outcome::Done);
        let found = rig.log().contains(&format!("DeleteVolume {handle}"));
        assert_eq!(found, deleted, "{handle} {affinity} {pools} {known}");
        assert!(rig.reasons().is_empty());
    }
}

/// The PersistentVolume was deleted, and another one has its name and a volume of its own.
#[tokio::test]
async fn a_volume_that_came_back_under_its_name_is_kept() {
    let rig = central();
    let mut volume = release(&rig, "handle", Value::Null);
    volume["metadata"]["uid"] = json!("another");
    rig.world.api.take(PV);
    rig.world.api.put(volume);
    assert_eq!(rig.delete().await, Outcome::Done);
    assert!(!rig.log().contains(&DELETE.to_owned()));
    assert!(rig.world.api.get(PV).is_some());
}
