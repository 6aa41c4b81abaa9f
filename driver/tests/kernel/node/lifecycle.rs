//! The whole life of a mounted volume on a node.

use std::os::unix::fs::MetadataExt;

use hostloop_driver::kernel::{FsType, Kernel};
use hostloop_driver::node::Error;
use hostloop_driver::storage::Format;
use hostloop_proto::csi::volume_usage::Unit;

use super::Rig;
use crate::testkit::*;

fn whole_life(fs: FsType) {
    let rig = Rig::new();
    let id = rig.volume(on(fs), 32 * MI);
    let cap = mount(fs);
    for _ in 0..2 {
        rig.stage(id, "a", &cap).unwrap();
    }
    let device = rig.loops(id).remove(0);
    assert!(device.direct_io && device.autoclear);
    assert_eq!(device.block_size, 4096);
    let read_ahead = format!("/sys/block/loop{}/queue/read_ahead_kb", device.minor);
    assert_eq!(std::fs::read_to_string(read_ahead).unwrap().trim(), "64");
    assert_eq!(rig.record(id).format, Format::Done(fs));
    let table = rig.kernel.mounts().unwrap();
    let entry = table.at(&rig.staging("a")).unwrap();
    assert_eq!(entry.fs_type, fs.as_str());
    let discards = |o: &String| o == "discard" || o.starts_with("discard=");
    assert!(entry.super_options.iter().any(discards), "{entry:?}");
    if fs == FsType::Ext4 {
        // The kernel would punch holes for inode tables into a thick image.
        let noinit = |o: &String| o == "noinit_itable";
        assert!(entry.super_options.iter().any(noinit), "{entry:?}");
    }

    for _ in 0..2 {
        rig.publish(id, "a", "rw", &cap, false).unwrap();
        rig.publish(id, "a", "ro", &cap, true).unwrap();
    }
    write(&rig.target("rw").join("data"), 1, 100_000);
    assert_written(&rig.target("ro").join("data"), 1, 100_000);
    let refused = std::fs::write(rig.target("ro").join("more"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    refused!(
        rig.publish(id, "a", "ro", &cap, false),
        Error::AlreadyExists(_)
    );

    for at in [rig.target("rw"), rig.target("ro"), rig.staging("a")] {
        let usage = rig.stats(id, &at).unwrap();
        assert_eq!(usage[0].unit(), Unit::Bytes);
        let size = rig.kernel.usage(&at).unwrap().total_bytes;
        assert_eq!(u64::try_from(usage[0].total), Ok(size));
        assert!(usage[0].total > 0 && usage[0].used > 0 && usage[0].available > 0);
        let counts = fs != FsType::Btrfs;
        assert_eq!(usage.len(), if counts { 2 } else { 1 }, "{usage:?}");
    }
    refused!(rig.stats(id, rig.root()), Error::NotFound(_));

    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    for _ in 0..2 {
        rig.unpublish(id, "rw").unwrap();
        rig.unpublish(id, "ro").unwrap();
    }
    for _ in 0..2 {
        rig.unstage(id, "a").unwrap();
    }
    rig.assert_clean(id);
    rig.stage(id, "b", &cap).unwrap();
    assert_written(&rig.staging("b").join("data"), 1, 100_000);
    rig.unstage(id, "b").unwrap();
    rig.assert_clean(id);
}

#[test]
fn ext4() {
    whole_life(FsType::Ext4);
}

#[test]
fn xfs() {
    whole_life(FsType::Xfs);
}

#[test]
fn btrfs() {
    whole_life(FsType::Btrfs);
}

#[test]
fn mount_flags_hold_and_ro_is_read_only_to_the_bottom() {
    let rig = Rig::new();
    let flagged = |flags: &[&str]| with_flags(mount(FsType::Ext4), flags);
    let cap = flagged(&["noatime", "noexec", "data=writeback"]);
    let id = rig.staged(on(FsType::Ext4), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let table = rig.kernel.mounts().unwrap();
    for at in [rig.staging("a"), rig.target("p")] {
        let entry = table.at(&at).unwrap();
        for option in ["noatime", "noexec"] {
            assert!(entry.options.iter().any(|o| o == option), "{entry:?}");
        }
        assert!(entry.super_options.iter().any(|o| o == "data=writeback"));
    }
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();

    let cap = flagged(&["ro"]);
    rig.stage(id, "a", &cap).unwrap();
    let refused = std::fs::write(rig.staging("a").join("x"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    rig.stage(id, "a", &cap).unwrap();
    rig.unstage(id, "a").unwrap();

    let refused = rig.stage(id, "a", &flagged(&["no-such-option"]));
    assert!(refused.is_err());
    rig.assert_clean(id);
}

#[test]
fn the_group_owns_the_root() {
    let rig = Rig::new();
    let cap = with_group(mount(FsType::Ext4), "4711");
    let id = rig.staged(on(FsType::Ext4), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let root = std::fs::metadata(rig.target("p")).unwrap();
    assert_eq!((root.gid(), root.mode() & 0o2070), (4711, 0o2070));
}
