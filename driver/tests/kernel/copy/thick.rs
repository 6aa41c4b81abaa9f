//! Thick volumes that stay thick: every block can be written again on a full pool.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};

use hostloop_driver::kernel::extents;
use hostloop_driver::kernel::file::{self, Copied};
use hostloop_driver::storage::copy_image::{self, CopyRequest};
use hostloop_driver::storage::{Error, Provisioning};
use rstest::rstest;

use super::support::{Loop, Pool, Random, populate, run, sparse};

const MIB: u64 = 1 << 20;

fn want(len: u64, provisioning: Provisioning, pool: &Pool, thick_source: bool) -> CopyRequest {
    CopyRequest {
        len,
        provisioning,
        reflinks: pool.reflinks,
        thick_source,
    }
}

/// A fallocated image with its first half written.
fn thick_image(pool: &Pool, len: u64) -> File {
    let image = sparse(&pool.path("image"), len);
    file::allocate(&image, len).unwrap();
    for at in (0..len / 2).step_by(MIB as usize) {
        image.write_all_at(&[7; MIB as usize], at).unwrap();
    }
    image.sync_all().unwrap();
    image
}

/// Writes every block through a loop device with direct I/O, as a volume's user does.
fn overwrite(pool: &Pool, name: &str) -> std::io::Result<()> {
    let device = Loop::attach(&pool.path(name));
    let open = device.open();
    let len = std::fs::metadata(pool.path(name)).unwrap().len();
    for at in (0..len).step_by(MIB as usize) {
        open.write_all_at(&[9; MIB as usize], at)?;
    }
    open.sync_all()
}

/// True if the two files share a block on disk.
fn share(one: &File, other: &File) -> bool {
    let (ones, others) = (
        extents::extents(one).unwrap(),
        extents::extents(other).unwrap(),
    );
    ones.iter().any(|a| {
        others
            .iter()
            .any(|b| a.physical < b.physical + b.length && b.physical < a.physical + a.length)
    })
}

#[rstest]
#[case::ext4("ext4")]
#[case::xfs("xfs")]
#[case::btrfs("btrfs+C")]
fn a_snapshot_leaves_a_thick_volume_thick(#[case] fs: &str) {
    let pool = Pool::new(fs, 1 << 30);
    let image = thick_image(&pool, 128 * MIB);
    let snapshot = sparse(&pool.path("snapshot"), 0);
    let thin = want(128 * MIB, Provisioning::Thin, &pool, true);
    let copied = populate(&image, &snapshot, &thin);
    assert_eq!(
        copied == Copied::Shared,
        fs == "xfs",
        "only XFS can separate them again"
    );
    copy_image::keep_thick(&image, 128 * MIB, copied).unwrap();
    assert!(!share(&image, &snapshot));
    assert!(
        snapshot.metadata().unwrap().blocks() * 512 < 80 * MIB,
        "the snapshot is thin"
    );

    let _full = pool.fill();
    overwrite(&pool, "image").unwrap();
    let mut byte = [0];
    snapshot.read_exact_at(&mut byte, MIB).unwrap();
    assert_eq!(byte, [7]);
}

#[test]
fn without_keeping_it_a_thick_volume_meets_enospc() {
    // Without keep_thick, the kernel does this.
    let pool = Pool::new("xfs", 1 << 30);
    let image = thick_image(&pool, 128 * MIB);
    let snapshot = sparse(&pool.path("snapshot"), 0);
    file::clone(&image, &snapshot).unwrap();
    let _full = pool.fill();
    assert!(overwrite(&pool, "image").is_err());
}

#[rstest]
#[case::ext4("ext4")]
#[case::xfs("xfs")]
#[case::btrfs("btrfs+C")]
fn a_thick_restore_is_thick_and_larger(#[case] fs: &str) {
    let pool = Pool::new(fs, 1 << 30);
    let snapshot = sparse(&pool.path("snapshot"), 64 * MIB);
    snapshot.write_all_at(&[5; MIB as usize], 3 * MIB).unwrap();
    snapshot.write_all_at(&[5; MIB as usize], 50 * MIB).unwrap();
    let restored = sparse(&pool.path("restored"), 0);
    let thick = want(100 * MIB, Provisioning::Thick, &pool, false);
    populate(&snapshot, &restored, &thick);
    assert_eq!(restored.metadata().unwrap().len(), 100 * MIB);
    assert!(restored.metadata().unwrap().blocks() * 512 >= 100 * MIB);
    assert!(!share(&snapshot, &restored));
    let mut got = vec![0; 100 * MIB as usize];
    restored.read_exact_at(&mut got, 0).unwrap();
    let mut expected = vec![0; 64 * MIB as usize];
    snapshot.read_exact_at(&mut expected, 0).unwrap();
    assert!(got[..expected.len()] == expected && got[expected.len()..].iter().all(|b| *b == 0));

    let _full = pool.fill();
    overwrite(&pool, "restored").unwrap();
}

#[test]
fn no_room_to_stay_thick_is_an_error_that_can_be_undone() {
    let pool = Pool::new("xfs", 512 * MIB);
    let image = thick_image(&pool, 200 * MIB);
    let snapshot = sparse(&pool.path("snapshot"), 0);
    let full = pool.fill();
    let thin = want(200 * MIB, Provisioning::Thin, &pool, true);
    let copied = populate(&image, &snapshot, &thin);
    assert_eq!(copied, Copied::Shared);
    match copy_image::keep_thick(&image, 200 * MIB, copied) {
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
    let len = 128 * MIB;
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
            let thin = want(len, Provisioning::Thin, &pool, true);
            let copied = populate(&image, &snapshot, &thin);
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
fn what_cannot_be_cloned_is_copied() {
    let pool = Pool::new("btrfs+C", 1 << 30);
    let cow = pool.path("cow");
    std::fs::create_dir(&cow).unwrap();
    run("chattr", &["-C", cow.to_str().unwrap()]);
    let from = sparse(&cow.join("image"), 32 * MIB);
    from.write_all_at(&[4; MIB as usize], 5 * MIB).unwrap();
    let to = sparse(&pool.path("copy"), 0);
    let thin = want(32 * MIB, Provisioning::Thin, &pool, false);
    let copied = populate(&from, &to, &thin);
    assert_eq!(copied, Copied::Bytes(MIB), "holes stay holes");
    let mut got = vec![0; MIB as usize];
    to.read_exact_at(&mut got, 5 * MIB).unwrap();
    assert!(got.iter().all(|b| *b == 4));
    assert!(to.metadata().unwrap().blocks() * 512 <= 2 * MIB);
}
