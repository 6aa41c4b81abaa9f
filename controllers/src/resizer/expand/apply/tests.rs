use std::time::Duration;

use hostloop_proto::csi::ControllerExpandVolumeResponse;
use hostloop_proto::status_details::no_room;
use serde_json::Value;
use tonic::{Code, Status};

use super::*;
use crate::api::constants::NODE_EXPANSION_NOT_REQUIRED;
use crate::csi::driver::ControllerCapability::{self, *};
use crate::resizer::claim::{CONTROLLER_RESIZE_ERROR, RESIZING};
use crate::resizer::recover::{CONTROLLER_IN_PROGRESS, CONTROLLER_INFEASIBLE, NODE_PENDING};
use crate::resizer::testing::{Rig, key, options};
use crate::testing::with;

const NONE: [&str; 0] = [];

/// A claim of 4Gi with a PV of 2Gi.
fn rig_of(capabilities: &[ControllerCapability], patch: Value) -> Rig {
    let claim = json!({
        "metadata": {"annotations": {NODE_EXPANSION_NOT_REQUIRED: "true"}},
        "spec": {"resources": {"requests": {"storage": "4Gi"}}},
        "status": {"capacity": {"storage": "2Gi"}},
    });
    let volume = json!({"spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"},
        "csi": {"fsType": "xfs",
                "controllerExpandSecretRef": {"name": "s", "namespace": "ns"}},
    }});
    Rig::new(capabilities, [claim, patch], volume)
}

/// A rig with a driver that expands to this size in GiB.
fn rig(gib: i64) -> Rig {
    let rig = rig_of(&[ExpandVolume], json!({}));
    rig.expands(gib, false);
    rig
}

impl Rig {
    async fn expand(&self) -> Outcome {
        self.resizer.expand_claim(&key()).await
    }

    fn expands(&self, gib: i64, node_too: bool) {
        self.world.script.expands(ControllerExpandVolumeResponse {
            capacity_bytes: gib << 30,
            node_expansion_required: node_too,
        });
    }

    /// Makes the next call fail, and checks the outcome.
    async fn expand_failing(&self, status: Status, outcome: Outcome) {
        self.world.script.fail(status);
        assert_eq!(self.expand().await, outcome);
    }

    fn request(&self, size: &str) {
        self.change_claim(json!({"spec": {"resources": {"requests": {"storage": size}}}}));
    }

    fn resize_status(&self) -> Value {
        self.claim()["status"]["allocatedResourceStatuses"]["storage"].clone()
    }
}

#[tokio::test]
async fn a_volume_that_needs_no_node_is_expanded_at_once() {
    let mut rig = rig(5);
    assert_eq!(rig.expand().await, Outcome::Done);
    assert_eq!(rig.calls(), ["4"]);
    assert_eq!(rig.volume()["spec"]["capacity"]["storage"], "5Gi");
    assert!(rig.volume()["metadata"]["annotations"].is_null());
    let claim = rig.claim();
    assert_eq!(claim["status"]["capacity"]["storage"], "5Gi");
    assert_eq!(claim["status"]["allocatedResources"]["storage"], "4Gi");
    assert_eq!(rig.conditions(), NONE);
    assert_eq!(rig.resize_status(), Value::Null);
    let annotations = &claim["metadata"]["annotations"];
    assert_eq!(annotations[NODE_EXPANSION_NOT_REQUIRED], "true");
    rig.wrote_in_order();
    let events = [
        "Normal Resizing: Expanding volume pv to 4Gi",
        "Normal VolumeResizeSuccessful: Volume pv is expanded to 5Gi",
    ];
    assert_eq!(rig.world.events(), events);
    assert_eq!(rig.expand().await, Outcome::Done);
    assert_eq!(rig.calls(), NONE);
    // The next expansion needs the node, and then waits for kubelet.
    rig.request("8Gi");
    rig.expands(8, true);
    for calls in [&["8"][..], &[]] {
        assert_eq!(rig.expand().await, Outcome::Done);
        assert_eq!(rig.calls(), calls);
        assert_eq!(rig.claim()["metadata"]["annotations"], json!({}));
    }
}

#[tokio::test]
async fn without_the_capability_only_the_node_expands() {
    let rig = rig_of(&[], json!({}));
    assert_eq!(rig.expand().await, Outcome::Done);
    assert_eq!(rig.calls(), NONE);
    assert_eq!(rig.resize_status(), NODE_PENDING);
    assert_eq!(rig.volume()["spec"]["capacity"]["storage"], "4Gi");
}

#[tokio::test(start_paused = true)]
async fn an_infeasible_expansion_waits_unless_less_is_requested() {
    let slow = Duration::from_secs(300);
    let too_much = || Status::out_of_range("too much");
    let mut rig = rig(3);
    rig.expand_failing(too_much(), Outcome::RetryAfter(slow))
        .await;
    assert_eq!(rig.resize_status(), CONTROLLER_INFEASIBLE);
    assert_eq!(rig.conditions(), [RESIZING, CONTROLLER_RESIZE_ERROR]);
    let event = "Warning VolumeResizeFailed: Expanding volume pv failed: \
                 rpc error: code = OutOfRange desc = too much";
    assert_eq!(rig.world.events()[1], event);
    assert_eq!(rig.calls(), ["4"]);
    let waiting = rig.expand().await;
    assert!(matches!(waiting, Outcome::RequeueAfter(left) if left <= slow));
    assert_eq!(rig.calls(), NONE);
    rig.request("3Gi");
    assert_eq!(rig.expand().await, Outcome::Done);
    assert_eq!(rig.calls(), ["3"]);
    assert_eq!(rig.conditions(), NONE);
    // After the wait, the same size is tried again.
    let rig = self::rig(4);
    rig.expand_failing(too_much(), Outcome::RetryAfter(slow))
        .await;
    tokio::time::advance(slow + Duration::from_secs(1)).await;
    assert_eq!(rig.expand().await, Outcome::Done);
    assert_eq!(rig.calls(), ["4", "4"]);
}

#[tokio::test]
async fn an_expansion_without_a_final_answer_is_finished_first() {
    let rig = rig(4);
    rig.expand_failing(Status::aborted("at it"), Outcome::Failed)
        .await;
    assert_eq!(rig.resize_status(), CONTROLLER_IN_PROGRESS);
    assert_eq!(rig.conditions(), [RESIZING]);
    // A larger request must wait for the expansion that was begun.
    rig.request("8Gi");
    let at_once = Outcome::RequeueAfter(Duration::ZERO);
    rig.expand_failing(Status::internal("gave up"), at_once)
        .await;
    assert_eq!(rig.conditions(), [RESIZING, CONTROLLER_RESIZE_ERROR]);
    assert_eq!(rig.resize_status(), CONTROLLER_IN_PROGRESS);
    // The first expansion has now failed with a final error.
    rig.expands(8, false);
    assert_eq!(rig.expand().await, Outcome::Done);
    assert_eq!(rig.calls(), ["4", "4", "8"]);
}

/// An earlier process began an expansion that fails for good. The size that is requested by now is
/// next, at once; the size that failed waits.
#[tokio::test(start_paused = true)]
async fn less_is_requested_while_an_expansion_of_an_earlier_process_fails() {
    let begun = || {
        json!({"status": {
            "allocatedResources": {"storage": "500Gi"},
            "allocatedResourceStatuses": {"storage": CONTROLLER_IN_PROGRESS},
        }})
    };
    let at_once = Outcome::RequeueAfter(Duration::ZERO);
    for refusal in [
        Status::out_of_range("no room"),
        Status::internal("broken"),
        no_room(Code::ResourceExhausted, "no room".to_owned()),
    ] {
        let rig = rig_of(&[ExpandVolume], begun());
        rig.expands(4, false);
        rig.expand_failing(refusal.clone(), at_once).await;
        assert_eq!(rig.expand().await, Outcome::Done, "{refusal}");
        assert_eq!(rig.calls(), ["500", "4"], "{refusal}");
        assert_eq!(rig.conditions(), NONE);
    }
    // Another driver's RESOURCE_EXHAUSTED leaves open whether it still expands.
    let rig = rig_of(&[ExpandVolume], begun());
    for _ in 0..2 {
        rig.expand_failing(Status::resource_exhausted("busy"), Outcome::Failed)
            .await;
    }
    assert_eq!(rig.calls(), ["500", "500"]);
}

#[tokio::test]
async fn a_volume_in_use_waits_until_no_pod_uses_it() {
    let mut rig = rig(4);
    let pods = rig.resizer.context.caches.pods();
    pods.note_synced();
    let pod = |phase: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "p"},
            "spec": {"containers": [], "volumes": [
                {"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
            ]},
            "status": {"phase": phase},
        })
    };
    rig.world.add(&pods, pod("Running"));
    let in_use = Status::failed_precondition("in use");
    rig.expand_failing(in_use, Outcome::Failed).await;
    assert_eq!(rig.calls(), ["4"]);
    rig.world.events();
    assert_eq!(rig.expand().await, Outcome::Failed);
    assert_eq!(rig.calls(), NONE);
    let event =
        "Warning VolumeResizeFailed: the driver can't expand the volume while a pod uses it";
    assert_eq!(rig.world.events(), [event]);
    rig.world.add(&pods, pod("Succeeded"));
    // The claim is queued at once, without waiting for the backoff.
    assert_eq!(rig.resizer.queue.depth(), 1);
    assert_eq!(rig.expand().await, Outcome::Done);
    assert_eq!(rig.calls(), ["4"]);
}

/// A server that does not serve VolumeAttributesClasses stops modifying only.
#[tokio::test(start_paused = true)]
async fn expanding_does_not_wait_for_attributes_classes() {
    let rig = rig_of(&[ExpandVolume, ModifyVolume], json!({}));
    rig.resizer.claims.note_synced();
    rig.resizer.volumes.note_synced();
    rig.expands(4, false);
    let context = rig.world.context.clone();
    let running = tokio::spawn(crate::resizer::run(context.clone(), options()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.calls(), ["4"]);
    context.stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_missing_secret_is_reported() {
    let mut rig = rig(4);
    let secret = json!({"controllerExpandSecretRef": {"name": "gone"}});
    rig.change_volume(json!({"spec": {"csi": secret}}));
    assert_eq!(rig.expand().await, Outcome::Failed);
    let event = "Warning VolumeResizeFailed: Expanding volume pv failed: secret ns/gone does not \
                 exist: create it";
    assert_eq!(rig.world.events()[1], event);
    assert_eq!(rig.conditions(), [RESIZING]);
}

/// The claim was changed, or deleted and created again, since it was read.
#[tokio::test]
async fn a_write_to_a_changed_claim_fails() {
    for change in [
        json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}}),
        json!({"metadata": {"uid": "another"}}),
    ] {
        let rig = rig(4);
        rig.world.api.put(with(rig.claim(), &change));
        assert_eq!(rig.expand().await, Outcome::Failed, "{change}");
        assert_eq!(rig.calls(), NONE);
        assert_eq!(rig.resize_status(), Value::Null);
    }
}

#[tokio::test]
async fn claims_of_other_drivers_are_left_alone() {
    for (claim, volume) in [
        (json!({"metadata": {"uid": "another"}}), json!({})),
        (json!({}), json!({"spec": {"csi": {"driver": "other"}}})),
        (json!({}), json!({"spec": {"csi": null}})),
        (json!({"spec": {"volumeName": "unknown"}}), json!({})),
    ] {
        let rig = rig_of(&[ExpandVolume], claim);
        rig.change_volume(volume);
        assert_eq!(rig.expand().await, Outcome::Done);
        assert_eq!(rig.world.api.writes(), NONE);
        assert_eq!(rig.calls(), NONE);
    }
}

/// The driver says at once that an expansion does not fit. Its next attempt is far away.
#[tokio::test(start_paused = true)]
async fn an_expansion_without_room_is_tried_again_when_there_is_room() {
    let slow = Duration::from_secs(300);
    for (status, outcome, woken) in [
        (
            no_room(Code::OutOfRange, "no room".to_owned()),
            Outcome::RetryAfter(slow),
            true,
        ),
        // A size that fits nowhere, whatever is freed.
        (
            Status::out_of_range("too large"),
            Outcome::RetryAfter(slow),
            false,
        ),
        (
            Status::invalid_argument("bad"),
            Outcome::RetryAfter(slow),
            false,
        ),
        // The disk was full half-way: the failed attempt gives its own room back.
        (Status::resource_exhausted("full"), Outcome::Failed, false),
        (Status::internal("broken"), Outcome::Failed, false),
    ] {
        let rig = rig(4);
        let context = &rig.world.context;
        tokio::spawn(context.freed.clone().pace(context.stop.clone()));
        rig.expand_failing(status, outcome).await;
        assert_eq!(rig.calls(), ["4"]);
        context.room_freed();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(rig.resizer.queue.depth(), usize::from(woken), "{outcome:?}");
        if woken {
            assert_eq!(rig.expand().await, Outcome::Done);
            assert_eq!(rig.calls(), ["4"]);
            assert_eq!(rig.resizer.for_room.len(), 0);
        }
    }
}
