//! Tests of the deletion of volumes.

use k8s_openapi::api::core::v1::PersistentVolume;

use super::*;
use crate::api::names::VOLUME_FINALIZER;

fn released(affinity: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "pvc-u-1", "uid": "p", "resourceVersion": "1",
                     "finalizers": ["kubernetes.io/pv-protection", VOLUME_FINALIZER]},
        "spec": {"persistentVolumeReclaimPolicy": "Delete", "nodeAffinity": affinity,
                 "csi": {"driver": "d", "volumeHandle": "handle"}},
        "status": {"phase": "Released"},
    })
}

impl Rig {
    fn release(&self, value: &Value) {
        let volume: PersistentVolume = read(value);
        self.at_work.context.caches.volumes().apply_write(volume);
        let objects = &mut self.world.state().objects;
        objects.insert(PV.to_owned(), value.clone());
    }

    async fn delete(&self) -> Outcome {
        self.at_work.volume("pvc-u-1").await
    }
}

#[tokio::test]
async fn deletion_goes_in_order() {
    let mut rig = central();
    rig.release(&released(Value::Null));
    let busy = Status::failed_precondition("busy");
    rig.world.state().deletions.push_back(busy);
    assert_eq!(rig.delete().await, Outcome::Failed);
    assert_eq!(rig.reasons(), ["VolumeFailedDelete"]);
    rig.world.log();
    assert_eq!(rig.delete().await, Outcome::Done);
    let verbs: Vec<_> = ["GET", "DELETE", "PATCH"]
        .map(|verb| format!("{verb} {PV}"))
        .into();
    let expected = [&*verbs[0], "DeleteVolume handle", &verbs[1], &verbs[2]];
    assert_eq!(rig.world.log(), expected);
    let finalizers = rig.world.state().objects[PV]["metadata"]["finalizers"].clone();
    assert_eq!(finalizers, json!(["kubernetes.io/pv-protection"]));
}

#[tokio::test]
async fn what_the_server_says_decides() {
    let rig = central();
    rig.release(&released(Value::Null));
    let path = PV.to_owned();
    rig.world.state().objects.entry(path).and_modify(|volume| {
        volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    });
    assert_eq!(rig.delete().await, Outcome::Done);
    assert_eq!(rig.world.log(), [format!("GET {PV}")]);
}

#[tokio::test]
async fn an_attached_volume_is_not_deleted() {
    let mut rig = central();
    rig.release(&released(Value::Null));
    let attachment = json!({"metadata": {"name": "a"}, "spec": {
        "attacher": "d", "nodeName": "n3", "source": {"persistentVolumeName": "pvc-u-1"}}});
    let caches = rig.at_work.context.caches.clone();
    caches.attachments().apply_write(read(&attachment));
    assert_eq!(rig.delete().await, Outcome::Failed);
    assert!(rig.last_message().contains("still attached to node n3"));
    assert_eq!(rig.world.log(), [format!("GET {PV}")]);
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
        let driver = Driver::with(rig.world.csi(), "d", &services, &can, &[]);
        rig.at_work.context.driver = Arc::new(driver);
        let (_lease, follows) = Leadership::elected();
        if !leads {
            rig.at_work.context.leader = follows;
        }
        rig.release(&released(Value::Null));
        assert_eq!(rig.delete().await, outcome, "{leads}");
        let event = rig.events.try_recv().expect("an event");
        assert_eq!((&*event.reason, event.shared), ("VolumeFailedDelete", true));
        assert!(
            event.message.contains("on which node it is"),
            "{}",
            event.message
        );
        assert!(rig.events.try_recv().is_err());
        assert!(!rig.world.log().contains(&"DeleteVolume handle".to_owned()));
    }
}

fn at(zone: &str) -> Value {
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "zone", "operator": "In", "values": [zone]}]}]}})
}

#[tokio::test]
async fn nodes_delete_only_their_own() {
    for (affinity, known, deleted) in [
        (at("n1"), false, true),
        (at("n2"), true, false),
        (Value::Null, true, true),
        (Value::Null, false, false),
    ] {
        let rig = rig(here(), true);
        rig.release(&released(affinity));
        if known {
            rig.world.state().known.push("handle".to_owned());
        }
        assert_eq!(rig.delete().await, Outcome::Done);
        let found = rig.world.log().contains(&"DeleteVolume handle".to_owned());
        assert_eq!(found, deleted);
    }
}

#[tokio::test]
async fn handles_of_other_pools_are_never_deleted() {
    for (handle, affinity, deleted) in [
        ("vol-a1-0", at("n1"), true),
        ("vol-a1-0", Value::Null, true),
        ("vol-a1-0", at("n2"), false),
        ("vol-b2-0", at("n1"), false),
        ("vol-b2-0", Value::Null, false),
    ] {
        let mut rig = rig(here(), true);
        rig.at_work.context.pools = crate::csi::Pools::reported(|| vec!["a1".to_owned()]);
        let mut volume = released(affinity.clone());
        volume["spec"]["csi"]["volumeHandle"] = json!(handle);
        rig.release(&volume);
        // DeleteVolume would succeed here, because this driver does not know the volume.
        assert_eq!(rig.delete().await, Outcome::Done);
        let found = rig.world.log().contains(&format!("DeleteVolume {handle}"));
        assert_eq!(found, deleted, "{handle} {affinity}");
        assert!(rig.reasons().is_empty());
    }
}
