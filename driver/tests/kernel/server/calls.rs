//! Concurrent calls: joined, aborted, drained. Calls that are switched off.

use std::time::{Duration, Instant};

use hostloop_proto::csi;
use hostloop_proto::csi::snapshot_metadata_client::SnapshotMetadataClient;
use tonic::{Code, Status};

use super::rig::Rig;
use crate::testkit::{PATIENCE, pairs};

/// Sends NodeStageVolume on its own connection. Returns shortly after this many mounts have begun,
/// so that the call has begun its mount or joined another call.
async fn send(
    rig: &Rig,
    request: csi::NodeStageVolumeRequest,
    mounts: usize,
) -> tokio::task::JoinHandle<Result<(), Status>> {
    let mut node = rig.node().await;
    let call = tokio::spawn(async move { node.node_stage_volume(request).await.map(drop) });
    rig.wait_for(mounts).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    call
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_again_joins_and_another_is_aborted() {
    let rig = Rig::new();
    let (volume, other) = (rig.volume("a"), rig.volume("b"));
    rig.gate.close();
    let request = rig.stage(&volume);
    let first = send(&rig, request.clone(), 1).await;

    // Tokens and secrets differ from one retry to the next.
    let retry = csi::NodeStageVolumeRequest {
        secrets: pairs("token=new"),
        volume_context: pairs("csi.storage.k8s.io/serviceAccount.tokens=new"),
        ..request.clone()
    };
    let joined = send(&rig, retry, 1).await;
    assert!(!joined.is_finished());

    let mut node = rig.node().await;
    let elsewhere = csi::NodeStageVolumeRequest {
        staging_target_path: rig.stage(&other).staging_target_path,
        ..request.clone()
    };
    for refused in [
        node.node_stage_volume(elsewhere).await.map(drop),
        node.node_unstage_volume(rig.unstage(&volume))
            .await
            .map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted);
        let says = format!("an operation on volume {volume} is in progress");
        assert!(
            refused.message().starts_with(&says),
            "{}",
            refused.message()
        );
    }
    // The lock delays neither calls for another volume nor calls that only read.
    let parallel = send(&rig, rig.stage(&other), 2).await;
    node.node_get_info(csi::NodeGetInfoRequest {})
        .await
        .unwrap();

    rig.gate.open();
    for call in [first, joined, parallel] {
        call.await.unwrap().unwrap();
    }
    assert_eq!(rig.gate.tried(), 2);
    node.node_unstage_volume(rig.unstage(&volume))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_answers_what_is_under_way_and_finishes_abandoned_work() {
    let mut rig = Rig::new();
    let (waited_for, left) = (rig.volume("a"), rig.volume("b"));
    rig.gate.close();
    let call = send(&rig, rig.stage(&waited_for), 1).await;
    let abandoned = send(&rig, rig.stage(&left), 2).await;
    abandoned.abort();

    rig.stop();
    while tokio::net::UnixStream::connect(&rig.socket).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!call.is_finished());

    rig.gate.open();
    call.await.unwrap().unwrap();
    rig.stopped().await;
    assert!(!rig.socket.exists());
    for volume in [waited_for, left] {
        let record = rig.pools.volume(&volume.parse().unwrap()).unwrap();
        assert!(record.stage.is_some(), "{volume} was left half done");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_switched_off_are_unimplemented() {
    let rig = Rig::with(|configs| {
        configs.node.expansion = false;
        configs.controller.attach = false;
        configs.controller.expansion = false;
        configs.controller.modify = false;
        configs.controller.snapshot_metadata = false;
    });
    let volume_id = &rig.volume("a");
    macro_rules! request {
        ($name:ident) => {
            csi::$name {
                volume_id: volume_id.clone(),
                ..Default::default()
            }
        };
    }
    let (mut controller, mut node) = (rig.controller().await, rig.node().await);
    let publish = request!(ControllerPublishVolumeRequest);
    let unpublish = request!(ControllerUnpublishVolumeRequest);
    let expand = request!(ControllerExpandVolumeRequest);
    let modify = request!(ControllerModifyVolumeRequest);
    let on_node = request!(NodeExpandVolumeRequest);
    let allocated = csi::GetMetadataAllocatedRequest::default();
    let mut metadata = SnapshotMetadataClient::new(rig.channel().await);
    let streamed = match metadata.get_metadata_allocated(allocated).await {
        Ok(stream) => stream.into_inner().message().await.map(drop),
        Err(status) => Err(status),
    };
    for (call, answer) in [
        (
            "publish",
            controller
                .controller_publish_volume(publish)
                .await
                .map(drop),
        ),
        (
            "unpublish",
            controller
                .controller_unpublish_volume(unpublish)
                .await
                .map(drop),
        ),
        (
            "expand",
            controller.controller_expand_volume(expand).await.map(drop),
        ),
        (
            "modify",
            controller.controller_modify_volume(modify).await.map(drop),
        ),
        (
            "node expand",
            node.node_expand_volume(on_node).await.map(drop),
        ),
        ("metadata", streamed),
    ] {
        assert_eq!(answer.unwrap_err().code(), Code::Unimplemented, "{call}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_is_ready_without_a_pool() {
    let rig = Rig::new();
    rig.assert_ready().await;

    // A restart would not bring the pool back.
    std::fs::rename(
        rig.dir.path().join("pool/pool.json"),
        rig.dir.path().join("gone"),
    )
    .unwrap();
    rig.assert_ready().await;
    // NodeGetStorageHealth reports it instead.
    let mut node = rig.node().await;
    let begun = Instant::now();
    loop {
        let request = csi::NodeGetStorageHealthRequest::default();
        let health = node.node_get_storage_health(request).await;
        let health = health.unwrap().into_inner().backend_health;
        let reasons: Vec<&str> = health.iter().map(|entry| entry.reason.as_str()).collect();
        if reasons == ["PoolGone"] {
            break;
        }
        // On a busy machine, a pool may not answer in time.
        assert!(begun.elapsed() < PATIENCE, "{health:?}");
    }
}
