//! Copies that would freeze a filesystem for too long are refused before they freeze it.

use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hostloop_driver::kernel::FsType::{Ext4, Xfs};
use hostloop_driver::kernel::linux::Linux;

use crate::testkit::{Configs, Rig, code, ext4, mount, new_filesystem};

/// The files of a volume except its image, with their inodes. A freeze replaces one of them first.
fn records(dir: &Path) -> Vec<(PathBuf, u64)> {
    let entries = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut records: Vec<_> = entries
        .filter(|path| !path.ends_with("image"))
        .map(|path| (path.clone(), path.metadata().unwrap().ino()))
        .collect();
    records.sort();
    records
}

#[test]
fn a_copy_that_would_freeze_too_long_leaves_writers_alone() {
    let mut site = Rig::<Linux>::site(&["default=DIR/pool"]);
    new_filesystem(&*site.kernel, &site.path(""), Ext4, 1 << 30);
    site.options.max_freeze = Duration::from_millis(1);
    let rig = Rig::over(site, Configs::default());
    let id = rig.volume(ext4(), 256 << 20);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    let at = rig.staging("a");
    let mut much = std::fs::File::create(at.join("much")).unwrap();
    much.write_all(&vec![1; 100 << 20]).unwrap();
    much.sync_all().unwrap();
    drop(much);

    let before = records(&rig.path(format!("volumes/{id}")));
    let (written, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::fs::write(at.join("pod"), b"x").unwrap();
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        while written.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let refused = rig.snapshot("snap", &id.to_string());
        done.store(true, Ordering::Relaxed);
        refused
    });
    let why = format!("{refused:?}");
    assert_eq!(code(refused), Err(tonic::Code::FailedPrecondition), "{why}");
    for word in [
        "copying the ",
        &id.to_string(),
        "MiB/s",
        "0.001 s",
        "--max-freeze",
        "reflinks",
    ] {
        assert!(why.contains(word), "no {word} in {why}");
    }
    // The intent to freeze is written before each freeze.
    assert_eq!(records(&rig.path(format!("volumes/{id}"))), before);
    // Nothing is left of the sample, and a volume at rest can be copied.
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    rig.snapshot("snap", &id.to_string()).unwrap();
    assert_eq!(rig.entries().len(), 2);
}

/// Only the number of extents makes a clone slow.
#[test]
fn a_clone_of_too_many_extents_is_stopped_and_then_refused() {
    const EXTENTS: u64 = 12_000;
    const VOLUME: u64 = 256 << 20;
    const LIMIT: Duration = Duration::from_millis(40);
    let mut site = Rig::<Linux>::site(&["default=DIR/pool"]);
    new_filesystem(&*site.kernel, &site.path(""), Xfs, 1 << 30);
    site.options.max_freeze = LIMIT;
    let mut rig = Rig::over(site, Configs::default());
    let id = rig.volume(ext4(), VOLUME);
    let image = rig.open_image(id);
    // The filesystem has nothing there.
    for n in 0..EXTENTS {
        image
            .write_all_at(&[1; 4096], VOLUME - (n + 1) * 8192)
            .unwrap();
    }
    image.sync_all().unwrap();
    rig.stage(id, "a", &mount("ext4")).unwrap();
    let mut whys = Vec::new();
    for tried in 0..100 {
        // On a busy disk, the freeze itself takes too long for the limit each time.
        if tried > 0 && tried % 10 == 0 {
            rig.options.max_freeze *= 2;
            rig.restart();
        }
        let before = records(&rig.path(format!("volumes/{id}")));
        let refused = rig.snapshot("snap", &id.to_string());
        whys.push(format!("{refused:?}"));
        if let Ok(taken) = &refused
            && rig.options.max_freeze > LIMIT
        {
            // The disk is not busy any more.
            rig.delete_snapshot(&taken.snapshot_id).unwrap();
            rig.options.max_freeze = LIMIT;
            rig.restart();
            continue;
        }
        assert_eq!(
            code(refused),
            Err(tonic::Code::FailedPrecondition),
            "{whys:?}"
        );
        if whys.last().unwrap().contains("cloning the 12") {
            assert_eq!(
                records(&rig.path(format!("volumes/{id}"))),
                before,
                "nothing was frozen"
            );
            break;
        }
    }
    assert!(whys.last().unwrap().contains("cloning the 12"), "{whys:?}");
    assert!(
        whys.iter()
            .any(|why| why.contains("extents of the image, and there are more"))
    );
    std::fs::write(rig.staging("a").join("pod"), b"x").unwrap();
    // Without a freeze there is no limit.
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    rig.snapshot("snap", &id.to_string()).unwrap();
    let snapshot = rig.node.pools.snapshots().remove(0);
    let copy = rig.node.pools.open_snapshot(&snapshot).unwrap();
    let mut blocks = [0; 8192];
    copy.read_exact_at(&mut blocks, VOLUME - EXTENTS * 8192)
        .unwrap();
    assert!(blocks[..4096] == [1; 4096] && blocks[4096..] == [0; 4096]);
    assert_eq!(copy.metadata().unwrap().len(), VOLUME);
}
