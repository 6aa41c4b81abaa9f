//! Inline volumes: what a pod may ask for, and how much of it.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::AccessType;
use hostloop_proto::csi::volume_capability::access_mode::Mode::SingleNodeWriter;

use super::bench::*;
use crate::node::{Error, InlineLimits, Node, Result};
use crate::pool::{PoolSpec, Pools};

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

/// The node with other limits.
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
    // One that names no size is as large as is allowed.
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
    // Also by a driver that started anew, which finds them in the pool.
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

#[test]
fn an_administrator_opens_pools() {
    let bench = Bench::new();
    let spec = |name: &str, inline| PoolSpec {
        name: name.to_owned(),
        path: bench.dir.path().join(name),
        image_bytes: None,
        preallocate: false,
        wipe: false,
        capacity_bytes: None,
        inline,
    };
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
