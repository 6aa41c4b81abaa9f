use std::time::Duration;

use hostloop_proto::status_details::no_room;
use serde_json::Value;
use tonic::{Code, Status};

use super::*;
use crate::csi::driver::ControllerCapability::*;
use crate::resizer::testing::{Rig, key};
use crate::testing::{Call, DRIVER};

const NONE: [&str; 0] = [];
const SLOW: Duration = Duration::from_secs(300);

/// A claim of class a that requests class b, and these classes.
fn rig_of(classes: &[&str], patch: Value) -> Rig {
    let claim = json!({
        "spec": {"volumeAttributesClassName": "b"},
        "status": {"currentVolumeAttributesClassName": "a"},
    });
    let volume = json!({
        "metadata": {"annotations": {
            "volume.kubernetes.io/controller-modify-secret-name": "s",
            "volume.kubernetes.io/controller-modify-secret-namespace": "ns",
        }},
        "spec": {"volumeAttributesClassName": "a"},
    });
    let rig = Rig::new(&[ModifyVolume], [claim, patch], volume);
    for class in classes {
        let watch = rig.resizer.context.caches.attributes_classes();
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
            "metadata": {"name": class}, "driverName": DRIVER, "parameters": {"iops": class},
        });
        rig.world.add(&watch, class);
    }
    rig
}

fn rig(classes: &[&str]) -> Rig {
    rig_of(classes, json!({}))
}

impl Rig {
    /// Requests another class.
    fn request_class(&self, class: Value) {
        self.change_claim(json!({"spec": {"volumeAttributesClassName": class}}));
    }

    async fn modify(&self) -> Outcome {
        self.resizer.modify_key(ModifyKey::Claim(key())).await
    }

    /// Makes the next call fail.
    async fn modify_failing(&self, status: Status) -> Outcome {
        self.world.script.fail(status);
        self.modify().await
    }

    /// The status of the modification and its target.
    fn modification(&self) -> Option<String> {
        let status = self.claim()["status"]["modifyVolumeStatus"].clone();
        let target = status["targetVolumeAttributesClassName"].as_str();
        let status = status["status"].as_str()?;
        Some(format!("{status} {}", target.unwrap_or_default()))
    }
}

#[tokio::test]
async fn a_modification_is_recorded_before_and_after_the_call() {
    let mut rig = rig(&["b"]);
    assert_eq!(rig.modify().await, Outcome::Done);
    let calls = rig.world.script.calls();
    let [Call::Modify(request)] = calls.as_slice() else {
        panic!("{calls:?}");
    };
    let expected = [
        ("csi.storage.k8s.io/pv/name", "pv"),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/pvc/namespace", "ns"),
        ("iops", "b"),
    ];
    let parameters = request.mutable_parameters.iter();
    assert!(
        parameters
            .map(|(key, value)| (&**key, &**value))
            .eq(expected)
    );
    rig.wrote_in_order();
    assert_eq!(rig.volume()["spec"]["volumeAttributesClassName"], "b");
    let status = json!({
        "phase": "Bound", "currentVolumeAttributesClassName": "b", "conditions": [],
    });
    assert_eq!(rig.claim()["status"], status);
    let events = [
        "Normal VolumeModify: Modifying volume pv to \"b\"",
        "Normal VolumeModifySuccessful: Volume pv is modified to \"b\"",
    ];
    assert_eq!(rig.world.events(), events);
    assert_eq!(rig.modify().await, Outcome::Done);
    assert_eq!(rig.calls(), NONE);
}

#[tokio::test]
async fn an_attempt_of_an_earlier_process_is_repeated() {
    let begun = json!({
        "spec": {"volumeAttributesClassName": "c"},
        "status": {"modifyVolumeStatus": {
            "status": "InProgress", "targetVolumeAttributesClassName": "b",
        }},
    });
    let rig = rig_of(&["b", "c"], begun);
    rig.resizer.recall_uncertain().await;
    assert_eq!(rig.modify().await, Outcome::Done);
    assert_eq!(rig.modify().await, Outcome::Done);
    assert_eq!(rig.calls(), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn an_infeasible_class_waits_unless_another_is_requested() {
    let mut rig = rig(&["b", "c"]);
    let no = Status::invalid_argument("no");
    assert_eq!(rig.modify_failing(no).await, Outcome::RetryAfter(SLOW));
    assert_eq!(rig.modification().as_deref(), Some("Infeasible b"));
    let waiting = rig.modify().await;
    assert!(matches!(waiting, Outcome::RequeueAfter(left) if left <= SLOW));
    assert_eq!(rig.calls(), ["b"]);
    // The request may also be withdrawn.
    rig.world.events();
    let mut before = rig.claim();
    rig.request_class(Value::Null);
    assert_eq!(rig.modify().await, Outcome::Done);
    let events = rig.world.events();
    let canceled = "Normal VolumeModifyCanceled: ";
    assert!(events[0].starts_with(canceled), "{events:?}");
    assert_eq!(rig.calls(), NONE);
    before["spec"]["volumeAttributesClassName"] = json!("c");
    rig.world.add(&rig.resizer.claims, before);
    assert_eq!(rig.modify().await, Outcome::Done);
    assert_eq!(rig.calls(), ["c"]);
}

#[tokio::test(start_paused = true)]
async fn a_modification_without_room_is_tried_again_when_there_is_room() {
    for (status, woken) in [
        (no_room(Code::InvalidArgument, "no room".to_owned()), true),
        (Status::invalid_argument("no"), false),
    ] {
        let rig = rig(&["b"]);
        let context = &rig.world.context;
        tokio::spawn(context.freed.clone().pace(context.stop.clone()));
        assert_eq!(rig.modify_failing(status).await, Outcome::RetryAfter(SLOW));
        assert_eq!(rig.calls(), ["b"]);
        context.room_freed();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(rig.resizer.modify_queue.depth(), usize::from(woken));
        if woken {
            assert_eq!(rig.modify().await, Outcome::Done);
            assert_eq!(rig.calls(), ["b"]);
        }
    }
}

/// An infeasible class delays only itself, even if it was requested last, and even if the secret
/// for the next class is missing at first.
#[tokio::test(start_paused = true)]
async fn the_delay_of_an_infeasible_class_is_not_for_other_classes() {
    for requested_before in [true, false] {
        let rig = rig(&["b", "c"]);
        let no = Status::invalid_argument("no");
        let slow = Status::deadline_exceeded("slow");
        if requested_before {
            assert_eq!(rig.modify_failing(slow).await, Outcome::Failed);
            rig.request_class(json!("c"));
            let at_once = Outcome::RequeueAfter(Duration::ZERO);
            assert_eq!(rig.modify_failing(no).await, at_once);
            assert_eq!(rig.calls(), ["b", "b"]);
        } else {
            assert_eq!(rig.modify_failing(no).await, Outcome::RetryAfter(SLOW));
            rig.request_class(json!("c"));
        }
        rig.world.api.hide("secrets/s", 500);
        assert_eq!(rig.modify().await, Outcome::Failed);
        assert_eq!(rig.modify().await, Outcome::Failed);
    }
}

#[tokio::test]
async fn a_failed_write_of_the_volume_is_repeated() {
    let rig = rig(&["b"]);
    rig.world.api.refuse("persistentvolumes/pv", 500);
    assert_eq!(rig.modify().await, Outcome::Failed);
    let status = &rig.claim()["status"];
    assert_eq!(status["currentVolumeAttributesClassName"], "a");
    assert_eq!(rig.modify().await, Outcome::Done);
    assert_eq!(rig.calls(), ["b", "b"]);
    assert_eq!(rig.volume()["spec"]["volumeAttributesClassName"], "b");
}
