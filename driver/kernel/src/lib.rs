//! The kernel interface of the driver: loop devices, mounts, filesystems and freezing.
//!
//! The [`Kernel`] trait has two implementations. [`linux::Linux`] calls the real kernel. The fake
//! kernel of the tests keeps a loop table and a mount table in memory, so that a test can cause what
//! a real kernel rarely shows, such as an error in the middle of a mount. Files are real in both:
//! [`file`] has plain functions for operations that need only a file.
//!
//! Everything here blocks. The server calls it from threads that may block.
#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;

mod allowed_mount_options;
pub mod error;
mod ext4_layout;
pub mod extents;
pub mod failpoint;
pub mod file;
pub mod foreground;
pub mod interned;
pub mod linux;
mod loop_device;
pub mod magic;
mod mkfs_options;
mod mount_flags;
mod mount_words;
pub mod mountinfo;
mod option_value;
pub mod reflink_support;
pub mod shared_dir;
mod shared_table;
pub mod under_way;
pub mod wanted;

pub use allowed_mount_options::{
    LABELS, RefusedOption, check_mount_options, refused_mount_options,
};
pub use error::{Error, Result};
pub use ext4_layout::{Ext4Growth, Ext4Layout, NoGrowth};
pub use loop_device::{
    Detached, FileId, KnownLoops, LoopDevice, LoopInfo, LoopKey, LoopScope, LoopSpec, LoopTable,
    file_id, loop_names, loop_path,
};
pub use mkfs_options::check_mkfs_options;
pub use mount_flags::{BindFlags, flags_and_data, is_discard, mounts_read_only, safe_options};
pub use mount_words::{MountOptions, MountPath};
pub use mountinfo::{MountEntry, MountKey, MountTable};
pub use shared_table::{Keyed, SharedTable};

/// The logical block size of every loop device and the unit of every volume's size, in bytes.
///
/// Volumes have this block size from the first mkfs on. A reflinked file on XFS requires 4096-byte
/// direct I/O, and a filesystem made for 512-byte sectors would no longer mount.
pub const BLOCK_SIZE: u32 = 4096;

/// Rounds a number of bytes down to whole blocks.
pub fn whole_blocks(bytes: u64) -> u64 {
    bytes - bytes % u64::from(BLOCK_SIZE)
}

/// Rounds a number of bytes up to whole blocks.
pub fn blocks_for(bytes: u64) -> u64 {
    let up = bytes.checked_next_multiple_of(BLOCK_SIZE.into());
    up.unwrap_or_else(|| whole_blocks(bytes))
}

/// Read-ahead of a loop device for a volume without its own setting, in KiB: the kernel's default.
/// The driver sets it at every attach, because a device keeps the value of its last user.
pub const READ_AHEAD_KIB: u32 = 128;

/// Major number of loop devices.
pub const LOOP_MAJOR: u32 = 7;

/// The filesystems a volume can have.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// ext4, the default.
    Ext4,
    Xfs,
    Btrfs,
}

impl FsType {
    /// All supported filesystems.
    pub const ALL: [FsType; 3] = [FsType::Ext4, FsType::Xfs, FsType::Btrfs];

    /// The kernel's name of the filesystem type.
    pub fn as_str(self) -> &'static str {
        match self {
            FsType::Ext4 => "ext4",
            FsType::Xfs => "xfs",
            FsType::Btrfs => "btrfs",
        }
    }

    /// Parses the kernel's name; `None` for a filesystem that the driver does not make.
    pub fn parse(name: &str) -> Option<FsType> {
        FsType::ALL.into_iter().find(|fs| fs.as_str() == name)
    }

    /// The smallest device that mkfs accepts, in bytes, a multiple of [`BLOCK_SIZE`].
    pub fn minimum_bytes(self) -> u64 {
        match self {
            FsType::Ext4 => 1 << 20,
            FsType::Xfs => 300 << 20,
            FsType::Btrfs => 110 << 20,
        }
    }

    /// The smallest size to which the filesystem can be grown, in bytes: the kernel resizes no
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

/// Result of probing a device's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The device has no signature, and only zeros in all places that were read (see
    /// [`linux::blank`]).
    Blank,
    /// The device has no known signature, but bytes other than zero, like an encrypted device
    /// without a header.
    Unknown {
        /// Offset of the first nonzero byte that was read.
        offset: u64,
    },
    /// The superblock says that mkfs did not finish (XFS: `sb_inprogress`). The filesystem was
    /// never mounted.
    Unfinished {
        /// The filesystem type.
        fs: FsType,
        /// The filesystem's UUID.
        uuid: String,
    },
    /// A filesystem of a type that the driver makes.
    Filesystem {
        /// The filesystem type.
        fs: FsType,
        /// The filesystem's UUID, as blkid prints it; empty if blkid prints none.
        uuid: String,
    },
    /// Other content (another filesystem, a partition table, RAID, LUKS…), by blkid's name.
    Other(String),
    /// blkid found more than one signature. The driver never formats such a device.
    Ambivalent,
}

/// An intact superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The filesystem's UUID, as blkid prints it.
    pub uuid: String,
}

/// What a superblock says about the last use of its filesystem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsState {
    /// The journal has changes that are not in their places yet, as after a crash. Only the kernel
    /// replays all of them: e2fsck drops fast commits.
    pub unreplayed: bool,
    /// The kernel has met errors, or a filesystem without a journal was not unmounted.
    pub needs_check: bool,
}

/// The superblock of an ext4, intact or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ext4 {
    /// What its growth depends on.
    pub layout: Ext4Layout,
    /// The bytes of the superblock, for [`Kernel::mend_growth`].
    pub superblock: Box<[u8]>,
}

/// How to make a filesystem.
#[derive(Clone, Debug)]
pub struct MkfsSpec<'a> {
    /// The block device, or the path of the image for messages.
    pub device: &'a Path,
    /// The open image, if mkfs works on one that no loop device has yet. It must be blank.
    pub image: Option<&'a File>,
    /// The filesystem type.
    pub fs: FsType,
    /// Further options from the StorageClass, already split into words; they never pass through a
    /// shell. [`Kernel::mkfs`] rejects what [`check_mkfs_options`] rejects.
    pub options: &'a [String],
    /// Discard the device's space first. False for a thick volume, which keeps its space, and for
    /// an image without data, which has nothing to discard.
    pub discard: bool,
    /// UUID of the new filesystem, if the caller chooses it.
    pub uuid: Option<&'a str>,
    /// Overwrite existing content. Only after the driver's own mkfs was interrupted.
    pub force: bool,
}

impl<'a> MkfsSpec<'a> {
    /// A new filesystem without further options, on a device with space to discard.
    pub fn new(device: &'a Path, fs: FsType) -> Self {
        MkfsSpec {
            device,
            image: None,
            fs,
            options: &[],
            discard: true,
            uuid: None,
            force: false,
        }
    }
}

/// A filesystem mount.
#[derive(Clone, Debug)]
pub struct MountSpec<'a> {
    /// The block device.
    pub device: &'a Path,
    /// The mount point; must exist.
    pub target: &'a Path,
    /// The filesystem type; the kernel never has to guess it.
    pub fs: FsType,
    /// Mount read-only.
    pub read_only: bool,
    /// Mount options as for `mount -o`, one per element.
    pub options: &'a [String],
}

/// Result of FIFREEZE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freeze {
    /// This call froze it, so the caller must thaw it.
    Frozen,
    /// It was frozen before this call (EBUSY), so the caller must never thaw it.
    AlreadyFrozen,
}

/// Size and usage of a filesystem, in bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsUsage {
    /// Total size.
    pub total_bytes: u64,
    /// Free bytes, including those reserved for root.
    pub free_bytes: u64,
    /// Bytes free to users other than root.
    pub available_bytes: u64,
    /// Total inodes; 0 if the filesystem does not count them (btrfs).
    pub total_inodes: u64,
    pub free_inodes: u64,
    /// Mounted read-only, or turned read-only after an error.
    pub read_only: bool,
}

/// The kernel's tables and the tools that act on devices.
///
/// Every method blocks; every mutating one is an *effect* (see [`failpoint`]).
pub trait Kernel: Send + Sync + 'static {
    /// The ID of the running boot. It differs after each start of the kernel, and is the same in
    /// all containers.
    fn boot_id(&self) -> Result<String>;

    /// Attaches a loop device with [`BLOCK_SIZE`]-byte blocks (LOOP_CONFIGURE), then reads back
    /// whether it does direct I/O. If `/dev` is static, creates the device node. A backing file
    /// that can't do direct I/O is attached buffered. Skips free minors with a bind mount of their
    /// device node: a process that can reach such a node would reach the file.
    fn loop_attach(&self, spec: &LoopSpec<'_>) -> Result<LoopDevice>;

    /// All attached loop devices of the machine, including those of other programs, lowest minor
    /// first. A device that can't be queried has the fields that sysfs shows.
    fn loops(&self) -> Result<Vec<LoopInfo>>;

    /// The attached loop devices as far as they are known: like [`Kernel::loops`], but their
    /// settings may be old, see [`Kernel::confirm`]. A device that the scope does not need may have
    /// no more than its path, as if the kernel did not report its backing file. It costs the same
    /// with any number of devices.
    fn known_loops(&self, scope: LoopScope<'_>) -> Result<KnownLoops>;

    /// The mounts as far as they are known: like [`Kernel::mounts`], but options and paths of a
    /// mount may be old, see [`Kernel::confirm`]. It costs nearly the same with any number of
    /// mounts.
    fn known_mounts(&self) -> Result<MountTable>;

    /// Makes the next look at loop devices and mounts read all of them.
    fn forget(&self);

    /// Asks the kernel for what a caller relies on. True if the devices and mounts are still like
    /// this, and these mounts (or none) are the topmost ones at these paths. If not, the next look
    /// reads them again.
    fn confirm(
        &self,
        loops: &[&LoopInfo],
        mounts: &[&MountEntry],
        at: &[(&Path, Option<&MountEntry>)],
    ) -> bool;

    /// One loop device; `None` if nothing is attached to it.
    fn loop_info(&self, minor: u32) -> Result<Option<LoopInfo>>;

    /// Attached devices that are known to have this backing file, lowest minor first.
    fn loops_of(&self, backing: FileId) -> Result<Vec<LoopInfo>> {
        confirmed_loops(self, LoopScope::All, |loops| loops.over(backing).collect())
    }

    /// All attached devices with this backing file. [`Error::Silent`] if there may be another one:
    /// a device without a reported backing file, with `name` in its path. `name` is the part of the
    /// path that no other file has: a volume's ID, or the file name of a pool's image.
    fn loops_holding(&self, backing: FileId, name: &str) -> Result<Vec<LoopInfo>> {
        let scope = LoopScope::Image {
            directory: name,
            minors: &BTreeSet::new(),
        };
        let loops = confirmed_loops(self, scope, |loops| {
            let silent = loops.silent().filter(|l| l.may_hold(name));
            silent.chain(loops.over(backing)).collect()
        })?;
        match loops.iter().find(|l| l.may_hold(name)) {
            Some(silent) => Err(Error::silent(silent)),
            None => Ok(loops),
        }
    }

    /// Opens an attached device, which keeps the kernel from detaching it under the caller.
    /// [`Error::NotFound`] if it no longer has this backing file.
    fn loop_open(&self, minor: u32, backing: FileId) -> Result<LoopDevice>;

    /// Opens a device that was listed before. [`Error::Silent`] if the kernel did not report its
    /// backing file.
    fn loop_reopen(&self, device: &LoopInfo) -> Result<LoopDevice> {
        let backing = device.backing.ok_or_else(|| Error::silent(device))?;
        self.loop_open(device.minor, backing)
    }

    /// Detaches the device if it still has this backing file, and verifies that it is gone.
    /// [`Detached::Gone`] if it has another one.
    fn loop_detach(&self, minor: u32, backing: FileId) -> Result<Detached>;

    /// Detaches a device without a reported backing file, if it still has this backing path.
    /// Verifies that it is gone.
    fn loop_detach_silent(&self, minor: u32, backing_path: &str) -> Result<Detached>;

    /// Detaches a device, identified by its backing file or, if that is unknown, by its backing
    /// path.
    fn loop_release(&self, device: &LoopInfo) -> Result<Detached> {
        match device.backing {
            Some(backing) => self.loop_detach(device.minor, backing),
            None => self.loop_detach_silent(device.minor, &device.backing_path),
        }
    }

    /// Size of an open device in bytes. Unlike [`Kernel::loop_info`], this asks no filesystem.
    fn loop_size(&self, device: &LoopDevice) -> Result<u64>;

    /// Makes the device as large as its backing file is now (LOOP_SET_CAPACITY).
    fn loop_grow(&self, device: &LoopDevice) -> Result<()>;

    /// Turns direct I/O on or off; returns what the kernel reports afterwards.
    fn loop_set_direct_io(&self, device: &LoopDevice, on: bool) -> Result<bool>;

    /// Sets `queue/read_ahead_kb`. The value survives a detach: set it at every attach. Changes
    /// nothing where attributes can't be written, see [`Kernel::check_device_attributes`].
    fn loop_set_read_ahead(&self, device: &LoopDevice, kib: u32) -> Result<()>;

    /// Fails if attributes of devices can't be written: a container's `/sys` may be read-only.
    /// Changes nothing.
    fn check_device_attributes(&self) -> Result<()>;

    /// What else has a block device or one of its partitions in use, and how a person ends that.
    /// Empty if nothing is known.
    fn holders(&self, device: &Path) -> Vec<String>;

    /// Writes back everything of a device, to its file and to the disk: the data of a filesystem
    /// that any mount namespace has mounted from it, and the dirty pages of the device itself.
    fn loop_flush(&self, device: &LoopDevice) -> Result<()>;

    /// How many writes and discards the devices of this minor have completed, from sysfs. A change
    /// means that something was written.
    fn loop_writes(&self, minor: u32) -> Result<u64>;

    /// Drops the page cache of a read-only device (BLKFLSBUF).
    fn loop_drop_cache(&self, device: &LoopDevice) -> Result<()>;

    /// Reads the mount table of this process's mount namespace.
    fn mounts(&self) -> Result<MountTable>;

    /// Mounts a filesystem; on XFS, limits error retries right after.
    fn mount(&self, spec: &MountSpec<'_>) -> Result<()>;

    /// Removes the limit on retries that [`Kernel::mount`] sets: a mounted XFS then retries its
    /// metadata writes until they succeed. Only for pools. If a pool's XFS gave up, all its volumes
    /// would be lost until a remount, though its disk may return or its space may grow.
    fn retry_forever(&self, xfs: &Path) -> Result<()>;

    /// Bind-mounts a directory or a file (a device node) on an existing target of the same kind.
    /// From the start, the bind mount has the source's flags and `flags`.
    fn bind(&self, source: &Path, target: &Path, flags: BindFlags) -> Result<()>;

    /// Changes the `discard` option of a mounted filesystem (a remount that keeps everything else).
    /// [`Error::Unsupported`] if the filesystem accepts it only at a mount.
    fn remount_discard(&self, target: &Path, fs: FsType, on: bool) -> Result<()>;

    /// Unmounts exactly this mount, never one that came over it or to its place since a look. It
    /// must be the topmost one at its path, or else [`Error::Covered`]. [`Error::Busy`] if it stays
    /// in use for some seconds, [`Error::NotFound`] if nothing is mounted there.
    fn unmount_exactly(&self, mount: &MountEntry) -> Result<()>;

    /// Unmounts the mount that is the topmost one at exactly this path now. Only where the driver
    /// alone mounts: a mount that was seen there before may not be the one that is unmounted.
    fn unmount(&self, target: &Path) -> Result<()> {
        let top = topmost_mount(self, target)?;
        self.unmount_exactly(&top.ok_or_else(|| Error::errno("unmount", target, libc::ENOENT))?)
    }

    /// Probes a device for signatures and data.
    fn probe(&self, device: &Path) -> Result<Probe>;

    /// Reads the superblock of an expected filesystem. `None` unless its checksum matches and mkfs
    /// has finished; then only [`Kernel::probe`] shows what the device holds.
    fn superblock(&self, device: &Path, fs: FsType) -> Result<Option<Superblock>>;

    /// Reads what an ext4 says about its last use, mounted or not. XFS and btrfs say nothing: their
    /// mount does all that is needed.
    fn fs_state(&self, device: &Path, fs: FsType) -> Result<FsState>;

    /// Opens the root directory of the filesystem on a device, mounted or not. The mount behind it
    /// is writable, in no mount namespace, and ends when the handle is closed, however the process
    /// ends. If the filesystem can't be mounted, the error says why, as far as the kernel's log
    /// does.
    fn open_filesystem(&self, device: &Path, fs: FsType) -> Result<File>;

    /// Makes a filesystem.
    fn mkfs(&self, spec: &MkfsSpec<'_>) -> Result<()>;

    /// Checks an unmounted filesystem and makes safe repairs (ext4: `e2fsck -p`). Call it only once
    /// the kernel has replayed the journal, see [`FsState`].
    fn check(&self, device: &Path, fs: FsType) -> Result<()>;

    /// Grows a mounted filesystem to its device's size. Success if it already has that size.
    fn grow(&self, device: &Path, mounted_at: &Path, fs: FsType) -> Result<()>;

    /// Reads the superblock of the ext4 on a device or in an image, mounted or not; `None` if it
    /// holds no ext4.
    fn ext4(&self, device: &Path) -> Result<Option<Ext4>>;

    /// Checks all of an unmounted ext4, even a clean one, and makes safe repairs (`e2fsck -f -p`).
    /// The time that it takes grows with the number of files.
    fn check_whole(&self, device: &Path) -> Result<()>;

    /// Grows an unmounted ext4 to its device's size, after [`Kernel::check_whole`]. Success also if
    /// it already has that size. An error without any effect unless its growth is
    /// [`Ext4Growth::Unmounted`].
    fn grow_unmounted(&self, device: &Path) -> Result<()>;

    /// Repairs an unmounted ext4 after its growth was interrupted, and keeps all files.
    /// `superblock` is the one from before, for a process that was killed while it wrote that.
    /// `whole` is false if the growth had not begun: then nothing else can be damaged. Changes
    /// nothing if the filesystem was mounted after that superblock: a restored record then has an
    /// intent that is long over, and the filesystem may hold data beyond its earlier end.
    fn mend_growth(&self, device: &Path, superblock: &[u8], whole: bool) -> Result<()>;

    /// True if this process may grow a mounted filesystem: for ext4 the kernel requires
    /// CAP_SYS_RESOURCE.
    fn grows_mounted(&self, fs: FsType) -> bool;

    /// True if the device is open exclusively: a filesystem on it is mounted in any mount
    /// namespace, or a program works on it.
    fn is_claimed(&self, device: &Path) -> Result<bool>;

    /// Size of the mounted filesystem on its device, in bytes. Tells the caller if it must grow.
    fn fs_size(&self, mounted_at: &Path, device: &Path, fs: FsType) -> Result<u64>;

    /// Freezes the filesystem of an open file or directory (FIFREEZE). [`Error::Unsupported`] if
    /// the filesystem can't be frozen.
    fn freeze(&self, on: &File) -> Result<Freeze>;

    /// Thaws the filesystem (FITHAW). Success also if it was not frozen.
    fn thaw(&self, on: &File) -> Result<()>;

    /// Opens the root directory of a mount, to freeze or thaw it. [`Error::NotFound`] if the mount
    /// is gone or another one hides it: a freeze would hit an unrelated filesystem.
    fn open_mount(&self, mount: &MountEntry) -> Result<File>;

    /// Writes back the dirty data of an open file's filesystem (syncfs), so that a freeze right
    /// after it has little left to write.
    fn sync_fs(&self, on: &File) -> Result<()>;

    /// Usage of the filesystem of an open file or directory, whatever is mounted over it since.
    fn usage_of(&self, on: BorrowedFd<'_>) -> Result<FsUsage>;

    /// True if files in this directory can be cloned.
    fn can_clone(&self, dir: BorrowedFd<'_>) -> Result<bool>;

    /// Makes `to` (empty) share all blocks of `from` as they are at one point in time, and gives it
    /// the same length (FICLONE). [`Error::Unsupported`] if this pair of files can't be cloned.
    fn clone_file(&self, from: &File, to: &File) -> Result<()>;

    /// Like [`Kernel::clone_file`], for a source that does not change meanwhile. Once `stop` returns
    /// true, it stops with [`Error::CloneStopped`], but never before the first step.
    fn clone_in_steps(&self, from: &File, to: &File, stop: &dyn Fn() -> bool) -> Result<()>;

    /// Allocates every block of the first `len` bytes of a file and makes it at least as long. The
    /// content stays.
    fn allocate(&self, file: &File, len: u64) -> Result<()>;

    /// Usage of the filesystem mounted at a path.
    fn usage(&self, at: &Path) -> Result<FsUsage>;

    /// The error state that the filesystem reports, as text: ext4 `errors_count`, an XFS shutdown,
    /// btrfs device errors. `None` if it reports none.
    fn fs_errors(&self, mounted_at: &Path, minor: u32, fs: FsType) -> Result<Option<String>>;

    /// True if a power cut leaves a rename between two directories of this filesystem done or not
    /// done, never half done. False for an ext4 without a journal.
    fn renames_whole(&self, on: BorrowedFd<'_>) -> bool;

    /// An error with the reason if a filesystem's tools are missing or the kernel lacks it.
    fn offers(&self, fs: FsType) -> std::result::Result<(), String>;

    /// All filesystem types, with what [`Kernel::offers`] says of each.
    fn filesystems(&self) -> Vec<(FsType, std::result::Result<(), String>)> {
        FsType::ALL
            .into_iter()
            .map(|fs| (fs, self.offers(fs)))
            .collect()
    }
}

impl std::fmt::Debug for dyn Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kernel")
    }
}

/// How often a look is repeated because something changed meanwhile, before it reads everything.
pub const LOOKS: usize = 3;

/// What makes the ext4 on a device or in an image this large; `None` if it holds no ext4.
pub fn ext4_growth(kernel: &dyn Kernel, device: &Path, bytes: u64) -> Result<Option<Ext4Growth>> {
    let ext4 = kernel.ext4(device)?;
    Ok(ext4.map(|ext4| {
        ext4.layout
            .growth(bytes, kernel.grows_mounted(FsType::Ext4))
    }))
}

/// The topmost mount at exactly this path.
pub fn topmost_mount<K: Kernel + ?Sized>(kernel: &K, path: &Path) -> Result<Option<MountEntry>> {
    for _ in 0..LOOKS {
        let known = kernel.known_mounts()?;
        let found = known.at(path);
        let mounts: Vec<_> = found.into_iter().collect();
        if kernel.confirm(&[], &mounts, &[(path, found)]) {
            return Ok(found.cloned());
        }
    }
    Ok(kernel.mounts()?.at(path).cloned())
}

/// The mounts of this loop device's filesystem, oldest first.
pub fn mounts_of_loop(kernel: &dyn Kernel, minor: u32) -> Result<Vec<MountEntry>> {
    for _ in 0..LOOKS {
        let known = kernel.known_mounts()?;
        let found: Vec<_> = known.of_loop(minor).collect();
        if kernel.confirm(&[], &found, &[]) {
            return Ok(found.into_iter().cloned().collect());
        }
    }
    Ok(kernel.mounts()?.of_loop(minor).cloned().collect())
}

/// Fails if a filesystem that could not be asked for its devices may be on this loop device.
pub fn refuse_unknown_mount(kernel: &dyn Kernel, mounts: &MountTable, minor: u32) -> Result<()> {
    let Some(mount) = mounts.of_any_loop().next() else {
        return Ok(());
    };
    let device = loop_path(minor);
    if !kernel.is_claimed(&device)? {
        return Ok(());
    }
    Err(Error::UnknownMount {
        device,
        mount_point: mount.mount_point.to_path_buf(),
    })
}

/// Those of the known loop devices that `wanted` selects, confirmed.
fn confirmed_loops<K: Kernel + ?Sized>(
    kernel: &K,
    scope: LoopScope<'_>,
    wanted: impl Fn(&LoopTable) -> Vec<&LoopInfo>,
) -> Result<Vec<LoopInfo>> {
    for _ in 0..LOOKS {
        let known = kernel.known_loops(scope)?;
        let found = wanted(&known);
        if kernel.confirm(&known.old(found.iter().copied()), &[], &[]) {
            return Ok(found.into_iter().cloned().collect());
        }
    }
    Ok(wanted(&kernel.loops()?.into())
        .into_iter()
        .cloned()
        .collect())
}
