//! A hanging pool delays only its own calls.

use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::csi::identity_client::IdentityClient;
use tokio::task::JoinSet;
use tonic::Code;

use super::rig::Rig;

/// Much longer than any call that does not hang.
const SOON: Duration = Duration::from_secs(30);

/// A rig with a volume in the second pool; the first pool can be made to hang.
struct Hung {
    rig: Rig,
    well: String,
}

impl Hung {
    fn new() -> Hung {
        let rig = Rig::new();
        let well = rig.volume_in("other", "well");
        Hung { rig, well }
    }

    fn hang(&self) {
        let pool = self.rig.pools.named(None).unwrap().id().to_string();
        self.rig.gate.close_for(&pool);
    }

    async fn wait_for(&self, tried: usize) {
        let gate = self.rig.gate.clone();
        let wait = move || gate.wait_for(tried);
        tokio::task::spawn_blocking(wait).await.unwrap();
    }

    async fn probe(&self) {
        let mut identity = IdentityClient::new(self.rig.channel().await);
        let ready = identity.probe(csi::ProbeRequest {}).await.unwrap();
        assert_eq!(ready.into_inner().ready, Some(true));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_of_a_pool_that_hangs_hold_its_own_threads_alone() {
    const CALLS: usize = 80;
    const THREADS: usize = 32;
    let hung = Hung::new();
    let rig = &hung.rig;
    let stuck: Vec<String> = (0..CALLS).map(|i| rig.volume(&i.to_string())).collect();
    hung.hang();
    let mut calls = JoinSet::new();
    for volume in &stuck {
        let (mut node, request) = (rig.node().await, rig.stage(volume));
        calls.spawn(async move { node.node_stage_volume(request).await.map(drop) });
    }
    hung.wait_for(THREADS).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rig.gate.tried(), THREADS, "the other calls wait without a thread");

    // The rest of the driver works normally.
    let rest = async {
        hung.probe().await;
        let mut node = rig.node().await;
        node.node_stage_volume(rig.stage(&hung.well)).await.unwrap();
        node.node_unstage_volume(rig.unstage(&hung.well)).await.unwrap();
        let all = csi::ListVolumesRequest::default();
        let listed = rig.controller().await.list_volumes(all).await.unwrap();
        assert_eq!(listed.into_inner().entries.len(), CALLS + 1);
        // A retry joins the call under way, or keeps its place in the queue.
        let mut retry = tonic::Request::new(rig.stage(&stuck[CALLS - 1]));
        retry.set_timeout(Duration::from_millis(200));
        let late = node.node_stage_volume(retry).await.unwrap_err();
        assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late:?}");
    };
    tokio::time::timeout(SOON, rest).await.unwrap();

    rig.gate.open();
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn questions_to_a_pool_that_hangs_hold_one_thread_of_each_kind() {
    let hung = Hung::new();
    let rig = &hung.rig;
    let mut node = rig.node().await;
    let stuck: Vec<String> = (0..5).map(|i| rig.volume(&i.to_string())).collect();
    for volume in stuck.iter().chain([&hung.well]) {
        node.node_stage_volume(rig.stage(volume)).await.unwrap();
    }
    let before = rig.gate.tried();
    hung.hang();
    let stats = |volume: &String| csi::NodeGetVolumeStatsRequest {
        volume_id: volume.clone(),
        volume_path: rig.stage(volume).staging_target_path,
        ..Default::default()
    };
    let mut calls = JoinSet::new();
    for volume in &stuck {
        let (mut node, request) = (rig.node().await, stats(volume));
        calls.spawn(async move { node.node_get_volume_stats(request).await });
    }
    hung.wait_for(before + 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rig.gate.tried(), before + 1, "one of them has a thread");

    let rest = async {
        hung.probe().await;
        let request = stats(&hung.well);
        node.node_get_volume_stats(request).await.unwrap();
    };
    tokio::time::timeout(SOON, rest).await.unwrap();

    rig.gate.open();
    while let Some(call) = calls.join_next().await {
        // Calls that waited for too long got UNAVAILABLE.
        if let Err(status) = call.unwrap() {
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        }
    }
}
