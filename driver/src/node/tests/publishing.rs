//! Publishing and unpublishing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode::*;

use super::Rig;
use crate::kernel::{FsType, Kernel, MountSpec};
use crate::node::Error;
use crate::storage::{Access, VolumeId};
use crate::testkit::*;

/// An ext4 volume that is staged at "a".
fn staged(cap: &csi::VolumeCapability) -> (Rig, VolumeId) {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", cap);
    (rig, id)
}

#[test]
fn unpublish_needs_no_record_and_keeps_staging_directories() {
    let rig = Rig::new();
    let id = rig.staged(Access::Block, "a", &block());
    let other = rig.volume(ext4(), 16 * MI);
    let staging = rig.root().join("stage/a");
    rig.unpublish_at(other, &staging).unwrap();
    rig.node.pools.delete_volume(&other).unwrap();
    rig.unpublish_at(other, &staging).unwrap();
    refused!(rig.unpublish_at(id, &staging), Error::Path { .. });
    assert!(staging.is_dir());

    rig.unpublish("unknown", "none").unwrap();
    std::fs::create_dir(rig.target("empty")).unwrap();
    rig.unpublish(id, "empty").unwrap();
    assert!(!rig.target("empty").exists());
}

/// A look may open a device, which waits while others attach or detach it.
#[test]
fn a_call_looks_at_the_loop_devices_as_often_as_it_must() {
    let cap = mount("ext4");
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = looks.clone();
    rig.kernel.shared_hook("loops", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let looks_of = |what: &str, expected: usize| {
        assert_eq!(looks.swap(0, Ordering::SeqCst), expected, "{what}");
    };
    rig.stage(id, "a", &cap).unwrap();
    looks_of("stage: first, and before the attach", 2);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    looks_of("publish", 1);
    rig.unpublish(id, "p").unwrap();
    looks_of("unpublish", 1);
    rig.unstage(id, "a").unwrap();
    looks_of("unstage", 1);
}

#[test]
fn a_read_only_attachment_is_published_read_only() {
    let cap = mount("ext4");
    let (rig, id) = staged(&cap);
    rig.publish_to_node(id, true);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    assert!(rig.mount_at("p").read_only());
}

#[test]
fn several_pvs_share_one_staging() {
    let writers = mount_as("ext4", MultiNodeMultiWriter);
    let readers = mount_as("ext4", MultiNodeReaderOnly);
    let (rig, id) = staged(&writers);
    rig.publish(id, "a", "p", &writers, false).unwrap();
    rig.publish(id, "a", "q", &readers, false).unwrap();
    rig.publish(id, "a", "q", &readers, false).unwrap();
    assert!(rig.mount_at("q").read_only());
    // A block volume is staged under the name of one PV, and published under another as well.
    let blocks = block_as(MultiNodeMultiWriter);
    let raw = rig.staged(Access::Block, "pv1", &blocks);
    rig.publish(raw, "pv1", "r", &blocks, false).unwrap();
    rig.publish(raw, "pv2", "s", &blocks, false).unwrap();
    assert_eq!(rig.devices().len(), 2);
    for (id, target) in [(id, "p"), (id, "q"), (raw, "r"), (raw, "s")] {
        rig.unpublish(id, target).unwrap();
    }
    rig.unstage(id, "a").unwrap();
    rig.unstage(raw, "pv1").unwrap();
    rig.assert_clean(id);
}

/// An older version mounted the volume without these flags at its staging path.
#[test]
fn a_publication_has_flags_of_its_own() {
    let cap = mount("ext4");
    let (rig, id) = staged(&cap);
    let staging = rig.staging("a");
    let device = rig.kernel.mounts().unwrap().at(&staging).unwrap().clone();
    let held = rig.kernel.loop_reopen(&rig.device(id)).unwrap();
    rig.kernel.unmount(&staging).unwrap();
    let plain = MountSpec {
        device: Path::new(&*device.source),
        target: &staging,
        fs: FsType::Ext4,
        read_only: false,
        options: &[],
    };
    rig.kernel.mount(&plain).unwrap();
    drop(held);
    for (target, readonly, first) in [("pod", false, "rw"), ("reader", true, "ro")] {
        rig.publish(id, "a", target, &cap, readonly).unwrap();
        let options = rig.mount_at(target).options;
        assert_eq!(options.iter().collect::<Vec<_>>(), [first, "nosuid", "nodev", "relatime"]);
    }
}
