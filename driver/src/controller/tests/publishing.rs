//! ControllerPublishVolume and ControllerUnpublishVolume.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use super::bench::*;
use crate::controller::Result;

fn publish(bench: &Bench, id: &str) -> Result<()> {
    publish_as(bench, id, |_| {})
}

fn publish_as(
    bench: &Bench,
    id: &str,
    change: impl FnOnce(&mut csi::ControllerPublishVolumeRequest),
) -> Result<()> {
    let mut request = csi::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "n1".to_owned(),
        volume_capability: Some(mount("")),
        ..Default::default()
    };
    change(&mut request);
    bench
        .controller
        .controller_publish_volume(request)
        .map(drop)
}

fn unpublish(bench: &Bench, id: &str, node: &str) -> Result<()> {
    let request = csi::ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: node.to_owned(),
        ..Default::default()
    };
    bench
        .controller
        .controller_unpublish_volume(request)
        .map(drop)
}

fn published(bench: &Bench, id: &str) -> Vec<String> {
    let request = csi::ControllerGetVolumeRequest {
        volume_id: id.to_owned(),
    };
    let response = bench.controller.controller_get_volume(request).unwrap();
    response.status.unwrap().published_node_ids
}

#[test]
fn what_was_published_once_is_not_fresh_any_more() {
    let bench = Bench::new();
    let (id, other) = (bench.create("a"), bench.create("b"));
    assert!(publish(&bench, "none").is_err());
    let wrong = publish_as(&bench, &id, |request| request.node_id = "n2".to_owned());
    assert!(wrong.is_err());
    assert!(bench.record(&id).fresh, "it was refused");
    publish(&bench, &id).unwrap();
    unpublish(&bench, &id, "n1").unwrap();
    let bench = bench.restart(|_| {});
    let fresh = [&id, &other].map(|id| bench.record(id).fresh);
    assert_eq!(fresh, [false, true]);
}

#[test]
fn publications_are_recorded_and_taken_back() {
    let bench = Bench::new();
    let id = bench.create("a");
    publish(&bench, &id).unwrap();
    publish(&bench, &id).unwrap();
    assert_eq!(published(&bench, &id), ["n1"]);
    // The record outlives the process.
    let bench = bench.restart(|_| {});
    assert_eq!(published(&bench, &id), ["n1"]);
    let read_only = publish_as(&bench, &id, |r| r.readonly = true);
    assert_code(read_only, Code::AlreadyExists);
    let shared = publish_as(&bench, &id, |r| {
        r.volume_capability = Some(mount_with("", Mode::MultiNodeMultiWriter));
    });
    assert_code(shared, Code::AlreadyExists);

    unpublish(&bench, &id, "n2").unwrap();
    assert_eq!(published(&bench, &id), ["n1"]);
    unpublish(&bench, &id, "n1").unwrap();
    unpublish(&bench, &id, "n1").unwrap();
    assert!(published(&bench, &id).is_empty());
    publish(&bench, &id).unwrap();
    unpublish(&bench, &id, "").unwrap();
    assert!(published(&bench, &id).is_empty());
}

#[test]
fn what_is_not_there_is_not_published() {
    let bench = Bench::new();
    let id = bench.create("a");
    assert_field(publish(&bench, ""), "volume_id");
    assert_field(publish_as(&bench, &id, |r| r.node_id.clear()), "node_id");
    let none = publish_as(&bench, &id, |r| r.volume_capability = None);
    assert_field(none, "volume_capability");
    let raw = publish_as(&bench, &id, |r| r.volume_capability = Some(block()));
    assert_field(raw, "volume_capability");
    let xfs = publish_as(&bench, &id, |r| r.volume_capability = Some(mount("xfs")));
    assert_field(xfs, "volume_capability");
    assert_code(publish(&bench, "none"), Code::NotFound);
    assert_code(publish(&bench, &foreign(&id)), Code::FailedPrecondition);
    let elsewhere = publish_as(&bench, &id, |r| r.node_id = "n2".to_owned());
    assert_code(elsewhere, Code::NotFound);
    assert!(published(&bench, &id).is_empty());

    assert_field(unpublish(&bench, "", "n1"), "volume_id");
    assert_code(unpublish(&bench, "none", "n1"), Code::Ok);
    bench.delete(&id).unwrap();
    assert_code(unpublish(&bench, &id, "n1"), Code::Ok);
    assert_code(
        unpublish(&bench, &foreign(&id), "n1"),
        Code::FailedPrecondition,
    );
}

#[test]
fn slots_are_counted_over_all_pools() {
    let bench = Bench::with(|plan| plan.config.attach_limit = Some(2));
    let a = bench.create("a");
    let other = csi::CreateVolumeRequest {
        parameters: map(&[("pool", "other")]),
        ..Bench::request("b")
    };
    let b = bench.try_create(other).unwrap().volume_id;
    let c = bench.create("c");
    publish(&bench, &a).unwrap();
    publish(&bench, &b).unwrap();
    assert_code(publish(&bench, &c), Code::ResourceExhausted);
    // Publications stay, and released slots are free.
    publish(&bench, &a).unwrap();
    unpublish(&bench, &b, "n1").unwrap();
    publish(&bench, &c).unwrap();
    assert_code(publish(&bench, &b), Code::ResourceExhausted);
}

#[test]
fn the_limit_holds_when_all_come_at_once() {
    let bench = Bench::with(|plan| plan.config.attach_limit = Some(3));
    let ids: Vec<String> = (0..8).map(|n| bench.create(&format!("v{n}"))).collect();
    let done: Vec<bool> = std::thread::scope(|scope| {
        let threads = ids
            .iter()
            .map(|id| scope.spawn(|| publish(&bench, id).is_ok()));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(done.iter().filter(|done| **done).count(), 3);
    let published = ids.iter().filter(|id| !published(&bench, id).is_empty());
    assert_eq!(published.count(), 3);
}

#[test]
fn switched_off_is_not_implemented() {
    let bench = Bench::with(|plan| plan.config.attach = false);
    let id = bench.create("a");
    assert_code(publish(&bench, &id), Code::Unimplemented);
    assert_code(unpublish(&bench, &id, "n1"), Code::Unimplemented);
}
