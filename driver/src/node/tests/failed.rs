//! Loop devices that say nothing, that their users changed, and that keep their attributes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hostloop_fault_disk::protocol::Answer;
use hostloop_proto::csi;
use hostloop_proto::csi::node_get_storage_health_response::StorageBackendHealth;
use parking_lot::Mutex;
use rstest::rstest;

use super::Rig;
use crate::fault_disks::testing::answer_all;
use crate::kernel::{Error as KernelError, FsType, LoopDevices, Mounts, READ_AHEAD_KIB, loops_of};
use crate::node::Error;
use crate::storage::{Access, Capability, Format, FreezeIntent, VolumeId};
use crate::testkit::*;

#[test]
fn an_image_that_may_be_attached_already_is_not_attached_again() {
    let rig = Rig::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    let device = rig.device(id);
    rig.kernel.set_silent(device.minor, true);
    let silent = rig.stage(id, "a", &cap);
    refused!(silent, Error::Kernel(KernelError::Silent { .. }));
    assert_eq!(rig.devices().len(), 1);
    let other = rig.staged(ext4(), "b", &mount("ext4"));
    rig.unstage(other, "b").unwrap();
    let pools = &rig.node.pools;
    let deleted = pools.delete_volume(&id).unwrap_err();
    assert!(deleted.to_string().contains("does not say"), "{deleted}");
    let taken = pools.create_snapshot(&id, "s", &Default::default());
    assert!(taken.is_err());
    rig.kernel.set_silent(device.minor, false);
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.devices().len(), 1);
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

/// Another program had the device open for a moment after the last unmount.
#[test]
fn a_device_that_detaches_during_a_staging_is_attached_again() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    drop(rig.attach_file(&rig.open_image(id)));
    let (minor, image, kernel) = (rig.device(id).minor, rig.image(id), rig.kernel.clone());
    rig.kernel.hook("loop_open", move |_| {
        kernel.loop_detach(minor, image).map(drop)
    });
    rig.stage(id, "a", &mount("ext4")).unwrap();
    rig.kernel.behave();
    assert_eq!(rig.loops(id).len(), 1);
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

/// The first staging writes the record to disk, which takes long enough for others.
#[rstest]
fn a_device_that_others_attach_during_the_first_staging_is_used(
    #[values(false, true)] formatted: bool,
) {
    let rig = Rig::new();
    let id = if formatted {
        rig.volume(ext4(), 16 * MI)
    } else {
        rig.unformatted(new_volume(ext4(), 16 * MI))
    };
    let (image, kernel) = (rig.open_image(id), rig.kernel.clone());
    let mut looks = 0;
    rig.kernel.hook("mounts", move |_| {
        looks += 1;
        if looks == 2 {
            drop(attach(&*kernel, &image, false));
        }
        Ok(())
    });
    rig.stage(id, "a", &mount("ext4")).unwrap();
    rig.kernel.behave();
    assert_eq!(rig.device(id).label, "hostloop-test", "there is one device");
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

/// Their device may have detached again before the staging looks at the kernel.
#[test]
fn what_others_write_during_the_first_staging_is_not_formatted_over() {
    let rig = Rig::new();
    let id = rig.unformatted(new_volume(ext4(), 16 * MI));
    let (image, mut looks) = (rig.open_image(id), 0);
    rig.kernel.hook("mounts", move |_| {
        looks += 1;
        if looks == 2 {
            image.write_all_at(b"theirs", 0).unwrap();
        }
        Ok(())
    });
    for _ in 0..2 {
        rig.kernel.take_effects();
        let refused = rig.stage(id, "a", &mount("ext4"));
        refused!(refused, Error::FailedPrecondition(_));
        rig.kernel.behave();
        assert!(!rig.kernel.take_effects().contains(&"mkfs"));
        assert_eq!(rig.record(id).format, Format::None);
        rig.assert_clean(id);
    }
    let mut found = [0; 6];
    rig.open_image(id).read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"theirs");
}

/// Its mkfs has not begun, so nothing in the image is what an interrupted one has left.
#[test]
fn what_others_write_after_a_failed_staging_is_not_formatted_over() {
    let mut failures = 0;
    for op in ["mounts", "loops", "loop.attach", "loop.read-ahead"] {
        for nth in 1.. {
            let (rig, cap) = (Rig::new(), mount("ext4"));
            let id = rig.unformatted(new_volume(ext4(), 16 * MI));
            rig.kernel.take_effects();
            rig.kernel.fail(op, nth, libc::EIO);
            let staged = rig.stage(id, "a", &cap);
            rig.kernel.behave();
            if staged.is_ok() || rig.kernel.take_effects().contains(&"mkfs") {
                break;
            }
            failures += 1;
            assert_eq!(rig.record(id).format, Format::None, "{op} {nth}");
            rig.open_image(id).write_all_at(b"theirs", 0).unwrap();
            let refused = rig.stage(id, "a", &cap);
            refused!(refused, Error::FailedPrecondition(_), "{op} {nth}");
            assert!(!rig.kernel.take_effects().contains(&"mkfs"), "{op} {nth}");
        }
    }
    assert!(failures >= 4, "{failures}");
}

/// A tool that is not installed, or can't be started, leaves nothing. What mkfs itself has left may
/// be overwritten.
#[test]
fn what_others_write_after_an_mkfs_that_wrote_nothing_is_not_formatted_over() {
    let cap = mount("ext4");
    for wrote in [false, true] {
        let rig = Rig::new();
        let id = rig.unformatted(new_volume(ext4(), 16 * MI));
        if wrote {
            rig.kernel.fail_afterwards("mkfs", 1, libc::EIO);
        } else {
            rig.kernel.fail("mkfs", 1, libc::EAGAIN);
        }
        rig.stage(id, "a", &cap).unwrap_err();
        rig.kernel.behave();
        if wrote {
            let begun = Format::Formatting(FsType::Ext4);
            assert_eq!(rig.record(id).format, begun);
            rig.stage(id, "a", &cap).unwrap();
            continue;
        }
        assert_not_begun(&rig, id, &cap);
    }
}

/// The record says that mkfs has not begun, so what others write now is not formatted over.
#[track_caller]
fn assert_not_begun(rig: &Rig, id: VolumeId, cap: &csi::VolumeCapability) {
    assert_eq!(rig.record(id).format, Format::None);
    rig.open_image(id).write_all_at(b"theirs", 0).unwrap();
    rig.kernel.take_effects();
    refused!(rig.stage(id, "a", cap), Error::FailedPrecondition(_));
    assert!(!rig.kernel.take_effects().contains(&"mkfs"));
}

/// Allocated zeros look like data. An mkfs that did not start has not written them.
#[test]
fn an_mkfs_that_did_not_start_has_not_begun() {
    let (rig, cap) = (Rig::new(), mount("ext4"));
    let id = rig.unformatted(new_volume(ext4(), 16 * MI));
    rig.open_image(id).write_all_at(&[0; 4096], MI).unwrap();
    rig.kernel.hook("mkfs", |device| {
        Err(KernelError::NotRun {
            tool: "mkfs.ext4",
            path: device.into(),
            why: "not installed".to_owned(),
        })
    });
    let failed = rig.stage(id, "a", &cap);
    refused!(failed, Error::Kernel(KernelError::NotRun { .. }));
    rig.kernel.behave();
    assert_not_begun(&rig, id, &cap);
}

/// Another program holds the device, so the staging can't tell that mkfs has written nothing.
#[test]
fn an_unstaging_takes_back_an_mkfs_that_wrote_nothing() {
    let (rig, cap) = (Rig::new(), mount("ext4"));
    let id = rig.unformatted(new_volume(ext4(), 16 * MI));
    let held = Arc::new(Mutex::new(None));
    let (kernel, image, holder) = (rig.kernel.clone(), rig.image(id), held.clone());
    rig.kernel.hook("mkfs", move |device| {
        let loops = loops_of(&*kernel, image)?;
        *holder.lock() = Some(kernel.loop_reopen(&loops[0])?);
        Err(KernelError::errno("mkfs", device, libc::EIO))
    });
    rig.stage(id, "a", &cap).unwrap_err();
    rig.kernel.behave();
    let begun = Format::Formatting(FsType::Ext4);
    assert_eq!(rig.record(id).format, begun);
    drop(held.lock().take());
    rig.unstage(id, "a").unwrap();
    assert_eq!(rig.record(id).format, Format::None);
    rig.assert_clean(id);
}

/// The disk may still write what mkfs has left, which would then be taken for the data of others.
#[test]
fn an_mkfs_on_a_fault_disk_that_has_not_ended_is_not_taken_back() {
    let begun = Format::Formatting(FsType::Ext4);
    for (answer, expected) in [
        (Answer::InUse("its disk".to_owned()), begun),
        (Answer::Done, Format::None),
    ] {
        let rig = Rig::new();
        let id = rig.unformatted(new_volume(ext4(), 16 * MI));
        rig.update(id, |record| {
            record.format = begun;
            record.fault_disk = Some(Box::default());
        });
        answer_all(&rig.options.state_dir, &answer);
        rig.unstage(id, "a").unwrap();
        assert_eq!(rig.record(id).format, expected, "{answer:?}");
    }
}

/// Only a device that can't be opened has detached since the look.
#[test]
fn an_attach_that_does_not_find_something_is_not_repeated() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    rig.kernel.take_effects();
    rig.kernel.fail("loop.attach", 1, libc::ENOENT);
    let failed = rig.stage(id, "a", &mount("ext4"));
    refused!(failed, Error::Kernel(KernelError::NotFound { .. }));
    assert_eq!(rig.kernel.take_effects(), ["loop.attach"]);
    rig.assert_clean(id);
}

/// A filesystem that a copy left frozen stays frozen until a thaw, so the record must keep it.
#[test]
fn a_freeze_is_not_forgotten_while_its_device_says_nothing() {
    let rig = Rig::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    let minor = rig.device(id).minor;
    let intent = Some(rig.freeze(id, "a"));
    rig.kernel.set_silent(minor, true);
    rig.stage(id, "a", &cap).unwrap_err();
    assert_eq!(rig.record(id).freeze, intent);
    rig.unstage(id, "a").unwrap();
    assert_eq!(rig.record(id).freeze, intent, "the pod may go all the same");
    assert!(rig.kernel.is_frozen(minor));
    rig.kernel.set_silent(minor, false);
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.record(id).freeze, None);
    assert!(!rig.kernel.is_frozen(minor));
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

/// To thaw an unmounted filesystem is to mount it, and the user of the device may write to it.
#[test]
fn no_freeze_is_ended_in_a_volume_that_is_a_device() {
    let rig = Rig::new();
    let mut new = new_volume(ext4(), 16 * MI);
    let mode = new.capabilities[0].mode;
    new.capabilities.push(Capability {
        access: Access::Block,
        mode,
    });
    let id = rig.create(new);
    rig.stage(id, "b", &block()).unwrap();
    let intent = Some(FreezeIntent { since_ns: 1 });
    rig.update(id, |record| record.freeze = intent);
    rig.kernel.take_effects();
    rig.stage(id, "a", &mount("ext4")).unwrap_err();
    assert_eq!(rig.kernel.take_effects(), [] as [&str; 0]);
    assert_eq!(rig.record(id).freeze, intent);
}

#[test]
fn a_device_that_shows_other_bytes_is_not_handed_out() {
    let rig = Rig::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let device = rig.device(id);
    for (offset, limit, block) in [(4096, 0, 4096), (0, 4096, 4096), (0, 0, 512)] {
        rig.kernel.tamper(device.minor, offset, limit);
        rig.kernel.set_block_size(device.minor, block);
        for read_only in [false, true] {
            let refused = rig.publish(id, "a", "q", &cap, read_only);
            refused!(refused, Error::FailedPrecondition(_));
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
    rig.assert_clean(id);
}

/// The driver binds a device node again after another program unmounted it. It keeps the read-only
/// device unless a user of the device changed it.
#[test]
fn a_changed_read_only_device_is_not_handed_out_again() {
    let rig = Rig::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    rig.publish(id, "a", "p", &cap, true).unwrap();
    let read_only = || {
        let mut loops = rig.devices_over(id);
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
    rig.assert_clean(id);
}

/// LOOP_CHANGE_FD, for which a read-only device need only be readable. The file would be held for
/// as long as the node runs.
#[test]
fn a_file_that_was_put_behind_a_read_only_device_goes_with_it() {
    let rig = Rig::new();
    let cap = block();
    let id = rig.volume(Access::Block, 16 * MI);
    let theirs = File::create_new(rig.root().join("theirs")).unwrap();
    for wait in [false, true] {
        rig.stage(id, "a", &cap).unwrap();
        rig.publish(id, "a", "p", &cap, true).unwrap();
        let over = rig.devices_over(id)[0].minor;
        rig.kernel.change_backing(over, &theirs).unwrap();
        if wait {
            refused!(rig.publish(id, "a", "p", &cap, true), Error::Path { .. });
        }
        rig.unpublish(id, "p").unwrap();
        rig.unstage(id, "a").unwrap();
        rig.assert_clean(id);
    }
}

fn storage_health(rig: &Rig) -> Vec<StorageBackendHealth> {
    let request = csi::NodeGetStorageHealthRequest::default();
    rig.node
        .node_get_storage_health(request)
        .unwrap()
        .backend_health
}

/// To open it might never return, and nothing would say that the pool does not answer.
#[test]
fn health_opens_no_image_in_a_pool_that_does_not_answer() {
    let rig = Rig::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    // The volume's device is not over this image, so opening it makes the mount look like that of
    // another.
    let pool = rig.root().join("pool");
    let entry = pool.join("volumes").join(id.to_string());
    std::fs::rename(entry.join("image"), entry.join("moved")).unwrap();
    let image = File::create_new(entry.join("image")).unwrap();
    image.set_len(rig.record(id).capacity_bytes).unwrap();
    let identity = pool.join("pool.json");
    std::fs::rename(&identity, pool.join("gone")).unwrap();
    assert_eq!(rig.reasons_at(id, &rig.target("p")), ["PoolGone"]);
    std::fs::rename(pool.join("gone"), identity).unwrap();
    let opened = rig.reasons_at(id, &rig.target("p"));
    assert!(
        opened.iter().any(|reason| reason == "ForeignMount"),
        "{opened:?}"
    );
}

/// A security profile may keep a container from any writable sysfs. Pods start all the same.
#[test]
fn without_writable_attributes_a_volume_is_staged_and_the_pool_says_so() {
    let site = Rig::site(&["default=DIR/pool"]);
    site.kernel.set_attributes_read_only(true);
    let rig = Rig::over(site, Configs::default());
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let requested = rig.record(id).settings.read_ahead_kib;
    assert_ne!(requested, Some(READ_AHEAD_KIB));
    let minor = rig.device(id).minor;
    assert_eq!(rig.kernel.read_ahead_kib(minor), Some(READ_AHEAD_KIB));
    let health = storage_health(&rig);
    let [degraded] = &health[..] else {
        panic!("{health:?}");
    };
    assert_eq!(degraded.reason, "PoolNeedsAttention");
    for says in ["pool default: ", "read-ahead", "/sys"] {
        assert!(degraded.message.contains(says), "no {says} in {degraded:?}");
    }
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();

    // The next process may write them.
    rig.kernel.set_attributes_read_only(false);
    let rig = rig.restarted();
    assert_eq!(storage_health(&rig), []);
    rig.stage(id, "a", &cap).unwrap();
    let minor = rig.device(id).minor;
    assert_eq!(rig.kernel.read_ahead_kib(minor), requested);
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}
