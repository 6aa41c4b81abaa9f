//! ControllerPublishVolume and ControllerUnpublishVolume.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;

use super::bench::*;

fn published(bench: &Bench, id: &str) -> Vec<String> {
    let request = csi::ControllerGetVolumeRequest { volume_id: id.to_owned() };
    let response = bench.controller.controller_get_volume(request).unwrap();
    response.status.unwrap().published_node_ids
}

#[test]
fn a_volume_is_fresh_until_a_publication_is_recorded() {
    let bench = Bench::new();
    let (id, other) = (bench.create("a"), bench.create("b"));
    let wrong = bench.publish_as(&id, |request| request.node_id = "n2".to_owned());
    assert!(wrong.is_err());
    assert!(bench.record(&id).fresh, "the publication was refused");
    bench.publish(&id).unwrap();
    bench.unpublish(&id, "n1").unwrap();
    let bench = bench.restart(|_| {});
    let fresh = [&id, &other].map(|id| bench.record(id).fresh);
    assert_eq!(fresh, [false, true]);
}

#[test]
fn publications_are_recorded_and_removed() {
    let bench = Bench::new();
    let id = bench.create("a");
    bench.publish(&id).unwrap();
    bench.publish(&id).unwrap();
    assert_eq!(published(&bench, &id), ["n1"]);
    // The record outlives the process.
    let bench = bench.restart(|_| {});
    assert_eq!(published(&bench, &id), ["n1"]);
    let read_only = bench.publish_as(&id, |r| r.readonly = true);
    assert_answer(read_only, "AlreadyExists");
    let shared = Some(mount_as("", Mode::MultiNodeMultiWriter));
    let shared = bench.publish_as(&id, |r| r.volume_capability = shared);
    assert_answer(shared, "AlreadyExists");

    bench.unpublish(&id, "n2").unwrap();
    assert_eq!(published(&bench, &id), ["n1"]);
    bench.unpublish(&id, "n1").unwrap();
    bench.unpublish(&id, "n1").unwrap();
    assert!(published(&bench, &id).is_empty());
    bench.publish(&id).unwrap();
    bench.unpublish(&id, "").unwrap();
    assert!(published(&bench, &id).is_empty());
}

#[test]
fn impossible_publications_are_refused() {
    let bench = Bench::new();
    let id = bench.create("a");
    type Change = fn(&mut csi::ControllerPublishVolumeRequest);
    let cases: [(Change, &str); 8] = [
        (|r| r.volume_id.clear(), "volume_id"),
        (|r| r.node_id.clear(), "node_id"),
        (|r| r.volume_capability = None, "volume_capability"),
        (|r| r.volume_capability = Some(block()), "volume_capability"),
        (|r| r.volume_capability = Some(mount("xfs")), "volume_capability"),
        (|r| r.volume_id = "none".to_owned(), "NotFound"),
        (|r| r.node_id = "n2".to_owned(), "NotFound"),
        (|r| r.volume_id = foreign(&r.volume_id), "FailedPrecondition"),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let got = answer(bench.publish_as(&id, change));
        assert_eq!(got, expected, "case {number}");
    }
    assert!(published(&bench, &id).is_empty());

    bench.delete(&id).unwrap();
    for (id, expected) in
        [("", "volume_id"), ("none", "Ok"), (&id, "Ok"), (&foreign(&id), "FailedPrecondition")]
    {
        assert_eq!(answer(bench.unpublish(id, "n1")), expected, "{id}");
    }
}

#[test]
fn slots_are_counted_over_all_pools() {
    let bench = Bench::with(|plan| plan.config.attach_limit = Some(2));
    let (a, c) = (bench.create("a"), bench.create("c"));
    let b = bench.created(Bench::request_with("b", "pool=other"));
    bench.publish(&a).unwrap();
    bench.publish(&b).unwrap();
    assert_answer(bench.publish(&c), "ResourceExhausted");
    // Publications stay, and released slots are free.
    bench.publish(&a).unwrap();
    bench.unpublish(&b, "n1").unwrap();
    bench.publish(&c).unwrap();
    assert_answer(bench.publish(&b), "ResourceExhausted");
}

#[test]
fn the_attach_limit_holds_for_simultaneous_calls() {
    let bench = Bench::with(|plan| plan.config.attach_limit = Some(3));
    let ids: Vec<String> = (0..8).map(|n| bench.create(&format!("v{n}"))).collect();
    let done: Vec<bool> = std::thread::scope(|scope| {
        let threads = ids.iter().map(|id| scope.spawn(|| bench.publish(id).is_ok()));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(done.iter().filter(|done| **done).count(), 3);
    let published = ids.iter().filter(|id| !published(&bench, id).is_empty());
    assert_eq!(published.count(), 3);
}

#[test]
fn publishing_can_be_switched_off() {
    let bench = Bench::with(|plan| plan.config.attach = false);
    let id = bench.create("a");
    assert_answer(bench.publish(&id), "Unimplemented");
    assert_answer(bench.unpublish(&id, "n1"), "Unimplemented");
}
