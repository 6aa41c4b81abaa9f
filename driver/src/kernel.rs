//! The kernel, as the driver uses it: loop devices, mounts, filesystems and freezing.
//!
//! [`Kernel`] is the seam. [`linux::Linux`] is the real one; [`model::Model`] keeps a loop table
//! and a mount table in memory, so that a test can look at what reality won't show, such as an
//! error in the middle of a mount. Files are real in both: what is done to a file alone is in
//! [`file`], as plain functions.
//!
//! Everything here blocks. The server calls it from threads that may block.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub mod error;
pub mod extents;
pub mod failpoint;
pub mod fake;
pub mod file;
pub mod linux;
pub(crate) mod magic;
mod mkfs_options;
mod mount_flags;
pub mod mountinfo;
pub mod reflink_support;

pub use error::{Error, Result};
pub use mkfs_options::check_mkfs_options;
pub use mount_flags::{BindFlags, safe_options};
pub use mountinfo::{MountEntry, MountTable};

/// The logical block size of every loop device and the unit of every volume's size, in bytes.
///
/// Set from the first mkfs on: a reflinked file on XFS asks for 4096-byte direct I/O, and a
/// filesystem made for 512-byte sectors would no longer mount.
pub const BLOCK_SIZE: u32 = 4096;

/// Read-ahead of a loop device for a volume without a setting of its own, in KiB: the kernel's
/// default. It is set at every attach, because a device keeps what its last user set.
pub const READ_AHEAD_KIB: u32 = 128;

/// Major number of loop devices.
pub const LOOP_MAJOR: u32 = 7;

/// The file behind a loop device, by what never changes: device and inode number.
///
/// A path would not do: the same file reads differently from another mount namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device number, as `stat` gives it in `st_dev`.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// What a loop device is to be.
#[derive(Debug)]
pub struct LoopSpec<'a> {
    /// The file (or, for a read-only second loop, the block device) behind it.
    pub backing: &'a File,
    /// Shown by `losetup`; at most 63 bytes are kept. Never used to find the device again.
    pub label: &'a str,
    /// Attach read-only: writes fail with EPERM in the kernel.
    pub read_only: bool,
    /// Ask for direct I/O. What came of it is in [`LoopDevice::direct_io`].
    pub direct_io: bool,
    /// Detach at the last close.
    pub autoclear: bool,
    /// Exactly this minor, or fail with [`Error::Busy`]; `None` takes a free one.
    pub minor: Option<u32>,
}

/// A loop device this process attached or opened, held open.
#[derive(Debug)]
pub struct LoopDevice {
    /// N of `/dev/loopN`.
    pub minor: u32,
    /// Whether the kernel does direct I/O on the backing file, read back from sysfs.
    pub direct_io: bool,
    /// The open device, for reading only (a writer may be in the way of a mount). Closing it
    /// detaches an autoclear device that nothing else holds.
    pub file: File,
}

impl LoopDevice {
    /// `/dev/loopN`.
    pub fn path(&self) -> PathBuf {
        loop_path(self.minor)
    }
}

/// `/dev/loopN`.
pub fn loop_path(minor: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{minor}"))
}

/// Unmounts, and retries a busy mount until `patience` ends. A process that looks at all mounts of
/// the machine, or a tool that is just starting, holds a mount for an instant.
pub fn unmount_retrying(kernel: &dyn Kernel, at: &Path, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        match kernel.unmount(at) {
            Err(Error::Busy { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// An attached loop device, as the kernel tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopInfo {
    /// N of `/dev/loopN`.
    pub minor: u32,
    /// The backing file. For a loop over a block device: the inode of the device node. `None` if
    /// the kernel does not report it, because the file's filesystem has shut down or hangs.
    pub backing: Option<FileId>,
    /// `st_rdev` of the backing file where that is a block device (a loop over a loop), else 0.
    pub backing_rdev: u64,
    /// Path of the backing file, in the mount namespace of the process that attached it. A deleted
    /// file's path ends in " (deleted)". Empty if the path is longer than the kernel shows.
    pub backing_path: String,
    /// Where the device begins in the backing file, in bytes. The driver attaches with 0.
    pub offset: u64,
    /// How much of the backing file the device shows at most, in bytes; 0 means no limit. The
    /// driver attaches with 0.
    pub size_limit: u64,
    /// [`LoopSpec::label`], unless a user of the device changed it.
    pub label: String,
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// Logical block size in bytes; 0 if the kernel does not say.
    pub block_size: u32,
    /// Attached read-only.
    pub read_only: bool,
    /// Detaches at the last close.
    pub autoclear: bool,
    /// Direct I/O on the backing file is in force.
    pub direct_io: bool,
}

impl LoopInfo {
    /// True if the kernel does not report the backing file, but the path contains this file or
    /// directory name. Whether it is the file in question stays open.
    ///
    /// False for a read-only device. It harms no image, and any process that may read the device can
    /// put a file with any path behind it (LOOP_CHANGE_FD).
    pub fn may_hold(&self, name: &str) -> bool {
        let path = self.backing_path.as_str();
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let silent = self.backing.is_none() && !self.read_only;
        silent && Path::new(path).iter().any(|word| word == name)
    }

    /// True if `other` is the same attachment, seen at another time.
    pub fn is_same(&self, other: &LoopInfo) -> bool {
        self.minor == other.minor
            && match (self.backing, other.backing) {
                (Some(a), Some(b)) => a == b,
                _ => self.backing_path == other.backing_path,
            }
    }

    /// What a user of the device changed after the driver attached it to a file; any process that may
    /// open it can. Such a device shows other bytes of its file, or other blocks, than it should.
    ///
    /// A device over a block device may have blocks of any size: kubelet attaches such devices.
    pub fn tampered(&self) -> Option<String> {
        let blocks = self.block_size;
        match (self.offset, self.size_limit) {
            (0, 0) if self.backing_rdev != 0 || matches!(blocks, 0 | BLOCK_SIZE) => None,
            (0, 0) => Some(format!(
                "its blocks are of {blocks} bytes, not {BLOCK_SIZE}"
            )),
            (offset, 0) => Some(format!("it begins at byte {offset} of its file")),
            (0, limit) => Some(format!("it is limited to {limit} bytes of its file")),
            (offset, limit) => Some(format!(
                "it is limited to {limit} bytes of its file, from byte {offset} on"
            )),
        }
    }
}

/// What came of a detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    /// The device has no backing file any more.
    Gone,
    /// Somebody holds the device open; the kernel will detach it at the last close.
    WhenClosed,
}

/// The filesystems a volume can have.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// ext4, the default.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
}

impl FsType {
    /// All of them.
    pub const ALL: [FsType; 3] = [FsType::Ext4, FsType::Xfs, FsType::Btrfs];

    /// The kernel's name.
    pub fn as_str(self) -> &'static str {
        match self {
            FsType::Ext4 => "ext4",
            FsType::Xfs => "xfs",
            FsType::Btrfs => "btrfs",
        }
    }

    /// By the kernel's name; `None` for one we don't make.
    pub fn parse(name: &str) -> Option<FsType> {
        FsType::ALL.into_iter().find(|fs| fs.as_str() == name)
    }

    /// The smallest device its mkfs takes, in bytes, a multiple of [`BLOCK_SIZE`].
    pub fn minimum_bytes(self) -> u64 {
        match self {
            FsType::Ext4 => 1 << 20,
            FsType::Xfs => 300 << 20,
            FsType::Btrfs => 110 << 20,
        }
    }

    /// The smallest size that the filesystem can be grown to, in bytes: the kernel resizes no
    /// btrfs to less than 256 MiB.
    pub fn minimum_grown_bytes(self) -> u64 {
        match self {
            FsType::Ext4 | FsType::Xfs => BLOCK_SIZE.into(),
            FsType::Btrfs => 256 << 20,
        }
    }
}

impl std::fmt::Display for FsType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a look at a device's content found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// No signature, and only zeros in all places that were read (see [`linux::blank`]).
    Blank,
    /// No known signature, but bytes other than zero, like an encrypted device without a header.
    Unknown {
        /// Offset of the first such byte that was read.
        offset: u64,
    },
    /// A filesystem with an unfinished mkfs, according to its superblock (XFS: `sb_inprogress`). It
    /// was never mounted.
    Unfinished {
        /// Which.
        fs: FsType,
        /// Its UUID.
        uuid: String,
    },
    /// A filesystem we make.
    Filesystem {
        /// Which.
        fs: FsType,
        /// Its UUID, as blkid prints it; empty if it prints none.
        uuid: String,
    },
    /// Something else (another filesystem, a partition table, RAID, LUKS…), by blkid's name.
    Other(String),
    /// blkid could not tell (more than one signature): never formatted.
    Ambivalent,
}

/// How to make a filesystem.
#[derive(Clone, Debug)]
pub struct MkfsSpec<'a> {
    /// The block device.
    pub device: &'a Path,
    /// Which filesystem.
    pub fs: FsType,
    /// The class's further options, already split into words; they never pass through a shell.
    /// [`Kernel::mkfs`] refuses what [`check_mkfs_options`] refuses.
    pub options: &'a [String],
    /// Give unwritten space back while making it (thin), or leave it allocated (thick).
    pub discard: bool,
    /// The UUID it is to have, if the caller chooses it.
    pub uuid: Option<&'a str>,
    /// Overwrite what is there. Only after an mkfs of ours was cut short.
    pub force: bool,
}

/// A filesystem mount.
#[derive(Clone, Debug)]
pub struct MountSpec<'a> {
    /// The block device.
    pub device: &'a Path,
    /// Where; must exist.
    pub target: &'a Path,
    /// The filesystem; always given to the kernel, never guessed.
    pub fs: FsType,
    /// Mount read-only.
    pub read_only: bool,
    /// Mount options as a person would give them to `mount -o`, one per element.
    pub options: &'a [String],
}

/// What FIFREEZE did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freeze {
    /// Frozen by us: thaw it.
    Frozen,
    /// It was frozen already by somebody else (EBUSY): never thaw it.
    AlreadyFrozen,
}

/// Sizes of a filesystem, in bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Size.
    pub total_bytes: u64,
    /// Free, to root too.
    pub free_bytes: u64,
    /// Free to those who are not root.
    pub available_bytes: u64,
    /// Inodes in all; 0 where the filesystem does not count them (btrfs).
    pub total_inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Mounted, or turned, read-only.
    pub read_only: bool,
}

/// The kernel's tables and the tools that act on devices.
///
/// Every method blocks; every mutating one is an *effect* (see [`effect`]).
pub trait Kernel: Send + Sync + 'static {
    /// Attaches a loop device with [`BLOCK_SIZE`]-byte blocks by LOOP_CONFIGURE, makes its node in
    /// `/dev` where that is static, and reads direct I/O back. A backing file that can't do direct
    /// I/O is attached buffered. It skips free minors with a bind of their device node: a process
    /// that can reach such a node would reach the file.
    fn loop_attach(&self, spec: &LoopSpec<'_>) -> Result<LoopDevice>;

    /// All attached loop devices of the machine, ours or not, lowest minor first. The list includes
    /// devices that can't be queried, with what sysfs shows of them.
    fn loops(&self) -> Result<Vec<LoopInfo>>;

    /// One device; `None` if nothing is attached to it.
    fn loop_info(&self, minor: u32) -> Result<Option<LoopInfo>>;

    /// Attached devices that are known to have this backing file, lowest minor first.
    fn loops_of(&self, backing: FileId) -> Result<Vec<LoopInfo>> {
        Ok(over(self.loops()?, backing))
    }

    /// All attached devices with this backing file. [`Error::Silent`] if there may be another one:
    /// a device without a reported backing file, with `name` in its path. `name` is the part of the
    /// path that no other file has: a volume's ID, or the file name of a pool's image.
    fn loops_holding(&self, backing: FileId, name: &str) -> Result<Vec<LoopInfo>> {
        let loops = self.loops()?;
        match loops.iter().find(|l| l.may_hold(name)) {
            Some(silent) => Err(Error::silent(silent)),
            None => Ok(over(loops, backing)),
        }
    }

    /// Opens an attached device and keeps it from being detached under the caller.
    /// [`Error::NotFound`] if it no longer has this backing file.
    fn loop_open(&self, minor: u32, backing: FileId) -> Result<LoopDevice>;

    /// Opens a device that was listed before. [`Error::Silent`] if the kernel did not report its
    /// backing file.
    fn loop_reopen(&self, device: &LoopInfo) -> Result<LoopDevice> {
        let backing = device.backing.ok_or_else(|| Error::silent(device))?;
        self.loop_open(device.minor, backing)
    }

    /// Detaches, after checking that the device still has this backing file (it is
    /// [`Detached::Gone`] already if not), and looks whether it really went.
    fn loop_detach(&self, minor: u32, backing: FileId) -> Result<Detached>;

    /// Detaches a device without a reported backing file, after checking that it still has this
    /// backing path. Verifies that it really went.
    fn loop_detach_silent(&self, minor: u32, backing_path: &str) -> Result<Detached>;

    /// Detaches a device, identified by its backing file or, if that is unknown, by its backing
    /// path.
    fn loop_release(&self, device: &LoopInfo) -> Result<Detached> {
        match device.backing {
            Some(backing) => self.loop_detach(device.minor, backing),
            None => self.loop_detach_silent(device.minor, &device.backing_path),
        }
    }

    /// Takes the backing file's present size over (LOOP_SET_CAPACITY).
    fn loop_grow(&self, device: &LoopDevice) -> Result<()>;

    /// Turns direct I/O on or off; returns what the kernel says after it.
    fn loop_set_direct_io(&self, device: &LoopDevice, on: bool) -> Result<bool>;

    /// Sets `queue/read_ahead_kb`. Survives detach: set it at every attach.
    fn loop_set_read_ahead(&self, device: &LoopDevice, kib: u32) -> Result<()>;

    /// Writes a raw device's dirty pages back (fsync on the device).
    fn loop_flush(&self, device: &LoopDevice) -> Result<()>;

    /// The mount table of this process's namespace, read now.
    fn mounts(&self) -> Result<MountTable>;

    /// Mounts a filesystem; on XFS, makes error retries finite right after.
    fn mount(&self, spec: &MountSpec<'_>) -> Result<()>;

    /// Removes the limit on retries that [`Kernel::mount`] sets: a mounted XFS then retries its
    /// metadata writes until they succeed. Only for pools: if a pool's XFS gave up, all its volumes
    /// would be lost until a remount, though its disk may be back in a minute, or its space may be
    /// enlarged.
    fn retry_forever(&self, xfs: &Path) -> Result<()> {
        let _ = xfs;
        Ok(())
    }

    /// Binds a directory or a file (a device node) to an existing target of the same kind. From its
    /// first moment, the bind has the source's flags and `flags`.
    fn bind(&self, source: &Path, target: &Path, flags: BindFlags) -> Result<()>;

    /// Changes a filesystem mount's `discard` setting (a remount that keeps everything else).
    /// [`Error::Unsupported`] where the filesystem only takes it at a mount.
    fn remount_discard(&self, target: &Path, fs: FsType, on: bool) -> Result<()>;

    /// Unmounts the topmost mount at exactly this path, without following a symlink there.
    /// [`Error::Busy`] if it is in use, [`Error::NotFound`] if nothing is mounted there.
    fn unmount(&self, target: &Path) -> Result<()>;

    /// What is on a device.
    fn probe(&self, device: &Path) -> Result<Probe>;

    /// Makes a filesystem.
    fn mkfs(&self, spec: &MkfsSpec<'_>) -> Result<()>;

    /// Checks and, where it is safe, repairs an unmounted filesystem (ext4: `e2fsck -p`; XFS and
    /// btrfs replay their logs at mount).
    fn check(&self, device: &Path, fs: FsType) -> Result<()>;

    /// Grows a mounted filesystem to its device's size. Nothing to do is success.
    fn grow(&self, device: &Path, mounted_at: &Path, fs: FsType) -> Result<()>;

    /// Grows an unmounted filesystem to its device's size where that can be done (ext4). Success
    /// also if there is nothing to do or it only grows mounted. To be called before a mount for
    /// writing, after [`Kernel::check`]: a mounted ext4 needs CAP_SYS_RESOURCE to grow.
    fn grow_unmounted(&self, device: &Path, fs: FsType) -> Result<()> {
        let _ = (device, fs);
        Ok(())
    }

    /// Whether this process may grow a filesystem while it is mounted: for ext4 the kernel asks
    /// for CAP_SYS_RESOURCE.
    fn grows_mounted(&self, fs: FsType) -> bool {
        let _ = fs;
        true
    }

    /// Whether somebody has claimed the device for himself alone: a filesystem that is mounted, in
    /// whatever mount namespace, or a program at work on it.
    fn is_claimed(&self, device: &Path) -> Result<bool> {
        let _ = device;
        Ok(false)
    }

    /// Size the mounted filesystem takes on its device, in bytes (to see if it must grow).
    fn fs_size(&self, mounted_at: &Path, device: &Path, fs: FsType) -> Result<u64>;

    /// Freezes the filesystem an open file or directory is on (FIFREEZE).
    /// [`Error::Unsupported`] where it can't.
    fn freeze(&self, on: &File) -> Result<Freeze>;

    /// Thaws (FITHAW). Success also if it was not frozen.
    fn thaw(&self, on: &File) -> Result<()>;

    /// Opens the root directory of a mount, to freeze or thaw it. [`Error::NotFound`] if the mount
    /// is gone or another one hides it: a freeze would hit a stranger's filesystem.
    fn open_mount(&self, mount: &MountEntry) -> Result<File> {
        file::open_mount(mount)
    }

    /// Writes back what is dirty on the filesystem an open file is on (syncfs), so that a freeze
    /// right after it has little left to write.
    fn sync_fs(&self, on: &File) -> Result<()> {
        file::sync_fs(on)
    }

    /// Usage of the filesystem mounted at a path.
    fn usage(&self, at: &Path) -> Result<FsUsage>;

    /// The filesystem's own error state, in words: ext4 `errors_count`, an XFS shutdown, btrfs
    /// device errors. `None` if it reports none.
    fn fs_errors(&self, mounted_at: &Path, minor: u32, fs: FsType) -> Result<Option<String>>;

    /// Filesystems whose tools are installed, with why the others can't be offered.
    fn filesystems(&self) -> Vec<(FsType, std::result::Result<(), String>)>;
}

fn over(mut loops: Vec<LoopInfo>, backing: FileId) -> Vec<LoopInfo> {
    loops.retain(|l| l.backing == Some(backing));
    loops
}

/// Device and inode of an open file.
pub fn file_id(file: impl AsFd) -> Result<FileId> {
    let stat = rustix::fs::fstat(file).map_err(|e| Error::io("fstat", "an open file", e.into()))?;
    Ok(FileId {
        dev: stat.st_dev,
        ino: stat.st_ino,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_device_is_told_from_one_as_it_was_attached() {
        // Offset, limit, block size, the block device behind it → what is said.
        let table = [
            (0, 0, BLOCK_SIZE, 0, None),
            (4096, 0, BLOCK_SIZE, 0, Some("begins at byte 4096")),
            (0, 8192, BLOCK_SIZE, 0, Some("limited to 8192 bytes")),
            (4096, 8192, 512, 0, Some("from byte 4096 on")),
            (0, 0, 512, 0, Some("blocks are of 512 bytes")),
            // Not known.
            (0, 0, 0, 0, None),
            // Kubelet's over a volume's device.
            (0, 0, 512, 0x700, None),
            (4096, 0, 512, 0x700, Some("begins at byte 4096")),
        ];
        for (offset, size_limit, block_size, backing_rdev, expected) in table {
            let info = LoopInfo {
                offset,
                size_limit,
                block_size,
                backing_rdev,
                ..LoopInfo::default()
            };
            let said = info.tampered();
            let fits = match (&said, expected) {
                (Some(said), Some(expected)) => said.contains(expected),
                (said, expected) => said.is_none() && expected.is_none(),
            };
            assert!(fits, "{info:?}: {said:?}, not {expected:?}");
        }
    }

    #[test]
    fn only_a_writable_device_that_says_nothing_may_hold_an_image() {
        let known = Some(FileId { dev: 1, ino: 2 });
        let table = [
            (None, "/pool/volumes/vol-x/image", false, true),
            (None, "/pool/volumes/vol-x/image (deleted)", false, true),
            (None, "/pool/volumes/vol-xy/image", false, false),
            (None, "", false, false),
            (known, "/pool/volumes/vol-x/image", false, false),
            (None, "/pool/volumes/vol-x/image", true, false),
        ];
        for (backing, path, read_only, may) in table {
            let info = LoopInfo {
                backing,
                backing_path: path.to_owned(),
                read_only,
                ..LoopInfo::default()
            };
            assert_eq!(info.may_hold("vol-x"), may, "{info:?}");
        }
    }
}
