//! Growth of an ext4 of 8 MiB by more than the thousandfold, and of features that prevent growth.
//!
//! With CAP_SYS_RESOURCE the mounted filesystem grows, and without it the unmounted one: each
//! test runs what this machine allows, and says what it does not run.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use hostloop_driver::kernel::{Filesystems, FsType};
use hostloop_driver::node::Error;
use hostloop_driver::storage::{NewVolume, VolumeId};

use super::Rig;
use crate::testkit::*;
use crate::tools::{arg, run};

const GI: u64 = 1 << 30;

/// True if this process may grow a mounted ext4. Otherwise says that `what` is not run.
pub(super) fn grows_mounted(kernel: &impl Filesystems, what: &str) -> bool {
    let grows = kernel.grows_mounted(FsType::Ext4);
    if !grows {
        // Not by `eprintln`, which the test runner hides when the test passes.
        let line = format!("not run: {what}: this machine withholds CAP_SYS_RESOURCE\n");
        #[expect(clippy::disallowed_methods, reason = "a test's own words")]
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    grows
}

/// A volume with these features. An older version made its image larger.
fn enlarged(rig: &Rig, features: &str, from: u64, to: u64) -> VolumeId {
    let options = features.split_whitespace().map(str::to_owned).collect();
    let id = rig.create(NewVolume {
        mkfs_options: options,
        ..new_volume(ext4(), from)
    });
    rig.stage(id, "a", &mount("ext4")).unwrap();
    write(&rig.staging("a").join("data"), 1, 50_000);
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    rig.node.pools.expand_volume(&id, to).unwrap();
    id
}

/// Unstages the volume, and checks all of its filesystem.
#[track_caller]
fn assert_sound(rig: &Rig, id: VolumeId) {
    assert_written(&rig.staging("a").join("data"), 1, 50_000);
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    let image = rig.root().join(format!("pool/volumes/{id}/image"));
    run("e2fsck", &["-f", "-n", arg(&image)]);
}

#[test]
fn an_ext4_grown_beyond_its_limit_keeps_its_files() {
    let rig = Rig::new();
    let id = enlarged(&rig, "", 8 * MI, 20 * GI);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    let grows = rig.kernel.grows_mounted(FsType::Ext4);
    let (bytes, smaller) = if grows {
        (20 * GI, false)
    } else {
        (8 * MI, true)
    };
    assert_eq!(rig.ext4_bytes(id), bytes);
    assert_eq!(
        rig.reasons(id).contains(&"FilesystemSmaller".to_owned()),
        smaller
    );
    assert_eq!(rig.expand(id, &rig.staging("a"), 20 * GI).is_err(), smaller);
    assert_sound(&rig, id);
}

#[test]
fn an_ext4_grows_unmounted_to_its_limit_with_a_journal_to_replay() {
    let rig = Rig::new();
    let id = enlarged(&rig, "", 8 * MI, 8 * GI);
    let image = rig.root().join(format!("pool/volumes/{id}/image"));
    run(
        "debugfs",
        &["-w", "-R", "feature needs_recovery", arg(&image)],
    );
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(rig.ext4_bytes(id), 8 * GI);
    assert_eq!(rig.record(id).growth, None);
    assert_sound(&rig, id);
}

/// resize2fs refuses to grow it unmounted, and the kernel grows it mounted.
#[test]
fn an_ext4_with_bigalloc_is_mounted_whether_it_grows_or_not() {
    let rig = Rig::new();
    let id = enlarged(&rig, "-O bigalloc", 64 * MI, GI);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    let grown = grows_mounted(&*rig.kernel, "growing a mounted ext4 with bigalloc");
    assert_eq!(rig.ext4_bytes(id), if grown { GI } else { 64 * MI });
    let answer = rig.expand(id, &rig.staging("a"), GI);
    if !grown {
        refused!(answer, Error::FailedPrecondition(_));
    }
    assert_sound(&rig, id);
}

/// The kernel refuses to grow it mounted, and resize2fs grows it unmounted.
#[test]
fn an_ext4_with_sparse_super2_grows_before_it_is_mounted() {
    let rig = Rig::new();
    let id = enlarged(&rig, "-O sparse_super2", 64 * MI, GI);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(rig.ext4_bytes(id), GI);
    // In use, it waits for the next staging.
    rig.node.pools.expand_volume(&id, 2 * GI).unwrap();
    refused!(
        rig.expand(id, &rig.staging("a"), 2 * GI),
        Error::FailedPrecondition(_)
    );
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(rig.ext4_bytes(id), GI);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(rig.ext4_bytes(id), 2 * GI);
    assert_sound(&rig, id);
}

/// The kernel then puts descriptors into the new groups, and resize2fs goes on from there.
#[test]
fn a_mounted_ext4_grows_from_8_mib_to_20_gib_under_writes() {
    let rig = Rig::new();
    if !grows_mounted(&*rig.kernel, "growing a mounted ext4 from 8 MiB to 20 GiB") {
        return;
    }
    let id = enlarged(&rig, "", 8 * MI, 8 * MI);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    let (at, done) = (rig.staging("a"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| rewrite(&at, &done));
        for bytes in [GI, 8 * GI, 20 * GI] {
            rig.grow(&id.to_string(), range(bytes as i64, 0)).unwrap();
            assert_eq!(rig.expand(id, &at, bytes).unwrap(), bytes);
            assert_eq!(rig.ext4_bytes(id), bytes);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(rig.reasons(id), [] as [&str; 0]);
    assert_sound(&rig, id);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_sound(&rig, id);
}

/// Writes files over and over until it is done.
fn rewrite(at: &Path, done: &AtomicBool) {
    for n in 0.. {
        let file = at.join(format!("file{}", n % 20));
        std::fs::write(&file, vec![7; 40_000]).unwrap();
        std::fs::File::open(&file).unwrap().sync_all().unwrap();
        if done.load(Ordering::Relaxed) {
            return;
        }
    }
}
