//! Inline ephemeral volumes.

use std::path::PathBuf;

use hostloop_driver::kernel::{FsType, Kernel};
use hostloop_driver::node::{Error, Result};
use hostloop_driver::storage::VolumeHandle;
use hostloop_proto::csi;

use super::Rig;
use crate::testkit::*;

const HANDLE: &str = "csi-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn publish(rig: &Rig, context: &[(&str, &str)], readonly: bool) -> Result<()> {
    let mut volume_context: std::collections::BTreeMap<String, String> = context
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    let ephemeral = "csi.storage.k8s.io/ephemeral";
    volume_context.insert(ephemeral.to_owned(), "true".to_owned());
    let req = csi::NodePublishVolumeRequest {
        volume_id: HANDLE.to_owned(),
        target_path: text(&rig.target("p")),
        volume_capability: Some(mount(FsType::Ext4)),
        volume_context,
        readonly,
        ..Default::default()
    };
    rig.node.node_publish_volume(req).map(drop)
}

fn unpublish(rig: &Rig) -> Result<()> {
    let req = csi::NodeUnpublishVolumeRequest {
        volume_id: HANDLE.to_owned(),
        target_path: text(&rig.target("p")),
    };
    rig.node.node_unpublish_volume(req).map(drop)
}

fn assert_gone(rig: &Rig) {
    assert_eq!(rig.mounted(), Vec::<PathBuf>::new());
    assert_eq!(rig.node.pools.volumes(), []);
    assert!(!rig.target("p").exists());
    let image = |l: &hostloop_driver::kernel::LoopInfo| {
        std::path::Path::new(&l.backing_path).starts_with(rig.root())
    };
    assert!(!rig.kernel.loops().unwrap().iter().any(image));
}

#[test]
fn made_when_published_and_gone_when_unpublished() {
    let rig = Rig::new();
    for token in ["1", "2"] {
        let context = [
            ("size", "24Mi"),
            ("csi.storage.k8s.io/serviceAccount.tokens", token),
        ];
        publish(&rig, &context, false).unwrap();
    }
    let handle = VolumeHandle::Inline(HANDLE.to_owned());
    let record = rig.node.pools.volume(&handle).unwrap();
    assert_eq!(record.capacity_bytes, 24 * MI);
    write(&rig.target("p").join("data"), 1, 10_000);
    let usage = rig
        .node
        .node_get_volume_stats(csi::NodeGetVolumeStatsRequest {
            volume_id: HANDLE.to_owned(),
            volume_path: text(&rig.target("p")),
            ..Default::default()
        });
    assert!(usage.unwrap().usage[0].total > 0);
    refused!(
        publish(&rig, &[("size", "24Mi")], true),
        Error::AlreadyExists(_)
    );
    let rig = rig.restarted();
    publish(&rig, &[], false).unwrap();
    assert_written(&rig.target("p").join("data"), 1, 10_000);
    for _ in 0..2 {
        unpublish(&rig).unwrap();
        assert_gone(&rig);
    }
    publish(&rig, &[], false).unwrap();
    assert!(!rig.target("p").join("data").exists(), "a new one");
    unpublish(&rig).unwrap();
    assert_gone(&rig);
}

#[test]
fn read_only_ones_are_empty_and_stay_so() {
    let rig = Rig::new();
    for _ in 0..2 {
        publish(&rig, &[], true).unwrap();
    }
    let refused = std::fs::write(rig.target("p").join("x"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    unpublish(&rig).unwrap();
    assert_gone(&rig);
}

#[test]
fn what_can_not_be_made_leaves_nothing() {
    let rig = Rig::new();
    for context in [
        ("size", "none"),
        ("size", "2Gi"),
        ("pool", "other"),
        ("colour", "blue"),
        ("mkfsOptions", "-m 0"),
        ("mkfsOptions", "-d etc"),
        ("mkfsOptions", "-d proc"),
        ("mkfsOptions", "-S -O ^has_journal -e panic"),
        ("provisioning", "thick"),
    ] {
        let refused = publish(&rig, &[context], false);
        assert!(refused.is_err(), "{context:?}");
        assert_gone(&rig);
    }
    std::fs::write(rig.target("p"), "in the way").unwrap();
    publish(&rig, &[], false).unwrap_err();
    assert_eq!(rig.node.pools.volumes(), []);
}
