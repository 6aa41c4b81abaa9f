//! Inline volumes: limits, pools, and pools that are missing.

use std::path::PathBuf;
use std::slice;

use super::Rig;
use crate::kernel::Kernel;
use crate::node::{Error, InlineLimits};
use crate::storage;
use crate::testkit::*;

fn limited(limits: InlineLimits) -> Rig {
    let mut configs = Configs::default();
    configs.node.inline = limits;
    Rig::over(Rig::site(&["default=DIR/pool"]), configs)
}

#[test]
fn limits_hold_for_what_the_previous_process_made() {
    let rig = limited(InlineLimits { size: 8 * MI, volumes: 2, total: 16 * MI });
    // A volume without a requested size gets the largest allowed size.
    for number in [1, 1, 2] {
        rig.publish_inline(number, &number.to_string(), &[], false).unwrap();
    }
    let rig = rig.restarted();
    let third = || rig.publish_inline(3, "3", &[("size", "8Mi")], false);
    refused!(third(), Error::ResourceExhausted(_));
    assert!(!rig.target("3").exists());
    rig.unpublish(inline(1), "1").unwrap();
    third().unwrap();
}

#[test]
fn many_at_once_are_no_more_than_allowed() {
    let rig = limited(InlineLimits { volumes: 5, ..InlineLimits::default() });
    let publish = |number: usize| {
        let target = number.to_string();
        rig.publish_inline(number, &target, &[("size", "1Mi")], false)
    };
    let published = std::thread::scope(|scope| {
        let calls: Vec<_> =
            (0..20).map(|number| scope.spawn(move || publish(number).is_ok())).collect();
        let answers = calls.into_iter().map(|call| call.join().unwrap());
        answers.filter(|published| *published).count()
    });
    assert_eq!(published, 5);
    assert_eq!(rig.node.pools.inline_volumes().len(), 5);
}

/// Publishes an inline volume at a target path as kubelet names it.
fn publish_in(rig: &Rig, number: usize, pool: &str) -> (usize, String) {
    let target = format!("{number}/volumes/plugin/name/mount");
    std::fs::create_dir_all(rig.target(&target).parent().unwrap()).unwrap();
    let attributes = [("size", "1Mi"), ("pool", pool)];
    rig.publish_inline(number, &target, &attributes, false).unwrap();
    (number, target)
}

/// An inline handle names no pool, so any missing pool may have the record.
#[test]
fn a_pod_leaves_while_a_pool_is_missing() {
    let site = Rig::site(&["one=DIR/one,inline", "two=DIR/two,inline"]);
    let mut rig = Rig::over(site, Configs::default());
    let deleted = publish_in(&rig, 1, "one");
    let mounted = publish_in(&rig, 2, "two");
    let unmounted = publish_in(&rig, 3, "two");
    let (_, stays) = publish_in(&rig, 4, "one");
    // The driver was killed before it removed the target.
    rig.unpublish(inline(1), &deleted.1).unwrap();
    std::fs::create_dir(rig.target(&deleted.1)).unwrap();
    rig.kernel.unmount(&rig.target(&unmounted.1)).unwrap();
    rig.die();
    let (two, away) = (rig.root().join("two"), rig.root().join("away"));
    std::fs::rename(&two, &away).unwrap();

    rig.restart();
    for _ in 0..2 {
        for (number, target) in [&deleted, &mounted, &unmounted] {
            rig.unpublish(inline(*number), target).unwrap();
            assert!(!rig.target(target).exists(), "{number}");
        }
        assert_eq!(rig.mounted(), slice::from_ref(&rig.target(&stays)));
        assert_eq!(rig.devices().len(), 1);
    }
    // This mount does not belong to a missing pool.
    refused!(rig.unpublish(inline(5), &stays), Error::Pool(storage::Error::Unavailable { .. }));
    assert_eq!(rig.mounted(), slice::from_ref(&rig.target(&stays)));
    rig.unpublish(inline(4), &stays).unwrap();
    rig.die();
    std::fs::rename(&away, &two).unwrap();
    let rig = rig.restarted();
    let left = rig.node.pools.volumes();
    assert_eq!(left, [], "deleted when their pool is back");
}

/// Kubelet does not call again for a deleted pod.
#[test]
fn a_volume_that_can_not_be_deleted_is_deleted_later() {
    let rig = Rig::new();
    let (_, target) = publish_in(&rig, 1, "default");
    let id = rig.node.pools.volumes()[0].id;
    let trash = rig.root().join("pool/trash").join(id.to_string());
    std::fs::create_dir(&trash).unwrap();
    std::fs::write(trash.join("in the way"), "").unwrap();
    rig.unpublish(inline(1), &target).unwrap();
    assert!(!rig.target(&target).exists());
    assert_eq!(rig.mounted(), [] as [PathBuf; 0]);
    assert_eq!(rig.node.pools.volumes().len(), 1);
    assert_eq!(rig.restarted().node.pools.volumes(), []);
}

#[test]
fn an_administrator_opens_pools() {
    for (specs, open) in [
        (["one=DIR/one", "two=DIR/two"], &["one"][..]),
        (["one=DIR/one,inline", "two=DIR/two"], &["one"]),
        (["one=DIR/one", "two=DIR/two,inline"], &["two"]),
        (["one=DIR/one,inline", "two=DIR/two,inline"], &["one", "two"]),
    ] {
        let rig = Rig::over(Rig::site(&specs), Configs::default());
        let pools = &rig.node.pools;
        assert_eq!(pools.inline_pools(), open);
        for (number, pool) in [(1, "one"), (2, "two")] {
            let attributes = [("size", "1Mi"), ("pool", pool)];
            let published = rig.publish_inline(number, pool, &attributes, false);
            assert_eq!(published.is_ok(), open.contains(&pool), "{open:?} {pool}");
        }
        let size = [("size", "1Mi")];
        rig.publish_inline(3, "unnamed", &size, false).unwrap();
        let made = pools.inline_volumes();
        let unnamed = made.iter().find(|v| v.inline == Some(inline(3))).unwrap();
        assert_eq!(pools.name_of(unnamed.id.pool()).unwrap(), open[0]);
    }
}
