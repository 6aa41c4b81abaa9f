//! Claims that change their VolumeAttributesClass.

use hostloop_proto::csi;
use hostloop_test::client::map;
use hostloop_test::front::fields::{handle, name, text};
use hostloop_test::front::{FrontSpec, objects};
use hostloop_test::memory::Step;
use serde_json::{Value, json};
use tonic::Code;

use crate::{Rig, quick};

const MODIFY: &str = "ControllerModifyVolume";

fn spec(name: &str) -> FrontSpec {
    quick(name, "provisioner,resizer")
        .driver(|o| o.known_mutable = Some(["speed".to_owned()].into()))
}

/// A VolumeAttributesClass, named after the front.
async fn attributes(rig: &Rig, name: &str, parameters: Value) -> String {
    attributes_of(rig, name, &rig.driver_name, parameters).await
}

async fn attributes_of(rig: &Rig, name: &str, driver: &str, parameters: Value) -> String {
    let name = format!("{name}-{}", rig.name);
    let mut class = objects::attributes_class(&name, driver, parameters);
    class["metadata"]["labels"]["front"] = json!(rig.name);
    rig.create(class).await;
    name
}

async fn ask(rig: &Rig, claim: &str, class: &str) {
    rig.objects
        .merge(&rig.claim_at(claim), objects::with_attributes(class))
        .await;
}

fn current(claim: &Value) -> &str {
    text(&claim["status"]["currentVolumeAttributesClassName"])
}

fn state(claim: &Value) -> &str {
    text(&claim["status"]["modifyVolumeStatus"]["status"])
}

fn has_error(claim: &Value) -> bool {
    let conditions = claim["status"]["conditions"].to_string();
    conditions.contains("ModifyVolumeError")
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_come_with_the_volume_and_change() {
    let rig = Rig::up(spec("modify")).await;
    let slow = attributes(&rig, "slow", json!({"speed": "1"})).await;
    let fast = attributes(&rig, "fast", json!({"speed": "9"})).await;
    let (claim, volume) = rig
        .bound_claim("data", objects::with_attributes(&slow))
        .await;
    let request = rig.request::<csi::CreateVolumeRequest>();
    assert_eq!(request.mutable_parameters, map(&[("speed", "1")]));
    assert_eq!(volume["spec"]["volumeAttributesClassName"], slow.as_str());
    assert_eq!(current(&claim), slow);
    ask(&rig, "data", &fast).await;
    let at = rig.claim_at("data");
    let claim = rig.until(&at, "fast", |c| current(c) == fast).await;
    assert!(claim["status"]["modifyVolumeStatus"].is_null(), "{claim:#}");
    let volume_at = rig.at("PersistentVolume", name(&volume));
    let volume = rig.get(&volume_at).await;
    assert_eq!(volume["spec"]["volumeAttributesClassName"], fast.as_str());
    let made = rig.made(handle(&volume));
    assert_eq!(made.mutable, map(&[("speed", "9")]));
    rig.noted(&at, "VolumeModify", &[]).await;
    rig.noted(&at, "VolumeModifySuccessful", &[]).await;
    assert_eq!(rig.driver.count(MODIFY), 1);
    rig.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_class_is_waited_for() {
    let rig = Rig::up(spec("modify-missing")).await;
    rig.volume("data").await;
    let later = format!("later-{}", rig.name);
    ask(&rig, "data", &later).await;
    let at = rig.claim_at("data");
    rig.until(&at, "pending", |c| state(c) == "Pending").await;
    rig.warned(&at, "VolumeModifyFailed", &[&later]).await;
    attributes(&rig, "later", json!({"speed": "3"})).await;
    rig.until(&at, "modified", |c| current(c) == later).await;
    rig.down().await;
}

/// A class that the driver rejects, or of another driver, is infeasible. The user sees the error
/// and can choose another class.
#[tokio::test(flavor = "multi_thread")]
async fn a_class_may_be_infeasible() {
    let rig = Rig::up(spec("modify-bad")).await;
    let own = &rig.driver_name;
    for (name, driver, parameter, words) in [
        ("nonsense", &own[..], "flavour", "flavour"),
        ("foreign", "other.csi.dev", "speed", "other.csi.dev"),
    ] {
        let bad = attributes_of(&rig, name, driver, json!({parameter: "1"})).await;
        let good = format!("good-{name}");
        let good = attributes(&rig, &good, json!({"speed": "2"})).await;
        rig.volume(name).await;
        ask(&rig, name, &bad).await;
        let at = rig.claim_at(name);
        let is = |c: &Value| state(c) == "Infeasible" && has_error(c);
        let claim = rig.until(&at, "infeasible", is).await;
        let tried = &claim["status"]["modifyVolumeStatus"];
        assert_eq!(tried["targetVolumeAttributesClassName"], bad);
        rig.warned(&at, "VolumeModifyFailed", &[words]).await;
        ask(&rig, name, &good).await;
        let claim = rig.until(&at, "good", |c| current(c) == good).await;
        assert!(!has_error(&claim), "{claim:#}");
    }
    // The driver is not called with another driver's class.
    let requests = rig.driver.requests::<csi::ControllerModifyVolumeRequest>();
    let foreign = map(&[("speed", "1")]);
    assert!(requests.iter().all(|r| r.mutable_parameters != foreign));
    rig.down().await;
}

/// A change with an unknown result is finished before another one begins.
#[tokio::test(flavor = "multi_thread")]
async fn an_uncertain_change_is_finished_first() {
    let rig = Rig::up(spec("modify-uncertain")).await;
    let first = attributes(&rig, "first", json!({"speed": "4"})).await;
    let second = attributes(&rig, "second", json!({"speed": "5"})).await;
    rig.volume("data").await;
    let uncertain = Step::DoneBut(Code::DeadlineExceeded);
    rig.driver.always(MODIFY, uncertain);
    ask(&rig, "data", &first).await;
    rig.until_called(MODIFY, 1).await;
    let at = rig.claim_at("data");
    rig.until(&at, "in progress", |c| state(c) == "InProgress")
        .await;
    ask(&rig, "data", &second).await;
    let before = rig.driver.count(MODIFY);
    rig.until_called(MODIFY, before + 2).await;
    let requests = rig.driver.requests::<csi::ControllerModifyVolumeRequest>();
    let asked = requests.last().map(|r| &r.mutable_parameters);
    let expected = map(&[("speed", "4")]);
    assert_eq!(asked, Some(&expected), "the first is still uncertain");
    rig.driver.unscript(MODIFY);
    rig.until(&at, "second", |c| current(c) == second).await;
    rig.down().await;
}
