//! The kinds of pool a driver can be given, each a real one on a filesystem of its own.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::machine::{self, text};
use crate::scratch::Scratch;

/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;

/// What a pool is kept in.
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
    /// All of them.
    pub const ALL: [PoolKind; 5] = [
        PoolKind::Ext4,
        PoolKind::Xfs,
        PoolKind::Btrfs,
        PoolKind::Image,
        PoolKind::Device,
    ];

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

    /// Snapshots share extents.
    pub fn reflinks(self) -> bool {
        self != PoolKind::Ext4
    }

    /// The driver mounts it, beneath its state directory.
    pub fn mounted_by_driver(self) -> bool {
        matches!(self, PoolKind::Image | PoolKind::Device)
    }
}

/// A pool for one test. It is taken down with its [`Scratch`].
pub struct PoolFixture {
    /// What it is kept in.
    pub kind: PoolKind,
    /// The name the driver is given for it.
    pub name: String,
    /// What stands after `--pool NAME=`.
    argument: String,
    /// The filesystem under a directory pool; where it is mounted.
    mount: Option<PathBuf>,
    /// The directory the driver keeps its files in, as it sees it.
    root: PathBuf,
}

impl PoolFixture {
    /// A pool named `default` of this many bytes; none are taken before they are written.
    pub fn new(scratch: &Scratch, kind: PoolKind, bytes: u64) -> PoolFixture {
        PoolFixture::named(scratch, kind, "default", bytes)
    }

    /// A pool of this name.
    pub fn named(scratch: &Scratch, kind: PoolKind, name: &str, bytes: u64) -> PoolFixture {
        let mounted_at = state_dir(scratch).join("pools").join(name);
        let image = scratch.path().join(format!("{name}.img"));
        if kind == PoolKind::Device {
            let device = sparse_loop(&image, bytes);
            return PoolFixture {
                kind,
                name: name.to_owned(),
                argument: text(&device).to_owned(),
                mount: None,
                root: mounted_at,
            };
        }
        // The image of an image pool needs a little more room than it has itself.
        let under = if kind == PoolKind::Image {
            bytes + bytes / 16 + GIB
        } else {
            bytes
        };
        let mount = scratch.dir(&format!("{name}.mnt"));
        mount_fresh(kind, &sparse_loop(&image, under), &mount);
        // Not the filesystem's own root: ext4 has a lost+found there.
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

    /// Where its files are, as the driver sees it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The filesystem the test mounted for it: none for a device.
    pub fn mount(&self) -> Option<&Path> {
        self.mount.as_deref()
    }

    /// Bytes in use on the filesystem its files are on. `view` turns a path of the driver into
    /// one that can be reached.
    pub fn used_bytes(&self, view: impl Fn(&Path) -> PathBuf) -> u64 {
        used_bytes(&view(&self.root))
    }
}

/// Where the drivers of this test keep their state.
pub fn state_dir(scratch: &Scratch) -> PathBuf {
    scratch.path().join("state")
}

/// Bytes in use on the filesystem of a directory, once what is delayed has been written.
pub fn used_bytes(dir: &Path) -> u64 {
    let open = File::open(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    nix::unistd::syncfs(&open).expect("the pool's filesystem can be synced");
    let stat = nix::sys::statvfs::fstatvfs(&open).expect("the pool's filesystem answers");
    (stat.blocks() - stat.blocks_free()) * stat.fragment_size()
}

/// A loop device over a new sparse file.
pub fn sparse_loop(image: &Path, bytes: u64) -> PathBuf {
    let file = File::create_new(image).unwrap_or_else(|e| panic!("{}: {e}", image.display()));
    file.set_len(bytes)
        .expect("a sparse file of this size can be made");
    // 4096-byte sectors, so that direct I/O works all the way down.
    let args = [
        "--find",
        "--show",
        "--direct-io=on",
        "--sector-size=4096",
        text(image),
    ];
    // Somebody else on this machine may take the device that was just found to be free.
    let found = (0..20).find_map(|_| machine::try_run("losetup", &args).ok());
    PathBuf::from(found.unwrap_or_else(|| machine::run("losetup", &args)))
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
