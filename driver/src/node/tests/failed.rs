//! A pool that answers only errors, and loop devices that their users changed.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use hostloop_proto::csi::volume_capability::access_mode::Mode::*;

use super::Rig;
use crate::kernel::{Error as KernelError, Kernel, LoopSpec};
use crate::node::Error;
use crate::storage::{Access, FreezeIntent, VolumeId};
use crate::testkit::*;

fn entry(rig: &Rig, id: VolumeId) -> PathBuf {
    rig.root().join("pool/volumes").join(id.to_string())
}

/// Makes every access to a volume's image and record fail, or work again.
fn set_broken(rig: &Rig, id: VolumeId, broken: bool) {
    let entry = entry(rig, id);
    let (image, away) = (entry.join("image"), entry.join("image.away"));
    let temporary = entry.join(".volume.json.new");
    if broken {
        std::fs::rename(&image, &away).unwrap();
        symlink("image.away", &image).unwrap();
        std::fs::create_dir(&temporary).unwrap();
    } else {
        std::fs::remove_file(&image).unwrap();
        std::fs::rename(&away, &image).unwrap();
        std::fs::remove_dir(&temporary).unwrap();
    }
}

#[test]
fn a_pod_leaves_a_pool_that_failed() {
    for silent in [false, true] {
        let mut rig = Rig::new();
        let (cap, cap_raw) = (
            mount_as("ext4", SingleNodeMultiWriter),
            block_as(SingleNodeMultiWriter),
        );
        let (id, raw) = (
            rig.volume(ext4(), 16 * MI),
            rig.volume(Access::Block, 16 * MI),
        );
        rig.stage(id, "a", &cap).unwrap();
        rig.publish(id, "a", "p", &cap, false).unwrap();
        rig.stage(raw, "b", &cap_raw).unwrap();
        rig.publish(raw, "b", "q", &cap_raw, false).unwrap();
        rig.publish(raw, "b", "r", &cap_raw, true).unwrap();
        for id in [id, raw] {
            set_broken(&rig, id, true);
        }
        for device in rig.kernel.loops().unwrap() {
            rig.kernel
                .set_silent(device.minor, silent && device.backing_rdev == 0);
        }
        for _ in 0..2 {
            rig.unpublish(id, "p").unwrap();
            rig.unpublish(raw, "q").unwrap();
            rig.unpublish(raw, "r").unwrap();
            rig.unstage(id, "a").unwrap();
            rig.unstage(raw, "b").unwrap();
        }
        for id in [id, raw] {
            rig.assert_all_clean(id, "left");
            set_broken(&rig, id, false);
        }
        // This holds even if the record on disk still says otherwise.
        rig.restart();
        for id in [id, raw] {
            rig.assert_all_clean(id, "after a restart");
        }
        rig.stage(id, "c", &cap).unwrap();
        rig.unstage(id, "c").unwrap();
    }
}

#[test]
fn an_image_that_may_be_attached_already_is_not_attached_again() {
    let rig = Rig::new();
    let cap = block_as(SingleNodeWriter);
    let id = rig.volume(Access::Block, 16 * MI);
    rig.stage(id, "a", &cap).unwrap();
    let device = rig.kernel.loops().unwrap().remove(0);
    rig.kernel.set_silent(device.minor, true);
    let refused = |answer: crate::node::Result<()>| {
        let silent = matches!(answer, Err(Error::Kernel(KernelError::Silent { .. })));
        assert!(silent, "{answer:?}");
    };
    refused(rig.stage(id, "a", &cap));
    assert_eq!(rig.attached(), 1);
    let other = rig.volume(ext4(), 16 * MI);
    rig.stage(other, "b", &mount_as("ext4", SingleNodeWriter))
        .unwrap();
    rig.unstage(other, "b").unwrap();
    let pools = &rig.node.pools;
    let deleted = pools.delete_volume(&id).unwrap_err();
    assert!(deleted.to_string().contains("does not say"), "{deleted}");
    let taken = pools.create_snapshot(&id, "s", &Default::default());
    assert!(taken.is_err());
    rig.kernel.set_silent(device.minor, false);
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.attached(), 1);
    rig.unstage(id, "a").unwrap();
    rig.assert_all_clean(id, "undone");
}

/// A pod can put a file of its own, at any path, behind a read-only device.
#[test]
fn a_read_only_device_keeps_nobody_from_an_image() {
    let rig = Rig::new();
    let (id, cap) = (
        rig.volume(ext4(), 16 * MI),
        mount_as("ext4", SingleNodeWriter),
    );
    let theirs = rig.root().join(id.to_string());
    let theirs = File::create_new(theirs).unwrap();
    let device = rig.kernel.loop_attach(&LoopSpec {
        backing: &theirs,
        label: "",
        read_only: true,
        direct_io: false,
        autoclear: false,
        minor: None,
    });
    rig.kernel.set_silent(device.unwrap().minor, true);
    rig.stage(id, "a", &cap).unwrap();
    rig.unstage(id, "a").unwrap();
    rig.node.pools.delete_volume(&id).unwrap();
}

/// A filesystem that a copy left frozen stays frozen until a thaw, so the record must keep it.
#[test]
fn a_freeze_is_not_forgotten_while_its_device_says_nothing() {
    let rig = Rig::new();
    let (id, cap) = (
        rig.volume(ext4(), 16 * MI),
        mount_as("ext4", SingleNodeWriter),
    );
    rig.stage(id, "a", &cap).unwrap();
    let freeze = Some(FreezeIntent { since_ns: 1 });
    let pools = &rig.node.pools;
    pools.update_volume(&id, |r| r.freeze = freeze).unwrap();
    let root = File::open(rig.staging("a")).unwrap();
    rig.kernel.freeze(&root).unwrap();
    let minor = rig.kernel.loops().unwrap()[0].minor;
    rig.kernel.set_silent(minor, true);
    let answer = rig.stage(id, "a", &cap);
    assert!(answer.is_err());
    assert_eq!(rig.record(id).freeze, freeze);
    rig.unstage(id, "a").unwrap();
    assert_eq!(rig.record(id).freeze, freeze, "the pod may go all the same");
    assert!(rig.kernel.is_frozen(minor));
    rig.kernel.set_silent(minor, false);
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.record(id).freeze, None);
    assert!(!rig.kernel.is_frozen(minor));
    rig.unstage(id, "a").unwrap();
    rig.assert_all_clean(id, "undone");
}

#[test]
fn a_device_that_shows_other_bytes_is_not_handed_out() {
    let rig = Rig::new();
    let cap = block_as(SingleNodeMultiWriter);
    let id = rig.volume(Access::Block, 16 * MI);
    rig.stage(id, "a", &cap).unwrap();
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let device = rig.kernel.loops().unwrap().remove(0);
    for (offset, limit, block) in [(4096, 0, 4096), (0, 4096, 4096), (0, 0, 512)] {
        rig.kernel.tamper(device.minor, offset, limit);
        rig.kernel.set_block_size(device.minor, block);
        for read_only in [false, true] {
            refused!(
                rig.publish(id, "a", "q", &cap, read_only),
                Error::FailedPrecondition(_)
            );
            assert!(!rig.target("q").exists());
        }
        refused!(rig.stage(id, "a", &cap), Error::FailedPrecondition(_));
    }
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &cap).unwrap();
    rig.publish(id, "a", "q", &cap, false).unwrap();
    rig.unpublish(id, "q").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_all_clean(id, "attached again");
}

/// The driver binds a device node again after another program unmounted it. It keeps the read-only
/// device unless a user of the device changed it.
#[test]
fn a_changed_read_only_device_is_not_handed_out_again() {
    let rig = Rig::new();
    let cap = block_as(SingleNodeMultiWriter);
    let id = rig.volume(Access::Block, 16 * MI);
    rig.stage(id, "a", &cap).unwrap();
    rig.publish(id, "a", "p", &cap, true).unwrap();
    let read_only = || {
        let mut loops = rig.kernel.loops().unwrap();
        loops.retain(|l| l.backing_rdev != 0);
        assert_eq!(loops.len(), 1, "{loops:?}");
        loops.remove(0)
    };
    let again = || {
        rig.kernel.unmount(&rig.target("p")).unwrap();
        rig.publish(id, "a", "p", &cap, true).unwrap();
    };
    let before = read_only();
    again();
    assert_eq!(read_only(), before);
    rig.kernel.set_block_size(before.minor, 512);
    again();
    rig.kernel.tamper(read_only().minor, 0, 4096);
    again();
    let now = read_only();
    assert_eq!((now.block_size, now.size_limit), (4096, 0));
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_all_clean(id, "undone");
}

/// LOOP_CHANGE_FD, for which a read-only device need only be readable. The file would be held for
/// as long as the node runs.
#[test]
fn a_file_that_was_put_behind_a_read_only_device_goes_with_it() {
    let rig = Rig::new();
    let cap = block_as(SingleNodeMultiWriter);
    let id = rig.volume(Access::Block, 16 * MI);
    let path = rig.root().join("theirs");
    let theirs = File::create_new(path).unwrap();
    for wait in [false, true] {
        rig.stage(id, "a", &cap).unwrap();
        rig.publish(id, "a", "p", &cap, true).unwrap();
        let loops = rig.kernel.loops().unwrap();
        let ours = loops.iter().find(|l| l.backing_rdev != 0).unwrap();
        rig.kernel.change_backing(ours.minor, &theirs).unwrap();
        if wait {
            refused!(rig.publish(id, "a", "p", &cap, true), Error::Path { .. });
        }
        rig.unpublish(id, "p").unwrap();
        rig.unstage(id, "a").unwrap();
        rig.assert_all_clean(id, "undone");
    }
}
