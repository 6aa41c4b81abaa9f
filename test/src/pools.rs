//! The kinds of pool that a driver accepts, each a real one on its own filesystem.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::loop_devices;
use crate::machine::{self, text};
use crate::scratch::Scratch;

/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;

/// The kind of a pool's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// A directory on ext4: no reflinks.
    Ext4,
    /// A directory on XFS.
    Xfs,
    /// A directory on btrfs.
    Btrfs,
    /// A bounded image in a directory on ext4.
    Image,
    /// A block device.
    Device,
}

impl PoolKind {
    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            PoolKind::Ext4 => "ext4",
            PoolKind::Xfs => "xfs",
            PoolKind::Btrfs => "btrfs",
            PoolKind::Image => "image",
            PoolKind::Device => "device",
        }
    }
}

/// A pool for one test. It is taken down with its [`Scratch`].
pub struct PoolFixture {
    /// The kind of the pool's storage.
    pub kind: PoolKind,
    /// The pool's name in the driver's arguments.
    pub name: String,
    /// The part after `--pool NAME=`.
    argument: String,
    /// The mount point of the filesystem under a directory pool.
    mount: Option<PathBuf>,
    /// The directory of the driver's files, as the driver sees it.
    root: PathBuf,
}

impl PoolFixture {
    /// A sparse pool named `default`, of this many bytes.
    pub fn new(scratch: &Scratch, kind: PoolKind, bytes: u64) -> PoolFixture {
        PoolFixture::named(scratch, kind, "default", bytes)
    }

    /// A pool with this name.
    pub fn named(scratch: &Scratch, kind: PoolKind, name: &str, bytes: u64) -> PoolFixture {
        let mounted_at = state_dir(scratch).join("pools").join(name);
        let image = scratch.path().join(format!("{name}.img"));
        if kind == PoolKind::Device {
            let (device, _) = sparse_loop(&image, bytes);
            return PoolFixture {
                kind,
                name: name.to_owned(),
                argument: text(&device).to_owned(),
                mount: None,
                root: mounted_at,
            };
        }
        // The filesystem under an image needs a little more space than the image.
        let under = if kind == PoolKind::Image {
            bytes + bytes / 16 + GIB
        } else {
            bytes
        };
        let mount = scratch.dir(&format!("{name}.mnt"));
        let (device, _open) = sparse_loop(&image, under);
        mount_fresh(kind, &device, &mount);
        // The pool is not the filesystem's root, because ext4 has a lost+found there.
        let directory = mount.join("pool");
        std::fs::create_dir(&directory).expect("a pool's directory can be made");
        let (argument, root) = match kind {
            PoolKind::Image => (format!("{},image={bytes}", text(&directory)), mounted_at),
            _ => (text(&directory).to_owned(), directory),
        };
        PoolFixture {
            kind,
            name: name.to_owned(),
            argument,
            mount: Some(mount),
            root,
        }
    }

    /// The value for `--pool`.
    pub fn argument(&self) -> String {
        format!("{}={}", self.name, self.argument)
    }

    /// The directory of the pool's files, as the driver sees it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The filesystem that the test mounted for the pool: none for a device.
    pub fn mount(&self) -> Option<&Path> {
        self.mount.as_deref()
    }

    /// Lets the pool's filesystem pass mounts on, as a container with the pool needs it.
    pub fn share_mounts(&self) {
        let at = self.mount().expect("the pool has a filesystem");
        machine::run("mount", &["--make-shared", text(at)]);
    }

    /// Bytes in use on the filesystem of the pool's files. `view` turns a path of the driver into a
    /// reachable one.
    pub fn used_bytes(&self, view: impl Fn(&Path) -> PathBuf) -> u64 {
        used_bytes(&view(&self.root))
    }
}

/// The state directory of this test's drivers.
pub fn state_dir(scratch: &Scratch) -> PathBuf {
    scratch.path().join("state")
}

/// Bytes in use on the filesystem of a directory, after delayed writes are synced.
pub fn used_bytes(dir: &Path) -> u64 {
    let open = File::open(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    nix::unistd::syncfs(&open).expect("the pool's filesystem can be synced");
    let stat = nix::sys::statvfs::fstatvfs(&open).expect("the pool's filesystem answers");
    (stat.blocks() - stat.blocks_free()) * stat.fragment_size()
}

/// A loop device over a new sparse file; see [`loop_devices::attach`].
pub fn sparse_loop(image: &Path, bytes: u64) -> (PathBuf, File) {
    let file = File::create_new(image).unwrap_or_else(|e| panic!("{}: {e}", image.display()));
    file.set_len(bytes)
        .expect("a sparse file of this size can be made");
    // 4096-byte sectors allow direct I/O on every layer.
    loop_devices::attach(image, &["--direct-io=on", "--sector-size=4096"])
}

fn mount_fresh(kind: PoolKind, device: &Path, mount: &Path) {
    let device = text(device);
    let fs = match kind {
        PoolKind::Xfs => {
            machine::run("mkfs.xfs", &["-q", "-K", "-m", "reflink=1", device]);
            "xfs"
        }
        PoolKind::Btrfs => {
            machine::run("mkfs.btrfs", &["-q", "-K", device]);
            "btrfs"
        }
        PoolKind::Ext4 | PoolKind::Image => {
            machine::run("mkfs.ext4", &["-q", "-F", "-E", "nodiscard", device]);
            "ext4"
        }
        PoolKind::Device => unreachable!("a device pool is formatted by the driver"),
    };
    machine::run("mount", &["-t", fs, device, text(mount)]);
}
