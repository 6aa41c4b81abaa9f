//! Inline volumes: what a pod may request, and how much of it.

use std::path::{Path, PathBuf};
use std::slice;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::AccessType;
use hostloop_proto::csi::volume_capability::access_mode::Mode::SingleNodeWriter;

use super::bench::*;
use crate::node::{Error, InlineLimits, Node, Result};
use crate::pool::{self, PoolSpec, Pools};
use crate::sys::Kernel;

fn handle(number: usize) -> String {
    format!("csi-{number:064x}")
}

fn request(
    bench: &Bench,
    number: usize,
    attributes: &[(&str, &str)],
) -> csi::NodePublishVolumeRequest {
    let attributes = attributes.iter();
    csi::NodePublishVolumeRequest {
        volume_id: handle(number),
        target_path: text(&bench.target(&number.to_string())),
        volume_capability: Some(mount("ext4", SingleNodeWriter)),
        volume_context: attributes
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        ..Default::default()
    }
}

fn publish(bench: &Bench, node: &Node, number: usize, attributes: &[(&str, &str)]) -> Result<()> {
    let request = request(bench, number, attributes);
    node.node_publish_volume(request).map(drop)
}

/// The same node with other limits for inline volumes.
fn limited(bench: &Bench, inline: InlineLimits) -> Node {
    let config = crate::node::Config {
        inline,
        ..bench.node.config.clone()
    };
    Node::new(bench.node.pools.clone(), config)
}

#[test]
fn what_a_pod_may_not_ask_for_changes_nothing() {
    let bench = Bench::new();
    for (key, value) in [
        ("mkfsOptions", "-d etc"),
        ("mkfsOptions", "-S -O ^has_journal -e panic"),
        ("mkfsOptions", "-m 0"),
        ("provisioning", "thick"),
        ("directIO", "false"),
        ("pool", "other"),
        ("colour", "blue"),
    ] {
        let refused = publish(&bench, &bench.node, 1, &[("size", "8Mi"), (key, value)]);
        let Err(Error::Invalid(invalid)) = refused else {
            panic!("{key}={value}: {refused:?}");
        };
        assert_eq!(invalid.field, format!("volume_context[{key:?}]"));
    }
    let mut suid = request(&bench, 1, &[("size", "8Mi")]);
    if let Some(AccessType::Mount(mount)) = suid
        .volume_capability
        .as_mut()
        .and_then(|c| c.access_type.as_mut())
    {
        mount.mount_flags = vec!["suid".to_owned()];
    }
    let refused = bench.node.node_publish_volume(suid);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(bench.kernel.effects(), []);
    assert_eq!(bench.node.pools.volumes(), []);
    assert!(!bench.target("1").exists());
}

#[test]
fn they_are_mounted_without_devices_and_set_user_ids() {
    let bench = Bench::new();
    publish(
        &bench,
        &bench.node,
        1,
        &[("size", "8Mi"), ("pool", "default")],
    )
    .unwrap();
    let entry = bench.mount_at("1");
    assert_eq!(entry.options, ["rw", "nosuid", "nodev", "relatime"]);
    assert!(
        entry
            .super_options
            .contains(&"errors=remount-ro".to_owned())
    );
}

#[test]
fn size_number_and_sum_are_limited() {
    let bench = Bench::new();
    let node = limited(
        &bench,
        InlineLimits {
            size: 8 * MI,
            volumes: 3,
            total: 20 * MI,
        },
    );
    let large = publish(&bench, &node, 1, &[("size", "9Mi")]);
    assert!(matches!(large, Err(Error::OutOfRange(_))), "{large:?}");
    assert_eq!(bench.kernel.effects(), []);
    // A volume without a requested size gets the largest allowed size.
    for number in [1, 2] {
        publish(&bench, &node, number, &[]).unwrap();
        publish(&bench, &node, number, &[]).expect("it is there already");
    }
    let sum = publish(&bench, &node, 3, &[("size", "5Mi")]);
    assert!(matches!(sum, Err(Error::ResourceExhausted(_))), "{sum:?}");
    publish(&bench, &node, 3, &[("size", "4Mi")]).unwrap();
    let number = publish(&bench, &node, 4, &[("size", "1Mi")]);
    assert!(
        matches!(number, Err(Error::ResourceExhausted(_))),
        "{number:?}"
    );
    assert!(!bench.target("4").exists());
    // A restarted driver finds them in the pool and counts them too.
    let again = limited(&bench, node.config.inline.clone());
    let number = publish(&bench, &again, 4, &[("size", "1Mi")]);
    assert!(
        matches!(number, Err(Error::ResourceExhausted(_))),
        "{number:?}"
    );
    let unpublish = csi::NodeUnpublishVolumeRequest {
        volume_id: handle(1),
        target_path: text(&bench.target("1")),
    };
    node.node_unpublish_volume(unpublish).unwrap();
    publish(&bench, &node, 4, &[("size", "8Mi")]).unwrap();
}

#[test]
fn many_at_once_are_no_more_than_allowed() {
    let bench = Bench::new();
    let node = limited(
        &bench,
        InlineLimits {
            volumes: 5,
            ..InlineLimits::default()
        },
    );
    let published = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..20)
            .map(|number| {
                let (bench, node) = (&bench, &node);
                scope.spawn(move || publish(bench, node, number, &[("size", "1Mi")]))
            })
            .collect();
        let answers = asking.into_iter().map(|asked| asked.join().unwrap());
        answers.filter(Result::is_ok).count()
    });
    assert_eq!(published, 5);
    assert_eq!(node.pools.inline_volumes().len(), 5);
}

fn spec(bench: &Bench, name: &str, inline: bool) -> PoolSpec {
    PoolSpec {
        name: name.to_owned(),
        path: bench.dir.path().join(name),
        image_bytes: None,
        preallocate: false,
        wipe: false,
        capacity_bytes: None,
        inline,
    }
}

/// Where kubelet has it.
fn target(bench: &Bench, number: usize) -> PathBuf {
    bench.target(&format!("{number}/volumes/plugin/name/mount"))
}

fn publish_in(bench: &Bench, node: &Node, number: usize, pool: &str) -> PathBuf {
    let path = target(bench, number);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let request = csi::NodePublishVolumeRequest {
        target_path: text(&path),
        ..request(bench, number, &[("size", "1Mi"), ("pool", pool)])
    };
    node.node_publish_volume(request).unwrap();
    path
}

fn unpublish(node: &Node, number: usize, target: &Path) -> Result<()> {
    let request = csi::NodeUnpublishVolumeRequest {
        volume_id: handle(number),
        target_path: text(target),
    };
    node.node_unpublish_volume(request).map(drop)
}

/// An inline handle names no pool, so any missing pool may have the record.
#[test]
fn a_pod_leaves_while_a_pool_is_missing() {
    let bench = Bench::new();
    let start = || {
        let specs = [spec(&bench, "one", true), spec(&bench, "two", true)];
        let options = bench.node.pools.options().clone();
        let pools = Pools::open(&specs, options, bench.kernel.clone()).unwrap();
        Node::new(pools, bench.node.config.clone())
    };
    let node = start();
    let deleted = publish_in(&bench, &node, 1, "one");
    let mounted = publish_in(&bench, &node, 2, "two");
    let unmounted = publish_in(&bench, &node, 3, "two");
    let stays = publish_in(&bench, &node, 4, "one");
    // A driver that was killed before it removed the target.
    unpublish(&node, 1, &deleted).unwrap();
    std::fs::create_dir(&deleted).unwrap();
    bench.kernel.unmount(&unmounted).unwrap();
    drop(node);
    let (two, away) = (bench.dir.path().join("two"), bench.dir.path().join("away"));
    std::fs::rename(&two, &away).unwrap();

    let node = start();
    for _ in 0..2 {
        for (number, target) in [(1, &deleted), (2, &mounted), (3, &unmounted)] {
            unpublish(&node, number, target).unwrap();
            assert!(!target.exists(), "{number}");
        }
        assert_eq!(bench.mounted(), slice::from_ref(&stays));
        assert_eq!(bench.attached(), 1);
    }
    // That is none of the missing pool's.
    let refused = unpublish(&node, 5, &stays);
    let unavailable = matches!(refused, Err(Error::Pool(pool::Error::Unavailable { .. })));
    assert!(unavailable, "{refused:?}");
    assert_eq!(bench.mounted(), slice::from_ref(&stays));
    unpublish(&node, 4, &stays).unwrap();
    drop(node);
    std::fs::rename(&away, &two).unwrap();
    assert_eq!(
        start().pools.volumes(),
        [],
        "deleted when their pool is back"
    );
}

/// Kubelet does not call again for a pod that is gone.
#[test]
fn a_volume_that_can_not_be_deleted_is_deleted_later() {
    let mut bench = Bench::new();
    let path = publish_in(&bench, &bench.node, 1, "default");
    let id = bench.node.pools.volumes()[0].id;
    let trash = bench.dir.path().join("pool/trash").join(id.to_string());
    std::fs::create_dir(&trash).unwrap();
    std::fs::write(trash.join("in the way"), "").unwrap();
    unpublish(&bench.node, 1, &path).unwrap();
    assert!(!path.exists());
    assert_eq!(bench.mounted(), [] as [PathBuf; 0]);
    assert_eq!(bench.node.pools.volumes().len(), 1);
    bench.restart();
    assert_eq!(bench.node.pools.volumes(), []);
}

#[test]
fn an_administrator_opens_pools() {
    let bench = Bench::new();
    let spec = |name: &str, inline| spec(&bench, name, inline);
    for (first, second, open) in [
        (false, false, &["one"][..]),
        (true, false, &["one"]),
        (false, true, &["two"]),
        (true, true, &["one", "two"]),
    ] {
        let specs = [spec("one", first), spec("two", second)];
        let options = bench.node.pools.options().clone();
        let pools = Pools::open(&specs, options, bench.kernel.clone()).unwrap();
        assert_eq!(pools.inline_pools(), open);
        let node = Node::new(pools, bench.node.config.clone());
        for (number, pool) in [(1, "one"), (2, "two")] {
            let published = publish(&bench, &node, number, &[("size", "1Mi"), ("pool", pool)]);
            assert_eq!(published.is_ok(), open.contains(&pool), "{open:?} {pool}");
        }
        publish(&bench, &node, 3, &[("size", "1Mi")]).unwrap();
        let made = node.pools.inline_volumes();
        let unnamed = made.iter().find(|v| v.inline == Some(handle(3))).unwrap();
        let pool = node.pools.name_of(unnamed.id.pool()).unwrap();
        assert_eq!(pool, open[0]);
        for number in 1..=3 {
            let unpublish = csi::NodeUnpublishVolumeRequest {
                volume_id: handle(number),
                target_path: text(&bench.target(&number.to_string())),
            };
            node.node_unpublish_volume(unpublish).unwrap();
        }
    }
}
