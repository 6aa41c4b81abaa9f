use std::time::Duration;

use serde_json::Value;
use tonic::Status;

use super::*;
use crate::csi::driver::ControllerCapability::*;
use crate::resizer::testing::{Rig, key};
use crate::testing::{Call, DRIVER};

const NONE: [&str; 0] = [];
const SLOW: Duration = Duration::from_secs(300);

fn class(name: &str, driver: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
        "metadata": {"name": name}, "driverName": driver, "parameters": {"iops": name},
    })
}

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
        rig.put_class(class);
    }
    rig
}

fn rig(classes: &[&str]) -> Rig {
    rig_of(classes, json!({}))
}

impl Rig {
    fn put_class(&self, name: &str) {
        let watch = self.resizer.context.caches.attributes_classes();
        self.world.add(&watch, class(name, DRIVER));
    }

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
    assert!(parameters.map(|(key, value)| (&**key, &**value)).eq(expected));
    let writes = rig.wrote_in_order();
    let of_volume = r#"pv {"spec":{"volumeAttributesClassName":"b"}}"#;
    assert_eq!(writes[1], of_volume);
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
async fn a_missing_class_is_waited_for() {
    let mut rig = rig(&[]);
    rig.resizer.modifier().listen();
    assert_eq!(rig.modify().await, Outcome::Done);
    assert_eq!(rig.modification().as_deref(), Some("Pending "));
    let event = "Warning VolumeModifyFailed: There is no VolumeAttributesClass \"b\"";
    assert_eq!(rig.world.events(), [event]);
    // A class that is created queues its claims.
    assert_eq!(rig.resizer.modify_queue.depth(), 1);
    rig.put_class("b");
    assert_eq!(rig.resizer.modify_queue.depth(), 2);
    let key = ModifyKey::Class("b".to_owned());
    assert_eq!(rig.resizer.modify_key(key).await, Outcome::Done);
    assert_eq!(rig.modify().await, Outcome::Done);
    assert_eq!(rig.calls(), ["b"]);
    assert_eq!(rig.modification(), None);
}

/// Kubernetes' own end-to-end test expects this.
#[tokio::test]
async fn a_class_of_another_driver_is_infeasible() {
    let mut rig = rig(&[]);
    rig.world.api.put(class("b", "other"));
    assert_eq!(rig.modify().await, Outcome::Done);
    assert_eq!(rig.calls(), NONE);
    let message = "VolumeAttributesClass \"b\" is for CSI driver other";
    let event = format!("Warning VolumeModifyFailed: {message}");
    assert_eq!(rig.world.events(), [event]);
    assert_eq!(rig.modification().as_deref(), Some("Infeasible b"));
    assert_eq!(rig.conditions()[1], "ModifyVolumeError");
    let error = &rig.claim()["status"]["conditions"][1];
    assert_eq!(error["message"], message);
    // A repeated attempt writes nothing, and a class of this driver clears the error at once.
    rig.world.api.writes();
    assert_eq!(rig.modify().await, Outcome::Done);
    assert_eq!(rig.world.api.writes(), NONE);
    rig.put_class("c");
    rig.request_class(json!("c"));
    assert_eq!(rig.modify().await, Outcome::Done);
    assert_eq!(rig.calls(), ["c"]);
    assert_eq!(rig.conditions(), NONE);
}

#[tokio::test]
async fn the_target_stays_until_the_result_is_known() {
    let mut rig = rig(&["b", "c"]);
    let slow = Status::deadline_exceeded("slow");
    assert_eq!(rig.modify_failing(slow).await, Outcome::Failed);
    assert_eq!(rig.modification().as_deref(), Some("InProgress b"));
    let event = "Warning VolumeModifyFailed: Modifying the volume to \"b\" failed: \
                 rpc error: code = DeadlineExceeded desc = slow; it may be going on";
    assert_eq!(rig.world.events()[1], event);
    rig.request_class(json!("c"));
    let over = Status::internal("over");
    assert_eq!(rig.modify_failing(over).await, Outcome::Failed);
    assert_eq!(rig.modify().await, Outcome::Done);
    assert_eq!(rig.calls(), ["b", "b", "c"]);
    let status = &rig.claim()["status"];
    assert_eq!(status["currentVolumeAttributesClassName"], "c");
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
    rig.resizer.recall_uncertain();
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
