//! What the kernel and the tools do with filesystems, mounted or not.

use std::fs::File;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::file::Pace;
use crate::{Ext4Growth, Ext4Layout, FsType, Result};

/// Result of probing a device's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The device has no signature, and only zeros in all places that were read (see
    /// `linux/blank.rs`).
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
    /// The bytes of the superblock, for [`Filesystems::mend_growth`].
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
    /// shell. [`Filesystems::mkfs`] rejects what
    /// [`check_mkfs_options`](crate::check_mkfs_options) rejects.
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
    /// Free inodes.
    pub free_inodes: u64,
    /// Mounted read-only, or turned read-only after an error.
    pub read_only: bool,
}

/// Filesystems on devices and in images, and the tools that act on them.
///
/// Every method blocks; every mutating one is an *effect* (see [`failpoint`](crate::failpoint)).
pub trait Filesystems {
    /// Probes a device for signatures and data.
    fn probe(&self, device: &Path) -> Result<Probe>;

    /// Reads the superblock of an expected filesystem. `None` unless its checksum matches and mkfs
    /// has finished; then only [`Filesystems::probe`] shows what the device holds.
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

    /// Grows a mounted filesystem to its device's size. Success if it already has that size. Asks
    /// neither [`Filesystems::grows_mounted`] nor [`FsType::minimum_grown_bytes`]: the caller does,
    /// and can say more than the tool.
    fn grow(&self, device: &Path, mounted_at: &Path, fs: FsType) -> Result<()>;

    /// Reads the superblock of the ext4 on a device or in an image, mounted or not; `None` if it
    /// holds no ext4.
    fn ext4(&self, device: &Path) -> Result<Option<Ext4>>;

    /// Checks all of an unmounted ext4, even a clean one, and makes safe repairs (`e2fsck -f -p`).
    /// The time that it takes grows with the number of files.
    fn check_whole(&self, device: &Path) -> Result<()>;

    /// Grows an unmounted ext4 to its device's size, after [`Filesystems::check_whole`]. Success
    /// also if it already has that size. An error without any effect unless its growth is
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

    /// Size of the mounted filesystem on its device, in bytes. Tells the caller if it must grow.
    fn fs_size(&self, mounted_at: &Path, device: &Path, fs: FsType) -> Result<u64>;

    /// Freezes the filesystem of an open file or directory (FIFREEZE).
    /// `Error::Unsupported` if the filesystem can't be frozen.
    fn freeze(&self, on: &File) -> Result<Freeze>;

    /// Thaws the filesystem (FITHAW). Success also if it was not frozen.
    fn thaw(&self, on: &File) -> Result<()>;

    /// Shuts a mounted ext4 or XFS down as a power cut does: nothing that is only in memory is
    /// written any more, its log neither, and all I/O fails with EIO. The next mount, after the
    /// last unmount, replays its journal.
    fn shut_down(&self, on: &File) -> Result<()>;

    /// Makes the mounted ext4 of a loop device meet an error, and do what its option `errors` says.
    fn trigger_error(&self, minor: u32) -> Result<()>;

    /// Writes back the dirty data of an open file's filesystem (syncfs), so that a freeze right
    /// after it has little left to write.
    fn sync_fs(&self, on: &File) -> Result<()>;

    /// Usage of the filesystem of an open file or directory, whatever is mounted over it since.
    fn usage_of(&self, on: BorrowedFd<'_>) -> Result<FsUsage>;

    /// Usage of the filesystem mounted at a path.
    fn usage(&self, at: &Path) -> Result<FsUsage>;

    /// True if files in this directory can be cloned.
    fn can_clone(&self, dir: BorrowedFd<'_>) -> Result<bool>;

    /// Makes `to` (empty) share all blocks of `from` as they are at one point in time, and gives it
    /// the same length (FICLONE). `Error::Unsupported` if this pair of
    /// files can't be cloned.
    fn clone_file(&self, from: &File, to: &File) -> Result<()>;

    /// Like [`Filesystems::clone_file`], for a source that does not change meanwhile. Once `stop`
    /// returns true, it stops with `Error::CloneStopped`, but never
    /// before the first step. At [`Pace::Gentle`], it gives way to calls between its steps.
    fn clone_in_steps(
        &self,
        from: &File,
        to: &File,
        pace: Pace,
        stop: &dyn Fn() -> bool,
    ) -> Result<()>;

    /// Number of bytes of `target` in blocks that it shares with `base` at the same offsets, after
    /// writing both back.
    fn common_bytes(&self, base: &File, target: &File) -> Result<u64>;

    /// Number of bytes in blocks that other files share, after writing the file back. A write to
    /// the whole file would allocate this many bytes.
    fn shared_bytes(&self, file: &File) -> Result<u64>;

    /// Allocates every block of a range of a file, and extends the file to its end if it is shorter.
    /// The content stays.
    fn allocate(&self, file: &File, range: Range<u64>) -> Result<()>;

    /// The error state that the filesystem reports, as text: ext4 `errors_count`, an XFS shutdown,
    /// btrfs device errors. `None` if it reports none.
    fn fs_errors(&self, mounted_at: &Path, minor: u32, fs: FsType) -> Result<Option<String>>;

    /// True if a power cut leaves a rename between two directories of this filesystem done or not
    /// done, never half done. False for an ext4 without a journal.
    fn renames_whole(&self, on: BorrowedFd<'_>) -> bool;

    /// An error with the reason if a filesystem's tools are missing or the kernel lacks it.
    fn offers(&self, fs: FsType) -> std::result::Result<(), String>;

    /// All filesystem types, with what [`Filesystems::offers`] says of each.
    fn filesystems(&self) -> Vec<(FsType, std::result::Result<(), String>)> {
        FsType::ALL
            .into_iter()
            .map(|fs| (fs, self.offers(fs)))
            .collect()
    }
}

/// What makes the ext4 on a device or in an image this large; `None` if it holds no ext4.
pub fn ext4_growth<K: Filesystems + ?Sized>(
    kernel: &K,
    device: &Path,
    bytes: u64,
) -> Result<Option<Ext4Growth>> {
    let ext4 = kernel.ext4(device)?;
    Ok(ext4.map(|ext4| {
        ext4.layout
            .growth(bytes, kernel.grows_mounted(FsType::Ext4))
    }))
}
