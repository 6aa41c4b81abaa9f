//! Leftovers of interrupted calls, held mounts, and a full pool.

use std::os::unix::fs::FileExt;

use hostloop_driver::kernel::{Error as KernelError, FsType, Mounts, file};
use hostloop_driver::node::Error;
use hostloop_driver::storage::Format;

use super::Rig;
use crate::testkit::*;

#[test]
fn a_killed_mkfs_is_run_again() {
    let rig = Rig::new();
    for fs in FsType::ALL {
        let id = rig.volume(on(fs), 32 * MI);
        let cap = mount(fs);
        rig.stage(id, "a", &cap).unwrap();
        rig.unstage(id, "a").unwrap();
        // Probes as a filesystem, and does not mount.
        let image = rig.open_image(id);
        let len = image.metadata().unwrap().len();
        for at in (128 * 1024..len.min(300 * MI)).step_by(4096) {
            image.write_all_at(&[0; 512], at).unwrap();
        }
        image.sync_all().unwrap();
        drop(image);
        let formatting = Format::Formatting(fs);
        rig.update(id, |r| r.format = formatting);
        rig.stage(id, "a", &cap).unwrap();
        assert_eq!(rig.record(id).format, Format::Done(fs));
        write(&rig.staging("a").join("data"), 1, 1000);
        rig.unstage(id, "a").unwrap();
        rig.assert_clean(id);
    }
}

/// A container can have the mount in its own namespace for as long as it runs. A process can have a
/// file open after a lazy unmount. Neither may block the end of a pod, nor the next staging.
#[test]
fn a_filesystem_that_is_kept_elsewhere_does_not_hold_up_unstaging() {
    let rig = Rig::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    let kept = std::fs::File::create(rig.staging("a").join("kept")).unwrap();
    refused!(rig.unstage(id, "a"), Error::Kernel(_));
    refused!(
        rig.kernel.unmount(&rig.staging("a")),
        KernelError::Busy { .. }
    );
    nix::mount::umount2(&rig.staging("a"), nix::mount::MntFlags::MNT_DETACH).unwrap();
    rig.unstage(id, "a").unwrap();
    assert_eq!(rig.record(id).stage, None);
    assert_eq!(rig.loops(id).len(), 1, "it is held");
    rig.stage(id, "b", &cap).unwrap();
    rig.device(id); // There is never a second one over an image.
    write(&rig.staging("b").join("data"), 1, 1000);
    let same = rig.staging("b").join("kept").exists();
    assert!(same, "it is the same filesystem");
    rig.unstage(id, "b").unwrap();
    drop(kept);
    rig.assert_clean(id);
}

/// Fills the rig's pool.
fn fill(rig: &Rig) -> std::fs::File {
    let hog = std::fs::File::create(rig.root().join("pool/hog")).unwrap();
    let mut len = rig
        .node
        .pools
        .named(None)
        .unwrap()
        .usage()
        .unwrap()
        .free_bytes;
    while file::allocate(&hog, 0..len).is_err() {
        len -= 4096;
    }
    // The rest, block by block.
    while hog.write_all_at(&[1; 4096], len).is_ok() {
        hog.sync_all().unwrap();
        len += 4096;
    }
    hog
}

#[test]
fn a_pod_can_go_while_the_pool_is_full() {
    let rig = Rig::on(FsType::Ext4, 64 * MI);
    let [id, raw] = rig.both_in_use();
    let hog = fill(&rig);
    rig.end_use([id, raw], "a full pool");
    hog.set_len(0).unwrap();
    // The staging that its record may still have does not matter.
    rig.stage(id, "c", &mount("ext4")).unwrap();
    rig.unstage(id, "c").unwrap();
    rig.assert_clean(id);
    rig.node.pools.delete_volume(&raw).unwrap();
}
