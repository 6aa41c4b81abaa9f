//! Mount flags and groups of mounted volumes.

use std::os::unix::fs::{FileExt, MetadataExt};

use hostloop_driver::kernel::Mounts;

use super::Rig;
use crate::testkit::*;
use crate::tools::{arg, run};

#[test]
fn mount_flags_hold_and_unknown_ones_are_refused() {
    let rig = Rig::new();
    let flags = ["noatime", "noexec", "lazytime", "data=journal", "x-mine"];
    let cap = with_flags(mount("ext4"), &flags);
    let id = rig.staged(ext4(), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let table = rig.kernel.mounts().unwrap();
    for at in [rig.staging("a"), rig.target("p")] {
        let entry = table.at(&at).unwrap();
        for option in ["noatime", "noexec"] {
            assert!(entry.options.has(option), "{entry:?}");
        }
        for option in ["lazytime", "data=journal"] {
            assert!(entry.super_options.has(option), "{entry:?}");
        }
    }
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();

    let unknown = with_flags(mount("ext4"), &["no-such-option"]);
    rig.stage(id, "a", &unknown).unwrap_err();
    rig.assert_clean(id);
}

#[test]
fn an_ext4_is_checked_if_its_superblock_has_errors() {
    /// Offset of the time of the last check in an image. Only a check changes it.
    const LAST_CHECK: u64 = 1024 + 0x40;
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    let image = rig.root().join(format!("pool/volumes/{id}/image"));
    // The state of a filesystem that was unmounted, of one that was not, and of one with errors.
    // The journal makes up for a missing unmount.
    for (state, checked) in [(1, false), (0, false), (3, true)] {
        rig.unstage(id, "a").unwrap();
        rig.assert_detached(id);
        for change in ["lastcheck @0", &format!("state {state}")] {
            let change = format!("set_super_value {change}");
            run("debugfs", &["-w", "-R", &change, arg(&image)]);
        }
        rig.stage(id, "a", &mount("ext4")).unwrap();
        let mut last_check = [0; 4];
        let image = std::fs::File::open(&image).unwrap();
        image.read_exact_at(&mut last_check, LAST_CHECK).unwrap();
        assert_eq!(last_check != [0; 4], checked, "state {state}");
    }
}

#[test]
fn the_group_owns_the_root() {
    let rig = Rig::new();
    let cap = with_group(mount("ext4"), "4711");
    let id = rig.staged(ext4(), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let root = std::fs::metadata(rig.target("p")).unwrap();
    assert_eq!((root.gid(), root.mode() & 0o2070), (4711, 0o2070));
}
