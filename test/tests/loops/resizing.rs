//! Expands claims.

use hostloop_proto::csi;
use hostloop_proto::csi::plugin_capability::volume_expansion::Type as Expansion;
use hostloop_test::front::FrontSpec;
use hostloop_test::memory::{Publication, Step};
use serde_json::{Value, json};
use tonic::Code;

use crate::Rig;

const GIB: i64 = 1 << 30;

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn spec(name: &str) -> FrontSpec {
    let quick = [
        "--timeout=1s",
        "--retry-interval-start=200ms",
        "--retry-interval-max=2s",
    ];
    FrontSpec::new(name, "provisioner,resizer").args(&quick)
}

async fn ask(rig: &Rig, claim: &str, size: &str) {
    let change = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    rig.objects.merge(&rig.claim_at(claim), change).await;
}

fn capacity(claim: &Value, size: &str) -> bool {
    claim["status"]["capacity"]["storage"] == size
}

fn state(claim: &Value) -> &str {
    text(&claim["status"]["allocatedResourceStatuses"]["storage"])
}

fn condition<'a>(claim: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = claim["status"]["conditions"].as_array()?;
    all.iter()
        .find(|c| c["type"] == kind && c["status"] == "True")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_grows_without_its_node() {
    let rig = Rig::up(spec("grow")).await;
    rig.claim("data", json!({})).await;
    let (_, volume) = rig.bound("data").await;
    let at = rig.claim_at("data");
    let volume_at = rig.at("PersistentVolume", text(&volume["metadata"]["name"]));
    for size in ["2Gi", "5Gi"] {
        ask(&rig, "data", size).await;
        let claim = rig.until(&at, "larger", |c| capacity(c, size)).await;
        let volume = rig.objects.get(&volume_at).await.expect("it is there");
        assert_eq!(volume["spec"]["capacity"]["storage"], size);
        assert_eq!(state(&claim), "", "{claim:#}");
        for gone in ["Resizing", "FileSystemResizePending"] {
            assert!(condition(&claim, gone).is_none(), "{claim:#}");
        }
        let key = "volume.kubernetes.io/node-expansion-not-required";
        assert!(
            !claim["metadata"]["annotations"][key].is_null(),
            "{claim:#}"
        );
    }
    rig.until_event(&at, "Normal", "Resizing", &[]).await;
    rig.until_event(&at, "Normal", "VolumeResizeSuccessful", &[])
        .await;
    let requests = rig.driver.requests::<csi::ControllerExpandVolumeRequest>();
    let asked: Vec<_> = requests
        .iter()
        .filter_map(|r| r.capacity_range.as_ref())
        .collect();
    assert!(asked.iter().all(|r| r.limit_bytes == 0), "{asked:?}");
    assert_eq!(asked.iter().map(|r| r.required_bytes).max(), Some(5 * GIB));
    assert!(requests[0].volume_capability.is_some());
    rig.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_has_its_part() {
    let rig = Rig::up(spec("grow-node").driver(|o| o.node_expansion_required = true)).await;
    rig.claim("data", json!({})).await;
    let (_, volume) = rig.bound("data").await;
    let at = rig.claim_at("data");
    ask(&rig, "data", "2Gi").await;
    let claim = rig
        .until(&at, "waiting for its node", |c| {
            state(c) == "NodeResizePending"
        })
        .await;
    assert!(
        condition(&claim, "FileSystemResizePending").is_some(),
        "{claim:#}"
    );
    assert!(capacity(&claim, "1Gi"), "{claim:#}");
    assert_eq!(claim["status"]["allocatedResources"]["storage"], "2Gi");
    rig.until_event(&at, "Normal", "FileSystemResizeRequired", &[])
        .await;
    let volume_at = rig.at("PersistentVolume", text(&volume["metadata"]["name"]));
    let key = "volume.alpha.kubernetes.io/pre-resize-capacity";
    let volume = rig.objects.get(&volume_at).await.expect("it is there");
    assert_eq!(volume["metadata"]["annotations"][key], "1Gi", "{volume:#}");
    assert_eq!(volume["spec"]["capacity"]["storage"], "2Gi");
    // Kubelet writes this status after the expansion on the node.
    let done = json!({"status": {
        "capacity": {"storage": "2Gi"}, "conditions": [],
        "allocatedResourceStatuses": null,
    }});
    rig.objects.merge_status(&at, done).await;
    rig.until(&volume_at, "done", |v| {
        v["metadata"]["annotations"][key].is_null()
    })
    .await;
    rig.down().await;
}

/// The claim shows each result of the RPC.
#[tokio::test(flavor = "multi_thread")]
async fn errors_show_on_the_claim() {
    let rig = Rig::up(spec("grow-errors")).await;
    // Infeasible: the status says so, and retries are slow.
    let infeasible = [Code::InvalidArgument, Code::OutOfRange, Code::NotFound];
    for code in infeasible {
        let name = format!("{code:?}").to_lowercase();
        rig.claim(&name, json!({})).await;
        rig.bound(&name).await;
        rig.driver
            .always("ControllerExpandVolume", Step::Fail(code));
        ask(&rig, &name, "2Gi").await;
        let at = rig.claim_at(&name);
        let is = |c: &Value| state(c) == "ControllerResizeInfeasible";
        let claim = rig.until(&at, "infeasible", is).await;
        assert!(
            condition(&claim, "ControllerResizeError").is_some(),
            "{claim:#}"
        );
        rig.until_event(&at, "Warning", "VolumeResizeFailed", &["scripted"])
            .await;
        rig.driver.unscript("ControllerExpandVolume");
        rig.until(&at, "larger after all", |c| capacity(c, "2Gi"))
            .await;
        rig.delete(at).await;
    }
    // Final: the claim keeps its state.
    rig.claim("internal", json!({})).await;
    rig.bound("internal").await;
    rig.driver
        .always("ControllerExpandVolume", Step::Fail(Code::Internal));
    ask(&rig, "internal", "2Gi").await;
    let at = rig.claim_at("internal");
    let is = |c: &Value| condition(c, "ControllerResizeError").is_some();
    let claim = rig.until(&at, "with an error", is).await;
    assert_eq!(state(&claim), "ControllerResizeInProgress");
    rig.driver.unscript("ControllerExpandVolume");
    rig.until(&at, "larger after all", |c| capacity(c, "2Gi"))
        .await;
    // Still in progress: there is only an event.
    for code in [
        Code::DeadlineExceeded,
        Code::Aborted,
        Code::ResourceExhausted,
    ] {
        let name = format!("{code:?}").to_lowercase();
        rig.claim(&name, json!({})).await;
        rig.bound(&name).await;
        rig.driver
            .always("ControllerExpandVolume", Step::DoneBut(code));
        ask(&rig, &name, "2Gi").await;
        let at = rig.claim_at(&name);
        rig.until_event(&at, "Warning", "VolumeResizeFailed", &["scripted"])
            .await;
        let claim = rig.objects.get(&at).await.expect("it is there");
        assert_eq!(state(&claim), "ControllerResizeInProgress");
        assert!(
            condition(&claim, "ControllerResizeError").is_none(),
            "{claim:#}"
        );
        rig.driver.unscript("ControllerExpandVolume");
        rig.until(&at, "larger after all", |c| capacity(c, "2Gi"))
            .await;
    }
    rig.down().await;
}

/// After a request for too much, the user requests less and gets it.
#[tokio::test(flavor = "multi_thread")]
async fn less_than_first_asked_for_is_enough() {
    let rig = Rig::up(spec("grow-less").driver(|o| o.max_volume_size = 4 * GIB)).await;
    rig.claim("data", json!({})).await;
    rig.bound("data").await;
    let at = rig.claim_at("data");
    ask(&rig, "data", "9Gi").await;
    let is = |c: &Value| state(c) == "ControllerResizeInfeasible";
    rig.until(&at, "infeasible", is).await;
    ask(&rig, "data", "3Gi").await;
    rig.until(&at, "larger", |c| capacity(c, "3Gi")).await;
    rig.down().await;
}

/// A driver that cannot expand a volume in use is called again when it is not in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_in_use_grows_later() {
    let offline = |o: &mut hostloop_test::memory::Options| {
        o.capabilities.expansion = Some(Expansion::Offline);
    };
    let rig = Rig::up(spec("grow-offline").driver(offline)).await;
    rig.claim("data", json!({})).await;
    let (_, volume) = rig.bound("data").await;
    let handle = text(&volume["spec"]["csi"]["volumeHandle"]);
    let capability = rig
        .driver
        .volume(handle)
        .expect("it is there")
        .capabilities
        .remove(0);
    let publication = Publication {
        readonly: false,
        capability,
    };
    rig.driver
        .set_published(handle, "somewhere", Some(publication));
    ask(&rig, "data", "2Gi").await;
    let at = rig.claim_at("data");
    rig.until_event(&at, "Warning", "VolumeResizeFailed", &["in use"])
        .await;
    rig.driver.set_published(handle, "somewhere", None);
    rig.until(&at, "larger", |c| capacity(c, "2Gi")).await;
    rig.down().await;
}

/// Controllers that are killed after the driver has expanded the volume continue at that point.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_resizer_goes_on() {
    let mut rig = Rig::up(spec("grow-killed")).await;
    rig.claim("data", json!({})).await;
    rig.bound("data").await;
    rig.driver
        .script("ControllerExpandVolume", [Step::DropAnswer]);
    ask(&rig, "data", "2Gi").await;
    rig.until_called("ControllerExpandVolume", 1).await;
    rig.kill_controllers();
    rig.start_controllers();
    rig.until(&rig.claim_at("data"), "larger", |c| capacity(c, "2Gi"))
        .await;
    rig.down().await;
}
