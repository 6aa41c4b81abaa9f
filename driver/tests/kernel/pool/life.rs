//! Volumes with real filesystems in them: snapshots, clones, groups, deletion.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hostloop_driver::kernel::{FsType, MountSpec};
use hostloop_driver::storage::{Error, NewVolume, Source, Stage, VolumeRecord};
use tempfile::TempDir;

use super::support::*;

/// A volume that is attached, formatted, mounted, and recorded as staged.
struct Staged<'a> {
    world: &'a World,
    record: Arc<VolumeRecord>,
    minor: u32,
    dir: TempDir,
}

impl<'a> Staged<'a> {
    fn new(world: &'a World, record: &Arc<VolumeRecord>, fs: FsType, format: bool) -> Staged<'a> {
        let device = world.attach(record);
        let dir = TempDir::with_prefix("hostloop-pool-stage-").unwrap();
        let staged = Staged { world, record: record.clone(), minor: device.minor, dir };
        if format {
            crate::testkit::make_fs(&*world.kernel, &device, fs);
        }
        let nouuid = ["nouuid".to_owned()];
        let mount = MountSpec {
            device: &device.path(),
            target: staged.dir.path(),
            fs,
            read_only: false,
            options: if fs == FsType::Xfs { &nouuid } else { &[] },
        };
        world.kernel.mount(&mount).unwrap();
        let stage = Stage {
            path: staged.dir.path().to_path_buf(),
            capability: mounted(),
            minor: Some(device.minor),
            read_only_loops: BTreeMap::new(),
        };
        world.update(record.id, |r| r.stage = Some(stage));
        staged
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        let (kernel, pools) = (&self.world.kernel, self.world.pools());
        let _ = kernel.unmount(self.dir.path());
        if let Ok(image) = pools.open_image(&self.record, false) {
            let image = hostloop_driver::kernel::file_id(&image).unwrap();
            let _ = kernel.loop_detach(self.minor, image);
        }
        let _ = pools.update_volume(&self.record.id, |r| r.stage = None);
    }
}

fn each_ground(test: impl Fn(&str, &World)) {
    for fs in ["ext4", "xfs", "btrfs"] {
        let ground = Ground::new(fs, 3 * GI, &[]);
        let mut world = World::at("p", &ground.at.join("p"));
        world.open();
        test(fs, &world);
    }
    let mut world = World::new(&["p=DIR/p,image=3Gi"]);
    world.open();
    test("image", &world);
}

fn from(source: Source, name: &str, bytes: u64) -> NewVolume {
    NewVolume { source: Some(source), ..thin(name, bytes) }
}

#[test]
fn snapshots_of_volumes_in_use_hold_what_was_written_and_outlive_them() {
    each_ground(|ground, world| {
        for fs in FsType::ALL {
            let bytes = 320 * MI;
            let pools = world.pools();
            let volume = world.create(thin(&fs.to_string(), bytes));
            let snapshot = {
                let staged = Staged::new(world, &volume, fs, true);
                // The data is still in the page cache when the snapshot is taken.
                std::fs::write(staged.file("before"), vec![7; 3 << 20]).unwrap();
                let snapshot = world.snapshot(&volume, &fs.to_string());
                std::fs::write(staged.file("after"), "x").unwrap();
                refused!(pools.delete_volume(&volume.id), Error::Attached { .. });
                snapshot
            };
            assert_eq!(world.volume(volume.id).freeze, None);
            pools.delete_volume(&volume.id).unwrap();

            let source = Source::Snapshot(snapshot.id);
            let restored = world.create(from(source, &format!("{fs}-restored"), 2 * bytes));
            {
                let staged = Staged::new(world, &restored, fs, false);
                let read = std::fs::read(staged.file("before")).unwrap();
                assert!(read == vec![7; 3 << 20], "{ground} {fs}");
                assert!(!staged.file("after").exists(), "{ground} {fs}");
            }
            pools.delete_snapshot(&snapshot.id).unwrap();
            pools.delete_volume(&restored.id).unwrap();
        }
        let entries = world.entries();
        assert!(entries.is_empty(), "{ground}: {entries:?}");
    });
}

#[test]
fn a_group_is_one_point_in_time() {
    each_ground(|ground, world| {
        let pools = world.pools();
        let volumes = ["a", "b"].map(|name| world.create(thin(name, 64 * MI)));
        let group = {
            let staged = volumes.each_ref().map(|v| Staged::new(world, v, FsType::Ext4, true));
            // Two counters are written in turn: no snapshot of both may have the second ahead.
            let (one, two) = (staged[0].file("n"), staged[1].file("n"));
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut n = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        n += 1;
                        for file in [&one, &two] {
                            std::fs::write(file.with_extension("new"), n.to_string()).unwrap();
                            std::fs::rename(file.with_extension("new"), file).unwrap();
                        }
                    }
                });
                std::thread::sleep(std::time::Duration::from_millis(100));
                let ids = volumes.each_ref().map(|v| v.id);
                let group = pools.create_group("g", &ids, &BTreeMap::new());
                stop.store(true, Ordering::Relaxed);
                group.unwrap_or_else(|e| panic!("{ground}: {e}"))
            })
        };
        let read = |i: usize| {
            let source = Source::Snapshot(group.snapshots[i]);
            let restored = world.create(from(source, &format!("restored {i}"), 64 * MI));
            let staged = Staged::new(world, &restored, FsType::Ext4, false);
            let text = std::fs::read_to_string(staged.file("n")).unwrap();
            text.parse::<u64>().unwrap()
        };
        let (first, second) = (read(0), read(1));
        let ahead = first.wrapping_sub(second);
        assert!(ahead <= 1, "{ground}: {first} and {second}");
        pools.delete_group(&group.id).unwrap();
        assert!(pools.snapshots().is_empty());
    });
}

#[test]
fn clones_of_volumes_in_use_differ_from_then_on() {
    each_ground(|ground, world| {
        let read = |staged: &Staged| std::fs::read_to_string(staged.file("f")).unwrap();
        let volume = world.create(thin("source", 64 * MI));
        let source = Staged::new(world, &volume, FsType::Ext4, true);
        std::fs::write(source.file("f"), "both").unwrap();
        let clone = world.create(from(Source::Volume(volume.id), "clone", 96 * MI));
        std::fs::write(source.file("f"), "source").unwrap();
        let clone = Staged::new(world, &clone, FsType::Ext4, false);
        assert_eq!(read(&clone), "both", "{ground}");
        std::fs::write(clone.file("f"), "clone").unwrap();
        assert_eq!(read(&source), "source", "{ground}");
    });
}

#[test]
fn copies_between_pools_are_whole() {
    let xfs = Ground::new("xfs", GI, &[]);
    let mut world = World::new(&[&format!("a={}", arg(&xfs.at)), "b=DIR/b"]);
    world.open();
    let volume = world.create(thin("v", 64 * MI));
    {
        let staged = Staged::new(&world, &volume, FsType::Ext4, true);
        std::fs::write(staged.file("f"), vec![5; 2 << 20]).unwrap();
    }
    let copy = world.create_in("b", from(Source::Volume(volume.id), "c", 64 * MI));
    assert_eq!(copy.id.pool(), world.named("b").id());
    let staged = Staged::new(&world, &copy, FsType::Ext4, false);
    assert_eq!(std::fs::read(staged.file("f")).unwrap(), vec![5; 2 << 20]);
}

#[test]
fn a_raw_block_volume_in_use_is_cloned_or_refused() {
    each_ground(|ground, world| {
        let pool = world.pool();
        let pools = world.pools();
        let mut new = thin("raw", 16 * MI);
        new.capabilities = vec![raw()];
        let volume = world.create(new);
        let device = Loop::attach(&pool.root().join(format!("volumes/{}/image", volume.id)));
        let stage = Stage {
            path: "/stage".into(),
            capability: raw(),
            minor: None,
            read_only_loops: BTreeMap::new(),
        };
        world.update(volume.id, |r| r.stage = Some(stage));
        let bytes = b"raw bytes";
        open_rw(&device.device).write_all_at(bytes, 4096).unwrap();
        let taken = pools.create_snapshot(&volume.id, "s", &BTreeMap::new());
        if pool.reflinks() {
            let image = pools.open_snapshot(&taken.unwrap()).unwrap();
            let mut read = [0; 9];
            image.read_exact_at(&mut read, 4096).unwrap();
            assert_eq!(&read, bytes, "{ground}");
        } else {
            // A copy would hold parts of different times.
            refused!(taken, Error::CannotFreeze(_), "{ground}");
            assert_eq!(world.entries().len(), 1);
        }
        world.update(volume.id, |r| r.stage = None);
    });
}
