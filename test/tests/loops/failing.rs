//! Claims while the driver, the API server or the controllers fail: no volume is ever lost or made
//! twice.

use std::time::Duration;

use futures::future::join_all;
use hostloop_proto::csi;
use hostloop_test::front::FrontSpec;
use hostloop_test::memory::Step;
use serde_json::json;
use tonic::Code;

use crate::Rig;

/// Short waits, so that a test sees several tries.
const QUICK: [&str; 3] = [
    "--timeout=1s",
    "--retry-interval-start=200ms",
    "--retry-interval-max=1s",
];

fn spec(name: &str) -> FrontSpec {
    FrontSpec::new(name, "provisioner").args(&QUICK)
}

/// A call that may still be running is repeated with the same request until its result is known.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_under_way_is_asked_for_again() {
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
        rig.claim("data", json!({})).await;
        rig.bound("data").await;
        rig.until_event(&rig.claim_at("data"), "Warning", "ProvisioningFailed", &[])
            .await;
        let requests = rig.driver.requests::<csi::CreateVolumeRequest>();
        assert_eq!(requests.len(), 3, "{code:?}");
        assert!(requests.windows(2).all(|w| w[0] == w[1]), "{requests:?}");
        assert_eq!(rig.driver.left().volumes, 1, "{code:?}");
        rig.down().await;
    }))
    .await;
}

/// A claim is deleted while its CreateVolume may be running: the volume is found and deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_deleted_meanwhile_leaves_nothing() {
    let cases = [
        ("gone-deadline", Step::DoneBut(Code::DeadlineExceeded)),
        ("gone-aborted", Step::DoneBut(Code::Aborted)),
        ("gone-silent", Step::DropAnswer),
    ];
    join_all(cases.map(async |(name, step)| {
        let rig = Rig::up(spec(name)).await;
        let busy = Step::Fail(Code::Aborted);
        rig.driver
            .script("CreateVolume", [step, busy.clone(), busy.clone(), busy]);
        rig.claim("data", json!({})).await;
        rig.until_so("made", || rig.driver.left().volumes == 1)
            .await;
        rig.delete(rig.claim_at("data")).await;
        rig.until_called("DeleteVolume", 1).await;
        rig.until_so("deleted", || rig.driver.left().volumes == 0)
            .await;
        assert_eq!(
            rig.driver.steps_left("CreateVolume"),
            0,
            "it was asked for again"
        );
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
    tokio::time::sleep(Duration::from_secs(2)).await;
    let calls = rig.driver.count("CreateVolume");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(rig.driver.count("CreateVolume"), calls);
    rig.down().await;
}

/// An InvalidArgument is not retried for a while; a claim of another class is not affected.
#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_not_repeated_at_once() {
    let rig = Rig::up(spec("invalid").driver(|o| {
        o.known_parameters = Some(["colour".to_owned()].into());
    }))
    .await;
    let class = format!("odd-{}", rig.name);
    rig.class(&class, json!({"parameters": {"flavour": "salt"}}))
        .await;
    rig.claim("data", json!({"spec": {"storageClassName": class}}))
        .await;
    let at = rig.claim_at("data");
    rig.until_event(&at, "Warning", "ProvisioningFailed", &["flavour"])
        .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(rig.driver.count("CreateVolume"), 1);
    rig.delete(rig.at("StorageClass", &class)).await;
    rig.class(&class, json!({"parameters": {"colour": "blue"}}))
        .await;
    rig.bound("data").await;
    rig.down().await;
}

/// ResourceExhausted at the selected node makes the scheduler choose again.
#[tokio::test(flavor = "multi_thread")]
async fn without_room_the_scheduler_chooses_again() {
    let rig = Rig::up(spec("resched").nodes(2)).await;
    let class = format!("wait-{}", rig.name);
    rig.class(&class, json!({"volumeBindingMode": "WaitForFirstConsumer"}))
        .await;
    rig.driver
        .script("CreateVolume", [Step::Fail(Code::ResourceExhausted)]);
    rig.claim("data", json!({"spec": {"storageClassName": class}}))
        .await;
    let at = rig.claim_at("data");
    let key = "volume.kubernetes.io/selected-node";
    let select = |node: &str| {
        json!({"metadata": {"annotations": {
            key: node,
            "volume.kubernetes.io/storage-provisioner": rig.driver_name,
        }}})
    };
    rig.objects.merge(&at, select(&rig.nodes[0])).await;
    rig.until_called("CreateVolume", 1).await;
    rig.until(&at, "without a node", |c| {
        c["metadata"]["annotations"][key].is_null()
    })
    .await;
    rig.objects.merge(&at, select(&rig.nodes[1])).await;
    rig.bound("data").await;
    assert_eq!(rig.driver.count("CreateVolume"), 2);
    rig.down().await;
}

/// A volume that does not match the request is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_volume_is_given_back() {
    let rig = Rig::up(spec("short")).await;
    rig.driver.change(|o| o.claims_capacity = Some(1 << 20));
    rig.claim("small", json!({})).await;
    rig.until_called("DeleteVolume", 1).await;
    let at = rig.claim_at("small");
    rig.until_event(&at, "Warning", "ProvisioningFailed", &[])
        .await;
    rig.driver.change(|o| o.claims_capacity = None);
    rig.bound("small").await;
    rig.driver.change(|o| o.forgets_source = true);
    let deleted = rig.driver.count("DeleteVolume");
    let from = json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "small"}}});
    rig.claim("copy", from).await;
    rig.until_called("DeleteVolume", deleted + 1).await;
    rig.driver.change(|o| o.forgets_source = false);
    rig.bound("copy").await;
    assert_eq!(rig.driver.left().volumes, 2);
    rig.down().await;
}

/// If the driver returns no size, the volume has the requested size.
#[tokio::test(flavor = "multi_thread")]
async fn an_unsaid_size_is_the_one_asked_for() {
    let rig = Rig::up(spec("unsaid").driver(|o| o.claims_capacity = Some(0))).await;
    rig.claim("data", json!({})).await;
    let (_, volume) = rig.bound("data").await;
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
    rig.objects
        .create(json!({
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
    rig.objects
        .create(json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": policy},
            "spec": {"policyName": policy, "validationActions": ["Deny"]},
        }))
        .await;
    // The API server enforces the policy after a moment.
    tokio::time::sleep(Duration::from_secs(3)).await;
    rig.claim("data", json!({})).await;
    rig.until_called("CreateVolume", 1).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(rig.driver.left().volumes, 1);
    assert_eq!(rig.driver.count("DeleteVolume"), 0);
    // A bound claim would mean that the policy was not in force.
    let claim = rig.objects.get(&rig.claim_at("data")).await;
    assert_eq!(
        claim.expect("the claim exists")["status"]["phase"],
        "Pending"
    );
    for kind in [
        "ValidatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
    ] {
        rig.objects.delete(&rig.at(kind, &policy)).await;
    }
    rig.bound("data").await;
    assert_eq!(rig.driver.left().volumes, 1);
    rig.delete(rig.claim_at("data")).await;
    rig.until_so("deleted", || rig.driver.left().volumes == 0)
        .await;
    rig.down().await;
}

/// Controllers that are killed between CreateVolume and the PersistentVolume find the volume again.
#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_were_killed_find_what_they_made() {
    let mut rig = Rig::up(spec("killed")).await;
    rig.driver.script("CreateVolume", [Step::DropAnswer]);
    rig.claim("data", json!({})).await;
    rig.until_so("made", || rig.driver.left().volumes == 1)
        .await;
    rig.kill_controllers();
    rig.start_controllers();
    rig.bound("data").await;
    assert_eq!(rig.driver.left().volumes, 1);
    rig.driver.script("DeleteVolume", [Step::DropAnswer]);
    rig.objects.delete(&rig.claim_at("data")).await;
    rig.until_called("DeleteVolume", 1).await;
    rig.kill_controllers();
    rig.start_controllers();
    rig.until_called("DeleteVolume", 2).await;
    rig.down().await;
}

/// A driver that is away for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_was_away_is_found_again() {
    let mut rig = Rig::up(spec("away")).await;
    rig.claim("before", json!({})).await;
    rig.bound("before").await;
    rig.driver.away();
    rig.claim("meanwhile", json!({})).await;
    let at = rig.claim_at("meanwhile");
    rig.until_event(&at, "Warning", "ProvisioningFailed", &[])
        .await;
    rig.driver.resume();
    rig.bound("meanwhile").await;
    rig.down().await;
}

/// DeleteVolume is retried after every error, and the PersistentVolume stays until it succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn deleting_is_tried_until_it_is_done() {
    let rig = Rig::up(spec("delete")).await;
    rig.claim("data", json!({})).await;
    let (_, volume) = rig.bound("data").await;
    let steps = [
        Step::Fail(Code::Internal),
        Step::Fail(Code::InvalidArgument),
        Step::DoneBut(Code::DeadlineExceeded),
    ];
    rig.driver.script("DeleteVolume", steps);
    let at = rig.at(
        "PersistentVolume",
        volume["metadata"]["name"].as_str().unwrap(),
    );
    rig.delete(rig.claim_at("data")).await;
    rig.until_event(&at, "Warning", "VolumeFailedDelete", &[])
        .await;
    rig.until_gone(&at).await;
    assert_eq!(rig.driver.count("DeleteVolume"), 4);
    rig.down().await;
}

/// A volume that is attached is not deleted.
#[tokio::test(flavor = "multi_thread")]
async fn an_attached_volume_is_not_deleted() {
    let rig = Rig::up(spec("attached")).await;
    rig.claim("data", json!({})).await;
    let (_, volume) = rig.bound("data").await;
    let name = volume["metadata"]["name"].as_str().unwrap();
    let attachment = format!("by-hand-{}", rig.name);
    rig.objects
        .create(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": attachment},
            "spec": {
                "attacher": rig.driver_name, "nodeName": rig.nodes[0],
                "source": {"persistentVolumeName": name},
            },
        }))
        .await;
    rig.objects.delete(&rig.claim_at("data")).await;
    let at = rig.at("PersistentVolume", name);
    let words = ["still attached to node", &rig.nodes[0]];
    rig.until_event(&at, "Warning", "VolumeFailedDelete", &words)
        .await;
    assert_eq!(rig.driver.count("DeleteVolume"), 0);
    rig.delete(rig.at("VolumeAttachment", &attachment)).await;
    rig.until_gone(&at).await;
    rig.down().await;
}
