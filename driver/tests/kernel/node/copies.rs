//! Volumes next to their copies, and volumes that were copied.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use hostloop_driver::kernel::{Filesystems, FsType};
use hostloop_driver::storage::{Access, Error, Source};

use super::Rig;
use crate::testkit::*;
use crate::tools::until;

/// Runs a test on a pool on each filesystem, and on one in an image.
fn on_each_pool(test: impl Fn(&str, &Rig)) {
    for fs in FsType::ALL {
        test(fs.as_str(), &Rig::on(fs, 4096 * MI));
    }
    let image = Rig::site(&["default=DIR/pool,image=4Gi"]);
    test("image", &Rig::over(image, Configs::default()));
}

/// A reflinked image is attached with 4096-byte sectors, so its filesystem must have had them since
/// its mkfs. The device keeps direct I/O.
#[test]
fn a_snapshot_holds_what_was_written_and_leaves_the_original_mountable() {
    on_each_pool(|pool, rig| {
        for fs in FsType::ALL {
            let what = format!("{fs} on {pool}");
            let (id, cap) = (rig.volume(on(fs), 32 * MI), mount(fs));
            let (a, b, pools) = (rig.staging("a"), rig.staging("b"), &rig.node.pools);
            rig.stage(id, "a", &cap).unwrap();
            // The data is still in the page cache when the snapshot is taken.
            std::fs::write(a.join("data"), pattern(3, 3 << 20)).unwrap();
            let snapshot = pools
                .create_snapshot(&id, "s", &Default::default())
                .unwrap();
            assert_eq!(rig.record(id).freeze, None, "{what}");
            write(&a.join("later"), 4, 1000);
            refused!(pools.delete_volume(&id), Error::Attached { .. });
            rig.unstage(id, "a").unwrap();

            rig.stage(id, "a", &cap).unwrap();
            assert!(rig.device(id).direct_io, "{what}, after a snapshot");
            assert_written(&a.join("data"), 3, 3 << 20);
            assert_written(&a.join("later"), 4, 1000);

            // The restored one next to it, larger, with the same UUID.
            let larger = rig.record(id).capacity_bytes + 160 * MI;
            let restored = rig.create(copy_of(Source::Snapshot(snapshot.id), on(fs), larger));
            rig.stage(restored, "b", &cap).unwrap();
            assert!(rig.device(restored).direct_io, "{what}, restored");
            assert_written(&b.join("data"), 3, 3 << 20);
            assert!(!b.join("later").exists(), "{what}");
            let [before, total] = [&a, &b].map(|at| rig.kernel.usage(at).unwrap().total_bytes);
            assert!(total > before + 32 * MI, "{what}: grown to {total}");
            rig.unstage(id, "a").unwrap();
            rig.unstage(restored, "b").unwrap();

            // The snapshot outlives its volume.
            pools.delete_volume(&restored).unwrap();
            pools.delete_volume(&id).unwrap();
            let again = rig.create(copy_of(Source::Snapshot(snapshot.id), on(fs), larger));
            rig.stage(again, "a", &cap).unwrap();
            assert_written(&a.join("data"), 3, 3 << 20);
            rig.unstage(again, "a").unwrap();
            pools.delete_volume(&again).unwrap();
            pools.delete_snapshot(&snapshot.id).unwrap();
        }
    });
}

#[test]
fn a_clone_is_mounted_next_to_its_source_and_differs_from_then_on() {
    on_each_pool(|_, rig| {
        for fs in FsType::ALL {
            let (id, cap) = (rig.volume(on(fs), 32 * MI), mount(fs));
            let (a, b) = (rig.staging("a").join("data"), rig.staging("b").join("data"));
            rig.stage(id, "a", &cap).unwrap();
            write(&a, 5, 10_000);
            let bytes = rig.record(id).capacity_bytes;
            let clone = rig.create(copy_of(Source::Volume(id), on(fs), bytes));
            write(&a, 7, 10_000);
            rig.stage(clone, "b", &cap).unwrap();
            assert_written(&b, 5, 10_000);
            write(&b, 6, 10_000);
            rig.unstage(id, "a").unwrap();
            rig.unstage(clone, "b").unwrap();
            rig.stage(id, "a", &cap).unwrap();
            assert_written(&a, 7, 10_000);
            rig.unstage(id, "a").unwrap();
        }
    });
}

#[test]
fn a_group_is_one_point_in_time() {
    on_each_pool(|pool, rig| {
        let (pools, cap) = (&rig.node.pools, mount("ext4"));
        let volumes = ["a", "b"].map(|at| rig.staged(ext4(), at, &cap));
        // Two counters are written in turn: no snapshot of both may have the second ahead.
        let files = ["a", "b"].map(|at| rig.staging(at).join("n"));
        let stop = AtomicBool::new(false);
        let group = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    for file in &files {
                        std::fs::write(file.with_extension("new"), n.to_string()).unwrap();
                        std::fs::rename(file.with_extension("new"), file).unwrap();
                    }
                }
            });
            until("the counters are written", || {
                files.iter().all(|file| file.exists())
            });
            let group = pools.create_group("g", &volumes, &Default::default());
            stop.store(true, Ordering::Relaxed);
            group.unwrap_or_else(|e| panic!("{pool}: {e}"))
        });
        let read = |i: usize| {
            let source = Source::Snapshot(group.snapshots[i]);
            let restored = rig.create(copy_of(source, ext4(), 16 * MI));
            rig.stage(restored, "c", &cap).unwrap();
            let text = std::fs::read_to_string(rig.staging("c").join("n")).unwrap();
            rig.unstage(restored, "c").unwrap();
            text.parse::<u64>().unwrap()
        };
        let (first, second) = (read(0), read(1));
        let ahead = first.wrapping_sub(second);
        assert!(ahead <= 1, "{pool}: {first} and {second}");
        pools.delete_group(&group.id).unwrap();
        assert!(pools.snapshots().is_empty());
    });
}

#[test]
fn copies_between_pools_are_whole() {
    let site = Rig::site(&["default=DIR/pool,image=1Gi", "b=DIR/b"]);
    let rig = Rig::over(site, Configs::default());
    let (pools, cap) = (&rig.node.pools, mount("ext4"));
    let id = rig.staged(ext4(), "a", &cap);
    write(&rig.staging("a").join("data"), 5, 2 << 20);
    rig.unstage(id, "a").unwrap();
    // Without reflinks, a filesystem that another namespace still has is not copied.
    rig.assert_detached(id);
    let pool = pools.named(Some("b")).unwrap();
    let copy = pools
        .create_volume(&pool, copy_of(Source::Volume(id), ext4(), 16 * MI))
        .unwrap();
    assert_eq!(copy.id.pool(), pool.id());
    rig.stage(copy.id, "b", &cap).unwrap();
    assert_written(&rig.staging("b").join("data"), 5, 2 << 20);
}

#[test]
fn a_raw_block_volume_in_use_is_copied_or_refused() {
    on_each_pool(|name, rig| {
        let pools = &rig.node.pools;
        let id = rig.staged(Access::Block, "a", &block());
        rig.publish(id, "a", "p", &block(), false).unwrap();
        let device = File::options().write(true).open(rig.target("p")).unwrap();
        device.write_all_at(&pattern(7, 4096), 4096).unwrap();
        drop(device);
        let taken = pools.create_snapshot(&id, "s", &Default::default());
        if pools.named(None).unwrap().reflinks() {
            let image = pools.open_snapshot(&taken.unwrap()).unwrap();
            let mut read = [0; 4096];
            image.read_exact_at(&mut read, 4096).unwrap();
            assert!(read[..] == pattern(7, 4096), "{name}");
        } else {
            // A copy would hold parts of different times.
            refused!(taken, Error::CannotFreeze(_), "{name}");
            assert!(pools.snapshots().is_empty());
        }
    });
}
