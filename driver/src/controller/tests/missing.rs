//! While a pool is missing, what it may hold is UNAVAILABLE: neither gone nor to be made anew.

use hostloop_proto::csi;
use tonic::Code;

use super::bench::*;
use crate::health;

#[test]
fn nothing_is_said_about_a_missing_pool() {
    let bench = Bench::new();
    let (a, b) = (bench.create("a"), bench.create("b"));
    let other = csi::CreateVolumeRequest {
        parameters: map(&[("pool", "other")]),
        ..Bench::request("c")
    };
    let c = bench.try_create(other.clone()).unwrap().volume_id;
    bench.snapshot("s", &a).unwrap();
    let bench =
        bench.restart(|dir| std::fs::rename(dir.join("default"), dir.join("away")).unwrap());

    let unavailable = |what: &str, code: Code| assert_eq!(code, Code::Unavailable, "{what}");
    let controller = &bench.controller;
    unavailable("create", code(bench.try_create(Bench::request("a"))));
    unavailable("delete", code(bench.delete(&b)));
    unavailable("snapshot", code(bench.snapshot("t", &a)));
    unavailable(
        "list",
        code(controller.list_volumes(csi::ListVolumesRequest::default())),
    );
    let request = csi::ListSnapshotsRequest::default();
    unavailable("list snapshots", code(controller.list_snapshots(request)));
    // Nothing can be promised there: the scheduler is to look elsewhere.
    let request = csi::GetCapacityRequest::default();
    let told = controller.get_capacity(request).unwrap();
    assert_eq!(told.available_capacity, 0);
    assert_eq!(told.maximum_volume_size, Some(0));
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: a.clone(),
        ..Default::default()
    };
    unavailable(
        "health",
        code(controller.controller_get_volume_health(request)),
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

    // The other pool goes on.
    assert_eq!(bench.try_create(other).unwrap().volume_id, c);
    assert_eq!(code(bench.delete(&c)), Code::Ok);
    assert_eq!(code(bench.delete("none")), Code::Ok);

    let bench = bench.restart(|dir| {
        let _ = std::fs::remove_dir(dir.join("default"));
        std::fs::rename(dir.join("away"), dir.join("default")).unwrap();
    });
    assert_eq!(bench.volume_ids(), [a, b]);
}
