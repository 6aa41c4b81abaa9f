//! Mount flags and groups of mounted volumes.

use std::os::unix::fs::MetadataExt;

use hostloop_driver::kernel::Kernel;

use super::Rig;
use crate::testkit::*;

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
            assert!(entry.options.iter().any(|o| o == option), "{entry:?}");
        }
        for option in ["lazytime", "data=journal"] {
            assert!(entry.super_options.iter().any(|o| o == option), "{entry:?}");
        }
    }
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();

    let unknown = with_flags(mount("ext4"), &["no-such-option"]);
    rig.stage(id, "a", &unknown).unwrap_err();
    rig.assert_clean(id);
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
