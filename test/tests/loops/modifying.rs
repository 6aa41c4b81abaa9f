//! Claims that change their VolumeAttributesClass.

use hostloop_proto::csi;
use hostloop_test::client::map;
use hostloop_test::front::FrontSpec;
use hostloop_test::memory::Step;
use serde_json::{Value, json};
use tonic::Code;

use crate::Rig;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn spec(name: &str) -> FrontSpec {
    let quick = [
        "--timeout=1s",
        "--retry-interval-start=200ms",
        "--retry-interval-max=2s",
    ];
    let spec = FrontSpec::new(name, "provisioner,resizer").args(&quick);
    spec.driver(|o| o.known_mutable = Some(["speed".to_owned()].into()))
}

/// A VolumeAttributesClass, named after the front.
async fn attributes(rig: &Rig, name: &str, parameters: Value) -> String {
    let name = format!("{name}-{}", rig.name);
    rig.objects
        .create(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
            "metadata": {"name": name, "labels": {"front": rig.name}},
            "driverName": rig.driver_name, "parameters": parameters,
        }))
        .await;
    name
}

async fn ask(rig: &Rig, claim: &str, class: &str) {
    let change = json!({"spec": {"volumeAttributesClassName": class}});
    rig.objects.merge(&rig.claim_at(claim), change).await;
}

fn current(claim: &Value) -> &str {
    text(&claim["status"]["currentVolumeAttributesClassName"])
}

fn state(claim: &Value) -> &str {
    text(&claim["status"]["modifyVolumeStatus"]["status"])
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_come_with_the_volume_and_change() {
    let rig = Rig::up(spec("modify")).await;
    let slow = attributes(&rig, "slow", json!({"speed": "1"})).await;
    let fast = attributes(&rig, "fast", json!({"speed": "9"})).await;
    rig.claim("data", json!({"spec": {"volumeAttributesClassName": slow}}))
        .await;
    let (claim, volume) = rig.bound("data").await;
    let request = rig.driver.requests::<csi::CreateVolumeRequest>().remove(0);
    assert_eq!(request.mutable_parameters, map(&[("speed", "1")]));
    assert_eq!(volume["spec"]["volumeAttributesClassName"], slow.as_str());
    assert_eq!(current(&claim), slow);
    ask(&rig, "data", &fast).await;
    let at = rig.claim_at("data");
    let claim = rig.until(&at, "fast", |c| current(c) == fast).await;
    assert!(claim["status"]["modifyVolumeStatus"].is_null(), "{claim:#}");
    let volume_at = rig.at("PersistentVolume", text(&volume["metadata"]["name"]));
    let volume = rig.objects.get(&volume_at).await.expect("it is there");
    assert_eq!(volume["spec"]["volumeAttributesClassName"], fast.as_str());
    let made = rig
        .driver
        .volume(text(&volume["spec"]["csi"]["volumeHandle"]));
    assert_eq!(made.expect("it is there").mutable, map(&[("speed", "9")]));
    rig.until_event(&at, "Normal", "VolumeModify", &[]).await;
    rig.until_event(&at, "Normal", "VolumeModifySuccessful", &[])
        .await;
    assert_eq!(rig.driver.count("ControllerModifyVolume"), 1);
    rig.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_class_is_waited_for() {
    let rig = Rig::up(spec("modify-missing")).await;
    rig.claim("data", json!({})).await;
    rig.bound("data").await;
    let later = format!("later-{}", rig.name);
    ask(&rig, "data", &later).await;
    let at = rig.claim_at("data");
    rig.until(&at, "pending", |c| state(c) == "Pending").await;
    rig.until_event(&at, "Warning", "VolumeModifyFailed", &[&later])
        .await;
    attributes(&rig, "later", json!({"speed": "3"})).await;
    rig.until(&at, "modified", |c| current(c) == later).await;
    rig.down().await;
}

/// InvalidArgument makes the change infeasible; the user can choose another class.
#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_infeasible() {
    let rig = Rig::up(spec("modify-bad")).await;
    let bad = attributes(&rig, "bad", json!({"flavour": "salt"})).await;
    let good = attributes(&rig, "good", json!({"speed": "2"})).await;
    rig.claim("data", json!({})).await;
    rig.bound("data").await;
    ask(&rig, "data", &bad).await;
    let at = rig.claim_at("data");
    let claim = rig
        .until(&at, "infeasible", |c| state(c) == "Infeasible")
        .await;
    assert_eq!(
        claim["status"]["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
        bad
    );
    let conditions = claim["status"]["conditions"].to_string();
    assert!(conditions.contains("ModifyVolumeError"), "{claim:#}");
    rig.until_event(&at, "Warning", "VolumeModifyFailed", &["flavour"])
        .await;
    ask(&rig, "data", &good).await;
    let claim = rig.until(&at, "good", |c| current(c) == good).await;
    assert!(
        !claim["status"]["conditions"]
            .to_string()
            .contains("ModifyVolumeError")
    );
    rig.down().await;
}

/// A change with an unknown result is finished before another one begins.
#[tokio::test(flavor = "multi_thread")]
async fn an_uncertain_change_is_finished_first() {
    let rig = Rig::up(spec("modify-uncertain")).await;
    let first = attributes(&rig, "first", json!({"speed": "4"})).await;
    let second = attributes(&rig, "second", json!({"speed": "5"})).await;
    rig.claim("data", json!({})).await;
    rig.bound("data").await;
    rig.driver.always(
        "ControllerModifyVolume",
        Step::DoneBut(Code::DeadlineExceeded),
    );
    ask(&rig, "data", &first).await;
    rig.until_called("ControllerModifyVolume", 1).await;
    let at = rig.claim_at("data");
    rig.until(&at, "in progress", |c| state(c) == "InProgress")
        .await;
    ask(&rig, "data", &second).await;
    let before = rig.driver.count("ControllerModifyVolume");
    rig.until_called("ControllerModifyVolume", before + 2).await;
    let last = rig
        .driver
        .requests::<csi::ControllerModifyVolumeRequest>()
        .pop();
    let asked = last.map(|r| r.mutable_parameters);
    assert_eq!(
        asked,
        Some(map(&[("speed", "4")])),
        "the first is still uncertain"
    );
    rig.driver.unscript("ControllerModifyVolume");
    rig.until(&at, "second", |c| current(c) == second).await;
    rig.down().await;
}

/// Another driver's class is an error that the user sees and can undo.
#[tokio::test(flavor = "multi_thread")]
async fn another_drivers_class_is_infeasible() {
    let rig = Rig::up(spec("modify-foreign")).await;
    let foreign = format!("foreign-{}", rig.name);
    rig.objects
        .create(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
            "metadata": {"name": foreign, "labels": {"front": rig.name}},
            "driverName": "other.csi.dev", "parameters": {"speed": "1"},
        }))
        .await;
    let good = attributes(&rig, "good", json!({"speed": "2"})).await;
    rig.claim("data", json!({})).await;
    rig.bound("data").await;
    ask(&rig, "data", &foreign).await;
    let at = rig.claim_at("data");
    let claim = rig
        .until(&at, "infeasible", |c| state(c) == "Infeasible")
        .await;
    let conditions = claim["status"]["conditions"].to_string();
    assert!(conditions.contains("ModifyVolumeError"), "{claim:#}");
    assert_eq!(rig.driver.count("ControllerModifyVolume"), 0);
    ask(&rig, "data", &good).await;
    let claim = rig.until(&at, "good", |c| current(c) == good).await;
    let conditions = claim["status"]["conditions"].to_string();
    assert!(!conditions.contains("ModifyVolumeError"), "{claim:#}");
    rig.down().await;
}
