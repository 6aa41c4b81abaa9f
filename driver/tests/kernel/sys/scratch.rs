//! A directory for a test. Dropping it also unmounts and detaches everything beneath it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{
    FsType, Kernel, LoopDevice, LoopDevices, LoopSpec, MountSpec, Result, file_id, loops_of,
};

use crate::testkit::{MI, PATIENCE, TestKernel, loop_spec, make_fs, mount_fs, mount_spec};
use crate::tools::sparse;

pub(crate) struct Scratch {
    dir: tempfile::TempDir,
    pub(crate) kernel: Linux,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch {
            dir: tempfile::tempdir().unwrap(),
            kernel: Linux::get(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A new sparse file.
    pub(crate) fn image(&self, name: &str, size: u64) -> File {
        sparse(&self.dir.path().join(name), size)
    }

    /// A new directory.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// A device over the file, with direct I/O, detached at the last close.
    pub(crate) fn attach(&self, backing: &File) -> LoopDevice {
        self.kernel.loop_attach(&loop_spec(backing)).unwrap()
    }

    /// A new image with a filesystem, its device, and where it is mounted.
    pub(crate) fn mounted(&self, name: &str, fs: FsType, size: u64) -> (File, LoopDevice, PathBuf) {
        let (image, device) = self.made(name, fs, size);
        let at = self.dir(&format!("{name}.mnt"));
        mount_fs(&self.kernel, &device, &at, fs);
        (image, device, at)
    }

    /// Like [`Scratch::mounted`], with the usual name and size.
    pub(crate) fn volume(&self, fs: FsType) -> (File, LoopDevice, PathBuf) {
        self.mounted("image", fs, size(fs))
    }

    /// A new image with a filesystem, and its device.
    pub(crate) fn made(&self, name: &str, fs: FsType, size: u64) -> (File, LoopDevice) {
        let image = self.image(name, size);
        let device = self.attach(&image);
        make_fs(&self.kernel, &device, fs);
        (image, device)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.kernel.clean(self.dir.path());
    }
}

/// The usual size of a filesystem, in bytes.
pub(crate) fn size(fs: FsType) -> u64 {
    match fs {
        FsType::Ext4 => 64 * MI,
        FsType::Xfs => 320 * MI,
        FsType::Btrfs => 128 * MI,
    }
}

/// Mounts a device for writing, with these options.
pub(crate) fn mount(
    kernel: &dyn Kernel,
    device: &LoopDevice,
    fs: FsType,
    at: &Path,
    options: &[&str],
) -> Result<()> {
    let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
    kernel.mount(&MountSpec {
        options: &options,
        ..mount_spec(&device.path(), at, fs)
    })
}

/// A device that stays attached after its last close.
pub(crate) fn lasting(backing: &File) -> LoopSpec<'_> {
    LoopSpec {
        autoclear: false,
        direct_io: false,
        ..loop_spec(backing)
    }
}

/// True if the file has no loop device any more.
pub(crate) fn is_detached(kernel: &dyn Kernel, backing: &File) -> bool {
    // A listing on another thread may hold it for a moment.
    let end = Instant::now() + PATIENCE;
    while !loops_of(kernel, file_id(backing).unwrap())
        .unwrap()
        .is_empty()
    {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}
