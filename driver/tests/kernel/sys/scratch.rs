//! A directory for a test, and everything the test attached or mounted beneath it, which goes
//! when it does.

use std::fs::File;
use std::path::{Path, PathBuf};

use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{FsType, Kernel, LoopDevice, LoopSpec, file_id};

use crate::testkit::{TestKernel, make_fs, mount_fs};

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
        let file = File::create_new(self.dir.path().join(name)).unwrap();
        file.set_len(size).unwrap();
        File::options()
            .read(true)
            .write(true)
            .open(self.dir.path().join(name))
            .unwrap()
    }

    /// A new directory.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// A device over the file, with direct I/O, detached at the last close.
    pub(crate) fn attach(&self, backing: &File) -> LoopDevice {
        self.kernel.loop_attach(&spec(backing)).unwrap()
    }

    /// A new image with a filesystem, its device, and where it is mounted.
    pub(crate) fn mounted(&self, name: &str, fs: FsType, size: u64) -> (File, LoopDevice, PathBuf) {
        let image = self.image(name, size);
        let device = self.attach(&image);
        self.mkfs(&device, fs);
        let at = self.dir(&format!("{name}.mnt"));
        self.mount(&device, fs, &at);
        (image, device, at)
    }

    pub(crate) fn mkfs(&self, device: &LoopDevice, fs: FsType) {
        make_fs(&self.kernel, device, fs);
    }

    pub(crate) fn mount(&self, device: &LoopDevice, fs: FsType, at: &Path) {
        mount_fs(&self.kernel, device, at, fs);
    }
}

/// Unmounts, although a child of another test can hold the mount until it runs its program.
pub(crate) fn unmount(kernel: &dyn Kernel, at: &Path) {
    let is_unmounted = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        kernel.unmount(at).is_ok()
    });
    assert!(is_unmounted, "{} is busy", at.display());
}

/// With direct I/O and autoclear, at a free minor.
pub(crate) fn spec(backing: &File) -> LoopSpec<'_> {
    LoopSpec {
        backing,
        label: "hostloop-test",
        read_only: false,
        direct_io: true,
        autoclear: true,
        minor: None,
    }
}

/// A device that stays attached after its last close.
pub(crate) fn lasting(backing: &File) -> LoopSpec<'_> {
    LoopSpec {
        autoclear: false,
        direct_io: false,
        ..spec(backing)
    }
}

/// Detached, or somebody holds it.
pub(crate) fn is_detached(kernel: &dyn Kernel, backing: &File) -> bool {
    // A listing on another thread may hold it for a moment.
    (0..50).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        kernel
            .loops_of(file_id(backing).unwrap())
            .unwrap()
            .is_empty()
    })
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.kernel.clean(self.dir.path());
    }
}
