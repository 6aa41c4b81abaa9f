//! Snapshots that are power cuts: what a machine without power would find on its disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hostloop_driver::kernel::{Filesystems, FsState, FsType, file};
use hostloop_driver::storage::{
    Access, Consistency, Error, NewVolume, Provisioning, Result, Settings, SnapshotRecord, Source,
    VolumeId,
};

use super::Rig;
use crate::testkit::*;
use crate::tools::{arg, run, until};

/// Runs a test on a pool on each filesystem that clones files, and on one in an image.
fn on_each_pool(test: impl Fn(&str, &Rig)) {
    for fs in [FsType::Xfs, FsType::Btrfs] {
        test(fs.as_str(), &Rig::on(fs, 4096 * MI));
    }
    let image = Rig::site(&["default=DIR/pool,image=4Gi"]);
    test("image", &Rig::over(image, Configs::default()));
}

fn cut(rig: &Rig, id: VolumeId, name: &str) -> Result<Arc<SnapshotRecord>> {
    let pools = &rig.node.pools;
    pools.create_powercut(&id, name, &Default::default())
}

fn image(rig: &Rig, id: VolumeId) -> PathBuf {
    let pool = rig.node.pools.named(None).unwrap();
    pool.root().join(format!("volumes/{id}/image"))
}

/// Checks an unmounted filesystem, and repairs nothing.
fn check(fs: FsType, image: &Path) {
    match fs {
        FsType::Ext4 => run("e2fsck", &["-f", "-n", arg(image)]),
        FsType::Xfs => run("xfs_repair", &["-n", "-f", arg(image)]),
        FsType::Btrfs => run("btrfs", &["check", "--readonly", arg(image)]),
    };
}

/// A writer that syncs each number before it writes the next.
#[derive(Default)]
struct Counter {
    synced: AtomicU64,
    stop: AtomicBool,
}

impl Counter {
    fn run(&self, at: &Path) {
        let file = File::create(at).unwrap();
        let mut n = 0_u64;
        while !self.stop.load(Ordering::SeqCst) {
            n += 1;
            file.write_all_at(&n.to_le_bytes(), 0).unwrap();
            file.sync_all().unwrap();
            self.synced.store(n, Ordering::SeqCst);
        }
    }

    fn synced(&self) -> u64 {
        self.synced.load(Ordering::SeqCst)
    }
}

/// Stops a counter when a test ends or fails.
struct StopAtEnd<'a>(&'a Counter);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// Bytes of a file that is written and not synced.
const UNSYNCED: usize = 1 << 20;

/// The file that is written right before a cut.
fn unsynced(at: &Path, cut: usize) -> PathBuf {
    at.join(format!("unsynced{cut}"))
}

/// Cuts of a mounted volume under load, each with a number that was synced before.
fn cuts_under_load(rig: &Rig, id: VolumeId, at: &Path) -> Vec<(u64, Arc<SnapshotRecord>)> {
    const CUTS: usize = 2;
    let counter = Counter::default();
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&counter);
        scope.spawn(|| counter.run(&at.join("counter")));
        until("a number is synced", || counter.synced() > 0);
        (0..CUTS)
            .map(|n| {
                std::fs::write(unsynced(at, n), pattern(n as u8, UNSYNCED)).unwrap();
                let synced = counter.synced();
                (synced, cut(rig, id, &format!("cut{n}")).unwrap())
            })
            .collect()
    })
}

/// Each cut is restored to a larger size, next to the original with the same UUID. True if one of them
/// lacks what was not synced.
fn restore_cuts_of(rig: &Rig, fs: FsType, what: &str) -> bool {
    let (id, cap, pools) = (rig.volume(on(fs), 32 * MI), mount(fs), &rig.node.pools);
    rig.stage(id, "a", &cap).unwrap();
    let (a, b) = (rig.staging("a"), rig.staging("b"));
    write(&a.join("synced"), 3, 1 << 20);
    let cuts = cuts_under_load(rig, id, &a);
    assert_eq!(rig.record(id).freeze, None, "{what}");

    let mut lacks_unsynced = false;
    let larger = rig.record(id).capacity_bytes + 160 * MI;
    for (n, (synced, cut)) in cuts.iter().enumerate() {
        assert_eq!(cut.consistency, Consistency::Powercut, "{what}");
        let restored = rig.create(copy_of(Source::Snapshot(cut.id), on(fs), larger));
        if fs == FsType::Ext4 {
            let state = rig.kernel.fs_state(&image(rig, restored), fs).unwrap();
            let crashed = FsState {
                unreplayed: true,
                needs_check: false,
            };
            assert_eq!(state, crashed, "{what}");
        }
        let staged = rig.stage(restored, "b", &cap);
        staged.unwrap_or_else(|e| panic!("{what}: cut {n}: {e}"));
        assert_written(&b.join("synced"), 3, 1 << 20);
        let mut number = [0; 8];
        let counter = File::open(b.join("counter")).unwrap();
        counter.read_exact_at(&mut number, 0).unwrap();
        let number = u64::from_le_bytes(number);
        assert!(number >= *synced, "{what}: {number} of {synced}");
        let read = std::fs::read(unsynced(&b, n)).unwrap_or_default();
        lacks_unsynced |= read != pattern(n as u8, UNSYNCED);
        drop(counter);
        write(&b.join("more"), 5, 100_000);
        rig.unstage(restored, "b").unwrap();
        rig.assert_detached(restored);
        check(fs, &image(rig, restored));
        pools.delete_volume(&restored).unwrap();
        pools.delete_snapshot(&cut.id).unwrap();
    }
    write(&a.join("later"), 4, 1000);
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    check(fs, &image(rig, id));
    rig.stage(id, "a", &cap).unwrap();
    assert_written(&a.join("synced"), 3, 1 << 20);
    assert_written(&a.join("later"), 4, 1000);
    for n in 0..cuts.len() {
        assert_written(&unsynced(&a, n), n as u8, UNSYNCED);
    }
    rig.unstage(id, "a").unwrap();
    pools.delete_volume(&id).unwrap();
    lacks_unsynced
}

#[test]
fn what_was_synced_survives_a_power_cut_and_the_original_goes_on() {
    on_each_pool(|pool, rig| {
        for fs in FsType::ALL {
            let what = format!("{fs} on {pool}");
            // The kernel may write back at any time, but not before each cut.
            let is_missing = (0..5).any(|_| restore_cuts_of(rig, fs, &what));
            assert!(is_missing, "{what}: nothing was missing");
        }
    });
}

#[test]
fn a_power_cut_of_a_raw_block_volume_has_what_was_synced() {
    const TRIES: u8 = 5;
    let rig = Rig::on(FsType::Xfs, 1024 * MI);
    let id = rig.staged(Access::Block, "a", &block());
    rig.publish(id, "a", "p", &block(), false).unwrap();
    let device = File::options().write(true).open(rig.target("p")).unwrap();
    device.write_all_at(&pattern(1, 4096), 0).unwrap();
    device.sync_all().unwrap();
    let is_missing = (0..TRIES).any(|n| {
        // The kernel may write it back at any time.
        device.write_all_at(&pattern(2 + n, 4096), 4096).unwrap();
        let taken = cut(&rig, id, &format!("cut{n}")).unwrap();
        let image = rig.node.pools.open_snapshot(&taken).unwrap();
        let mut block = [0; 4096];
        image.read_exact_at(&mut block, 0).unwrap();
        assert!(block[..] == pattern(1, 4096), "what was synced is there");
        image.read_exact_at(&mut block, 4096).unwrap();
        block[..] != pattern(2 + n, 4096)
    });
    assert!(is_missing, "the device was flushed");
}

/// Only XFS can give a thick volume its own blocks again after a clone.
#[test]
fn a_pool_that_would_copy_refuses_a_power_cut() {
    for (fs, provisioning, is_taken) in [
        (FsType::Ext4, Provisioning::Thin, false),
        (FsType::Btrfs, Provisioning::Thick, false),
        (FsType::Xfs, Provisioning::Thick, true),
    ] {
        let rig = Rig::on(fs, 1024 * MI);
        let id = rig.create(NewVolume {
            settings: Settings {
                provisioning,
                ..THIN
            },
            ..new_volume(ext4(), 32 * MI)
        });
        rig.stage(id, "a", &mount("ext4")).unwrap();
        let taken = cut(&rig, id, "cut");
        if is_taken {
            taken.unwrap();
        } else {
            refused!(taken, Error::Refused(_), "{fs}");
            assert!(rig.node.pools.snapshots().is_empty(), "{fs}");
        }
        if provisioning == Provisioning::Thick {
            let allocated = file::allocated_bytes(&rig.open_image(id)).unwrap();
            assert!(allocated >= 32 * MI, "{fs}: {allocated}");
        }
        rig.unstage(id, "a").unwrap();
    }
}
