//! Read-only targets of a raw block volume, beside one that is written to.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::Rig;
use crate::testkit::*;
use hostloop_driver::node::ReadOnlyCaches;

/// A buffer for direct I/O.
#[repr(align(4096))]
struct Block([u8; 4096]);

fn open(path: &Path, flags: i32) -> File {
    File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .unwrap()
}

/// The page cache of the read-only device is its own. Direct reads do not use it, a reader can drop
/// it without any right, and the driver drops it after writes.
#[test]
fn a_read_only_target_shows_what_was_written() {
    for direct_io in ["true", "false"] {
        let rig = Rig::new();
        let mut request = create_request("one");
        request.volume_capabilities = vec![block()];
        request.parameters = map(&[("directIO", direct_io)]);
        let id = rig.created(request);
        rig.stage(&id, "a", &block()).unwrap();
        rig.publish(&id, "a", "w", &block(), false).unwrap();
        rig.publish(&id, "a", "r", &block(), true).unwrap();
        let (buffered, direct) = (
            open(&rig.target("r"), 0),
            open(&rig.target("r"), libc::O_DIRECT),
        );
        let read = |file: &File| {
            let mut block = Block([0; 4096]);
            file.read_exact_at(&mut block.0, 0).unwrap();
            block.0[0]
        };
        assert_eq!(read(&buffered), 0);
        let (mut caches, mut repeated) = (ReadOnlyCaches::default(), 0);
        for (byte, flags) in [(1, 0), (2, libc::O_DIRECT)] {
            let mut options = File::options();
            let writer = options
                .write(true)
                .custom_flags(flags)
                .open(rig.target("w"))
                .unwrap();
            writer.write_all_at(&Block([byte; 4096]).0, 0).unwrap();
            // At once: the writer has not even called fsync.
            assert_eq!(read(&direct), byte, "directIO={direct_io}");
            let dont_need = rustix::fs::Advice::DontNeed;
            rustix::fs::fadvise(&buffered, 0, None, dont_need).unwrap();
            assert_eq!(read(&buffered), byte, "directIO={direct_io}");

            rig.node.drop_stale_caches(&mut caches);
            assert_eq!(read(&buffered), byte, "directIO={direct_io}");
            let written = byte + 10;
            writer.write_all_at(&Block([written; 4096]).0, 0).unwrap();
            // Unless a machine that is short of memory has dropped the page.
            repeated += usize::from(read(&buffered) == byte);
            writer.sync_all().unwrap();
            rig.node.drop_stale_caches(&mut caches);
            assert_eq!(read(&buffered), written, "directIO={direct_io}");
            drop(writer);
        }
        assert!(repeated > 0, "it repeats what it read");
        // A device that is published later has read nothing before.
        rig.publish(&id, "a", "later", &block(), true).unwrap();
        assert_eq!(read(&open(&rig.target("later"), 0)), 12);
        drop((buffered, direct));
        for target in ["w", "r", "later"] {
            rig.unpublish(&id, target).unwrap();
        }
        rig.unstage_patiently(&id, "a");
        rig.assert_clean(&id);
    }
}
