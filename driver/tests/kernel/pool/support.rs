//! Disks, filesystems and pools that are gone when the test is over.

use std::path::PathBuf;

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

/// Opening the pools fails, and the error says all this.
pub(crate) fn refusal(world: &World, says: &[&str]) -> Error {
    let refused = world.try_open().map(drop).unwrap_err();
    let why = refused.to_string();
    for words in says {
        assert!(why.contains(words), "{why}");
    }
    refused
}

/// Opens the pools: the first one is missing, for this reason.
pub(crate) fn assert_missing(world: &mut World, why: &str) {
    world.open();
    let missing = world.why_missing();
    assert!(missing.contains(why), "{missing}");
}

/// Opens the pools without a problem.
pub(crate) fn open_sound(world: &mut World, context: &str) {
    let noted = world.open().noted_problems();
    assert!(noted.is_empty(), "{context}: {noted:?}");
}
