//! Thick volumes that stay thick: every block can be written again on a full pool.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use hostloop_driver::kernel::extents;
use hostloop_driver::kernel::file::{self, Copied};
use hostloop_driver::storage::copy_image::{self, NewImage};
use hostloop_driver::storage::{Error, Provisioning};
use rstest::rstest;

use super::support::{Loop, Pool, Random, populate, run, sparse};
use crate::testkit::MI;

/// A fallocated image with its first half written.
fn thick_image(pool: &Pool, len: u64) -> File {
    let image = sparse(&pool.path("image"), len);
    file::allocate(&image, 0..len).unwrap();
    for at in (0..len / 2).step_by(MI as usize) {
        image.write_all_at(&[7; MI as usize], at).unwrap();
    }
    image.sync_all().unwrap();
    image
}

/// Writes every block through a loop device with direct I/O, as a volume's user does.
fn overwrite(pool: &Pool, name: &str) -> std::io::Result<()> {
    let device = Loop::attach(&pool.path(name));
    let open = device.open();
    let len = std::fs::metadata(pool.path(name)).unwrap().len();
    for at in (0..len).step_by(MI as usize) {
        open.write_all_at(&[9; MI as usize], at)?;
    }
    open.sync_all()
}

/// True if the two files share a block on disk.
fn share(one: &File, other: &File) -> bool {
    let places = |file| {
        let extents = extents::extents(file).unwrap();
        extents
            .into_iter()
            .map(|e| e.physical..e.physical + e.length)
    };
    places(one).any(|a| places(other).any(|b| a.start < b.end && b.start < a.end))
}

#[rstest]
fn a_snapshot_leaves_a_thick_volume_thick(#[values("ext4", "xfs", "btrfs+C")] fs: &str) {
    let pool = Pool::new(fs, 1 << 30);
    let image = thick_image(&pool, 128 * MI);
    let snapshot = sparse(&pool.path("snapshot"), 0);
    let copied = populate(&image, &snapshot, &pool.thin(128 * MI, true));
    let shared = copied == Copied::Shared;
    assert_eq!(shared, fs == "xfs", "only XFS can separate them again");
    copy_image::keep_thick(&image, 128 * MI, copied).unwrap();
    assert!(!share(&image, &snapshot));
    let allocated = file::allocated_bytes(&snapshot).unwrap();
    assert!(allocated < 80 * MI, "the snapshot is thin");

    let _full = pool.fill();
    overwrite(&pool, "image").unwrap();
    let mut byte = [0];
    snapshot.read_exact_at(&mut byte, MI).unwrap();
    assert_eq!(byte, [7]);
}

#[test]
fn without_keep_thick_a_thick_volume_meets_enospc() {
    let pool = Pool::new("xfs", 1 << 30);
    let image = thick_image(&pool, 128 * MI);
    let snapshot = sparse(&pool.path("snapshot"), 0);
    file::clone(&image, &snapshot).unwrap();
    let _full = pool.fill();
    assert!(overwrite(&pool, "image").is_err());
}

#[rstest]
fn a_thick_restore_is_thick_and_larger(#[values("ext4", "xfs", "btrfs+C")] fs: &str) {
    let pool = Pool::new(fs, 1 << 30);
    let snapshot = sparse(&pool.path("snapshot"), 64 * MI);
    snapshot.write_all_at(&[5; MI as usize], 3 * MI).unwrap();
    snapshot.write_all_at(&[5; MI as usize], 50 * MI).unwrap();
    let restored = sparse(&pool.path("restored"), 0);
    let thick = NewImage {
        provisioning: Provisioning::Thick,
        ..pool.thin(100 * MI, false)
    };
    populate(&snapshot, &restored, &thick);
    assert_eq!(restored.metadata().unwrap().len(), 100 * MI);
    assert!(file::allocated_bytes(&restored).unwrap() >= 100 * MI);
    assert!(!share(&snapshot, &restored));
    let mut got = vec![0; 100 * MI as usize];
    restored.read_exact_at(&mut got, 0).unwrap();
    let mut expected = vec![0; 64 * MI as usize];
    snapshot.read_exact_at(&mut expected, 0).unwrap();
    assert!(got[..expected.len()] == expected && got[expected.len()..].iter().all(|b| *b == 0));

    let _full = pool.fill();
    overwrite(&pool, "restored").unwrap();
}

#[test]
fn no_room_to_stay_thick_is_an_error_that_can_be_undone() {
    let pool = Pool::new("xfs", 512 * MI);
    let image = thick_image(&pool, 200 * MI);
    let snapshot = sparse(&pool.path("snapshot"), 0);
    let full = pool.fill();
    let copied = populate(&image, &snapshot, &pool.thin(200 * MI, true));
    assert_eq!(copied, Copied::Shared);
    match copy_image::keep_thick(&image, 200 * MI, copied) {
        Err(Error::Kernel(e)) if e.is_no_space() => {}
        other => panic!("{other:?}"),
    }
    std::fs::remove_file(pool.path("snapshot")).unwrap();
    drop(snapshot);
    overwrite(&pool, "image").unwrap();
    drop(full);
}

/// Writes to the volume continue while its blocks are separated from a snapshot.
#[test]
fn unsharing_goes_on_under_a_busy_loop_device() {
    let pool = Pool::new("xfs", 1 << 30);
    let len = 128 * MI;
    let image = thick_image(&pool, len);
    let device = Loop::attach(&pool.path("image"));
    let mut expected = vec![0; len as usize];
    image.read_exact_at(&mut expected, 0).unwrap();
    let before = expected.clone();
    let stop = AtomicBool::new(false);
    let mut snapshots = Vec::new();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let open = device.open();
            let mut random = Random(77);
            let mut writes = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let at = random.below(len / 4096) * 4096;
                let block = [random.below(250) as u8; 4096];
                open.write_all_at(&block, at).unwrap();
                expected[at as usize..at as usize + 4096].copy_from_slice(&block);
                writes += 1;
                if writes.is_multiple_of(64) {
                    open.sync_data().unwrap();
                }
            }
            open.sync_all().unwrap();
            writes
        });
        for i in 0..4 {
            let snapshot = sparse(&pool.path(&format!("snapshot-{i}")), 0);
            let copied = populate(&image, &snapshot, &pool.thin(len, true));
            copy_image::keep_thick(&image, len, copied).unwrap();
            snapshots.push(snapshot);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(writer.join().unwrap() > 0);
    });
    drop(device);
    let mut got = vec![0; len as usize];
    image.read_exact_at(&mut got, 0).unwrap();
    assert!(got == expected, "no write was lost");
    assert!(got != before);
    assert!(snapshots.iter().all(|s| !share(&image, s)));
}

/// btrfs clones no file that is copied on write into one that is not.
#[test]
fn a_file_that_cannot_be_cloned_is_copied() {
    let pool = Pool::new("btrfs+C", 1 << 30);
    let cow = pool.path("cow");
    std::fs::create_dir(&cow).unwrap();
    run("chattr", &["-C", cow.to_str().unwrap()]);
    let from = sparse(&cow.join("image"), 32 * MI);
    from.write_all_at(&[4; MI as usize], 5 * MI).unwrap();
    let to = sparse(&pool.path("copy"), 0);
    let copied = populate(&from, &to, &pool.thin(32 * MI, false));
    assert_eq!(copied, Copied::Bytes(MI), "holes stay holes");
    let mut got = vec![0; MI as usize];
    to.read_exact_at(&mut got, 5 * MI).unwrap();
    assert!(got.iter().all(|b| *b == 4));
    assert!(file::allocated_bytes(&to).unwrap() <= 2 * MI);
}
