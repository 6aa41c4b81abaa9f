//! Volumes with real filesystems in them: snapshots, clones, groups, deletion.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hostloop_driver::kernel::{FsType, MountSpec};
use hostloop_driver::storage::{
    Access, Error, NewVolume, Provisioning, Source, Stage, VolumeHandle, VolumeRecord,
};
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
        let staged = Staged {
            world,
            record: record.clone(),
            minor: device.minor,
            dir,
        };
        if format {
            crate::testkit::make_fs(&*world.kernel, &device, fs);
        }
        let nouuid: &[String] = if fs == FsType::Xfs {
            &["nouuid".to_owned()]
        } else {
            &[]
        };
        let mount = MountSpec {
            device: &device.path(),
            target: staged.dir.path(),
            fs,
            read_only: false,
            options: nouuid,
        };
        world.kernel.mount(&mount).unwrap();
        let stage = Stage {
            path: staged.dir.path().to_path_buf(),
            capability: mounted(),
            minor: Some(device.minor),
            read_only_loops: BTreeMap::new(),
        };
        world
            .pools()
            .update_volume(&record.id, |r| r.stage = Some(stage))
            .unwrap();
        staged
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        let _ = self.world.kernel.unmount(self.dir.path());
        if let Ok(image) = self.world.pools().open_image(&self.record, false) {
            let image = hostloop_driver::kernel::file_id(&image).unwrap();
            let _ = self.world.kernel.loop_detach(self.minor, image);
        }
        let _ = self
            .world
            .pools()
            .update_volume(&self.record.id, |r| r.stage = None);
    }
}

const GI: u64 = 1 << 30;

fn each_ground(mut test: impl FnMut(&str, &mut World)) {
    for fs in ["ext4", "xfs", "btrfs"] {
        let ground = Ground::new(fs, 3 * GI, &[]);
        let mut world = World::at("p", &ground.at.join("p"));
        world.open();
        test(fs, &mut world);
        world.close();
    }
    let mut world = World::new(&["p=DIR/p,image=3Gi"]);
    world.open();
    test("image", &mut world);
}

fn from(source: Source, name: &str, bytes: u64) -> NewVolume {
    NewVolume {
        source: Some(source),
        ..new(name, bytes, Provisioning::Thin)
    }
}

#[test]
fn snapshots_of_volumes_in_use_hold_what_was_written_and_outlive_them() {
    each_ground(|ground, world| {
        for fs in FsType::ALL {
            let bytes = 320 * MI;
            let pool = world.pool();
            let volume = new(&fs.to_string(), bytes, Provisioning::Thin);
            let volume = world.pools().create_volume(&pool, volume).unwrap();
            let pools = world.pools();
            let snapshot = {
                let staged = Staged::new(world, &volume, fs, true);
                // The data is still in the page cache when the snapshot is taken.
                std::fs::write(staged.file("before"), vec![7; 3 << 20]).unwrap();
                let snapshot =
                    pools.create_snapshot(&volume.id, &format!("{fs}"), &BTreeMap::new());
                let snapshot = snapshot.unwrap_or_else(|e| panic!("{ground} {fs}: {e}"));
                std::fs::write(staged.file("after"), "x").unwrap();
                refused!(pools.delete_volume(&volume.id), Error::Attached { .. });
                snapshot
            };
            let handle = VolumeHandle::Id(volume.id);
            assert_eq!(pools.volume(&handle).unwrap().freeze, None);
            pools.delete_volume(&volume.id).unwrap();

            let larger = from(
                Source::Snapshot(snapshot.id),
                &format!("{fs}-restored"),
                2 * bytes,
            );
            let restored = pools.create_volume(&pool, larger).unwrap();
            {
                let staged = Staged::new(world, &restored, fs, false);
                let read = std::fs::read(staged.file("before")).unwrap();
                assert!(
                    read.len() == 3 << 20 && read.iter().all(|b| *b == 7),
                    "{ground} {fs}"
                );
                assert!(!staged.file("after").exists(), "{ground} {fs}");
            }
            pools.delete_snapshot(&snapshot.id).unwrap();
            pools.delete_volume(&restored.id).unwrap();
        }
        assert!(
            world.entries().is_empty(),
            "{ground}: {:?}",
            world.entries()
        );
    });
}

#[test]
fn a_group_is_one_point_in_time() {
    each_ground(|ground, world| {
        let pool = world.pool();
        let pools = world.pools();
        let make = |name| {
            let new = new(name, 64 * MI, Provisioning::Thin);
            pools.create_volume(&pool, new).unwrap()
        };
        let volumes = [make("a"), make("b")];
        let group = {
            let staged = volumes
                .each_ref()
                .map(|v| Staged::new(world, v, FsType::Ext4, true));
            // Two counters are written in turn: no snapshot of both may have the second ahead.
            let (one, two) = (staged[0].file("n"), staged[1].file("n"));
            let stop = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut n = 0u64;
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
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
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
                group.unwrap_or_else(|e| panic!("{ground}: {e}"))
            })
        };
        let read = |i: usize| {
            let source = Source::Snapshot(group.snapshots[i]);
            let new = from(source, &format!("restored {i}"), 64 * MI);
            let restored = pools.create_volume(&pool, new).unwrap();
            let staged = Staged::new(world, &restored, FsType::Ext4, false);
            let text = std::fs::read_to_string(staged.file("n")).unwrap();
            text.parse::<u64>().unwrap()
        };
        let (first, second) = (read(0), read(1));
        assert!(
            first == second || first == second + 1,
            "{ground}: {first} and {second}"
        );
        pools.delete_group(&group.id).unwrap();
        assert!(pools.snapshots().is_empty());
    });
}

#[test]
fn clones_of_volumes_in_use_differ_from_then_on() {
    each_ground(|ground, world| {
        let pool = world.pool();
        let pools = world.pools();
        let new = new("source", 64 * MI, Provisioning::Thin);
        let volume = pools.create_volume(&pool, new).unwrap();
        let source = Staged::new(world, &volume, FsType::Ext4, true);
        std::fs::write(source.file("f"), "both").unwrap();
        let clone = from(Source::Volume(volume.id), "clone", 96 * MI);
        let clone = pools.create_volume(&pool, clone).unwrap();
        std::fs::write(source.file("f"), "source").unwrap();
        let clone = Staged::new(world, &clone, FsType::Ext4, false);
        assert_eq!(
            std::fs::read_to_string(clone.file("f")).unwrap(),
            "both",
            "{ground}"
        );
        std::fs::write(clone.file("f"), "clone").unwrap();
        assert_eq!(
            std::fs::read_to_string(source.file("f")).unwrap(),
            "source",
            "{ground}"
        );
    });
}

#[test]
fn copies_between_pools_are_whole() {
    let xfs = Ground::new("xfs", GI, &[]);
    let mut world = World::new(&[&format!("a={}", arg(&xfs.at)), "b=DIR/b"]);
    world.open();
    let pools = world.pools();
    let volume = pools
        .create_volume(&world.pool(), new("v", 64 * MI, Provisioning::Thin))
        .unwrap();
    {
        let staged = Staged::new(&world, &volume, FsType::Ext4, true);
        std::fs::write(staged.file("f"), vec![5; 2 << 20]).unwrap();
    }
    let b = pools.named(Some("b")).unwrap();
    let copy = pools
        .create_volume(&b, from(Source::Volume(volume.id), "c", 64 * MI))
        .unwrap();
    assert_eq!(copy.id.pool(), b.id());
    {
        let staged = Staged::new(&world, &copy, FsType::Ext4, false);
        assert_eq!(std::fs::read(staged.file("f")).unwrap(), vec![5; 2 << 20]);
    }
    drop(b);
    world.close();
}

#[test]
fn the_same_access_for_a_raw_block_volume_in_use() {
    each_ground(|ground, world| {
        let pool = world.pool();
        let pools = world.pools();
        let mut new = new("raw", 16 * MI, Provisioning::Thin);
        new.capabilities[0].access = Access::Block;
        let volume = pools.create_volume(&pool, new).unwrap();
        let device = Loop::attach(&pool.root().join(format!("volumes/{}/image", volume.id)));
        let mut capability = mounted();
        capability.access = Access::Block;
        let stage = Stage {
            path: "/stage".into(),
            capability,
            minor: None,
            read_only_loops: BTreeMap::new(),
        };
        pools
            .update_volume(&volume.id, |r| r.stage = Some(stage))
            .unwrap();
        std::os::unix::fs::FileExt::write_all_at(&open_rw(&device.device), b"raw bytes", 4096)
            .unwrap();
        let taken = pools.create_snapshot(&volume.id, "s", &BTreeMap::new());
        if pool.reflinks() {
            let image = pools.open_snapshot(&taken.unwrap()).unwrap();
            let mut read = [0; 9];
            std::os::unix::fs::FileExt::read_exact_at(&image, &mut read, 4096).unwrap();
            assert_eq!(&read, b"raw bytes", "{ground}");
        } else {
            // A copy would hold parts of different times.
            assert!(
                matches!(taken, Err(Error::CannotFreeze(_))),
                "{ground}: {taken:?}"
            );
            assert_eq!(world.entries().len(), 1);
        }
        pools.update_volume(&volume.id, |r| r.stage = None).unwrap();
    });
}
