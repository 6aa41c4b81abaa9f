//! While a pool is missing, RPCs about its objects answer UNAVAILABLE: the objects are not deleted,
//! and a retry must not create them again.

use std::slice;

use hostloop_proto::csi;
use tonic::Code;

use super::bench::*;
use crate::diagnose::health;

/// An inline volume needs only the pool that it names; other pools may be missing.
#[test]
fn an_inline_volume_needs_its_own_pool_alone() {
    let bench = Bench::new();
    let bench =
        bench.restart(|dir| std::fs::rename(dir.join("default"), dir.join("away")).unwrap());
    let node = bench.node();
    let target = |name: &str| bench.dir.path().join(name).to_str().unwrap().to_owned();
    let publish = |name: &str, pool: &[(&str, &str)]| {
        let context = [&[("csi.storage.k8s.io/ephemeral", "true")], pool].concat();
        let request = csi::NodePublishVolumeRequest {
            volume_id: format!("csi-{}", name.repeat(64)),
            target_path: target(name),
            volume_capability: Some(mount("ext4")),
            volume_context: map(&context),
            ..Default::default()
        };
        node.node_publish_volume(request)
            .map_or_else(|e| tonic::Status::from(e).code(), |_| Code::Ok)
    };
    assert_eq!(publish("a", &[("pool", "other")]), Code::Ok);
    assert_eq!(publish("a", &[("pool", "other")]), Code::Ok, "again");
    assert_eq!(publish("b", &[]), Code::Unavailable);
    assert_eq!(bench.volume_ids(), [format!("csi-{}", "a".repeat(64))]);
    let request = csi::NodeUnpublishVolumeRequest {
        volume_id: format!("csi-{}", "a".repeat(64)),
        target_path: target("a"),
    };
    node.node_unpublish_volume(request).unwrap();
    assert_eq!(bench.volume_ids(), [] as [String; 0]);
}

#[test]
fn nothing_is_said_about_a_missing_pool() {
    let bench = Bench::new();
    let (a, b) = (bench.create("a"), bench.create("b"));
    let other = csi::CreateVolumeRequest {
        parameters: map(&[("pool", "other")]),
        ..Bench::request("c")
    };
    let c = bench.try_create(other.clone()).unwrap().volume_id;
    let s = bench.snapshot("s", &a).unwrap().snapshot_id;
    let t = bench.snapshot("t", &c).unwrap().snapshot_id;
    let bench =
        bench.restart(|dir| std::fs::rename(dir.join("default"), dir.join("away")).unwrap());

    let unavailable = |what: &str, code: Code| assert_eq!(code, Code::Unavailable, "{what}");
    let controller = &bench.controller;
    unavailable("create", code(bench.try_create(Bench::request("a"))));
    unavailable("delete", code(bench.delete(&b)));
    unavailable("snapshot", code(bench.snapshot("u", &a)));
    // Lists contain the objects of open pools and silently omit the rest.
    assert_eq!(bench.volume_ids(), slice::from_ref(&c));
    let snapshots = |snapshot_id: &str, source_volume_id: &str| {
        let request = csi::ListSnapshotsRequest {
            snapshot_id: snapshot_id.to_owned(),
            source_volume_id: source_volume_id.to_owned(),
            ..Default::default()
        };
        let answer = controller.list_snapshots(request)?;
        let id = |e: csi::list_snapshots_response::Entry| e.snapshot.unwrap().snapshot_id;
        Ok(answer.entries.into_iter().map(id).collect::<Vec<_>>())
    };
    assert_eq!(snapshots("", "").unwrap(), slice::from_ref(&t));
    assert_eq!(snapshots(&t, "").unwrap(), slice::from_ref(&t));
    unavailable("list a snapshot", code(snapshots(&s, "")));
    unavailable("list snapshots of a volume", code(snapshots("", &a)));
    // A caller takes a volume that a health list leaves out for healthy.
    let request = csi::ControllerListVolumeHealthRequest::default();
    unavailable(
        "list health",
        code(controller.controller_list_volume_health(request)),
    );
    // A missing pool has no capacity: the scheduler must choose another node.
    let request = csi::GetCapacityRequest::default();
    let told = controller.get_capacity(request).unwrap();
    assert_eq!(told.available_capacity, 0);
    assert_eq!(told.maximum_volume_size, Some(0));
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: a.clone(),
        ..Default::default()
    };
    let health = controller.controller_get_volume_health(request).unwrap();
    let statuses = health.volume_health.unwrap().health_statuses;
    assert_eq!(statuses.len(), 1);
    assert_eq!(statuses[0].reason, "PoolGone");
    assert_eq!(
        statuses[0].status(),
        csi::VolumeHealthErrorType::Inaccessible
    );
    let request = csi::ControllerUnpublishVolumeRequest {
        volume_id: a.clone(),
        ..Default::default()
    };
    unavailable(
        "unpublish",
        code(controller.controller_unpublish_volume(request)),
    );
    let problems = health::storage(&controller.pools);
    assert_eq!(problems.len(), 1);
    assert_eq!(
        (problems[0].pool.as_str(), problems[0].reason),
        ("default", "PoolMissing")
    );

    // The other pool still works.
    assert_eq!(bench.try_create(other).unwrap().volume_id, c);
    let request = csi::DeleteSnapshotRequest {
        snapshot_id: t,
        ..Default::default()
    };
    assert_code(controller.delete_snapshot(request), Code::Ok);
    assert_code(bench.delete(&c), Code::Ok);
    assert_code(bench.delete("none"), Code::Ok);

    let bench = bench.restart(|dir| {
        let _ = std::fs::remove_dir(dir.join("default"));
        std::fs::rename(dir.join("away"), dir.join("default")).unwrap();
    });
    assert_eq!(bench.volume_ids(), [a, b]);
}
