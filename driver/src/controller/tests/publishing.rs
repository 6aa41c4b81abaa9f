//! ControllerPublishVolume and ControllerUnpublishVolume.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;

use super::bench::*;

fn published(bench: &Bench, id: &str) -> Vec<String> {
    let request = csi::ControllerGetVolumeRequest {
        volume_id: id.to_owned(),
    };
    let response = bench.controller.controller_get_volume(request).unwrap();
    assert_eq!(response.volume.unwrap().volume_id, id);
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
    for other in [block(), mount("xfs")] {
        let refused = bench.publish_as(&id, |r| r.volume_capability = Some(other));
        assert_answer(refused, "volume_capability");
    }
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
fn slots_are_counted_over_all_pools() {
    let bench = Bench::with(|plan| plan.config.attach_limit = Some(2));
    let (a, c) = (bench.create("a"), bench.create("c"));
    let b = bench.created(create_request_with("b", "pool=other"));
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
        let threads = ids
            .iter()
            .map(|id| scope.spawn(|| bench.publish(id).is_ok()));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(done.iter().filter(|done| **done).count(), 3);
    let published = ids.iter().filter(|id| !published(&bench, id).is_empty());
    assert_eq!(published.count(), 3);
}
