//! Many copies of one source at once, on the real kernel.

use std::time::{Duration, Instant};

use hostloop_driver::kernel::FsType;
use hostloop_driver::kernel::linux::Linux;
use hostloop_proto::csi::{self, volume_content_source::Type};
use rstest::rstest;
use tokio::task::JoinSet;
use tonic::{Code, Request, Status};

use super::rig::{Rig, mountable};
use crate::testkit::{
    self, Configs, PATIENCE, from, new_filesystem, of_snapshot, of_volume, range,
};

const COPIES: usize = 24;

/// A server with a pool on its own filesystem.
fn rig(fs: FsType) -> Rig<Linux> {
    let site = testkit::Rig::<Linux>::site(&["default=DIR/pool"]);
    new_filesystem(&*site.kernel, &site.path(""), fs, 4 << 30);
    Rig::over(site, Configs::default())
}

fn volume(name: &str, source: Option<Type>) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: range(32 << 20, 0),
        volume_capabilities: vec![mountable()],
        volume_content_source: source.and_then(from),
        ..Default::default()
    }
}

fn snapshot(volume: &str) -> csi::CreateSnapshotRequest {
    csi::CreateSnapshotRequest {
        source_volume_id: volume.to_owned(),
        name: "snapshot".to_owned(),
        ..Default::default()
    }
}

async fn create(rig: &Rig<Linux>, name: &str, source: Option<Type>) -> Result<String, Status> {
    let mut request = Request::new(volume(name, source));
    // Without a deadline, a call that waits for other copies is given up after a minute.
    request.set_timeout(6 * PATIENCE);
    let made = rig.controller().await.create_volume(request).await?;
    Ok(made.into_inner().volume.unwrap().volume_id)
}

/// Creates many volumes from one source at once, and stages the last one to read its content.
async fn copy_at_once(rig: &Rig<Linux>, what: &str, source: Type) {
    let began = Instant::now();
    let names: Vec<String> = (0..COPIES).map(|n| format!("{what}-{n}")).collect();
    let copies = names
        .iter()
        .map(|name| create(rig, name, Some(source.clone())));
    let answers = futures::future::join_all(copies).await;
    let made: Vec<&String> = answers.iter().flatten().collect();
    println!(
        "{what}: {} of {COPIES} after {:?}",
        made.len(),
        began.elapsed()
    );
    for answer in &answers {
        assert!(answer.is_ok(), "{what}: {answer:?}");
    }
    let mut node = rig.node().await;
    let stage = rig.stage(made[COPIES - 1]);
    node.node_stage_volume(stage.clone()).await.unwrap();
    let found = std::fs::read(format!("{}/before", stage.staging_target_path)).unwrap();
    node.node_unstage_volume(rig.unstage(made[COPIES - 1]))
        .await
        .unwrap();
    assert!(found == content(), "{what}");
}

fn content() -> Vec<u8> {
    testkit::pattern(7, 5 << 20)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_copies_of_one_source_all_succeed(#[values(FsType::Ext4, FsType::Xfs)] fs: FsType) {
    let mut rig = rig(fs);
    let source = create(&rig, "source", None).await.unwrap();
    let stage = rig.stage(&source);
    rig.node()
        .await
        .node_stage_volume(stage.clone())
        .await
        .unwrap();
    std::fs::write(format!("{}/before", stage.staging_target_path), content()).unwrap();
    let taken = rig
        .controller()
        .await
        .create_snapshot(snapshot(&source))
        .await
        .unwrap();
    let snapshot_id = taken.into_inner().snapshot.unwrap().snapshot_id;

    copy_at_once(&rig, "restore", of_snapshot(&snapshot_id)).await;
    // The volume stays mounted, so each copy freezes it.
    copy_at_once(&rig, "clone", of_volume(&source)).await;
    std::fs::write(format!("{}/after", stage.staging_target_path), b"after").unwrap();

    // A deletion waits for copies that came first. Copies that come later find no snapshot.
    let mut calls = JoinSet::new();
    for n in 0..COPIES {
        let mut controller = rig.controller().await;
        let mut request = Request::new(volume(
            &format!("late-{n}"),
            Some(of_snapshot(&snapshot_id)),
        ));
        request.set_timeout(6 * PATIENCE);
        calls.spawn(async move { controller.create_volume(request).await.map(drop) });
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    let mut delete = Request::new(csi::DeleteSnapshotRequest {
        snapshot_id,
        ..Default::default()
    });
    delete.set_timeout(6 * PATIENCE);
    rig.controller()
        .await
        .delete_snapshot(delete)
        .await
        .unwrap();
    while let Some(copied) = calls.join_next().await {
        if let Err(status) = copied.unwrap() {
            assert_eq!(status.code(), Code::NotFound, "{status:?}");
        }
    }
    rig.node()
        .await
        .node_unstage_volume(rig.unstage(&source))
        .await
        .unwrap();
    rig.stop();
    rig.stopped().await;
}

/// A call that waits for a copy is ABORTED shortly before its deadline, and names the copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_until_its_deadline_is_aborted() {
    let rig = Rig::new();
    let volume = rig.volume("a");
    rig.gate.close();
    let stage = tokio::spawn({
        let (mut node, request) = (rig.node().await, rig.stage(&volume));
        async move { node.node_stage_volume(request).await.map(drop) }
    });
    rig.wait_for(1).await;

    let mut controller = rig.controller().await;
    // On a busy machine, the tenth that is left for the answer may be too short.
    let (mut seconds, mut aborted) = (1, None);
    while aborted.is_none() && seconds <= 256 {
        let mut hasty = Request::new(snapshot(&volume));
        hasty.set_timeout(Duration::from_secs(seconds));
        let ended = controller.create_snapshot(hasty).await.unwrap_err();
        aborted = Some((ended, seconds)).filter(|(ended, _)| ended.code() == Code::Aborted);
        seconds *= 2;
    }
    let retry = snapshot(&volume);
    let retry = tokio::spawn(async move { controller.create_snapshot(retry).await });
    rig.gate.open();
    stage.await.unwrap().unwrap();
    retry.await.unwrap().unwrap();
    assert_eq!(rig.pools.snapshots().len(), 1);

    let (aborted, seconds) = aborted.expect("it is aborted before its deadline");
    let time = Duration::from_secs(seconds);
    let within = (time - Duration::from_secs(1).min(time / 10)).as_secs_f32();
    let says = format!(
        "an operation on volume {volume} is in progress (/csi.v1.Node/NodeStageVolume), and has \
         not ended within {within} s"
    );
    assert_eq!(aborted.message(), says);
}
