//! Disks, filesystems and pools that are gone when the test is over.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::storage::{Error, NewVolume, Provisioning};
use tempfile::TempDir;

use crate::testkit;
pub(crate) use crate::testkit::MI;
pub(crate) use crate::tools::release;
pub(crate) use crate::tools::{
    Loop, Mount, arg, command, loops_of, mkfs, not_run, open_rw, run, sparse, until,
};

/// Configured pools and the process that has them open, on the machine's kernel.
pub(crate) type World = testkit::Site<Linux>;

/// A sparse file on a loop device: a disk.
pub(crate) struct Disk {
    pub(crate) device: PathBuf,
    _dir: TempDir,
}

impl Disk {
    pub(crate) fn new(bytes: u64) -> Disk {
        let dir = TempDir::with_prefix("hostloop-pool-disk-").unwrap();
        let image = dir.path().join("disk");
        sparse(&image, bytes);
        let device = run("losetup", &["--find", "--show", arg(&image)]).into();
        Disk { device, _dir: dir }
    }

    pub(crate) fn mkfs(self, fs: &str, options: &[&str]) -> Disk {
        mkfs(fs, &self.device, options);
        self
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        release("losetup", &["-d", arg(&self.device)]);
    }
}

pub(crate) const GI: u64 = 1 << 30;

/// A separate filesystem, to make pools in. Fields are dropped in order.
pub(crate) struct Ground {
    pub(crate) at: PathBuf,
    _mount: Mount,
    _disk: Disk,
    _dir: TempDir,
}

impl Ground {
    pub(crate) fn new(fs: &str, bytes: u64, options: &[&str]) -> Ground {
        let disk = Disk::new(bytes).mkfs(fs, options);
        let dir = TempDir::with_prefix("hostloop-pool-").unwrap();
        let at = dir.path().join("at");
        Ground {
            _mount: Mount::new(fs, &disk.device, &at, "defaults"),
            at,
            _disk: disk,
            _dir: dir,
        }
    }
}

/// A thin volume of ext4 with one writer.
pub(crate) fn thin(name: &str, bytes: u64) -> NewVolume {
    new(name, bytes, Provisioning::Thin)
}

/// A volume of ext4 with one writer.
pub(crate) fn new(name: &str, bytes: u64, provisioning: Provisioning) -> NewVolume {
    let mut new = NewVolume {
        capacity_bytes: bytes,
        ..testkit::new(name)
    };
    new.settings.provisioning = provisioning;
    new
}

/// True if a pool's device or lock is held: a child of another test can have a copy of an earlier
/// attempt's files until its exec.
fn is_held(why: &str) -> bool {
    ["another process", "in use", "busy"]
        .iter()
        .any(|words| why.contains(words))
}

/// Opening the pools fails, and the error says all this.
#[track_caller]
pub(crate) fn refusal(world: &World, says: &[&str]) -> Error {
    let end = Instant::now() + testkit::PATIENCE;
    loop {
        let refused = world.try_open().map(drop).unwrap_err();
        let why = refused.to_string();
        if says.iter().all(|words| why.contains(words)) {
            return refused;
        }
        assert!(is_held(&why) && Instant::now() < end, "{why}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Opens the pools: the first one is missing, for this reason.
#[track_caller]
pub(crate) fn assert_missing(world: &mut World, why: &str) {
    let end = Instant::now() + testkit::PATIENCE;
    loop {
        world.open();
        let missing = world.why_missing();
        if missing.contains(why) {
            return;
        }
        assert!(is_held(&missing) && Instant::now() < end, "{missing}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Opens the pools without a problem.
pub(crate) fn open_sound(world: &mut World, context: &str) {
    let noted = world.open().noted_problems();
    assert!(noted.is_empty(), "{context}: {noted:?}");
}
