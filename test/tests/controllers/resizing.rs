//! Expands claims.

use hostloop_proto::csi;
use hostloop_proto::csi::plugin_capability::volume_expansion::Type as Expansion;
use hostloop_test::front::fields::{handle, has_condition, name, text};
use hostloop_test::front::{FrontSpec, objects};
use hostloop_test::memory::{Publication, Step};
use serde_json::{Value, json};
use tonic::Code;

use crate::{Rig, annotation, quick};

const GIB: i64 = 1 << 30;
const EXPAND: &str = "ControllerExpandVolume";

fn spec(name: &str) -> FrontSpec {
    quick(name, "provisioner,resizer")
}

async fn ask(rig: &Rig, claim: &str, size: &str) {
    rig.objects
        .merge(&rig.claim_at(claim), objects::sized(size))
        .await;
}

fn capacity(claim: &Value, size: &str) -> bool {
    claim["status"]["capacity"]["storage"] == size
}

fn state(claim: &Value) -> &str {
    text(&claim["status"]["allocatedResourceStatuses"]["storage"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_grows_without_its_node() {
    let rig = Rig::up(spec("grow")).await;
    let volume = rig.volume("data").await;
    let at = rig.claim_at("data");
    let volume_at = rig.at("PersistentVolume", name(&volume));
    for size in ["2Gi", "5Gi"] {
        ask(&rig, "data", size).await;
        let claim = rig.until(&at, "larger", |c| capacity(c, size)).await;
        let volume = rig.get(&volume_at).await;
        assert_eq!(volume["spec"]["capacity"]["storage"], size);
        assert_eq!(state(&claim), "", "{claim:#}");
        for gone in ["Resizing", "FileSystemResizePending"] {
            assert!(!has_condition(&claim, gone), "{claim:#}");
        }
        let key = "volume.kubernetes.io/node-expansion-not-required";
        assert!(!annotation(&claim, key).is_null(), "{claim:#}");
    }
    rig.noted(&at, "Resizing", &[]).await;
    rig.noted(&at, "VolumeResizeSuccessful", &[]).await;
    let requests = rig.driver.requests::<csi::ControllerExpandVolumeRequest>();
    let ranges = requests.iter().filter_map(|r| r.capacity_range.as_ref());
    let asked: Vec<_> = ranges.map(|r| (r.required_bytes, r.limit_bytes)).collect();
    assert_eq!(asked.iter().max(), Some(&(5 * GIB, 0)), "{asked:?}");
    assert!(asked.iter().all(|(_, limit)| *limit == 0), "{asked:?}");
    assert!(requests[0].volume_capability.is_some());
    rig.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_has_its_part() {
    let rig = Rig::up(spec("grow-node").driver(|o| o.node_expansion_required = true)).await;
    let volume = rig.volume("data").await;
    let at = rig.claim_at("data");
    ask(&rig, "data", "2Gi").await;
    let is = |c: &Value| state(c) == "NodeResizePending";
    let claim = rig.until(&at, "waiting for its node", is).await;
    let pending = has_condition(&claim, "FileSystemResizePending");
    assert!(pending && capacity(&claim, "1Gi"), "{claim:#}");
    assert_eq!(claim["status"]["allocatedResources"]["storage"], "2Gi");
    rig.noted(&at, "FileSystemResizeRequired", &[]).await;
    let volume_at = rig.at("PersistentVolume", name(&volume));
    let key = "volume.alpha.kubernetes.io/pre-resize-capacity";
    let volume = rig.get(&volume_at).await;
    assert_eq!(*annotation(&volume, key), "1Gi", "{volume:#}");
    assert_eq!(volume["spec"]["capacity"]["storage"], "2Gi");
    // Kubelet writes this status after the expansion on the node.
    let done = json!({"status": {
        "capacity": {"storage": "2Gi"}, "conditions": [],
        "allocatedResourceStatuses": null,
    }});
    rig.objects.merge_status(&at, done).await;
    let done = |v: &Value| annotation(v, key).is_null();
    rig.until(&volume_at, "done", done).await;
    rig.down().await;
}

/// The claim shows each result of the RPC, and the volume is expanded after all.
#[tokio::test(flavor = "multi_thread")]
async fn errors_show_on_the_claim() {
    const INFEASIBLE: &str = "ControllerResizeInfeasible";
    const IN_PROGRESS: &str = "ControllerResizeInProgress";
    const ERROR: &str = "ControllerResizeError";
    let rig = Rig::up(spec("grow-errors")).await;
    let cases = [
        (Step::Fail(Code::InvalidArgument), INFEASIBLE, true),
        (Step::Fail(Code::OutOfRange), INFEASIBLE, true),
        (Step::Fail(Code::NotFound), INFEASIBLE, true),
        // Final: the claim keeps its state.
        (Step::Fail(Code::Internal), IN_PROGRESS, true),
        // The call may still be running: there is only an event.
        (Step::DoneBut(Code::DeadlineExceeded), IN_PROGRESS, false),
        (Step::DoneBut(Code::Aborted), IN_PROGRESS, false),
        (Step::DoneBut(Code::ResourceExhausted), IN_PROGRESS, false),
    ];
    for (i, (step, expected, has_error)) in cases.into_iter().enumerate() {
        let what = format!("{step:?}");
        let claim = format!("data-{i}");
        rig.volume(&claim).await;
        rig.driver.always(EXPAND, step);
        ask(&rig, &claim, "2Gi").await;
        let at = rig.claim_at(&claim);
        rig.warned(&at, "VolumeResizeFailed", &["scripted"]).await;
        let is = |c: &Value| state(c) == expected && (!has_error || has_condition(c, ERROR));
        rig.until(&at, &what, is).await;
        let now = rig.get(&at).await;
        assert_eq!(has_condition(&now, ERROR), has_error, "{what}: {now:#}");
        rig.driver.unscript(EXPAND);
        rig.until(&at, &what, |c| capacity(c, "2Gi")).await;
        rig.delete(at).await;
    }
    rig.down().await;
}

/// A driver that cannot expand a volume in use is called again when it is not in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_in_use_grows_later() {
    let spec = spec("grow-offline");
    let spec = spec.driver(|o| o.capabilities.expansion = Some(Expansion::Offline));
    let rig = Rig::up(spec).await;
    let volume = rig.volume("data").await;
    let handle = handle(&volume);
    let capability = rig.made(handle).capabilities.remove(0);
    let publication = Publication {
        readonly: false,
        capability,
    };
    rig.driver
        .set_published(handle, "somewhere", Some(publication));
    ask(&rig, "data", "2Gi").await;
    let at = rig.claim_at("data");
    rig.warned(&at, "VolumeResizeFailed", &["in use"]).await;
    rig.driver.set_published(handle, "somewhere", None);
    rig.until(&at, "larger", |c| capacity(c, "2Gi")).await;
    rig.down().await;
}
