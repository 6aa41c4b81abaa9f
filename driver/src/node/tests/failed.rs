//! A pool that answers only errors, and loop devices that their users changed.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use hostloop_proto::csi::volume_capability::AccessType;
use hostloop_proto::csi::volume_capability::access_mode::Mode::*;

use super::bench::*;
use crate::node::Error;
use crate::pool::{Access, FreezeIntent, VolumeId};
use crate::sys::{Error as KernelError, Kernel, LoopSpec};

fn entry(bench: &Bench, id: VolumeId) -> PathBuf {
    bench.dir.path().join("pool/volumes").join(id.to_string())
}

/// Makes every access to a volume's image and record fail, or work again.
fn set_broken(bench: &Bench, id: VolumeId, broken: bool) {
    let entry = entry(bench, id);
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
        let mut bench = Bench::new();
        let (cap, cap_raw) = (
            mount("ext4", SingleNodeMultiWriter),
            block(SingleNodeMultiWriter),
        );
        let (id, raw) = (bench.volume(ext4()), bench.volume(Access::Block));
        bench.stage(id, "a", &cap).unwrap();
        bench.publish(id, "a", "p", &cap, false).unwrap();
        bench.stage(raw, "b", &cap_raw).unwrap();
        bench.publish(raw, "b", "q", &cap_raw, false).unwrap();
        bench.publish(raw, "b", "r", &cap_raw, true).unwrap();
        for id in [id, raw] {
            set_broken(&bench, id, true);
        }
        for device in bench.kernel.loops().unwrap() {
            bench
                .kernel
                .set_silent(device.minor, silent && device.backing_rdev == 0);
        }
        for _ in 0..2 {
            bench.unpublish(id, "p").unwrap();
            bench.unpublish(raw, "q").unwrap();
            bench.unpublish(raw, "r").unwrap();
            bench.unstage(id, "a").unwrap();
            bench.unstage(raw, "b").unwrap();
        }
        for id in [id, raw] {
            bench.assert_clean(id, "left");
            set_broken(&bench, id, false);
        }
        // Also if the record on disk still says otherwise.
        bench.restart();
        for id in [id, raw] {
            bench.assert_clean(id, "after a restart");
        }
        bench.stage(id, "c", &cap).unwrap();
        bench.unstage(id, "c").unwrap();
    }
}

#[test]
fn an_image_that_may_be_attached_already_is_not_attached_again() {
    let bench = Bench::new();
    let cap = block(SingleNodeWriter);
    let id = bench.volume(Access::Block);
    bench.stage(id, "a", &cap).unwrap();
    let device = bench.kernel.loops().unwrap().remove(0);
    bench.kernel.set_silent(device.minor, true);
    let refused = |answer: crate::node::Result<()>| {
        let silent = matches!(answer, Err(Error::Kernel(KernelError::Silent { .. })));
        assert!(silent, "{answer:?}");
    };
    refused(bench.stage(id, "a", &cap));
    assert_eq!(bench.attached(), 1);
    let other = bench.volume(ext4());
    bench
        .stage(other, "b", &mount("ext4", SingleNodeWriter))
        .unwrap();
    bench.unstage(other, "b").unwrap();
    let pools = &bench.node.pools;
    let deleted = pools.delete_volume(&id).unwrap_err();
    assert!(deleted.to_string().contains("does not say"), "{deleted}");
    let taken = pools.create_snapshot(&id, "s", &Default::default());
    assert!(taken.is_err());
    bench.kernel.set_silent(device.minor, false);
    bench.stage(id, "a", &cap).unwrap();
    assert_eq!(bench.attached(), 1);
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "undone");
}

/// A pod can put a file of its own, at any path, behind a read-only device.
#[test]
fn a_read_only_device_keeps_nobody_from_an_image() {
    let bench = Bench::new();
    let (id, cap) = (bench.volume(ext4()), mount("ext4", SingleNodeWriter));
    let theirs = bench.dir.path().join(id.to_string());
    let theirs = File::create_new(theirs).unwrap();
    let device = bench.kernel.loop_attach(&LoopSpec {
        backing: &theirs,
        label: "",
        read_only: true,
        direct_io: false,
        autoclear: false,
        minor: None,
    });
    bench.kernel.set_silent(device.unwrap().minor, true);
    bench.stage(id, "a", &cap).unwrap();
    bench.unstage(id, "a").unwrap();
    bench.node.pools.delete_volume(&id).unwrap();
}

/// What a copy left frozen stays so until it is thawed, and that must not be forgotten.
#[test]
fn a_freeze_is_not_forgotten_while_its_device_says_nothing() {
    let bench = Bench::new();
    let (id, cap) = (bench.volume(ext4()), mount("ext4", SingleNodeWriter));
    bench.stage(id, "a", &cap).unwrap();
    let freeze = Some(FreezeIntent { since_ns: 1 });
    let pools = &bench.node.pools;
    pools.update_volume(&id, |r| r.freeze = freeze).unwrap();
    let root = File::open(bench.staging("a")).unwrap();
    bench.kernel.freeze(&root).unwrap();
    let minor = bench.kernel.loops().unwrap()[0].minor;
    bench.kernel.set_silent(minor, true);
    let answer = bench.stage(id, "a", &cap);
    assert!(answer.is_err());
    assert_eq!(bench.record(id).freeze, freeze);
    bench.unstage(id, "a").unwrap();
    assert_eq!(
        bench.record(id).freeze,
        freeze,
        "the pod may go all the same"
    );
    assert!(bench.kernel.is_frozen(minor));
    bench.kernel.set_silent(minor, false);
    bench.stage(id, "a", &cap).unwrap();
    assert_eq!(bench.record(id).freeze, None);
    assert!(!bench.kernel.is_frozen(minor));
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "undone");
}

#[test]
fn a_device_that_shows_other_bytes_is_not_handed_out() {
    let bench = Bench::new();
    let cap = block(SingleNodeMultiWriter);
    let id = bench.volume(Access::Block);
    bench.stage(id, "a", &cap).unwrap();
    bench.publish(id, "a", "p", &cap, false).unwrap();
    let device = bench.kernel.loops().unwrap().remove(0);
    for (offset, limit, block) in [(4096, 0, 4096), (0, 4096, 4096), (0, 0, 512)] {
        bench.kernel.tamper(device.minor, offset, limit);
        bench.kernel.set_block_size(device.minor, block);
        for read_only in [false, true] {
            let refused = bench.publish(id, "a", "q", &cap, read_only);
            let is_refused = matches!(&refused, Err(Error::FailedPrecondition(_)));
            assert!(is_refused, "{refused:?}");
            assert!(!bench.target("q").exists());
        }
        let refused = bench.stage(id, "a", &cap);
        let is_refused = matches!(&refused, Err(Error::FailedPrecondition(_)));
        assert!(is_refused, "{refused:?}");
    }
    bench.unpublish(id, "p").unwrap();
    bench.unstage(id, "a").unwrap();
    bench.stage(id, "a", &cap).unwrap();
    bench.publish(id, "a", "q", &cap, false).unwrap();
    bench.unpublish(id, "q").unwrap();
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "attached anew");
}

/// The driver binds a device node again that was unmounted behind its back. It keeps the read-only
/// device unless a user of the device changed it.
#[test]
fn a_changed_read_only_device_is_not_handed_out_again() {
    let bench = Bench::new();
    let cap = block(SingleNodeMultiWriter);
    let id = bench.volume(Access::Block);
    bench.stage(id, "a", &cap).unwrap();
    bench.publish(id, "a", "p", &cap, true).unwrap();
    let read_only = || {
        let mut loops = bench.kernel.loops().unwrap();
        loops.retain(|l| l.backing_rdev != 0);
        assert_eq!(loops.len(), 1, "{loops:?}");
        loops.remove(0)
    };
    let again = || {
        bench.kernel.unmount(&bench.target("p")).unwrap();
        bench.publish(id, "a", "p", &cap, true).unwrap();
    };
    let before = read_only();
    again();
    assert_eq!(read_only(), before);
    bench.kernel.set_block_size(before.minor, 512);
    again();
    bench.kernel.tamper(read_only().minor, 0, 4096);
    again();
    let now = read_only();
    assert_eq!((now.block_size, now.size_limit), (4096, 0));
    bench.unpublish(id, "p").unwrap();
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "undone");
}

/// LOOP_CHANGE_FD, for which a read-only device need only be readable. The file would be held for
/// as long as the node runs.
#[test]
fn a_file_that_was_put_behind_a_read_only_device_goes_with_it() {
    let bench = Bench::new();
    let cap = block(SingleNodeMultiWriter);
    let id = bench.volume(Access::Block);
    let path = bench.dir.path().join("theirs");
    let theirs = File::create_new(path).unwrap();
    for wait in [false, true] {
        bench.stage(id, "a", &cap).unwrap();
        bench.publish(id, "a", "p", &cap, true).unwrap();
        let loops = bench.kernel.loops().unwrap();
        let ours = loops.iter().find(|l| l.backing_rdev != 0).unwrap();
        bench.kernel.change_backing(ours.minor, &theirs).unwrap();
        if wait {
            let again = bench.publish(id, "a", "p", &cap, true);
            assert!(matches!(again, Err(Error::Path { .. })), "{again:?}");
        }
        bench.unpublish(id, "p").unwrap();
        bench.unstage(id, "a").unwrap();
        bench.assert_clean(id, "undone");
    }
}

#[test]
fn no_volume_comes_to_a_device_whose_node_is_bound() {
    let bench = Bench::new();
    let cap = block(SingleNodeMultiWriter);
    let id = bench.volume(Access::Block);
    bench.stage(id, "a", &cap).unwrap();
    bench.publish(id, "a", "p", &cap, false).unwrap();
    let lost = bench.kernel.loops().unwrap().remove(0);
    bench.kernel.loop_release(&lost).unwrap();
    let other = bench.volume(Access::Block);
    bench.stage(other, "b", &cap).unwrap();
    bench.publish(other, "b", "q", &cap, true).unwrap();
    let minors: Vec<_> = bench
        .kernel
        .loops()
        .unwrap()
        .iter()
        .map(|l| l.minor)
        .collect();
    assert_eq!(minors.len(), 2);
    assert!(!minors.contains(&lost.minor), "{minors:?}");
    // The volume gets the same device again.
    bench.stage(id, "a", &cap).unwrap();
    assert!(
        bench
            .kernel
            .loop_info(lost.minor)
            .unwrap()
            .unwrap()
            .is_same(&lost)
    );
}

#[test]
fn a_class_that_mounts_read_only_is_published_again() {
    let bench = Bench::new();
    let mut cap = mount("ext4", SingleNodeMultiWriter);
    let Some(AccessType::Mount(access)) = &mut cap.access_type else {
        unreachable!()
    };
    access.mount_flags = vec!["ro".to_owned()];
    let id = bench.volume(ext4());
    bench.stage(id, "a", &cap).unwrap();
    for readonly in [false, true, false] {
        bench.publish(id, "a", "p", &cap, readonly).unwrap();
    }
    bench.unpublish(id, "p").unwrap();
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "undone");
}
