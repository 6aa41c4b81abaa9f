//! Faults by rules in the driver's own dispatch.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use tempfile::TempDir;

use super::refusals::dispatcher;
use super::*;
use crate::grpc::metrics;

/// A service that counts what it does.
#[derive(Default)]
struct Counting(AtomicUsize);

impl<C> Refuses<C> for Counting {}

impl Counting {
    fn stage(
        &self,
        _: csi::NodeStageVolumeRequest,
    ) -> Result<csi::NodeStageVolumeResponse, Status> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(csi::NodeStageVolumeResponse {})
    }

    fn stats(
        &self,
        _: csi::NodeGetVolumeStatsRequest,
    ) -> Result<csi::NodeGetVolumeStatsResponse, Status> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(csi::NodeGetVolumeStatsResponse::default())
    }
}

/// A dispatcher with rules, for a volume of the claim shop/data-0.
struct Rig {
    dispatcher: Dispatcher,
    service: Arc<Counting>,
    volume_id: String,
    _site: Site,
    _dir: TempDir,
}

impl Rig {
    fn with(rules: &str) -> Rig {
        let site = Site::fake(&["a"]);
        let mut volume = new("pvc-1");
        volume.parameters =
            pairs("csi.storage.k8s.io/pvc/name=data-0 csi.storage.k8s.io/pvc/namespace=shop");
        let volume_id = site.create(volume).id.to_string();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("faults.yaml");
        std::fs::write(&path, rules).unwrap();
        let faults = FaultInjector::open(&path, Some("n1")).unwrap();
        Rig {
            dispatcher: Dispatcher {
                faults: Some(Arc::new(faults)),
                ..dispatcher(&site)
            },
            service: Arc::default(),
            volume_id,
            _site: site,
            _dir: dir,
        }
    }

    async fn stage(&self) -> Result<(), tonic::Code> {
        let request = Request::new(csi::NodeStageVolumeRequest {
            volume_id: self.volume_id.clone(),
            ..Default::default()
        });
        let answer = self
            .dispatcher
            .answer(&self.service, request, Counting::stage)
            .await;
        answer.map(drop).map_err(|status| status.code())
    }

    async fn stats(&self) -> Result<(), tonic::Code> {
        let request = Request::new(csi::NodeGetVolumeStatsRequest {
            volume_id: self.volume_id.clone(),
            ..Default::default()
        });
        let answer = self
            .dispatcher
            .answer(&self.service, request, Counting::stats)
            .await;
        answer.map(drop).map_err(|status| status.code())
    }

    fn done(&self) -> usize {
        self.service.0.load(Ordering::SeqCst)
    }
}

/// The request has only the ID: the record has the claim.
#[tokio::test]
async fn a_rule_knows_the_claim_of_a_volume() {
    for (conditions, expected) in [
        ("claim: data-0, namespace: shop", Err(tonic::Code::Internal)),
        ("claim: data-0, namespace: bank", Ok(())),
        ("claim: data-1", Ok(())),
        ("object: pvc-1", Err(tonic::Code::Internal)),
        ("node: n1", Err(tonic::Code::Internal)),
        ("node: n2", Ok(())),
    ] {
        let rig = Rig::with(&format!(
            "rules: [{{method: Node*, {conditions}, code: INTERNAL}}]"
        ));
        assert_eq!(rig.stage().await, expected, "{conditions}");
        assert_eq!(rig.stats().await, expected, "{conditions}");
        assert_eq!(rig.done() == 2, expected.is_ok(), "{conditions}");
    }
}

#[tokio::test]
async fn calls_are_refused_lost_and_counted() {
    let rig = Rig::with(
        "rules:\n\
         - {name: down, method: NodeStageVolume, times: 2, code: UNAVAILABLE}\n\
         - {name: gone, method: NodeStageVolume, times: 1, answer: lost, code: DEADLINE_EXCEEDED}\n",
    );
    for (expected, done) in [
        (Err(tonic::Code::Unavailable), 0),
        (Err(tonic::Code::Unavailable), 0),
        (Err(tonic::Code::DeadlineExceeded), 1),
        (Ok(()), 2),
    ] {
        assert_eq!(rig.stage().await, expected);
        assert_eq!(rig.done(), done);
    }
    let counts = rig.dispatcher.faults.as_ref().unwrap().counts();
    let mut text = String::new();
    metrics::render_faults(&mut text, &counts).unwrap();
    for line in [
        "hostloop_rpc_faults_total{rule=\"down\",effect=\"refused\"} 2",
        "hostloop_rpc_faults_total{rule=\"gone\",effect=\"lost\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "no {line:?} in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_delayed() {
    let rig = Rig::with("rules: [{method: NodeStageVolume, delayBefore: 3s, delayAfter: 2s}]");
    let started = tokio::time::Instant::now();
    assert_eq!(rig.stage().await, Ok(()));
    assert!(started.elapsed().as_secs() >= 5);
}

#[tokio::test]
async fn a_delay_counts_as_a_wait_for_others() {
    let rules = "rules: [{method: NodeStageVolume, delayBefore: 3s, delayAfter: 5s}]";
    let rig = Rig::with(rules);
    let request = csi::NodeStageVolumeRequest::default();
    let fault = rig.dispatcher.fault_of(&request, None);
    let limit = Duration::from_secs(10);
    assert_eq!(left_of(limit, None), limit);
    assert_eq!(left_of(limit, fault.as_ref()), Duration::from_secs(7));
    let short = Duration::from_secs(1);
    assert_eq!(left_of(short, fault.as_ref()), Duration::ZERO);
}

/// The lock of the volume and a thread would keep other calls waiting.
#[tokio::test]
async fn a_delayed_call_holds_nothing() {
    let rules = "rules: [{method: NodeStageVolume, times: 1, delayBefore: 10m}]";
    let rig = Rig::with(rules);
    let mut delayed = std::pin::pin!(rig.stage());
    assert_eq!(delayed.as_mut().now_or_never(), None);
    assert_eq!(rig.dispatcher.locks.in_flight(), 0);
    assert_eq!(rig.stage().await, Ok(()));
    assert_eq!(rig.stats().await, Ok(()));
    assert_eq!(rig.done(), 2);
}
