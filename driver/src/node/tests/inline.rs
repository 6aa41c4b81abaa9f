//! Inline volumes: what a pod may request, and how much.

use std::path::{Path, PathBuf};
use std::slice;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::AccessType;
use hostloop_proto::csi::volume_capability::access_mode::Mode::SingleNodeWriter;

use super::Rig;
use crate::kernel::Kernel;
use crate::node::{Error, InlineLimits, Node, Result};
use crate::storage::{self, PoolSpec, Pools};
use crate::testkit::*;

fn handle(number: usize) -> String {
    format!("csi-{number:064x}")
}

fn request(rig: &Rig, number: usize, attributes: &[(&str, &str)]) -> csi::NodePublishVolumeRequest {
    let attributes = attributes.iter();
    csi::NodePublishVolumeRequest {
        volume_id: handle(number),
        target_path: text(&rig.target(&number.to_string())),
        volume_capability: Some(mount_as("ext4", SingleNodeWriter)),
        volume_context: attributes
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        ..Default::default()
    }
}

fn publish(rig: &Rig, node: &Node, number: usize, attributes: &[(&str, &str)]) -> Result<()> {
    let request = request(rig, number, attributes);
    node.node_publish_volume(request).map(drop)
}

/// The same node with other limits for inline volumes.
fn limited(rig: &Rig, inline: InlineLimits) -> Node {
    let config = crate::node::Config {
        inline,
        ..rig.node.config.clone()
    };
    Node::new(rig.node.pools.clone(), config)
}

#[test]
fn what_a_pod_may_not_ask_for_changes_nothing() {
    let rig = Rig::new();
    for (key, value) in [
        ("mkfsOptions", "-d etc"),
        ("mkfsOptions", "-S -O ^has_journal -e panic"),
        ("mkfsOptions", "-m 0"),
        ("provisioning", "thick"),
        ("directIO", "false"),
        ("pool", "other"),
        ("colour", "blue"),
    ] {
        let refused = publish(&rig, &rig.node, 1, &[("size", "8Mi"), (key, value)]);
        let Err(Error::Invalid(invalid)) = refused else {
            panic!("{key}={value}: {refused:?}");
        };
        assert_eq!(invalid.field, format!("volume_context[{key:?}]"));
    }
    let mut suid = request(&rig, 1, &[("size", "8Mi")]);
    if let Some(AccessType::Mount(mount)) = suid
        .volume_capability
        .as_mut()
        .and_then(|c| c.access_type.as_mut())
    {
        mount.mount_flags = vec!["suid".to_owned()];
    }
    refused!(rig.node.node_publish_volume(suid), Error::Invalid(_));
    assert_eq!(rig.kernel.effects(), []);
    assert_eq!(rig.node.pools.volumes(), []);
    assert!(!rig.target("1").exists());
}

#[test]
fn they_are_mounted_without_devices_and_set_user_ids() {
    let rig = Rig::new();
    publish(&rig, &rig.node, 1, &[("size", "8Mi"), ("pool", "default")]).unwrap();
    let entry = rig.mount_at("1");
    assert_eq!(entry.options, ["rw", "nosuid", "nodev", "relatime"]);
    assert!(
        entry
            .super_options
            .contains(&"errors=remount-ro".to_owned())
    );
}

#[test]
fn size_number_and_sum_are_limited() {
    let rig = Rig::new();
    let node = limited(
        &rig,
        InlineLimits {
            size: 8 * MI,
            volumes: 3,
            total: 20 * MI,
        },
    );
    refused!(
        publish(&rig, &node, 1, &[("size", "9Mi")]),
        Error::OutOfRange(_)
    );
    assert_eq!(rig.kernel.effects(), []);
    // A volume without a requested size gets the largest allowed size.
    for number in [1, 2] {
        publish(&rig, &node, number, &[]).unwrap();
        publish(&rig, &node, number, &[]).expect("it is there already");
    }
    refused!(
        publish(&rig, &node, 3, &[("size", "5Mi")]),
        Error::ResourceExhausted(_)
    );
    publish(&rig, &node, 3, &[("size", "4Mi")]).unwrap();
    refused!(
        publish(&rig, &node, 4, &[("size", "1Mi")]),
        Error::ResourceExhausted(_)
    );
    assert!(!rig.target("4").exists());
    // A restarted driver finds them in the pool and counts them too.
    let again = limited(&rig, node.config.inline.clone());
    refused!(
        publish(&rig, &again, 4, &[("size", "1Mi")]),
        Error::ResourceExhausted(_)
    );
    let unpublish = csi::NodeUnpublishVolumeRequest {
        volume_id: handle(1),
        target_path: text(&rig.target("1")),
    };
    node.node_unpublish_volume(unpublish).unwrap();
    publish(&rig, &node, 4, &[("size", "8Mi")]).unwrap();
}

#[test]
fn many_at_once_are_no_more_than_allowed() {
    let rig = Rig::new();
    let node = limited(
        &rig,
        InlineLimits {
            volumes: 5,
            ..InlineLimits::default()
        },
    );
    let published = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..20)
            .map(|number| {
                let (rig, node) = (&rig, &node);
                scope.spawn(move || publish(rig, node, number, &[("size", "1Mi")]))
            })
            .collect();
        let answers = asking.into_iter().map(|asked| asked.join().unwrap());
        answers.filter(Result::is_ok).count()
    });
    assert_eq!(published, 5);
    assert_eq!(node.pools.inline_volumes().len(), 5);
}

fn spec(rig: &Rig, name: &str, inline: bool) -> PoolSpec {
    PoolSpec {
        name: name.to_owned(),
        path: rig.root().join(name),
        image_bytes: None,
        preallocate: false,
        wipe: false,
        capacity_bytes: None,
        inline,
    }
}

/// The target path that kubelet uses.
fn target(rig: &Rig, number: usize) -> PathBuf {
    rig.target(&format!("{number}/volumes/plugin/name/mount"))
}

fn publish_in(rig: &Rig, node: &Node, number: usize, pool: &str) -> PathBuf {
    let path = target(rig, number);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let request = csi::NodePublishVolumeRequest {
        target_path: text(&path),
        ..request(rig, number, &[("size", "1Mi"), ("pool", pool)])
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
    let rig = Rig::new();
    let start = || {
        let specs = [spec(&rig, "one", true), spec(&rig, "two", true)];
        let options = rig.node.pools.options().clone();
        let pools = Pools::open(&specs, options, rig.kernel.clone()).unwrap();
        Node::new(pools, rig.node.config.clone())
    };
    let node = start();
    let deleted = publish_in(&rig, &node, 1, "one");
    let mounted = publish_in(&rig, &node, 2, "two");
    let unmounted = publish_in(&rig, &node, 3, "two");
    let stays = publish_in(&rig, &node, 4, "one");
    // The driver was killed before it removed the target.
    unpublish(&node, 1, &deleted).unwrap();
    std::fs::create_dir(&deleted).unwrap();
    rig.kernel.unmount(&unmounted).unwrap();
    drop(node);
    let (two, away) = (rig.root().join("two"), rig.root().join("away"));
    std::fs::rename(&two, &away).unwrap();

    let node = start();
    for _ in 0..2 {
        for (number, target) in [(1, &deleted), (2, &mounted), (3, &unmounted)] {
            unpublish(&node, number, target).unwrap();
            assert!(!target.exists(), "{number}");
        }
        assert_eq!(rig.mounted(), slice::from_ref(&stays));
        assert_eq!(rig.attached(), 1);
    }
    // This mount does not belong to a missing pool.
    refused!(
        unpublish(&node, 5, &stays),
        Error::Pool(storage::Error::Unavailable { .. })
    );
    assert_eq!(rig.mounted(), slice::from_ref(&stays));
    unpublish(&node, 4, &stays).unwrap();
    drop(node);
    std::fs::rename(&away, &two).unwrap();
    assert_eq!(
        start().pools.volumes(),
        [],
        "deleted when their pool is back"
    );
}

/// Kubelet does not call again for a deleted pod.
#[test]
fn a_volume_that_can_not_be_deleted_is_deleted_later() {
    let mut rig = Rig::new();
    let path = publish_in(&rig, &rig.node, 1, "default");
    let id = rig.node.pools.volumes()[0].id;
    let trash = rig.root().join("pool/trash").join(id.to_string());
    std::fs::create_dir(&trash).unwrap();
    std::fs::write(trash.join("in the way"), "").unwrap();
    unpublish(&rig.node, 1, &path).unwrap();
    assert!(!path.exists());
    assert_eq!(rig.mounted(), [] as [PathBuf; 0]);
    assert_eq!(rig.node.pools.volumes().len(), 1);
    rig.restart();
    assert_eq!(rig.node.pools.volumes(), []);
}

#[test]
fn an_administrator_opens_pools() {
    let rig = Rig::new();
    let spec = |name: &str, inline| spec(&rig, name, inline);
    for (first, second, open) in [
        (false, false, &["one"][..]),
        (true, false, &["one"]),
        (false, true, &["two"]),
        (true, true, &["one", "two"]),
    ] {
        let specs = [spec("one", first), spec("two", second)];
        let options = rig.node.pools.options().clone();
        let pools = Pools::open(&specs, options, rig.kernel.clone()).unwrap();
        assert_eq!(pools.inline_pools(), open);
        let node = Node::new(pools, rig.node.config.clone());
        for (number, pool) in [(1, "one"), (2, "two")] {
            let published = publish(&rig, &node, number, &[("size", "1Mi"), ("pool", pool)]);
            assert_eq!(published.is_ok(), open.contains(&pool), "{open:?} {pool}");
        }
        publish(&rig, &node, 3, &[("size", "1Mi")]).unwrap();
        let made = node.pools.inline_volumes();
        let unnamed = made.iter().find(|v| v.inline == Some(handle(3))).unwrap();
        let pool = node.pools.name_of(unnamed.id.pool()).unwrap();
        assert_eq!(pool, open[0]);
        for number in 1..=3 {
            let unpublish = csi::NodeUnpublishVolumeRequest {
                volume_id: handle(number),
                target_path: text(&rig.target(&number.to_string())),
            };
            node.node_unpublish_volume(unpublish).unwrap();
        }
    }
}
