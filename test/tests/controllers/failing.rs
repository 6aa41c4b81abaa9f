//! Claims while the driver, the API server or the controllers fail: no volume is ever lost or made
//! twice.

use std::time::Duration;

use futures::future::join_all;
use hostloop_proto::csi;
use hostloop_test::PATIENCE;
use hostloop_test::front::fields::name;
use hostloop_test::front::wait::until;
use hostloop_test::front::{FrontSpec, objects};
use hostloop_test::memory::Step;
use serde_json::json;
use tonic::Code;

use crate::{Rig, in_class, quick};

fn spec(name: &str) -> FrontSpec {
    quick(name, "provisioner")
}

/// A call that may still be running is repeated with the same request until its result is known.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_an_unknown_result_is_repeated() {
    let cases = [
        ("canceled", Code::Cancelled),
        ("deadline", Code::DeadlineExceeded),
        ("unavailable", Code::Unavailable),
        ("aborted", Code::Aborted),
        // These errors are final without a node selected by the scheduler, but are retried all the
        // same.
        ("exhausted", Code::ResourceExhausted),
        ("internal", Code::Internal),
    ];
    join_all(cases.map(async |(name, code)| {
        let rig = Rig::up(spec(name)).await;
        rig.driver
            .script("CreateVolume", [Step::DoneBut(code), Step::Fail(code)]);
        rig.volume("data").await;
        let at = rig.claim_at("data");
        rig.warned(&at, "ProvisioningFailed", &[]).await;
        let requests = rig.driver.requests::<csi::CreateVolumeRequest>();
        assert_eq!(requests.len(), 3, "{code:?}");
        assert!(requests.windows(2).all(|w| w[0] == w[1]), "{requests:?}");
        assert_eq!(rig.driver.left().volumes, 1, "{code:?}");
        rig.down().await;
    }))
    .await;
}

/// A final error leaves no volume, and after its deletion a claim causes no more calls.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_final_error_a_deleted_claim_is_forgotten() {
    let rig = Rig::up(spec("final")).await;
    rig.driver
        .always("CreateVolume", Step::Fail(Code::Internal));
    rig.claim("data", json!({})).await;
    rig.until_called("CreateVolume", 2).await;
    rig.delete(rig.claim_at("data")).await;
    // A call that was in progress may still arrive.
    let quiet = || async {
        let calls = rig.driver.count("CreateVolume");
        tokio::time::sleep(Duration::from_secs(4)).await;
        (rig.driver.count("CreateVolume") == calls).then_some(())
    };
    until(PATIENCE, quiet).await.expect("the calls end");
    rig.down().await;
}

/// An InvalidArgument is not retried for a while; a claim of another class is not affected.
#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_not_repeated_at_once() {
    let spec = spec("invalid");
    let spec = spec.driver(|o| o.known_parameters = Some(["colour".to_owned()].into()));
    let rig = Rig::up(spec).await;
    let class = format!("odd-{}", rig.name);
    let parameters = |name: &str| json!({"parameters": {name: "salt"}});
    rig.class(&class, parameters("flavour")).await;
    rig.claim("data", in_class(&class)).await;
    let at = rig.claim_at("data");
    rig.warned(&at, "ProvisioningFailed", &["flavour"]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(rig.driver.count("CreateVolume"), 1);
    rig.delete(rig.at("StorageClass", &class)).await;
    rig.class(&class, parameters("colour")).await;
    rig.bound("data").await;
    rig.down().await;
}

/// A volume that does not match the request is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_volume_is_given_back() {
    let rig = Rig::up(spec("short")).await;
    rig.driver.change(|o| o.claims_capacity = Some(1 << 20));
    rig.driver
        .script("DeleteVolume", [Step::Fail(Code::Aborted)]);
    rig.claim("small", json!({})).await;
    rig.until_called("DeleteVolume", 2).await;
    let calls = rig.driver.calls().into_iter().map(|call| call.method);
    let calls: Vec<_> = calls
        .filter(|method| method.ends_with("eVolume"))
        .take(3)
        .collect();
    assert_eq!(calls, ["CreateVolume", "DeleteVolume", "DeleteVolume"]);
    let at = rig.claim_at("small");
    rig.warned(&at, "ProvisioningFailed", &["the volume was deleted"])
        .await;
    rig.driver.change(|o| o.claims_capacity = None);
    rig.bound("small").await;
    rig.driver.change(|o| o.forgets_source = true);
    let deleted = rig.driver.count("DeleteVolume");
    rig.claim("copy", objects::cloned("small")).await;
    rig.until_called("DeleteVolume", deleted + 1).await;
    rig.driver.change(|o| o.forgets_source = false);
    rig.bound("copy").await;
    assert_eq!(rig.driver.left().volumes, 2);
    rig.down().await;
}

/// If the driver returns no size, the volume has the requested size.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_without_a_size_has_the_requested_one() {
    let rig = Rig::up(spec("unsaid").driver(|o| o.claims_capacity = Some(0))).await;
    let volume = rig.volume("data").await;
    assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi");
    rig.down().await;
}

/// The volume exists, but its PersistentVolume cannot be saved. Saving is retried for as long as it
/// takes, and the volume is neither made twice nor deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_cannot_be_saved_waits() {
    let rig = Rig::up(spec("unsaved")).await;
    let policy = format!("no-volumes-{}", rig.name);
    let is_ours = format!(
        "!has(object.spec.csi) || object.spec.csi.driver != '{}'",
        rig.driver_name
    );
    rig.create(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": policy},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["persistentvolumes"],
            }]},
            "validations": [{"expression": is_ours, "message": "no volumes today"}],
        },
    }))
    .await;
    rig.create(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": policy},
        "spec": {"policyName": policy, "validationActions": ["Deny"]},
    }))
    .await;
    // The API server enforces the policy after a moment.
    let volume = objects::volume(&policy, &rig.driver_name, "probe", json!({}));
    let denied = || async {
        let why = rig.objects.dry_create(volume.clone()).await.err()?;
        why.to_string().contains("no volumes today").then_some(())
    };
    until(PATIENCE, denied)
        .await
        .expect("the policy is in force");
    rig.claim("data", json!({})).await;
    rig.until_called("CreateVolume", 1).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(rig.driver.left().volumes, 1);
    assert_eq!(rig.driver.count("DeleteVolume"), 0);
    // A bound claim would mean that the policy was not in force.
    let claim = rig.get(&rig.claim_at("data")).await;
    assert_eq!(claim["status"]["phase"], "Pending");
    for kind in [
        "ValidatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
    ] {
        rig.objects.delete(&rig.at(kind, &policy)).await;
    }
    rig.bound("data").await;
    assert_eq!(rig.driver.left().volumes, 1);
    assert_eq!(rig.driver.count("CreateVolume"), 1);
    rig.delete(rig.claim_at("data")).await;
    rig.until_volumes(0).await;
    rig.down().await;
}

/// Controllers that are killed between CreateVolume and the PersistentVolume find the volume again.
#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_were_killed_find_what_they_made() {
    let mut rig = Rig::up(spec("killed")).await;
    rig.driver.script("CreateVolume", [Step::DropAnswer]);
    rig.claim("data", json!({})).await;
    rig.until_volumes(1).await;
    rig.restart_controllers();
    rig.bound("data").await;
    assert_eq!(rig.driver.left().volumes, 1);
    rig.driver.script("DeleteVolume", [Step::DropAnswer]);
    rig.objects.delete(&rig.claim_at("data")).await;
    rig.until_called("DeleteVolume", 1).await;
    rig.restart_controllers();
    rig.until_called("DeleteVolume", 2).await;
    rig.down().await;
}

/// A driver that is away for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_was_away_is_found_again() {
    let mut rig = Rig::up(spec("away")).await;
    rig.volume("before").await;
    rig.driver.away();
    rig.claim("meanwhile", json!({})).await;
    let at = rig.claim_at("meanwhile");
    rig.warned(&at, "ProvisioningFailed", &[]).await;
    rig.driver.resume();
    rig.bound("meanwhile").await;
    rig.down().await;
}

/// DeleteVolume is retried after every error, and the PersistentVolume stays until it succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn deleting_is_tried_until_it_is_done() {
    let rig = Rig::up(spec("delete")).await;
    let volume = rig.volume("data").await;
    let steps = [
        Step::Fail(Code::Internal),
        Step::Fail(Code::InvalidArgument),
        Step::DoneBut(Code::DeadlineExceeded),
    ];
    rig.driver.script("DeleteVolume", steps);
    let at = rig.at("PersistentVolume", name(&volume));
    rig.delete(rig.claim_at("data")).await;
    rig.warned(&at, "VolumeFailedDelete", &[]).await;
    rig.until_gone(&at).await;
    assert_eq!(rig.driver.count("DeleteVolume"), 4);
    rig.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_volume_is_not_deleted() {
    let rig = Rig::up(spec("attached")).await;
    let volume = rig.volume("data").await;
    let name = name(&volume);
    let (driver, node) = (&rig.driver_name, &rig.nodes[0]);
    let by_hand = format!("by-hand-{}", rig.name);
    let attachment = rig.attachment(&by_hand, driver, node, name).await;
    rig.objects.delete(&rig.claim_at("data")).await;
    let at = rig.at("PersistentVolume", name);
    let words = ["still attached to node", node];
    rig.noted(&at, "VolumeDelete", &words).await;
    assert_eq!(rig.driver.count("DeleteVolume"), 0);
    rig.delete(attachment).await;
    rig.until_gone(&at).await;
    rig.down().await;
}
