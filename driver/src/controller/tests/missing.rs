//! While a pool is missing, RPCs about its objects answer UNAVAILABLE: the objects are not deleted,
//! and a retry must not create them again.

use std::slice;

use hostloop_proto::csi;
use hostloop_proto::csi::VolumeHealthErrorType::Inaccessible;

use super::bench::*;
use crate::health;
use crate::testkit::{code, inline};

/// Restarts the driver without the pool "default".
fn without_default(bench: Bench) -> Bench {
    bench.restart(|dir| std::fs::rename(dir.join("default"), dir.join("away")).unwrap())
}

/// An inline volume needs only the pool that it names; other pools may be missing.
#[test]
fn an_inline_volume_needs_only_its_own_pool() {
    let bench = without_default(Bench::new());
    for _ in 0..2 {
        bench
            .publish_inline(1, "a", &[("pool", "other")], false)
            .unwrap();
    }
    let unnamed = code(bench.publish_inline(2, "b", &[], false));
    assert_eq!(unnamed, Err(tonic::Code::Unavailable));
    assert_eq!(bench.volume_ids(), [inline(1)]);
    bench.unpublish_at(inline(1), &bench.target("a")).unwrap();
    assert!(bench.volume_ids().is_empty());
}

#[test]
fn objects_of_a_missing_pool_are_unavailable() {
    let bench = Bench::new();
    let (a, b) = (bench.create("a"), bench.create("b"));
    let other = create_request_with("c", "pool=other");
    let c = bench.created(other.clone());
    let s = bench.snapshot("s", &a).unwrap().snapshot_id;
    let t = bench.snapshot("t", &c).unwrap().snapshot_id;
    let bench = without_default(bench);

    let controller = &bench.controller;
    // A caller takes a volume that a health list leaves out for healthy.
    let healths = csi::ControllerListVolumeHealthRequest::default();
    let healths = controller.controller_list_volume_health(healths);
    for (call, got) in [
        ("create", answer(bench.try_create(create_request("a")))),
        ("delete", answer(bench.delete(&b))),
        ("snapshot", answer(bench.snapshot("u", &a))),
        ("list one snapshot", answer(bench.snapshot_ids(&s, ""))),
        ("list by volume", answer(bench.snapshot_ids("", &a))),
        ("list health", answer(healths)),
        ("unpublish", answer(bench.unpublish(&a, ""))),
    ] {
        assert_eq!(got, "Unavailable", "{call}");
    }
    // Lists contain the objects of open pools and silently omit the rest.
    assert_eq!(bench.volume_ids(), slice::from_ref(&c));
    for id in ["", &t] {
        let listed = bench.snapshot_ids(id, "").unwrap();
        assert_eq!(listed, slice::from_ref(&t));
    }
    // A missing pool has no capacity: the scheduler must choose another node.
    let (available, largest, _) = bench.capacity(|_| {}).unwrap();
    assert_eq!((available, largest), (0, 0));
    let gone = [(Inaccessible, "PoolGone".to_owned())];
    assert_eq!(bench.health(&a).unwrap(), gone);
    let problems = health::storage(&controller.pools);
    let problems: Vec<_> = problems.iter().map(|p| (&p.pool[..], p.reason)).collect();
    assert_eq!(problems, [("default", "PoolMissing")]);

    // The other pool still works.
    assert_eq!(bench.created(other), c);
    bench.delete_snapshot(&t).unwrap();
    bench.delete(&c).unwrap();
    bench.delete("none").unwrap();

    let bench = bench.restart(|dir| {
        let _ = std::fs::remove_dir(dir.join("default"));
        std::fs::rename(dir.join("away"), dir.join("default")).unwrap();
    });
    assert_eq!(bench.volume_ids(), [a, b]);
}
