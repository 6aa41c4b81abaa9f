//! What copies of images cost beside the copy itself.

use std::os::unix::fs::FileExt;

use super::*;

/// A copy under a freeze is estimated by a sample, also after one that ended in time.
#[test]
fn each_snapshot_of_a_mounted_volume_takes_a_sample() {
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
    assert_eq!(copies, [2, 2], "a sample, and the copy");
}
