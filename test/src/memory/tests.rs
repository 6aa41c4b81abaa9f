use std::time::{Duration, Instant};

use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use hostloop_proto::csi::{self, VolumeHealthErrorType};
use tonic::Code;

use super::*;
use crate::client::{Csi, at_least, map, mounted, new_volume};

const MIB: u64 = 1 << 20;

/// A driver on a socket of its own, and a client.
async fn driver(options: Options) -> (tempfile::TempDir, MemoryDriver, Csi) {
    let dir = tempfile::tempdir().unwrap();
    let driver = MemoryDriver::start(dir.path().join("csi.sock"), options);
    let csi = Csi::connect(driver.socket()).await;
    (dir, driver, csi)
}

async fn made(csi: &Csi, name: &str) -> csi::Volume {
    let answer = csi.ok(new_volume(name, MIB)).await;
    answer.volume.expect("a volume")
}

fn snapshot(name: &str, source: &str) -> csi::CreateSnapshotRequest {
    csi::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: source.to_owned(),
        ..Default::default()
    }
}

fn publish(volume: &str, node: &str) -> csi::ControllerPublishVolumeRequest {
    csi::ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: node.to_owned(),
        volume_capability: Some(mounted("ext4", Mode::SingleNodeWriter)),
        ..Default::default()
    }
}

fn delete(volume: &str) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest { volume_id: volume.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn a_name_identifies_one_volume() {
    let (_dir, driver, csi) = driver(Options::default()).await;
    let first = made(&csi, "a").await;
    assert_eq!(made(&csi, "a").await, first);
    assert_eq!(first.capacity_bytes, MIB as i64);
    let mut other = new_volume("a", MIB);
    other.parameters = map(&[("k", "v")]);
    let mut from = new_volume("a", MIB);
    from.volume_content_source = Some(csi::VolumeContentSource {
        r#type: Some(Source::Volume(VolumeSource { volume_id: first.volume_id.clone() })),
    });
    for different in [new_volume("a", 2 * MIB), other, from] {
        let refused = csi.call(different).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists);
    }
    assert_eq!(driver.left().volumes, 1);
    csi.ok(delete(&first.volume_id)).await;
    csi.ok(delete(&first.volume_id)).await;
    driver.assert_nothing_left();
    assert_eq!(driver.count("CreateVolume"), 5);
}

#[tokio::test]
async fn calls_fail_as_scripted() {
    let (_dir, driver, csi) = driver(Options::default()).await;
    let steps = [
        Step::Fail(Code::ResourceExhausted),
        Step::DoneBut(Code::DeadlineExceeded),
        Step::Delay(Duration::from_millis(50)),
    ];
    driver.script("CreateVolume", steps);
    driver.always("DeleteVolume", Step::Fail(Code::Internal));
    let failed = csi.call(new_volume("a", MIB)).await.unwrap_err();
    assert_eq!((failed.code(), driver.left().volumes), (Code::ResourceExhausted, 0));
    let failed = csi.call(new_volume("a", MIB)).await.unwrap_err();
    assert_eq!((failed.code(), driver.left().volumes), (Code::DeadlineExceeded, 1));
    let before = Instant::now();
    let id = made(&csi, "a").await.volume_id;
    assert!(before.elapsed() >= Duration::from_millis(50));
    for _ in 0..3 {
        assert_eq!(csi.call(delete(&id)).await.unwrap_err().code(), Code::Internal);
    }
    driver.unscript("DeleteVolume");
    csi.ok(delete(&id)).await;
    let codes: Vec<_> = driver.calls().iter().map(|c| (c.method, c.code)).collect();
    assert_eq!(codes[0], ("CreateVolume", Some(Code::ResourceExhausted)));
    assert_eq!(codes[6], ("DeleteVolume", Some(Code::Ok)));
    driver.assert_nothing_left();
}

#[tokio::test]
async fn an_answer_can_be_lost() {
    let (_dir, driver, csi) = driver(Options::default()).await;
    driver.script("CreateVolume", [Step::DropAnswer]);
    let call = csi.call(new_volume("a", MIB));
    assert!(tokio::time::timeout(Duration::from_millis(300), call).await.is_err());
    assert_eq!(driver.left().volumes, 1);
    assert_eq!(driver.calls()[0].code, None);
    driver.script("DeleteVolume", [Step::Delay(Duration::from_millis(200))]);
    let id = driver.volume_named("a").unwrap().id;
    let call = csi.call(delete(&id));
    assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
    tokio::time::sleep(Duration::from_millis(400)).await;
    driver.assert_nothing_left();
}

#[tokio::test]
async fn volumes_outlive_a_crash() {
    let (_dir, mut driver, csi) = driver(Options::default()).await;
    let id = made(&csi, "a").await.volume_id;
    driver.away();
    csi.call(delete(&id)).await.unwrap_err();
    driver.resume();
    csi.ok(delete(&id)).await;
    driver.assert_nothing_left();
}

#[tokio::test]
async fn a_missing_capability_is_unimplemented() {
    let (_dir, driver, csi) =
        driver(Options { capabilities: Capabilities::least(), ..Options::default() }).await;
    let id = made(&csi, "a").await.volume_id;
    let code = async |answer: Result<(), tonic::Status>| answer.unwrap_err().code();
    let none = Code::Unimplemented;
    assert_eq!(code(csi.call(snapshot("s", &id)).await.map(drop)).await, none);
    assert_eq!(code(csi.call(publish(&id, "memory-node")).await.map(drop)).await, none);
    let group = csi::CreateVolumeGroupSnapshotRequest::default();
    assert_eq!(code(csi.call(group).await.map(drop)).await, none);
    driver.change(|o| {
        o.capabilities.controller.insert(ControllerRpc::CreateDeleteSnapshot);
    });
    csi.ok(snapshot("s", &id)).await;
    let all = csi.ok(csi::ControllerGetCapabilitiesRequest {}).await;
    assert_eq!(all.capabilities.len(), 2);
}

#[tokio::test]
async fn a_snapshot_is_ready_after_its_polls() {
    let (_dir, driver, csi) = driver(Options { ready_after_polls: 2, ..Options::default() }).await;
    let volume = made(&csi, "a").await.volume_id;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let answer = csi.ok(snapshot("s", &volume)).await;
        seen.push(answer.snapshot.unwrap().ready_to_use);
        if seen.len() == 1 {
            let mut early = new_volume("b", MIB);
            early.volume_content_source = Some(of_snapshot(&driver.snapshots()[0].id));
            assert_eq!(csi.call(early).await.unwrap_err().code(), Code::Unavailable);
        }
    }
    assert_eq!(seen, [false, false, true]);
    let id = driver.snapshots()[0].id.clone();
    let mut restored = new_volume("b", MIB);
    restored.volume_content_source = Some(of_snapshot(&id));
    let restored = csi.ok(restored).await.volume.unwrap();
    assert_eq!(restored.content_source, Some(of_snapshot(&id)));
    let other = csi.call(snapshot("s", &restored.volume_id)).await;
    assert_eq!(other.unwrap_err().code(), Code::AlreadyExists);
}

fn of_snapshot(id: &str) -> csi::VolumeContentSource {
    csi::VolumeContentSource {
        r#type: Some(Source::Snapshot(SnapshotSource { snapshot_id: id.to_owned() })),
    }
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
    let at = |name: &str| csi::Topology { segments: place(name) };
    let mut request = new_volume("v", 8 * MIB);
    request.accessibility_requirements = Some(csi::TopologyRequirement {
        requisite: vec![at("a"), at("b")],
        preferred: vec![at("b"), at("a")],
    });
    let volume = csi.ok(request.clone()).await.volume.unwrap();
    assert_eq!(volume.accessible_topology, [at("b")]);
    for (name, left) in [("a", 10), ("b", 2), ("c", 0)] {
        let asked =
            csi::GetCapacityRequest { accessible_topology: Some(at(name)), ..Default::default() };
        let there = csi.ok(asked).await.available_capacity;
        assert_eq!(there, left * MIB as i64, "{name}");
    }
    for only in ["b", "c"] {
        request.name = format!("in-{only}");
        request.accessibility_requirements =
            Some(csi::TopologyRequirement { requisite: vec![at(only)], preferred: Vec::new() });
        let refused = csi.call(request.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }
}

#[tokio::test]
async fn a_volume_in_use_is_not_deleted() {
    let (_dir, driver, csi) =
        driver(Options { other_nodes: ["n2".to_owned()].into(), ..Options::default() }).await;
    let id = made(&csi, "a").await.volume_id;
    let first = csi.ok(publish(&id, "n2")).await;
    assert_eq!(csi.ok(publish(&id, "n2")).await, first);
    let refused = csi.call(publish(&id, "memory-node")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let unknown = csi.call(publish(&id, "n3")).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert_eq!(csi.call(delete(&id)).await.unwrap_err().code(), Code::FailedPrecondition);
    csi.ok(csi::ControllerUnpublishVolumeRequest {
        volume_id: id.clone(),
        node_id: "n2".to_owned(),
        ..Default::default()
    })
    .await;
    csi.ok(delete(&id)).await;
    driver.assert_nothing_left();
}

#[tokio::test]
async fn volumes_are_expanded_and_modified() {
    let (_dir, driver, csi) = driver(Options {
        node_expansion_required: true,
        known_mutable: Some(["speed".to_owned()].into()),
        ..Options::default()
    })
    .await;
    let id = made(&csi, "a").await.volume_id;
    let larger = csi::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: at_least(3 * MIB),
        ..Default::default()
    };
    for _ in 0..2 {
        let answer = csi.ok(larger.clone()).await;
        assert_eq!(answer.capacity_bytes, 3 * MIB as i64);
        assert!(answer.node_expansion_required);
    }
    let modify = |key: &str| csi::ControllerModifyVolumeRequest {
        volume_id: id.clone(),
        mutable_parameters: map(&[(key, "9")]),
        ..Default::default()
    };
    csi.ok(modify("speed")).await;
    let refused = csi.call(modify("colour")).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(driver.volume(&id).unwrap().mutable, map(&[("speed", "9")]));
    let asked = driver.requests::<csi::ControllerModifyVolumeRequest>();
    assert_eq!(asked, [modify("speed"), modify("colour")]);
}

#[tokio::test]
async fn a_group_is_created_and_deleted_as_a_whole() {
    let (_dir, driver, csi) = driver(Options::default()).await;
    let a = made(&csi, "a").await.volume_id;
    let b = made(&csi, "b").await.volume_id;
    let group = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: vec![b.clone(), a.clone()],
        ..Default::default()
    };
    let made = csi.ok(group.clone()).await.group_snapshot.unwrap();
    assert_eq!(csi.ok(group.clone()).await.group_snapshot.unwrap(), made);
    let members: Vec<_> = made.snapshots.iter().map(|s| s.snapshot_id.clone()).collect();
    assert_eq!(members.len(), 2);
    let alone =
        csi::DeleteSnapshotRequest { snapshot_id: members[0].clone(), ..Default::default() };
    assert_eq!(csi.call(alone).await.unwrap_err().code(), Code::FailedPrecondition);
    let gone = |snapshot_ids| csi::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: made.group_snapshot_id.clone(),
        snapshot_ids,
        ..Default::default()
    };
    let part = csi.call(gone(members[..1].to_vec())).await.unwrap_err();
    assert_eq!(part.code(), Code::InvalidArgument);
    csi.ok(gone(members)).await;
    for volume in [a, b] {
        csi.ok(delete(&volume)).await;
    }
    driver.assert_nothing_left();
}

#[tokio::test]
async fn health_is_reported_as_set() {
    let (_dir, driver, csi) = driver(Options::default()).await;
    let id = made(&csi, "a").await.volume_id;
    let ill = VolumeHealthEntry {
        status: VolumeHealthErrorType::Degraded.into(),
        reason: "Scratched".to_owned(),
        message: "a head touched it".to_owned(),
    };
    driver.set_health(&id, vec![ill.clone()]);
    let listed = csi.ok(csi::ControllerListVolumeHealthRequest::default()).await;
    assert_eq!(listed.entries[0].health_statuses, [ill]);
}

/// Calls record their socket. The volumes are the same for all sockets.
#[tokio::test(flavor = "multi_thread")]
async fn two_sockets_serve_one_driver() {
    let (dir, mut driver, csi) = driver(Options::default()).await;
    let second = dir.path().join("second.sock");
    driver.also_at(&second);
    let other = Csi::connect(&second).await;
    let one = made(&csi, "one").await;
    assert_eq!(made(&other, "one").await.volume_id, one.volume_id);
    // The driver resumes with both sockets.
    driver.away();
    driver.resume();
    made(&Csi::connect(&second).await, "two").await;
    let calls = driver.calls();
    let doors = calls.iter().filter(|call| call.method == "CreateVolume");
    assert_eq!(doors.map(|call| call.door).collect::<Vec<_>>(), [0, 1, 1]);
    assert!(calls.iter().all(|call| call.answered.is_some()));
}

/// IDs contain the pool, so that those of two drivers differ.
#[tokio::test(flavor = "multi_thread")]
async fn ids_carry_the_pool() {
    let pool = "n7".to_owned();
    let (_dir, _driver, csi) = driver(Options { pool, ..Options::default() }).await;
    assert_eq!(made(&csi, "one").await.volume_id, "vol-n7-00000001");
}
