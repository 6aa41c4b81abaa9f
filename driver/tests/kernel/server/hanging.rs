//! A hanging pool delays only its own calls.

use std::time::Duration;

use hostloop_proto::csi;
use tokio::task::JoinSet;
use tonic::Code;

use super::rig::Rig;

/// Much longer than any call that does not hang.
const SOON: Duration = Duration::from_secs(30);

/// A rig, and a volume in its second pool.
fn two_pools() -> (Rig, String) {
    let rig = Rig::new();
    let well = rig.volume_in("other", "well");
    (rig, well)
}

/// From now on, the first pool hangs.
fn hang(rig: &Rig) {
    let pool = rig.pools.named(None).unwrap().id().to_string();
    rig.gate.close_for(&pool);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_of_a_pool_that_hangs_hold_its_own_threads_alone() {
    const CALLS: usize = 80;
    const THREADS: usize = 32;
    let (rig, well) = two_pools();
    let stuck: Vec<String> = (0..CALLS).map(|i| rig.volume(&i.to_string())).collect();
    hang(&rig);
    let mut calls = JoinSet::new();
    for volume in &stuck {
        let (mut node, request) = (rig.node().await, rig.stage(volume));
        calls.spawn(async move { node.node_stage_volume(request).await.map(drop) });
    }
    rig.wait_for(THREADS).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rig.gate.tried(), THREADS, "the other calls wait without a thread");

    // The rest of the driver works normally.
    let rest = async {
        rig.assert_ready().await;
        let mut node = rig.node().await;
        node.node_stage_volume(rig.stage(&well)).await.unwrap();
        node.node_unstage_volume(rig.unstage(&well)).await.unwrap();
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
    let (rig, well) = two_pools();
    let mut node = rig.node().await;
    let stuck: Vec<String> = (0..5).map(|i| rig.volume(&i.to_string())).collect();
    for volume in stuck.iter().chain([&well]) {
        node.node_stage_volume(rig.stage(volume)).await.unwrap();
    }
    let before = rig.gate.tried();
    hang(&rig);
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
    rig.wait_for(before + 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rig.gate.tried(), before + 1, "one of them has a thread");

    let rest = async {
        rig.assert_ready().await;
        let request = stats(&well);
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
