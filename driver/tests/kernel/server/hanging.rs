//! A hanging pool delays only its own calls, and a hanging call only those for its own volume.

use std::sync::mpsc;
use std::time::Duration;

use hostloop_driver::storage::Provisioning;
use hostloop_fake_kernel::Model;
use hostloop_proto::csi;
use parking_lot::Mutex;
use rstest::rstest;
use rustix::fs::{FallocateFlags, fallocate};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::gate::Gate;
use super::rig::{Rig, mountable, reached};
use crate::testkit::{self, MI, PATIENCE, create_request, inline, map, range};

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
        let (mut node, mut request) = (rig.node().await, tonic::Request::new(rig.stage(volume)));
        // Without a deadline, it would be given up after a minute.
        request.set_timeout(2 * PATIENCE);
        calls.spawn(async move { node.node_stage_volume(request).await.map(drop) });
    }
    rig.wait_for(THREADS).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        rig.gate.tried(),
        THREADS,
        "the other calls wait without a thread"
    );

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
        let late_codes = [Code::Aborted, Code::DeadlineExceeded, Code::Cancelled];
        assert!(late_codes.contains(&late.code()), "{late:?}");
    };
    tokio::time::timeout(PATIENCE, rest).await.unwrap();

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
    tokio::time::timeout(PATIENCE, rest).await.unwrap();

    rig.gate.open();
    while let Some(call) = calls.join_next().await {
        // Calls that waited for too long got UNAVAILABLE.
        if let Err(status) = call.unwrap() {
            assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        }
    }
}

/// An unstaging writes a filesystem back, as long as its pod wrote more than the disk takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_unpublish_waits_for_unstagings_that_hang() {
    const CALLS: usize = 40;
    const THREADS: usize = 32;
    let rig = Rig::new();
    let mut node = rig.node().await;
    let used = rig.volume("used");
    let stuck: Vec<String> = (0..CALLS).map(|i| rig.volume(&i.to_string())).collect();
    for volume in stuck.iter().chain([&used]) {
        node.node_stage_volume(rig.stage(volume)).await.unwrap();
    }
    let staged_at = rig.stage(&used).staging_target_path;
    node.node_publish_volume(publish(&rig, &used, &staged_at))
        .await
        .unwrap();

    let unmounts = Gate::before(&rig.kernel, &["unmount"]);
    unmounts.close_for("/stage/");
    let mut calls = JoinSet::new();
    for volume in &stuck {
        let (mut node, mut request) = (rig.node().await, tonic::Request::new(rig.unstage(volume)));
        // Without a deadline, it would be given up after a minute.
        request.set_timeout(2 * PATIENCE);
        calls.spawn(async move { node.node_unstage_volume(request).await.map(drop) });
    }
    reached(&unmounts, THREADS).await;

    let unpublish = csi::NodeUnpublishVolumeRequest {
        target_path: target(&rig, &used),
        volume_id: used,
    };
    let unpublished = tokio::time::timeout(PATIENCE, node.node_unpublish_volume(unpublish)).await;
    unmounts.open();
    unpublished.unwrap().unwrap();
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
    }
}

/// A thick volume. Its user has discarded half of it.
fn discarded(rig: &Rig, name: &str) -> String {
    let mut new = testkit::new(name);
    new.settings.provisioning = Provisioning::Thick;
    let pool = rig.pools.named(None).unwrap();
    let volume = rig.pools.create_volume(&pool, new).unwrap();
    let image = rig.pools.open_image(&volume, true).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&image, hole, 2 * MI, 2 * MI).unwrap();
    volume.id.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_call_waits_for_stagings_that_allocate() {
    const CALLS: usize = 40;
    const THREADS: usize = 8;
    let rig = Rig::new();
    let stuck: Vec<String> = (0..CALLS)
        .map(|i| discarded(&rig, &i.to_string()))
        .collect();
    let allocations = Gate::before(&rig.kernel, &["allocate"]);
    allocations.close();
    let mut calls = JoinSet::new();
    for volume in &stuck {
        let (mut node, mut request) = (rig.node().await, tonic::Request::new(rig.stage(volume)));
        // Without a deadline, it would be given up after a minute.
        request.set_timeout(2 * PATIENCE);
        calls.spawn(async move { node.node_stage_volume(request).await.map(drop) });
    }
    reached(&allocations, THREADS).await;
    let lived = tokio::time::timeout(PATIENCE, life(&rig)).await;
    assert_eq!(
        allocations.tried(),
        THREADS,
        "the other calls wait without a thread"
    );
    allocations.open();
    lived.unwrap().unwrap();
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
    }
}

/// A call that hangs.
#[derive(Clone, Copy)]
enum Stuck {
    Create,
    /// NodePublishVolume of an inline volume, which makes its filesystem on the device.
    PublishInline,
    Stage,
}

impl Stuck {
    async fn call(self, rig: &Rig) -> JoinSet<Result<(), Status>> {
        let mut call = JoinSet::new();
        let (mut node, mut controller) = (rig.node().await, rig.controller().await);
        match self {
            Stuck::Create => call.spawn(async move {
                controller
                    .create_volume(create_request("stuck"))
                    .await
                    .map(drop)
            }),
            Stuck::PublishInline => {
                let request = csi::NodePublishVolumeRequest {
                    volume_context: map(&[("size", "16Mi")]),
                    ..publish(rig, &inline(1), "")
                };
                call.spawn(async move { node.node_publish_volume(request).await.map(drop) })
            }
            Stuck::Stage => {
                let request = rig.stage(&rig.volume("stuck"));
                call.spawn(async move { node.node_stage_volume(request).await.map(drop) })
            }
        };
        call
    }
}

fn target(rig: &Rig, volume: &str) -> String {
    rig.root()
        .join("pods")
        .join(volume)
        .to_str()
        .unwrap()
        .to_owned()
}

fn publish(rig: &Rig, volume: &str, staged_at: &str) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: volume.to_owned(),
        staging_target_path: staged_at.to_owned(),
        target_path: target(rig, volume),
        volume_capability: Some(mountable()),
        ..Default::default()
    }
}

/// Makes the first call of a kernel operation hang until the sender is dropped. Returns a receiver
/// for the moment when it hangs.
fn hang_first(kernel: &Model, op: &'static str) -> (oneshot::Receiver<()>, mpsc::Sender<()>) {
    let (hangs, hanging) = oneshot::channel();
    let (end, ended) = mpsc::channel::<()>();
    let first = Mutex::new(Some((hangs, ended)));
    kernel.shared_hook(op, move |_| {
        let first = first.lock().take();
        if let Some((hangs, ended)) = first {
            let _ = hangs.send(());
            let _ = ended.recv();
        }
        Ok(())
    });
    (hanging, end)
}

/// A volume's whole life in the first pool.
async fn life(rig: &Rig) -> Result<(), Status> {
    let (mut node, mut controller) = (rig.node().await, rig.controller().await);
    let made = controller.create_volume(create_request("other")).await?;
    let id = made.into_inner().volume.unwrap().volume_id;
    let stage = rig.stage(&id);
    node.node_stage_volume(stage.clone()).await?;
    node.node_publish_volume(publish(rig, &id, &stage.staging_target_path))
        .await?;
    let volume_path = target(rig, &id);
    let stats = csi::NodeGetVolumeStatsRequest {
        volume_id: id.clone(),
        volume_path: volume_path.clone(),
        ..Default::default()
    };
    node.node_get_volume_stats(stats).await?;
    let snapshot = csi::CreateSnapshotRequest {
        name: "other".to_owned(),
        source_volume_id: id.clone(),
        ..Default::default()
    };
    controller.create_snapshot(snapshot).await?;
    let expand = csi::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: range(16 << 20, 0),
        ..Default::default()
    };
    controller.controller_expand_volume(expand).await?;
    let expand = csi::NodeExpandVolumeRequest {
        volume_id: id.clone(),
        volume_path,
        ..Default::default()
    };
    node.node_expand_volume(expand).await?;
    let unpublish = csi::NodeUnpublishVolumeRequest {
        volume_id: id.clone(),
        target_path: target(rig, &id),
    };
    node.node_unpublish_volume(unpublish).await?;
    node.node_unstage_volume(rig.unstage(&id)).await?;
    let delete = csi::DeleteVolumeRequest {
        volume_id: id,
        ..Default::default()
    };
    controller.delete_volume(delete).await.map(drop)
}

#[rstest]
#[case::mkfs_of_an_image("mkfs", Stuck::Create)]
#[case::mkfs_of_a_device("mkfs", Stuck::PublishInline)]
#[case::loop_configure("loop.attach", Stuck::Stage)]
#[case::mount("mount", Stuck::Stage)]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_call_waits_for_one_of_another_volume_that_hangs(
    #[case] op: &'static str,
    #[case] stuck: Stuck,
) {
    let rig = Rig::new();
    let (hanging, end) = hang_first(&rig.kernel, op);
    let mut call = stuck.call(&rig).await;
    tokio::time::timeout(PATIENCE, hanging)
        .await
        .unwrap()
        .unwrap();
    tokio::time::timeout(PATIENCE, life(&rig))
        .await
        .unwrap()
        .unwrap();
    rig.assert_ready().await;
    assert!(call.try_join_next().is_none(), "it still hangs");
    drop(end);
    call.join_next().await.unwrap().unwrap().unwrap();
}
