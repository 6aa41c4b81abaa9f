//! An ext4 without a journal after a power cut: a rename can be half done. debugfs makes that.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hostloop_driver::kernel::Filesystems;
use hostloop_driver::storage::{Error, VolumeId};
use tempfile::TempDir;

use super::support::*;
use crate::testkit::pattern;
use crate::tools::until_unclaimed;

fn content(world: &World, id: VolumeId) -> Vec<u8> {
    let image = world.pools().open_image(&world.volume(id), false).unwrap();
    let mut read = vec![0; 5000];
    image.read_exact_at(&mut read, 8192).unwrap();
    read
}

fn e2fsck(device: &Path) {
    let status = command("e2fsck")
        .args(["-f", "-y", arg(device)])
        .output()
        .unwrap();
    assert_eq!(status.status.code(), Some(1), "{status:?}");
}

/// A creation and a deletion were cut off after the new name was on disk, and before the old one
/// had gone.
#[test]
fn a_directory_with_two_names_keeps_its_data() {
    let disk = Disk::new(64 * MI).mkfs("ext4", &["-O", "^has_journal"]);
    let dir = TempDir::with_prefix("hostloop-pool-").unwrap();
    let at = dir.path().join("at");
    let mount = || Mount::new("ext4", &disk.device, &at, "defaults");
    let mut mounted = Some(mount());
    let mut world = World::at("a", &at);
    world.open();
    assert!(
        !world
            .kernel
            .renames_whole(std::fs::File::open(&at).unwrap().as_fd())
    );
    let ids = ["incoming", "trash"].map(|name| world.make(name).id);
    for (seed, id) in (0..).zip(ids) {
        let image = world.pools().open_image(&world.volume(id), true).unwrap();
        image.write_all_at(&pattern(seed, 5000), 8192).unwrap();
    }
    world.close();
    drop(mounted.take());
    until_unclaimed(&*world.kernel, &disk.device);
    for (id, other) in ids.iter().zip(["incoming", "trash"]) {
        let request = format!("link volumes/{id} {other}/{id}");
        run("debugfs", &["-w", "-R", &request, arg(&disk.device)]);
    }
    mounted = Some(mount());
    for _ in 0..2 {
        let noted = world.open().noted_problems();
        assert_eq!(noted.len(), 2, "{noted:?}");
        assert!(
            noted
                .iter()
                .all(|f| f.problem.to_string().contains("e2fsck -f")),
            "{noted:?}"
        );
        for (seed, id) in (0..).zip(ids) {
            assert_eq!(content(&world, id), pattern(seed, 5000));
            refused!(world.pools().delete_volume(&id), Error::Refused(_));
        }
    }
    // e2fsck keeps the names under incoming/ and trash/, because it reads these first.
    world.close();
    drop(mounted.take());
    until_unclaimed(&*world.kernel, &disk.device);
    e2fsck(&disk.device);
    mounted = Some(mount());
    assert!(at.join(format!("incoming/{}", ids[0])).exists());
    open_sound(&mut world, "repaired");
    for (seed, id) in (0..).zip(ids) {
        assert_eq!(content(&world, id), pattern(seed, 5000));
        world.pools().delete_volume(&id).unwrap();
    }
    open_sound(&mut world, "deleted");
    assert_eq!(world.entries(), [""; 0]);
    world.close();
    drop(mounted);
}
