//! Calls that meet: joined, aborted, given up, drained.

use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::csi::identity_client::IdentityClient;
use hostloop_proto::csi::snapshot_metadata_client::SnapshotMetadataClient;
use tonic::{Code, Request, Status};

use super::rig::{Rig, mountable};
use crate::testkit::{pairs, range};

/// Sends a stage request on a connection of its own, and returns when its mount is under way (or,
/// for one that is to join, when it had the time to).
async fn send(
    rig: &Rig,
    request: csi::NodeStageVolumeRequest,
    mounts: usize,
) -> tokio::task::JoinHandle<Result<(), Status>> {
    let mut node = rig.node().await;
    let call = tokio::spawn(async move { node.node_stage_volume(request).await.map(drop) });
    let kernel = rig.kernel.clone();
    tokio::task::spawn_blocking(move || kernel.wait_for(mounts)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    call
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_again_joins_and_another_is_aborted() {
    let rig = Rig::new();
    let (volume, other) = (rig.volume("a"), rig.volume("b"));
    rig.kernel.close();
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
        node.node_unstage_volume(rig.unstage(&volume)).await.map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted);
        let says = format!("an operation on volume {volume} is in progress");
        assert!(refused.message().starts_with(&says), "{}", refused.message());
    }
    // Another volume is not held up by the lock, nor are questions.
    let parallel = send(&rig, rig.stage(&other), 2).await;
    node.node_get_info(csi::NodeGetInfoRequest {}).await.unwrap();

    rig.kernel.open();
    for call in [first, joined, parallel] {
        call.await.unwrap().unwrap();
    }
    assert_eq!(rig.kernel.tried(), 2);
    node.node_unstage_volume(rig.unstage(&volume)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_after_the_caller_gave_up_and_a_retry_joins() {
    let rig = Rig::new();
    let volume = rig.volume("a");
    rig.kernel.close();
    let mut node = rig.node().await;

    let mut request = Request::new(rig.stage(&volume));
    request.set_timeout(Duration::from_millis(200));
    let late = node.node_stage_volume(request).await.unwrap_err();
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late:?}");
    assert_eq!(rig.server.locks().in_flight(), 1);

    // Another client breaks its connection off.
    let broken = send(&rig, rig.stage(&volume), 1).await;
    broken.abort();
    assert!(broken.await.unwrap_err().is_cancelled());

    let retry = send(&rig, rig.stage(&volume), 1).await;
    assert!(!retry.is_finished());
    rig.kernel.open();
    retry.await.unwrap().unwrap();
    assert_eq!(rig.kernel.tried(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_answers_what_is_under_way_and_finishes_abandoned_work() {
    let mut rig = Rig::new();
    let (waited_for, left) = (rig.volume("a"), rig.volume("b"));
    rig.kernel.close();
    let call = send(&rig, rig.stage(&waited_for), 1).await;
    let abandoned = send(&rig, rig.stage(&left), 2).await;
    abandoned.abort();

    rig.stop();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!call.is_finished());
    assert!(tokio::net::UnixStream::connect(&rig.socket).await.is_err(), "it still listens");

    rig.kernel.open();
    call.await.unwrap().unwrap();
    rig.stopped().await;
    assert!(!rig.socket.exists());
    for volume in [waited_for, left] {
        let record = rig.pools.volume(&volume.parse().unwrap()).unwrap();
        assert!(record.stage.is_some(), "{volume} was left half done");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_begins_after_the_shutdown() {
    let rig = Rig::new();
    let volume = rig.volume("a");
    let mut node = rig.node().await;
    rig.server.locks().close();
    let refused = node.node_stage_volume(rig.stage(&volume)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(rig.kernel.tried(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_switched_off_are_unimplemented() {
    let rig = Rig::with(|configs| {
        configs.node.expansion = false;
        configs.controller.modify = false;
        configs.controller.snapshot_metadata = false;
    });
    let volume_id = rig.volume("a");
    let modify = csi::ControllerModifyVolumeRequest {
        volume_id: volume_id.clone(),
        mutable_parameters: pairs("discard=true"),
        ..Default::default()
    };
    let modified = rig.controller().await.controller_modify_volume(modify).await;
    let expand =
        csi::NodeExpandVolumeRequest { volume_id, volume_path: "/x".into(), ..Default::default() };
    let expanded = rig.node().await.node_expand_volume(expand).await;
    let allocated =
        csi::GetMetadataAllocatedRequest { snapshot_id: "x".into(), ..Default::default() };
    let mut metadata = SnapshotMetadataClient::new(rig.channel().await);
    let streamed = match metadata.get_metadata_allocated(allocated).await {
        Ok(stream) => stream.into_inner().message().await.map(drop),
        Err(status) => Err(status),
    };
    for (call, answer) in [
        ("modify", modified.map(drop)),
        ("node expand", expanded.map(drop)),
        ("metadata", streamed),
    ] {
        assert_eq!(answer.unwrap_err().code(), Code::Unimplemented, "{call}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probe_is_ready_without_a_pool() {
    let rig = Rig::new();
    let mut identity = IdentityClient::new(rig.channel().await);
    let ready = identity.probe(csi::ProbeRequest {}).await.unwrap();
    assert_eq!(ready.into_inner().ready, Some(true));

    // A restart would not bring the pool back.
    std::fs::rename(rig.dir.path().join("pool/pool.json"), rig.dir.path().join("gone")).unwrap();
    let ready = identity.probe(csi::ProbeRequest {}).await.unwrap();
    assert_eq!(ready.into_inner().ready, Some(true));
    // NodeGetStorageHealth reports it instead.
    let request = csi::NodeGetStorageHealthRequest::default();
    let health = rig.node().await.node_get_storage_health(request).await;
    let health = health.unwrap().into_inner().backend_health;
    assert_eq!(health.len(), 1);
    assert_eq!(health[0].reason, "PoolGone");
}

/// Many clients create a volume of one name. Each client gets the same volume, or is aborted.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_name_is_one_volume() {
    let rig = Rig::new();
    let mut calls = Vec::new();
    for client in 0..24 {
        let mut controller = rig.controller().await;
        let request = csi::CreateVolumeRequest {
            name: "pvc-1".into(),
            // Every other client asks for exactly another size.
            capacity_range: range((16 + client % 2) << 20, (16 + client % 2) << 20),
            volume_capabilities: vec![mountable()],
            ..Default::default()
        };
        calls.push(tokio::spawn(async move {
            for _ in 0..200 {
                match controller.create_volume(request.clone()).await {
                    Err(status) if status.code() == Code::Aborted => {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    answer => return answer.map(|a| a.into_inner().volume.unwrap().volume_id),
                }
            }
            panic!("every attempt was aborted");
        }));
    }
    let mut made = Vec::new();
    for call in calls {
        match call.await.unwrap() {
            Ok(id) => made.push(id),
            Err(status) => assert_eq!(status.code(), Code::AlreadyExists, "{status:?}"),
        }
    }
    assert_eq!(made.len(), 12, "the clients that asked for the volume's size");
    made.dedup();
    assert_eq!(made.len(), 1);
    assert_eq!(rig.pools.volumes().len(), 1);
}
