//! Raw block volumes.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use hostloop_driver::kernel::Kernel;
use hostloop_driver::node::Error;
use hostloop_driver::storage::Access;

use super::Rig;
use crate::testkit::*;

fn open(at: &Path, write: bool) -> std::io::Result<File> {
    File::options().read(true).write(write).open(at)
}

#[test]
fn a_block_device_keeps_its_data_and_says_its_size() {
    let rig = Rig::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let target = rig.target("p");
    let kind = std::fs::metadata(&target).unwrap().file_type();
    assert!(kind.is_block_device());
    let data = pattern(1, 8192);
    let raw = open(&target, true).unwrap();
    raw.write_all_at(&data, 4096).unwrap();
    raw.sync_all().unwrap();
    drop(raw);
    let usage = rig.stats(id, &target).unwrap();
    assert_eq!((usage.len(), usage[0].total), (1, (16 * MI) as i64));
    assert_eq!(rig.stats(id, &rig.staging("a")).unwrap(), usage);
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);

    rig.stage(id, "a", &cap).unwrap();
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let mut read = vec![0; data.len()];
    let raw = open(&target, false).unwrap();
    raw.read_exact_at(&mut read, 4096).unwrap();
    assert!(read == data, "the data is there again");
}

#[test]
fn read_only_is_really_read_only() {
    let rig = Rig::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    rig.publish(id, "a", "rw", &cap, false).unwrap();
    for _ in 0..2 {
        rig.publish(id, "a", "ro", &cap, true).unwrap();
    }
    let data = pattern(2, 4096);
    let writer = open(&rig.target("rw"), true).unwrap();
    writer.write_all_at(&data, 0).unwrap();
    writer.sync_all().unwrap();
    let mut read = vec![0; 4096];
    let reader = open(&rig.target("ro"), false).unwrap();
    reader.read_exact_at(&mut read, 0).unwrap();
    assert!(read == data);
    drop((reader, writer));
    // Its node can be opened for writing by whoever has the right; nothing is written all the same.
    let written = open(&rig.target("ro"), true).and_then(|f| {
        f.write_all_at(&[0; 4096], 0)?;
        f.sync_all()
    });
    assert!(written.is_err(), "a read-only publication took a write");
    let mut read = vec![0; 4096];
    let reader = open(&rig.target("rw"), false).unwrap();
    reader.read_exact_at(&mut read, 0).unwrap();
    assert!(read == data);
    drop(reader);

    let own = rig.loops(id).remove(0);
    let over = || {
        let loops = rig.kernel.loops().unwrap();
        loops
            .iter()
            .filter(|l| l.backing_rdev == rdev(own.minor))
            .count()
    };
    assert_eq!(over(), 1);
    rig.unpublish(id, "rw").unwrap();
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    rig.unpublish(id, "ro").unwrap();
    assert_eq!(over(), 0);
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

/// A device that an administrator detached behind our back comes back at its old place, where the
/// pod's node still points, or not at all: others attach devices on this machine, too.
#[test]
fn a_lost_device_comes_back_where_its_targets_point() {
    let rig = Rig::new();
    let id = rig.volume(Access::Block, 16 * MI);
    let cap = block();
    for _ in 0..10 {
        rig.stage(id, "a", &cap).unwrap();
        rig.publish(id, "a", "p", &cap, false).unwrap();
        let before = rig.loops(id).remove(0);
        rig.kernel.loop_release(&before).unwrap();
        let again = rig.stage(id, "a", &cap);
        let taken = matches!(again, Err(Error::FailedPrecondition(_)));
        if !taken {
            again.unwrap();
            assert_eq!(rig.loops(id)[0].minor, before.minor);
            rig.publish(id, "a", "p", &cap, false).unwrap();
        }
        rig.unpublish(id, "p").unwrap();
        rig.unstage(id, "a").unwrap();
        rig.assert_clean(id);
        if !taken {
            return;
        }
    }
    panic!("others took the device every time");
}
