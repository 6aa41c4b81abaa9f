//! Inline ephemeral volumes.

use std::path::PathBuf;
use std::slice;

use hostloop_driver::node::{Error, InlineLimits};
use hostloop_driver::storage::{self, VolumeHandle};

use super::*;
use crate::testkit::inline;

#[track_caller]
fn assert_deleted<K: TestKernel>(rig: &Rig<K>, after: &str) {
    assert_eq!(rig.node.pools.volumes(), [], "{after}");
    rig.assert_nothing_left(after);
}

pub(crate) fn an_inline_volume_lives<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let target = rig.target("p");
    for token in ["1", "2"] {
        let attributes = [
            ("size", "24Mi"),
            ("pool", "default"),
            ("csi.storage.k8s.io/ephemeral", "true"),
            ("csi.storage.k8s.io/serviceAccount.tokens", token),
        ];
        rig.publish_inline(1, "p", &attributes, false).unwrap();
    }
    let entry = rig.mount_at("p");
    assert_eq!(entry.options, "rw,nosuid,nodev,relatime".into());
    let remounts = entry.super_options.iter().any(|o| o == "errors=remount-ro");
    assert!(remounts, "{entry:?}");
    let record = rig.node.pools.volume(&VolumeHandle::Inline(inline(1)));
    assert_eq!(record.unwrap().capacity_bytes, 24 * MI);
    keep(&rig, &target, 1);
    assert!(rig.stats(inline(1), &target).unwrap()[0].total > 0);
    let size = [("size", "24Mi")];
    refused!(
        rig.publish_inline(1, "p", &size, true),
        Error::AlreadyExists(_)
    );
    let rig = rig.restarted();
    rig.publish_inline(1, "p", &[], false).unwrap();
    assert_kept(&rig, &target, 1);
    for _ in 0..2 {
        rig.unpublish(inline(1), "p").unwrap();
        assert_deleted(&rig, "unpublish");
    }
    for _ in 0..2 {
        rig.publish_inline(1, "p", &[], true).unwrap();
    }
    assert!(!target.join("data").exists(), "a new one");
    assert_read_only(&rig, &target);
    rig.unpublish(inline(1), "p").unwrap();
    assert_deleted(&rig, "unpublish of a read-only one");
}

/// A pod's author may request a size and a pool, and nothing else.
pub(crate) fn a_failed_inline_volume_leaves_nothing<K: TestKernel>() {
    let rig = Rig::<K>::new();
    for (key, value) in [
        ("size", "none"),
        ("pool", "other"),
        ("mkfsOptions", "-d etc"),
    ] {
        let refused = rig.publish_inline(1, "p", &[(key, value)], false);
        let Err(Error::Invalid(invalid)) = refused else {
            panic!("{key}={value}: {refused:?}");
        };
        assert_eq!(invalid.field, format!("volume_context[{key:?}]"));
        assert_deleted(&rig, value);
    }
    let too_large = rig.publish_inline(1, "p", &[("size", "2Gi")], false);
    refused!(too_large, Error::OutOfRange(_));
    assert_deleted(&rig, "a size above the limit");
    let suid = with_flags(mount("ext4"), &["suid"]);
    let suid = rig.publish(inline(1), "a", "p", &suid, false);
    refused!(suid, Error::Invalid(_));
    assert_deleted(&rig, "a mount flag");
    assert_eq!(rig.kernel.changes(), 0);
    std::fs::write(rig.target("p"), "in the way").unwrap();
    rig.publish_inline(1, "p", &[], false).unwrap_err();
    assert_eq!(rig.node.pools.volumes(), []);
}

/// Flags are for classes, which administrators write. None is taken, not even one that each volume
/// has, and none changes a mount that is there.
pub(crate) fn an_inline_volume_takes_no_mount_flag<K: TestKernel>() {
    let rig = Rig::<K>::new();
    for published in [false, true] {
        if published {
            rig.publish_inline(1, "p", &[], false).unwrap();
        }
        let before = rig.kernel.changes();
        for flag in ["suid", "noatime", "ro", "nosuid"] {
            let flagged = with_flags(mount("ext4"), &[flag]);
            let refused = rig.publish(inline(1), "a", "p", &flagged, false);
            let Err(Error::Invalid(invalid)) = refused else {
                panic!("{flag}: {refused:?}");
            };
            assert_eq!(invalid.field, "volume_capability.mount.mount_flags");
        }
        assert_eq!(rig.kernel.changes(), before);
        assert_eq!(rig.node.pools.volumes().len(), usize::from(published));
    }
    rig.unpublish(inline(1), "p").unwrap();
    assert_deleted(&rig, "unpublish");
}

fn limited<K: TestKernel>(limits: InlineLimits) -> Rig<K> {
    let mut configs = Configs::default();
    configs.node.inline = limits;
    Rig::over(Rig::site(&["default=DIR/pool"]), configs)
}

pub(crate) fn inline_limits_hold_for_what_the_previous_process_made<K: TestKernel>() {
    let rig = limited::<K>(InlineLimits {
        size: 8 * MI,
        volumes: 2,
        total: 16 * MI,
    });
    // A volume without a requested size gets the largest allowed size.
    for number in [1, 1, 2] {
        rig.publish_inline(number, &number.to_string(), &[], false)
            .unwrap();
    }
    let rig = rig.restarted();
    let third = || rig.publish_inline(3, "3", &[("size", "8Mi")], false);
    refused!(third(), Error::ResourceExhausted(_));
    assert!(!rig.target("3").exists());
    rig.unpublish(inline(1), "1").unwrap();
    third().unwrap();
}

pub(crate) fn many_inline_volumes_at_once_are_no_more_than_allowed<K: TestKernel>() {
    let rig = limited::<K>(InlineLimits {
        volumes: 5,
        ..InlineLimits::default()
    });
    let rig = &rig;
    let publish =
        |number: usize| rig.publish_inline(number, &number.to_string(), &[("size", "1Mi")], false);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..20)
            .map(|number| scope.spawn(move || publish(number)))
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    for refused in answers.iter().filter(|answer| answer.is_err()) {
        refused!(refused, Error::ResourceExhausted(_));
    }
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 5);
    assert_eq!(rig.node.pools.inline_volumes().len(), 5);
}

/// Publishes an inline volume of a pod of this namespace.
fn publish_of<K: TestKernel>(rig: &Rig<K>, number: usize, namespace: &str) -> Result<(), Error> {
    let of = ("csi.storage.k8s.io/pod.namespace", namespace);
    rig.publish_inline(number, &number.to_string(), &[("size", "1Mi"), of], false)
}

/// Also of those that a previous process made.
pub(crate) fn one_namespace_has_half_of_the_inline_volumes<K: TestKernel>() {
    let rig = limited::<K>(InlineLimits {
        volumes: 4,
        ..InlineLimits::default()
    });
    for number in [1, 2] {
        publish_of(&rig, number, "a").unwrap();
    }
    let rig = rig.restarted();
    let refused = publish_of(&rig, 3, "a");
    refused!(refused, Error::ResourceExhausted(_));
    let why = format!("{refused:?}");
    assert!(why.contains("the pod's namespace"), "{why}");
    for number in [3, 4] {
        publish_of(&rig, number, "b").unwrap();
    }
    refused!(publish_of(&rig, 5, "c"), Error::ResourceExhausted(_));
    rig.unpublish(inline(1), "1").unwrap();
    publish_of(&rig, 5, "a").unwrap();
}

/// Publishes an inline volume at a target path as kubelet names it.
fn publish_in<K: TestKernel>(rig: &Rig<K>, number: usize, pool: &str) -> (usize, String) {
    let target = format!("{number}/volumes/plugin/name/mount");
    std::fs::create_dir_all(rig.target(&target).parent().unwrap()).unwrap();
    let attributes = [("size", "1Mi"), ("pool", pool)];
    rig.publish_inline(number, &target, &attributes, false)
        .unwrap();
    (number, target)
}

/// An inline handle names no pool, so any missing pool may have the record.
pub(crate) fn a_pod_with_an_inline_volume_leaves_while_a_pool_is_missing<K: TestKernel>() {
    let site = Rig::<K>::site(&["one=DIR/one,inline", "two=DIR/two,inline"]);
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
        rig.assert_devices(1);
    }
    // This mount does not belong to a missing pool.
    refused!(
        rig.unpublish(inline(5), &stays),
        Error::Pool(storage::Error::Unavailable { .. })
    );
    assert_eq!(rig.mounted(), slice::from_ref(&rig.target(&stays)));
    rig.unpublish(inline(4), &stays).unwrap();
    rig.die();
    std::fs::rename(&away, &two).unwrap();
    let rig = rig.restarted();
    let left = rig.node.pools.volumes();
    assert_eq!(left, [], "deleted when their pool is back");
}

/// Kubelet does not call again for a deleted pod.
pub(crate) fn an_inline_volume_that_can_not_be_deleted_is_deleted_later<K: TestKernel>() {
    let rig = Rig::<K>::new();
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

pub(crate) fn an_administrator_opens_pools_to_inline_volumes<K: TestKernel>() {
    for (specs, open) in [
        (["one=DIR/one", "two=DIR/two"], &["one"][..]),
        (["one=DIR/one,inline", "two=DIR/two"], &["one"]),
        (["one=DIR/one", "two=DIR/two,inline"], &["two"]),
        (
            ["one=DIR/one,inline", "two=DIR/two,inline"],
            &["one", "two"],
        ),
    ] {
        let rig = Rig::<K>::over(Rig::site(&specs), Configs::default());
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
        let unnamed = made
            .iter()
            .find(|v| v.inline.as_deref() == Some(&*inline(3)))
            .unwrap();
        assert_eq!(pools.name_of(unnamed.id.pool()).unwrap(), open[0]);
    }
}
