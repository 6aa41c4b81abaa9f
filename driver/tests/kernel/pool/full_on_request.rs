//! A pool that is full because an administrator asks for it.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use hostloop_driver::health;
use hostloop_driver::pool_faults::{FaultFiles, PoolFaultRequest, PoolFaults};
use hostloop_driver::storage::Provisioning;

use super::support::*;

/// The pool `img` with one volume, and its faults, which use the pool and are dropped first.
struct FaultyWorld {
    faults: PoolFaults,
    image: PathBuf,
    world: World,
}

impl FaultyWorld {
    fn new() -> FaultyWorld {
        let mut world = World::new(&["img=DIR/img,image=400Mi"]);
        world.open();
        let made = world.create(thin("one", 64 * MI));
        let faults = PoolFaults::new(world.pools().clone(), true);
        let entry = world
            .pool()
            .root()
            .join("volumes")
            .join(made.id.to_string());
        FaultyWorld {
            faults,
            image: entry.join("image"),
            world,
        }
    }

    /// Asks for a fault of the pool, and returns its state.
    fn ask(&self, fault: Option<&str>) -> Option<&'static str> {
        let files = FaultFiles::at(&self.world.options.state_dir);
        let request = fault.map(|fault| PoolFaultRequest {
            fault: fault.to_owned(),
            requested_ns: 1,
        });
        files.request("img", request).unwrap();
        self.faults.tend(0);
        let shown = files.shown().unwrap().unwrap();
        shown.pools[0].now.as_ref().map(|now| now.state.word())
    }

    /// Writes a mebibyte of the volume.
    fn write(&self, mebibyte: u64) -> io::Result<()> {
        let image = File::options().write(true).open(&self.image)?;
        image.write_all_at(&vec![1; 1 << 20], mebibyte * MI)?;
        image.sync_all()
    }

    fn filler(&self) -> PathBuf {
        self.world.pool().root().join("hostloop-fault-full")
    }

    fn promisable(&self) -> u64 {
        let capacity = self.world.pool().capacity(Provisioning::Thin);
        capacity.unwrap().available
    }
}

#[test]
fn a_full_pool_has_no_room_for_new_blocks_until_the_fault_ends() {
    let faulty = FaultyWorld::new();
    faulty.write(0).unwrap();
    let before = faulty.promisable();
    assert!(before > 100 * MI, "{before}");
    assert_eq!(faulty.ask(Some("full")), Some("active"));
    assert!(faulty.filler().metadata().unwrap().len() > 100 * MI);
    let full = faulty.write(8).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC), "{full}");
    // What has blocks already needs none.
    faulty.write(0).unwrap();
    assert_eq!(faulty.promisable(), 0);
    let conditions = health::storage(faulty.world.pools());
    let reasons: Vec<_> = conditions.iter().map(|found| found.reason).collect();
    assert_eq!(reasons, ["FaultInjected"], "{conditions:?}");

    assert_eq!(faulty.ask(None), None);
    assert!(!faulty.filler().exists());
    faulty.write(8).unwrap();
    let after = faulty.promisable();
    assert!(after > before / 2, "{before} {after}");
    assert!(health::storage(faulty.world.pools()).is_empty());
}

/// The process may die meanwhile.
#[test]
fn the_next_process_removes_the_file() {
    let faulty = FaultyWorld::new();
    assert_eq!(faulty.ask(Some("full")), Some("active"));
    let filler = faulty.filler();
    assert!(filler.exists());
    let FaultyWorld {
        mut world, faults, ..
    } = faulty;
    drop(faults);
    open_sound(&mut world, "after a fault");
    world.pools().complete().unwrap();
    assert!(!filler.exists());
}

/// Another program's files can take the last block and inode, too.
#[test]
fn a_pool_without_room_for_one_more_file_opens() {
    let mut world = World::new(&["img=DIR/img,image=400Mi"]);
    world.open();
    world.create(thin("one", 64 * MI));
    let root = world.pool().root().to_owned();
    let mut other = File::create(root.join("incoming/other")).unwrap();
    let full = std::iter::repeat_with(|| other.write_all(&[1; 4096])).find_map(Result::err);
    assert_eq!(full.unwrap().raw_os_error(), Some(libc::ENOSPC));
    let made_all = (0..100_000)
        .map(|n| File::create(root.join(format!("incoming/{n}"))))
        .find_map(Result::err);
    assert_eq!(made_all.unwrap().raw_os_error(), Some(libc::ENOSPC));
    world.open();
    world.pools().complete().unwrap();
    assert!(world.pool().reflinks());
    assert_eq!(world.pools().volumes().len(), 1);
}
