use std::time::Duration;

use serde_json::Value;
use tonic::Status;

use super::*;
use crate::csi::driver::ControllerCapability::*;
use crate::resizer::Options;
use crate::testing::{Call, DRIVER, World};

struct Setup {
    world: World,
    resizer: Arc<Resizer>,
}

fn class(name: &str, driver: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
        "metadata": {"name": name}, "driverName": driver, "parameters": {"iops": name},
    })
}

/// A claim of class a that requests class b.
fn setup(claim: Value) -> Setup {
    let world = World::new(&[ModifyVolume]);
    let options = Options {
        workers: 1,
        resize_timeout: Duration::from_secs(10),
        modify_timeout: Duration::from_secs(10),
        handle_volume_inuse_error: true,
        extra_modify_metadata: true,
    };
    let resizer = Arc::new(Resizer::new(world.context.clone(), options));
    let mut base = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "ns", "uid": "c"},
        "spec": {"volumeName": "pv", "volumeAttributesClassName": "b"},
        "status": {"phase": "Bound", "currentVolumeAttributesClassName": "a"},
    });
    json_patch::merge(&mut base, &claim);
    world.add(&resizer.claims, base);
    world.add(
        &resizer.volumes,
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": "pv", "uid": "v",
                "annotations": {
                    "volume.kubernetes.io/controller-modify-secret-name": "s",
                    "volume.kubernetes.io/controller-modify-secret-namespace": "ns",
                },
            },
            "spec": {
                "claimRef": {"namespace": "ns", "name": "data", "uid": "c"},
                "csi": {"driver": DRIVER, "volumeHandle": "h"},
                "volumeAttributesClassName": "a",
            },
        }),
    );
    world.api.put(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "s", "namespace": "ns"}, "data": {"key": "aHVzaA=="},
    }));
    Setup { world, resizer }
}

impl Setup {
    fn put_class(&self, name: &str) {
        let watch = self.resizer.context.caches.attributes_classes();
        self.world.add(&watch, class(name, DRIVER));
    }

    fn wish(&self, class: Value) {
        let mut claim = self.claim();
        claim["spec"]["volumeAttributesClassName"] = class;
        self.world.add(&self.resizer.claims, claim);
    }

    async fn work(&self) -> Outcome {
        let key = ("ns".to_owned(), "data".to_owned());
        self.resizer.modify_key(ModifyKey::Claim(key)).await
    }

    fn claim(&self) -> Value {
        self.world.api.get("persistentvolumeclaims/data").unwrap()
    }

    fn status(&self) -> Value {
        self.claim()["status"]["modifyVolumeStatus"].clone()
    }

    fn asked(&self) -> Vec<String> {
        let calls = self.world.script.calls().into_iter();
        calls
            .map(|call| match call {
                Call::Modify(request) => {
                    assert_eq!(request.volume_id, "h");
                    assert_eq!(request.secrets["key"], "hush");
                    request.mutable_parameters["iops"].clone()
                }
                call => panic!("{call:?}"),
            })
            .collect()
    }
}

#[tokio::test]
async fn a_volume_is_modified_and_then_the_claim_says_so() {
    let mut setup = setup(json!({}));
    setup.put_class("b");
    assert_eq!(setup.work().await, Outcome::Done);
    let calls = setup.world.script.calls();
    let [Call::Modify(request)] = calls.as_slice() else {
        panic!("{calls:?}");
    };
    let parameters: Vec<_> = request.mutable_parameters.iter().collect();
    let expected = [
        ("csi.storage.k8s.io/pv/name", "pv"),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/pvc/namespace", "ns"),
        ("iops", "b"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert!(
        parameters
            .into_iter()
            .eq(expected.iter().map(|(a, b)| (a, b)))
    );
    let writes = setup.world.api.writes();
    let order: Vec<&str> = writes
        .iter()
        .filter_map(|one| one.split(' ').next())
        .collect();
    assert_eq!(order, ["data/status", "pv", "data/status"]);
    assert_eq!(
        writes[1],
        r#"pv {"spec":{"volumeAttributesClassName":"b"}}"#
    );
    assert_eq!(
        setup.claim()["status"],
        json!({
            "phase": "Bound", "currentVolumeAttributesClassName": "b", "conditions": [],
        })
    );
    assert_eq!(
        setup.world.events(),
        [
            "Normal VolumeModify: Modifying volume pv to \"b\"",
            "Normal VolumeModifySuccessful: Volume pv is modified to \"b\"",
        ]
    );
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), [""; 0]);
}

#[tokio::test]
async fn a_class_that_is_not_there_is_waited_for() {
    let mut setup = setup(json!({}));
    setup.resizer.modifier().listen();
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.status(), json!({"status": "Pending"}));
    assert_eq!(
        setup.world.events(),
        ["Warning VolumeModifyFailed: There is no VolumeAttributesClass \"b\""]
    );
    // A class that is created queues its claims.
    assert_eq!(setup.resizer.modify_queue.depth(), 1);
    setup.put_class("b");
    assert_eq!(setup.resizer.modify_queue.depth(), 2);
    let key = ModifyKey::Class("b".to_owned());
    assert_eq!(setup.resizer.modify_key(key).await, Outcome::Done);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), ["b"]);
    assert_eq!(setup.status(), Value::Null);
}

/// Kubernetes' own end-to-end test expects this.
#[tokio::test]
async fn a_class_of_another_driver_is_infeasible() {
    let mut setup = setup(json!({}));
    setup.world.api.put(class("b", "other"));
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), [""; 0]);
    let message = "VolumeAttributesClass \"b\" is for CSI driver other";
    let warning = format!("Warning VolumeModifyFailed: {message}");
    assert_eq!(setup.world.events(), [warning]);
    assert_eq!(
        setup.status(),
        json!({"status": "Infeasible", "targetVolumeAttributesClassName": "b"})
    );
    let conditions = setup.claim()["status"]["conditions"].clone();
    let error = &conditions[1];
    assert_eq!(error["type"], "ModifyVolumeError", "{conditions}");
    assert_eq!(error["message"], message);
    // A repeated attempt writes nothing, and a class of this driver clears the error at once.
    setup.world.api.writes();
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.world.api.writes(), [""; 0]);
    setup.put_class("c");
    setup.wish(json!("c"));
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), ["c"]);
    assert_eq!(setup.claim()["status"]["conditions"], json!([]));
}

#[tokio::test]
async fn the_target_stays_until_the_end_is_known() {
    let mut setup = setup(json!({}));
    setup.put_class("b");
    setup.put_class("c");
    setup.world.script.fail(Status::deadline_exceeded("slow"));
    assert_eq!(setup.work().await, Outcome::Failed);
    assert_eq!(
        setup.status(),
        json!({"status": "InProgress", "targetVolumeAttributesClassName": "b"})
    );
    let told = setup.world.events();
    assert_eq!(
        told[1],
        "Warning VolumeModifyFailed: Modifying the volume to \"b\" failed: \
         rpc error: code = DeadlineExceeded desc = slow; it may be going on"
    );
    setup.wish(json!("c"));
    setup.world.script.fail(Status::internal("over"));
    assert_eq!(setup.work().await, Outcome::Failed);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), ["b", "b", "c"]);
    assert_eq!(
        setup.claim()["status"]["currentVolumeAttributesClassName"],
        "c"
    );
}

#[tokio::test]
async fn what_an_earlier_process_began_is_uncertain() {
    let setup = setup(json!({
        "spec": {"volumeAttributesClassName": "c"},
        "status": {"modifyVolumeStatus": {
            "status": "InProgress", "targetVolumeAttributesClassName": "b",
        }},
    }));
    setup.put_class("b");
    setup.put_class("c");
    setup.resizer.recall_uncertain();
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_infeasible_is_tried_rarely_or_when_another_is_wished_for() {
    let mut setup = setup(json!({}));
    setup.put_class("b");
    setup.put_class("c");
    setup.world.script.fail(Status::invalid_argument("no"));
    let slow = Duration::from_secs(300);
    assert_eq!(setup.work().await, Outcome::RetryAfter(slow));
    assert_eq!(
        setup.status(),
        json!({"status": "Infeasible", "targetVolumeAttributesClassName": "b"})
    );
    assert!(matches!(setup.work().await, Outcome::RequeueAfter(left) if left <= slow));
    assert_eq!(setup.asked(), ["b"]);
    // The request may also be withdrawn.
    setup.world.events();
    let before = setup.claim();
    setup.wish(Value::Null);
    assert_eq!(setup.work().await, Outcome::Done);
    let told = setup.world.events();
    assert!(
        told[0].starts_with("Normal VolumeModifyCanceled: "),
        "{told:?}"
    );
    assert_eq!(setup.asked(), [""; 0]);
    let mut before = before;
    before["spec"]["volumeAttributesClassName"] = json!("c");
    setup.world.add(&setup.resizer.claims, before);
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), ["c"]);
}

/// An infeasible class delays only itself.
#[tokio::test(start_paused = true)]
async fn another_target_need_not_wait_for_an_infeasible_one() {
    let setup = setup(json!({}));
    setup.put_class("b");
    setup.put_class("c");
    setup.world.script.fail(Status::deadline_exceeded("slow"));
    assert_eq!(setup.work().await, Outcome::Failed);
    setup.wish(json!("c"));
    setup.world.script.fail(Status::invalid_argument("no"));
    assert_eq!(setup.work().await, Outcome::RequeueAfter(Duration::ZERO));
    assert_eq!(setup.asked(), ["b", "b"]);
    // The delay does not apply to the next class either, even if its secret is missing at first.
    setup.world.api.hide("secrets/s", 500);
    assert_eq!(setup.work().await, Outcome::Failed);
    assert_eq!(setup.work().await, Outcome::Failed);
}

/// The delay ends when the claim names another class, even if the infeasible one was requested
/// last.
#[tokio::test(start_paused = true)]
async fn the_delay_of_an_infeasible_class_ends_with_the_wish_for_it() {
    let setup = setup(json!({}));
    setup.put_class("b");
    setup.put_class("c");
    setup.world.script.fail(Status::invalid_argument("no"));
    assert!(matches!(setup.work().await, Outcome::RetryAfter(_)));
    setup.wish(json!("c"));
    setup.world.api.hide("secrets/s", 500);
    assert_eq!(setup.work().await, Outcome::Failed);
    assert_eq!(setup.work().await, Outcome::Failed);
}

#[tokio::test]
async fn a_volume_that_could_not_be_written_is_come_back_for() {
    let setup = setup(json!({}));
    setup.put_class("b");
    setup.world.api.refuse("persistentvolumes/pv", 500);
    assert_eq!(setup.work().await, Outcome::Failed);
    let claim = setup.claim();
    assert_eq!(claim["status"]["currentVolumeAttributesClassName"], "a");
    assert_eq!(setup.work().await, Outcome::Done);
    assert_eq!(setup.asked(), ["b", "b"]);
    let volume = setup.world.api.get("persistentvolumes/pv").unwrap();
    assert_eq!(volume["spec"]["volumeAttributesClassName"], "b");
}
