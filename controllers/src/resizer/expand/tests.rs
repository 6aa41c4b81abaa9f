use std::time::Duration;

use hostloop_proto::csi::ControllerExpandVolumeResponse;
use serde_json::Value;
use tonic::Status;

use super::*;
use crate::csi::driver::ControllerCapability::*;
use crate::resizer::Options;
use crate::testing::{self, DRIVER, World};

const GI: i64 = 1 << 30;

pub(crate) struct Setup {
    pub(crate) world: World,
    pub(crate) resizer: Resizer,
}

fn options() -> Options {
    Options {
        workers: 1,
        resize_timeout: Duration::from_secs(10),
        modify_timeout: Duration::from_secs(10),
        handle_volume_inuse_error: true,
        extra_modify_metadata: false,
    }
}

/// A claim of 4Gi with a PV of 2Gi.
fn setup_of(capabilities: &[crate::csi::driver::ControllerCapability], claim: Value) -> Setup {
    let world = World::new(capabilities);
    let resizer = Resizer::new(world.context.clone(), options());
    let mut base = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data", "namespace": "ns", "uid": "c",
            "annotations": {NODE_EXPANSION_NOT_REQUIRED: "true"},
        },
        "spec": {"volumeName": "pv", "resources": {"requests": {"storage": "4Gi"}}},
        "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
    });
    json_patch::merge(&mut base, &claim);
    world.add(&resizer.claims, base);
    world.add(
        &resizer.volumes,
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": "pv", "uid": "v"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"},
                "claimRef": {"namespace": "ns", "name": "data", "uid": "c"},
                "csi": {
                    "driver": DRIVER, "volumeHandle": "h", "fsType": "xfs",
                    "controllerExpandSecretRef": {"name": "s", "namespace": "ns"},
                },
            },
        }),
    );
    world.api.put(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "s", "namespace": "ns"}, "data": {"key": "aHVzaA=="},
    }));
    Setup { world, resizer }
}

fn setup(claim: Value) -> Setup {
    setup_of(&[ExpandVolume], claim)
}

impl Setup {
    async fn work(&self) -> Outcome {
        let key = ("ns".to_owned(), "data".to_owned());
        self.resizer.expand_claim(&key).await
    }

    fn claim(&self) -> Value {
        self.world.api.get("persistentvolumeclaims/data").unwrap()
    }

    fn volume(&self) -> Value {
        self.world.api.get("persistentvolumes/pv").unwrap()
    }

    fn expands(&self, gib: i64, node_too: bool) {
        self.world.script.expands(ControllerExpandVolumeResponse {
            capacity_bytes: gib * GI,
            node_expansion_required: node_too,
        });
    }

    /// The sizes of the expansion calls since the last look.
    fn asked(&self) -> Vec<i64> {
        let calls = self.world.script.calls().into_iter();
        calls
            .map(|call| match call {
                testing::Call::Expand(request) => {
                    assert_eq!(request.volume_id, "h");
                    assert_eq!(request.secrets["key"], "hush");
                    assert!(request.volume_capability.is_some());
                    request.capacity_range.unwrap().required_bytes / GI
                }
                call => panic!("{call:?}"),
            })
            .collect()
    }

    fn condition_types(&self) -> Vec<String> {
        let claim = self.claim();
        let conditions = claim["status"]["conditions"].as_array().cloned();
        let types = conditions.unwrap_or_default().into_iter();
        types
            .map(|one| one["type"].as_str().unwrap().to_owned())
            .collect()
    }

    fn resize_status(&self) -> Value {
        self.claim()["status"]["allocatedResourceStatuses"]["storage"].clone()
    }
}

#[tokio::test]
async fn a_volume_that_needs_no_node_is_expanded_at_once() {
    let mut setup = setup(json!({}));
    setup.expands(5, false);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), [4]);
    assert_eq!(setup.volume()["spec"]["capacity"]["storage"], "5Gi");
    assert!(setup.volume()["metadata"]["annotations"].is_null());
    let claim = setup.claim();
    assert_eq!(claim["status"]["capacity"]["storage"], "5Gi");
    assert_eq!(claim["status"]["allocatedResources"]["storage"], "4Gi");
    assert_eq!(setup.condition_types(), [""; 0]);
    assert_eq!(setup.resize_status(), Value::Null);
    let annotations = &claim["metadata"]["annotations"];
    assert_eq!(annotations[NODE_EXPANSION_NOT_REQUIRED], "true");
    let writes = setup.world.api.writes();
    let order: Vec<&str> = writes
        .iter()
        .filter_map(|one| one.split(' ').next())
        .collect();
    assert_eq!(order, ["data/status", "pv", "data/status"]);
    assert_eq!(
        setup.world.events(),
        [
            "Normal Resizing: Expanding volume pv to 4Gi",
            "Normal VolumeResizeSuccessful: Volume pv is expanded to 5Gi",
        ]
    );
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), [0; 0]);
}

#[tokio::test]
async fn a_volume_that_needs_its_node_waits_for_that() {
    let mut setup = setup(json!({}));
    setup.expands(4, true);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.resize_status(), NODE_PENDING);
    assert_eq!(
        setup.condition_types(),
        [RESIZING, FILE_SYSTEM_RESIZE_PENDING]
    );
    let annotations = |volume: Value| volume["metadata"]["annotations"].clone();
    assert_eq!(annotations(setup.volume())[PRE_RESIZE_CAPACITY], "2Gi");
    assert_eq!(annotations(setup.claim()), json!({}));
    assert_eq!(setup.claim()["status"]["capacity"]["storage"], "2Gi");
    let told = setup.world.events();
    assert!(
        told[1].starts_with("Normal FileSystemResizeRequired: "),
        "{told:?}"
    );
    // The expansion now waits for kubelet.
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), [4]);
    // When kubelet is done, the earlier capacity is removed.
    let mut claim = setup.claim();
    claim["status"] = json!({"phase": "Bound", "capacity": {"storage": "4Gi"}});
    setup.world.add(&setup.resizer.claims, claim);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(annotations(setup.volume()), json!({}));
}

#[tokio::test]
async fn where_the_controller_has_no_part_the_node_has_all() {
    let setup = setup_of(&[], json!({}));
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), [0; 0]);
    assert_eq!(setup.resize_status(), NODE_PENDING);
    assert_eq!(setup.volume()["spec"]["capacity"]["storage"], "4Gi");
}

#[tokio::test(start_paused = true)]
async fn what_is_infeasible_is_tried_rarely_or_when_less_is_asked_for() {
    let mut setup = setup(json!({}));
    setup.expands(3, false);
    setup.world.script.fail(Status::out_of_range("too much"));
    let slow = Duration::from_secs(300);
    assert_eq!(setup.work().await, Outcome::RetryAfter(slow));
    assert_eq!(setup.resize_status(), CONTROLLER_INFEASIBLE);
    assert_eq!(setup.condition_types(), [RESIZING, CONTROLLER_RESIZE_ERROR]);
    let told = setup.world.events();
    assert_eq!(
        told[1],
        "Warning VolumeResizeFailed: Expanding volume pv failed: \
         rpc error: code = OutOfRange desc = too much"
    );
    assert_eq!(setup.asked(), [4]);
    assert!(matches!(setup.work().await, Outcome::RequeueAfter(left) if left <= slow));
    assert_eq!(setup.asked(), [0; 0]);
    let mut claim = setup.claim();
    claim["spec"]["resources"]["requests"]["storage"] = json!("3Gi");
    setup.world.add(&setup.resizer.claims, claim);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), [3]);
    assert_eq!(setup.condition_types(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_is_infeasible_is_tried_again_in_the_end() {
    let setup = setup(json!({}));
    setup.expands(4, false);
    setup.world.script.fail(Status::invalid_argument("no"));
    setup.work().await;
    tokio::time::advance(Duration::from_secs(301)).await;
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), [4, 4]);
}

#[tokio::test]
async fn what_is_not_known_to_have_failed_goes_on() {
    let setup = setup(json!({}));
    setup.expands(4, false);
    setup.world.script.fail(Status::aborted("at it"));
    assert_eq!(setup.work().await, Outcome::Failed);
    assert_eq!(setup.resize_status(), CONTROLLER_IN_PROGRESS);
    assert_eq!(setup.condition_types(), [RESIZING]);
    // A larger request must wait for the expansion that was begun.
    let mut claim = setup.claim();
    claim["spec"]["resources"]["requests"]["storage"] = json!("8Gi");
    setup.world.add(&setup.resizer.claims, claim);
    setup.world.script.fail(Status::internal("gave up"));
    assert_eq!(setup.work().await, Outcome::Failed);
    assert_eq!(setup.condition_types(), [RESIZING, CONTROLLER_RESIZE_ERROR]);
    assert_eq!(setup.resize_status(), CONTROLLER_IN_PROGRESS);
    // The first expansion has now failed with a final error.
    setup.expands(8, false);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), [4, 4, 8]);
}

#[tokio::test]
async fn a_volume_in_use_waits_until_it_is_not() {
    let mut setup = setup(json!({}));
    setup.resizer.context.caches.pods().note_synced();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"containers": [], "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
        ]},
        "status": {"phase": "Running"},
    });
    let pods = setup.resizer.context.caches.pods();
    setup.world.add(&pods, pod.clone());
    setup.expands(4, false);
    setup
        .world
        .script
        .fail(Status::failed_precondition("in use"));
    assert_eq!(setup.work().await, Outcome::Failed);
    assert_eq!(setup.asked(), [4]);
    setup.world.events();
    assert_eq!(setup.work().await, Outcome::Failed);
    assert_eq!(setup.asked(), [0; 0]);
    assert_eq!(
        setup.world.events(),
        ["Warning VolumeResizeFailed: the driver can't expand the volume while a pod uses it"]
    );
    let mut pod = pod;
    pod["status"]["phase"] = json!("Succeeded");
    setup.world.add(&pods, pod);
    // The claim is queued at once, without waiting for the backoff.
    assert_eq!(setup.resizer.queue.depth(), 1);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), [4]);
}

/// A server that does not serve VolumeAttributesClasses stops modifying only.
#[tokio::test(start_paused = true)]
async fn expanding_does_not_wait_for_attributes_classes() {
    let setup = setup_of(&[ExpandVolume, ModifyVolume], json!({}));
    setup.resizer.claims.note_synced();
    setup.resizer.volumes.note_synced();
    setup.expands(4, false);
    let stop = setup.world.context.stop.clone();
    let running = tokio::spawn(crate::resizer::run(setup.world.context.clone(), options()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(setup.asked(), [4]);
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_missing_secret_is_told() {
    let mut setup = setup(json!({}));
    let mut volume = setup.volume();
    volume["spec"]["csi"]["controllerExpandSecretRef"]["name"] = json!("gone");
    setup.world.add(&setup.resizer.volumes, volume);
    assert_eq!(setup.work().await, Outcome::Failed);
    let told = setup.world.events();
    assert_eq!(
        told[1],
        "Warning VolumeResizeFailed: Expanding volume pv failed: there is no secret ns/gone"
    );
    assert_eq!(setup.condition_types(), [RESIZING]);
}

#[tokio::test]
async fn a_claim_changed_meanwhile_is_not_overwritten() {
    let setup = setup(json!({}));
    let mut claim = setup.claim();
    claim["spec"]["resources"]["requests"]["storage"] = json!("3Gi");
    setup.world.api.put(claim);
    assert_eq!(setup.work().await, Outcome::Failed);
    assert_eq!(setup.asked(), [0; 0]);
    assert_eq!(setup.resize_status(), Value::Null);
}

#[tokio::test]
async fn others_claims_are_left_alone() {
    for (claim, volume) in [
        (json!({"metadata": {"uid": "another"}}), json!({})),
        (json!({}), json!({"spec": {"csi": {"driver": "other"}}})),
        (json!({}), json!({"spec": {"csi": null}})),
        (json!({"spec": {"volumeName": "unknown"}}), json!({})),
    ] {
        let setup = setup(claim);
        let mut base = setup.volume();
        json_patch::merge(&mut base, &volume);
        setup.world.add(&setup.resizer.volumes, base);
        assert_eq!(setup.work().await, Outcome::Done);
        assert_eq!(setup.world.api.writes(), [""; 0]);
        assert_eq!(setup.asked(), [0; 0]);
    }
}

#[test]
fn what_asks_for_work() {
    let status = |status: &str| json!({"status": {"phase": "Bound", "allocatedResourceStatuses": {"storage": status}}});
    for (old, new, expected) in [
        (json!({}), json!({}), false),
        (
            json!({}),
            json!({"metadata": {"labels": {"a": "b"}}}),
            false,
        ),
        (
            json!({}),
            json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}),
            true,
        ),
        (
            json!({}),
            json!({"status": {"capacity": {"storage": "1Gi"}}}),
            true,
        ),
        (
            json!({}),
            json!({"status": {"phase": "Bound"}, "spec": {"volumeName": "pv"}}),
            true,
        ),
        (json!({}), status(CONTROLLER_IN_PROGRESS), false),
        (
            status(CONTROLLER_IN_PROGRESS),
            status(CONTROLLER_INFEASIBLE),
            false,
        ),
        (status(CONTROLLER_IN_PROGRESS), status(NODE_PENDING), false),
        (status(NODE_PENDING), status("NodeResizeInProgress"), true),
        (status(NODE_PENDING), status("NodeResizeInfeasible"), true),
        (
            status(NODE_PENDING),
            json!({"status": {"phase": "Bound"}}),
            true,
        ),
    ] {
        let claim = |patch: &Value| {
            let mut base = json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {}});
            json_patch::merge(&mut base, patch);
            serde_json::from_value::<PersistentVolumeClaim>(base).unwrap()
        };
        assert_eq!(asks(&claim(&old), &claim(&new)), expected, "{old} -> {new}");
    }
}
