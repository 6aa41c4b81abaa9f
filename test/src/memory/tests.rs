//! What csi-sanity does not ask of the driver in memory, and the controllers' tests rely on.

use std::time::{Duration, Instant};

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use tonic::Code;

use super::*;
use crate::PATIENCE;
use crate::client::{Call as Request, Csi, map, new_volume};
use crate::front::wait::until;
use crate::requests::{delete, delete_snapshot, id_of, of_snapshot, of_volume, snapshot};

const MIB: u64 = 1 << 20;

/// A driver on a socket of its own, and a client.
async fn driver(options: Options) -> (tempfile::TempDir, MemoryDriver, Csi) {
    let dir = tempfile::tempdir().unwrap();
    let driver = MemoryDriver::start(dir.path().join("csi.sock"), options);
    let csi = Csi::connect(driver.socket()).await;
    (dir, driver, csi)
}

async fn made(csi: &Csi, name: &str) -> String {
    id_of(csi.ok(new_volume(name, MIB)).await)
}

fn from(source: Option<csi::VolumeContentSource>) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        volume_content_source: source,
        ..new_volume("a", MIB)
    }
}

fn publish(volume: &str, node: &str) -> csi::ControllerPublishVolumeRequest {
    let node_id = node.to_owned();
    csi::ControllerPublishVolumeRequest {
        node_id,
        ..crate::requests::attach(volume)
    }
}

async fn refused<C: Request>(csi: &Csi, request: C, code: Code) {
    let what = format!("{request:?}");
    let refused = csi.call(request).await.err();
    assert_eq!(refused.map(|status| status.code()), Some(code), "{what}");
}

#[tokio::test]
async fn what_contradicts_the_state_is_refused() {
    let other_nodes = ["n2".to_owned()].into();
    let (_dir, driver, csi) = driver(Options {
        other_nodes,
        ..Options::default()
    })
    .await;
    let (a, b) = (made(&csi, "a").await, made(&csi, "b").await);
    let parameters = map(&[("k", "v")]);
    let other = csi::CreateVolumeRequest {
        parameters,
        ..new_volume("a", MIB)
    };
    refused(&csi, other, Code::AlreadyExists).await;
    refused(&csi, from(of_volume(&b)), Code::AlreadyExists).await;
    csi.ok(publish(&a, "n2")).await;
    refused(&csi, publish(&a, "memory-node"), Code::FailedPrecondition).await;
    refused(&csi, delete(&a), Code::FailedPrecondition).await;

    let group = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: vec![a.clone(), b],
        ..Default::default()
    };
    let group = csi.ok(group).await.group_snapshot.unwrap();
    let member = group.snapshots[0].snapshot_id.clone();
    refused(&csi, delete_snapshot(&member), Code::FailedPrecondition).await;
    let part = csi::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id,
        snapshot_ids: vec![member],
        ..Default::default()
    };
    refused(&csi, part, Code::InvalidArgument).await;

    driver.change(|o| {
        o.capabilities.controller = [ControllerRpc::CreateDeleteVolume].into();
        o.capabilities.group.clear();
    });
    let none = Code::Unimplemented;
    refused(&csi, snapshot("s", &a), none).await;
    refused(&csi, publish(&a, "n2"), none).await;
    refused(&csi, csi::CreateVolumeGroupSnapshotRequest::default(), none).await;
}

#[tokio::test]
async fn calls_fail_as_scripted() {
    let (_dir, mut driver, csi) = driver(Options::default()).await;
    let steps = [
        Step::Fail(Code::ResourceExhausted),
        Step::DoneBut(Code::DeadlineExceeded),
        Step::Delay(Duration::from_millis(50)),
    ];
    driver.script("CreateVolume", steps);
    driver.always("DeleteVolume", Step::Fail(Code::Internal));
    refused(&csi, new_volume("a", MIB), Code::ResourceExhausted).await;
    assert_eq!(driver.left().volumes, 0);
    refused(&csi, new_volume("a", MIB), Code::DeadlineExceeded).await;
    assert_eq!(driver.left().volumes, 1);
    let before = Instant::now();
    let id = made(&csi, "a").await;
    assert!(before.elapsed() >= Duration::from_millis(50));
    for _ in 0..3 {
        refused(&csi, delete(&id), Code::Internal).await;
    }
    driver.unscript("DeleteVolume");
    driver.away();
    csi.call(delete(&id)).await.unwrap_err();
    driver.resume();
    csi.ok(delete(&id)).await;
    driver.assert_nothing_left();
    let codes: Vec<_> = driver.calls().iter().map(|c| (c.method, c.code)).collect();
    assert_eq!(codes[0], ("CreateVolume", Some(Code::ResourceExhausted)));
    assert_eq!(codes[6], ("DeleteVolume", Some(Code::Ok)));
}

#[tokio::test]
async fn an_answer_can_be_lost() {
    let (_dir, driver, csi) = driver(Options::default()).await;
    driver.script("CreateVolume", [Step::DropAnswer]);
    let made = || async { (driver.left().volumes == 1).then_some(()) };
    tokio::select! {
        answer = csi.call(new_volume("a", MIB)) => panic!("{answer:?}"),
        made = until(PATIENCE, made) => made.expect("the volume is made"),
    }
    assert_eq!(driver.calls()[0].code, None);
    driver.script("DeleteVolume", [Step::Delay(Duration::from_millis(200))]);
    let id = driver.volume_named("a").unwrap().id;
    let begun = || async { (driver.count("DeleteVolume") == 1).then_some(()) };
    tokio::select! {
        // On a busy machine, the answer may be there before this task looks.
        _ = csi.call(delete(&id)) => {}
        begun = until(PATIENCE, begun) => begun.expect("the call begins"),
    }
    let gone = || async { (driver.left().volumes == 0).then_some(()) };
    until(PATIENCE, gone).await.expect("the volume is deleted");
    driver.assert_nothing_left();
}

#[tokio::test]
async fn a_snapshot_is_ready_after_its_polls() {
    let (_dir, driver, csi) = driver(Options {
        ready_after_polls: 2,
        ..Options::default()
    })
    .await;
    let volume = made(&csi, "source").await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let answer = csi.ok(snapshot("s", &volume)).await;
        seen.push(answer.snapshot.unwrap().ready_to_use);
        if seen.len() == 1 {
            let unready = of_snapshot(&driver.snapshots()[0].id);
            refused(&csi, from(unready), Code::Unavailable).await;
        }
    }
    assert_eq!(seen, [false, false, true]);
}

#[tokio::test]
async fn each_topology_has_its_capacity() {
    let place = |name: &str| map(&[("zone", name)]);
    let (_dir, _driver, csi) = driver(Options {
        topology: vec![place("a"), place("b")],
        capacity: 10 * MIB as i64,
        ..Options::default()
    })
    .await;
    let at = |name: &str| csi::Topology {
        segments: place(name),
    };
    let on = |name: &str, requisite, preferred| csi::CreateVolumeRequest {
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite,
            preferred,
        }),
        ..new_volume(name, 8 * MIB)
    };
    let request = on("v", vec![at("a"), at("b")], vec![at("b"), at("a")]);
    let volume = csi.ok(request).await.volume.unwrap();
    assert_eq!(volume.accessible_topology, [at("b")]);
    for (name, left) in [("a", 10), ("b", 2), ("c", 0)] {
        let accessible_topology = Some(at(name));
        let asked = csi::GetCapacityRequest {
            accessible_topology,
            ..Default::default()
        };
        let there = csi.ok(asked).await.available_capacity;
        assert_eq!(there, left * MIB as i64, "{name}");
    }
    for only in ["b", "c"] {
        refused(
            &csi,
            on(only, vec![at(only)], Vec::new()),
            Code::ResourceExhausted,
        )
        .await;
    }
}
