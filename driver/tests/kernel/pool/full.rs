//! A full pool: every write may fail, and a failed operation leaves nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use hostloop_driver::kernel::file;
use hostloop_driver::storage::{Error, Pools, Provisioning, VolumeId, VolumeRecord};

use super::support::*;
use crate::tools::fill;

/// Fills a filesystem, and releases space in given small steps.
struct Filler {
    file: File,
    len: u64,
}

impl Filler {
    fn new(dir: &Path) -> Filler {
        let file = File::create_new(dir.join("filler")).unwrap();
        let len = fill(&file, 0);
        Filler { file, len }
    }

    fn leave(&mut self, blocks: u64) {
        self.len = fill(&self.file, self.len).saturating_sub(blocks * 4096);
        self.file.set_len(self.len).unwrap();
        self.file.sync_all().unwrap();
    }
}

/// One operation that writes. `i` numbers its repetitions.
type Operation = (&'static str, fn(&Pools, VolumeId, u64) -> Result<(), Error>);

const OPERATIONS: [Operation; 7] = [
    ("thin", |pools, _, i| create(pools, i, Provisioning::Thin)),
    ("thick", |pools, _, i| create(pools, i, Provisioning::Thick)),
    ("snapshot", |pools, volume, i| {
        let (name, none) = (i.to_string(), BTreeMap::new());
        pools.create_snapshot(&volume, &name, &none).map(drop)
    }),
    ("group", |pools, volume, i| {
        let (name, none) = (i.to_string(), BTreeMap::new());
        pools
            .create_group(&name, &[volume, volume], &none)
            .map(drop)
    }),
    ("expand", |pools, volume, i| {
        pools.expand_volume(&volume, MI + i * 4096).map(drop)
    }),
    ("record", |pools, volume, i| {
        pools.update_volume(&volume, |r| r.created_ns = i).map(drop)
    }),
    ("delete", |pools, _, _| {
        let last = pools.volumes().pop().filter(|v| *v.name != *"first");
        last.map_or(Ok(()), |v| pools.delete_volume(&v.id))
    }),
];

fn create(pools: &Pools, i: u64, provisioning: Provisioning) -> Result<(), Error> {
    let pool = pools.named(None)?;
    let new = new(&format!("{provisioning:?} {i}"), MI, provisioning);
    pools.create_volume(&pool, new).map(drop)
}

/// All objects that the pools report.
fn reported(pools: &Pools) -> impl PartialEq + std::fmt::Debug + use<> {
    (pools.volumes(), pools.snapshots(), pools.groups())
}

#[test]
fn every_write_may_fail() {
    // `step` is the filesystem's small unit of space, in blocks.
    for (fs, bytes, options, step) in [
        ("ext4", 16 * MI, &["-m", "0"][..], 1),
        ("xfs", 300 * MI, &[], 8),
        ("btrfs", 128 * MI, &["-M"], 32),
    ] {
        let ground = Ground::new(fs, bytes, options);
        let mut world = World::at("p", &ground.at.join("p"));
        // With this overcommit factor, the kernel rejects the request and not the driver.
        world.options.overcommit = 1e6;
        world.open();
        let first = world.create(thin("first", MI));
        let image = world.pools().open_image(&first, true).unwrap();
        image.write_all_at(&[7; 64 * 1024], 0).unwrap();
        image.sync_all().unwrap();

        let mut filler = Filler::new(&ground.at);
        let (mut failed, mut done) = (0, 0);
        for (name, operation) in OPERATIONS {
            for left in 0..24 {
                filler.leave(left * step);
                let (entries, before) = (world.entries(), reported(world.pools()));
                match operation(world.pools(), first.id, left) {
                    Ok(()) => done += 1,
                    Err(e) => {
                        failed += 1;
                        let context = format!("{fs}: {name}, {left} blocks left: {e}");
                        assert!(is_full(&e), "{context}");
                        assert_eq!(world.entries(), entries, "{context}");
                        assert_eq!(reported(world.pools()), before, "{context}");
                    }
                }
            }
        }
        println!("{fs}: {failed} failed, {done} done");
        assert!(failed > 0 && done > 0, "{fs}: {failed} failed, {done} done");

        // The operation has succeeded, the driver's view is correct, and the pool still works.
        let before = reported(world.pools());
        open_sound(&mut world, fs);
        assert_eq!(reported(world.pools()), before, "{fs}");
        // A child of another test can have it open until its exec: a removal alone frees nothing.
        let _ = filler.file.set_len(0);
        drop(filler);
        std::fs::remove_file(ground.at.join("filler")).unwrap();
        create(world.pools(), 99, Provisioning::Thin).unwrap();
        world.volume(first.id);
    }
}

fn is_full(e: &Error) -> bool {
    match e {
        Error::NoRoom { .. } => true,
        Error::Kernel(e) => e.is_no_space(),
        _ => false,
    }
}

#[test]
fn a_thick_promise_is_kept_on_a_pool_that_fills_up() {
    // A full btrfs searches for space for a second before it finds that a write needs none.
    for (fs, step) in [("ext4", 1), ("xfs", 1), ("btrfs", 16)] {
        let ground = Ground::new(fs, 400 * MI, &[]);
        let mut world = World::at("p", &ground.at.join("p"));
        world.open();
        let made = world.create(new("thick", 64 * MI, Provisioning::Thick));
        // The snapshot keeps its own blocks, and so does the volume.
        world.snapshot(&made, "s");
        let later = world.create(thin("thin", 64 * MI));
        thicken(&world, &later).unwrap();
        let _filler = Filler::new(&ground.at);
        for volume in [&made, &later] {
            let image = world.pools().open_image(volume, true).unwrap();
            for block in (0..64).step_by(step) {
                let bytes = vec![block as u8; 1 << 20];
                let written = image.write_all_at(&bytes, block * MI);
                written.unwrap_or_else(|e| panic!("{fs}: {}: {e}", volume.name));
            }
            let synced = image.sync_all();
            synced.unwrap_or_else(|e| panic!("{fs}: {}: {e}", volume.name));
        }
    }
}

fn thicken(world: &World, volume: &VolumeRecord) -> Result<Arc<VolumeRecord>, Error> {
    let mut settings = volume.settings.clone();
    settings.provisioning = Provisioning::Thick;
    world.pools().modify_volume(&volume.id, settings)
}

#[test]
fn a_volume_that_shares_its_blocks_becomes_thick_or_is_refused() {
    for (fs, separates) in [("xfs", true), ("btrfs", false)] {
        let ground = Ground::new(fs, 400 * MI, &[]);
        let mut world = World::at("p", &ground.at.join("p"));
        world.open();
        let thin = world.create(thin("thin", 32 * MI));
        let image = world.pools().open_image(&thin, true).unwrap();
        image.write_all_at(&vec![7; 8 << 20], 0).unwrap();
        world.snapshot(&thin, "s");
        let before = file::allocated_bytes(&image).unwrap();
        let thick = thicken(&world, &thin);
        let now = world.volume(thin.id);
        if separates {
            assert_eq!(thick.unwrap(), now);
            let _filler = Filler::new(&ground.at);
            for block in 0..32 {
                image.write_all_at(&vec![8; 1 << 20], block * MI).unwrap();
            }
            image.sync_all().unwrap();
        } else {
            refused!(thick, Error::Refused(_));
            assert_eq!(file::allocated_bytes(&image).unwrap(), before);
            assert_eq!(now.settings.provisioning, Provisioning::Thin);
        }
    }
}
