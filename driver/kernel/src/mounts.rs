//! What the kernel does with the mounts of this process's mount namespace.

use std::fs::File;
use std::path::Path;

use crate::{BindFlags, FsType, MountEntry, MountTable, Result};

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

/// The mounts of this process's mount namespace.
///
/// Every method blocks; every mutating one is an *effect* (see [`failpoint`](crate::failpoint)).
pub trait Mounts {
    /// Reads the mount table of this process's mount namespace.
    fn mounts(&self) -> Result<MountTable>;

    /// The mounts as far as they are known: like [`Mounts::mounts`], but options and paths of a
    /// mount may be old, see [`Mounts::confirm_mounts`]. It costs nearly the same with any number
    /// of mounts.
    fn known_mounts(&self) -> Result<MountTable>;

    /// Makes the next look at mounts read all of them.
    fn forget_mounts(&self);

    /// Asks the kernel for mounts that a caller relies on. True if they are still like this, and
    /// these mounts (or none) are the topmost ones at these paths. If not, the next look reads them
    /// again.
    fn confirm_mounts(&self, mounts: &[&MountEntry], at: &[(&Path, Option<&MountEntry>)]) -> bool;

    /// True if the mount that contains this directory is shared: what is mounted beneath it also
    /// appears in the other mount namespaces that have it, and stays there after this process.
    fn is_shared(&self, dir: &Path) -> Result<bool>;

    /// Mounts a filesystem; on XFS, limits error retries right after.
    fn mount(&self, spec: &MountSpec<'_>) -> Result<()>;

    /// Removes the limit on retries that [`Mounts::mount`] sets: a mounted XFS then retries its
    /// metadata writes until they succeed. Only for pools. If a pool's XFS gave up, all its volumes
    /// would be lost until a remount, though its disk may return or its space may grow.
    fn retry_forever(&self, xfs: &Path) -> Result<()>;

    /// Bind-mounts a directory or a file (a device node) on an existing target of the same kind.
    /// From the start, the bind mount has the source's flags and `flags`.
    fn bind(&self, source: &Path, target: &Path, flags: BindFlags) -> Result<()>;

    /// Changes the `discard` option of a mounted filesystem (a remount that keeps everything else).
    /// `Error::Unsupported` if the filesystem accepts it only at a mount.
    fn remount_discard(&self, target: &Path, fs: FsType, on: bool) -> Result<()>;

    /// Unmounts exactly this mount, never one that came over it or to its place since a look. It
    /// must be the topmost one at its path, or else `Error::Covered`. `Error::Busy` if it stays
    /// in use for some seconds, `Error::NotFound` if nothing is mounted there.
    fn unmount_exactly(&self, mount: &MountEntry) -> Result<()>;

    /// Unmounts the mount that is the topmost one at exactly this path now. Only where the driver
    /// alone mounts: a mount that was seen there before may not be the one that is unmounted.
    fn unmount(&self, target: &Path) -> Result<()>;

    /// Opens the root directory of a mount, to freeze or thaw it. `Error::NotFound` if the mount
    /// is gone or another one hides it: a freeze would hit an unrelated filesystem.
    fn open_mount(&self, mount: &MountEntry) -> Result<File>;
}
