//! What copies of images cost beside the copy itself.

use std::os::unix::fs::FileExt;

use super::*;

/// A copy that ended in time shows how fast the next one of its volume is.
#[test]
fn the_second_snapshot_of_a_volume_needs_no_sample() {
    let _scenario = fail::FailScenario::setup();
    let mut site = site("p=DIR/pool");
    site.kernel.set_reflinks(false);
    site.open();
    let volume = site.create(NewVolume {
        capacity_bytes: 96 * MI,
        ..new("one", None)
    });
    let image = site.pools().open_image(&volume, true).unwrap();
    image.write_all_at(&vec![1; 80 << 20], MI).unwrap();
    let _mounted = site.mounted(&volume, "mount");
    let copies =
        ["first", "second"].map(|name| count("file.copy", || drop(site.snapshot(&volume, name))));
    assert_eq!(copies, [2, 1], "a sample, and the copy");
}

/// Such a copy gives way to others, and says nothing of the disk.
#[test]
fn a_snapshot_without_a_freeze_takes_the_place_of_no_sample() {
    let _scenario = fail::FailScenario::setup();
    let mut site = site("p=DIR/pool");
    site.kernel.set_reflinks(false);
    site.open();
    let volume = site.create(NewVolume {
        capacity_bytes: 96 * MI,
        ..new("one", None)
    });
    let image = site.pools().open_image(&volume, true).unwrap();
    image.write_all_at(&vec![1; 80 << 20], MI).unwrap();
    site.snapshot(&volume, "idle");
    let _mounted = site.mounted(&volume, "mount");
    let copies = count("file.copy", || drop(site.snapshot(&volume, "mounted")));
    assert_eq!(copies, 2, "a sample, and the copy");
}
