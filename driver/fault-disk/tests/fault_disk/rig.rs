//! A fault disk with its loop device.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hostloop_fault_disk::{FaultDisk, Settings};
use hostloop_kernel::linux::Linux;
use hostloop_kernel::{
    Filesystems, FsType, LoopDevice, LoopDevices, LoopSpec, MkfsSpec, MountSpec, Mounts,
};
use tempfile::TempDir;

/// Only a failing test waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Large enough for each filesystem, and empty.
pub(crate) const SIZE: u64 = 320 << 20;

/// O_DIRECT.
const DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// An image, and a folder to mount it in.
pub(crate) struct Rig {
    pub(crate) linux: Linux,
    dir: TempDir,
}

/// A loop device over a fault disk.
pub(crate) struct Attached {
    pub(crate) disk: FaultDisk,
    pub(crate) device: LoopDevice,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        // Not in /tmp, which may be in memory: that has no direct I/O.
        let dir = tempfile::Builder::new()
            .prefix("hostloop-fault-disk-")
            .tempdir_in("/var/tmp")
            .unwrap();
        let rig = Rig {
            linux: Linux::new(),
            dir,
        };
        File::create(rig.image_path())
            .unwrap()
            .set_len(SIZE)
            .unwrap();
        std::fs::create_dir(rig.mounted_at()).unwrap();
        rig
    }

    pub(crate) fn image_path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub(crate) fn mounted_at(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub(crate) fn image(&self) -> File {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .open(self.image_path())
            .unwrap()
    }

    pub(crate) fn serve(&self, cache_bytes: usize, settings: Settings) -> Attached {
        let name = name();
        let (disk, file) = FaultDisk::serve(&name, self.image(), cache_bytes, settings).unwrap();
        let device = self.attach(&file);
        assert!(device.direct_io, "the loop device of {name}");
        Attached { disk, device }
    }

    pub(crate) fn attach(&self, backing: &File) -> LoopDevice {
        let spec = LoopSpec {
            backing,
            label: "fault-disk-test",
            offset: 0,
            read_only: false,
            direct_io: true,
            autoclear: true,
            minor: None,
        };
        self.linux.loop_attach(&spec).unwrap()
    }

    pub(crate) fn mkfs(&self, device: &LoopDevice, fs: FsType) {
        self.linux.mkfs(&MkfsSpec::new(&device.path(), fs)).unwrap();
    }

    pub(crate) fn mount(&self, device: &LoopDevice, fs: FsType) -> Mounted {
        self.linux
            .mount(&MountSpec {
                device: &device.path(),
                target: &self.mounted_at(),
                fs,
                read_only: false,
                options: &[],
            })
            .unwrap();
        Mounted {
            at: self.mounted_at(),
        }
    }
}

impl Attached {
    /// Detaches the loop device, and waits for the end of the disk.
    pub(crate) fn end(self) {
        drop(self.device);
        assert!(
            self.disk.has_ended(PATIENCE),
            "{} lives on",
            self.disk.name()
        );
    }

    /// The device, for direct I/O.
    pub(crate) fn open(&self) -> File {
        open_direct(&self.device.path())
    }
}

/// Unmounts at the end.
pub(crate) struct Mounted {
    at: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let done = Linux::new().unmount(&self.at);
        if !std::thread::panicking() {
            done.unwrap();
        }
    }
}

pub(crate) fn open_direct(device: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(DIRECT)
        .open(device)
        .unwrap()
}

/// Bytes that direct I/O can use.
pub(crate) struct Block(Vec<u8>, usize);

impl Block {
    pub(crate) fn new(byte: u8) -> Block {
        let bytes = vec![byte; 8192];
        let start = bytes.as_ptr().align_offset(4096);
        Block(bytes, start)
    }

    pub(crate) fn read(&mut self, device: &File, offset: u64) -> std::io::Result<u8> {
        let start = self.1;
        device.read_exact_at(&mut self.0[start..start + 4096], offset)?;
        Ok(self.0[start])
    }

    pub(crate) fn write(&self, device: &File, offset: u64) -> std::io::Result<()> {
        device.write_all_at(&self.0[self.1..self.1 + 4096], offset)
    }
}

/// Another name for each disk.
pub(crate) fn name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("vol-{}-{number}", std::process::id())
}
