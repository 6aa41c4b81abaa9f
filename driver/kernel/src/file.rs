//! Operations on files alone: copying ([`copy`]), allocating, and safe ways to open and replace.
//!
//! Every function that changes something calls [`effect`] first, and announces the change
//! ([`file_changes`]).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, IFlags, Mode, OFlags, ResolveFlags};
use rustix::fs::{RenameFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::failpoint::effect;
use super::file_changes;
pub use super::file_name::name_of;
pub(crate) use super::file_name::on_file;
use super::foreground::{Steps, TimeShare};
use super::linux::page_cache;
use super::{Error, FsUsage, MountEntry, Result, magic, wanted};

mod copy;
#[cfg(test)]
mod tests;

pub use copy::{Copied, Pace, clone, copy_sparse, data_bytes, is_too_new, write_back_in_steps};
pub(crate) use copy::{cloned, next_data};

/// Maximum number of bytes to allocate at a time.
const ALLOCATE_STEP: u64 = 1 << 30;

/// Like [`on_file`], for a path beneath an open directory.
fn beneath<'a, E: Into<io::Error>>(
    op: &'static str,
    dir: BorrowedFd<'a>,
    path: impl AsRef<Path> + 'a,
) -> impl FnOnce(E) -> Error + 'a {
    move |e| Error::io(op, name_of(dir).join(path), e.into())
}

/// Allocates every block of a range, and extends the file to its end if it is shorter (fallocate).
/// The content stays. An XFS wants room for the whole range, also for blocks that are there.
pub fn allocate(file: &File, range: Range<u64>) -> Result<()> {
    effect("file.allocate").map_err(on_file("fallocate", file))?;
    file_changes::written(file);
    allocate_in_steps(file, range, ALLOCATE_STEP)
}

/// Each step locks the file, which may be in use through a loop device, and keeps the journal of
/// the filesystem busy. It writes no data.
fn allocate_in_steps(file: &File, range: Range<u64>, longest: u64) -> Result<()> {
    let mut steps = Steps::begin(TimeShare::Half);
    let mut at = range.start;
    while at < range.end {
        if at > range.start {
            steps.give_way();
        }
        wanted::check(file)?;
        let step = (range.end - at).min(longest);
        retry(|| rustix::fs::fallocate(file, FallocateFlags::empty(), at, step))
            .map_err(on_file("fallocate", file))?;
        at += step;
    }
    Ok(())
}

/// Sets the length.
pub fn set_len(file: &File, len: u64) -> Result<()> {
    effect("file.set-len").map_err(on_file("ftruncate", file))?;
    file_changes::written(file);
    file.set_len(len).map_err(on_file("ftruncate", file))
}

/// Gives the file its own copy of every shared extent (FALLOC_FL_UNSHARE_RANGE). `Unsupported` on
/// btrfs.
pub fn unshare(file: &File, len: u64) -> Result<()> {
    effect("file.unshare").map_err(on_file("FALLOC_FL_UNSHARE_RANGE", file))?;
    file_changes::written(file);
    // In steps: each one locks the file, which may be in use through a loop device.
    let mut steps = Steps::begin(TimeShare::Tenth);
    let mut at = 0;
    while at < len {
        wanted::check(file)?;
        let step = (len - at).min(copy::longest_step());
        retry(|| rustix::fs::fallocate(file, FallocateFlags::UNSHARE_RANGE, at, step))
            .map_err(on_file("FALLOC_FL_UNSHARE_RANGE", file))?;
        // The filesystem has copied them into the page cache.
        page_cache::write_back(file, at..at + step)?;
        at += step;
        steps.give_way();
    }
    Ok(())
}

/// Length of an open file in bytes.
pub fn length(file: &File) -> Result<u64> {
    Ok(file.metadata().map_err(on_file("fstat", file))?.len())
}

/// Number of bytes allocated to a file (`st_blocks`), including shared ones.
pub fn allocated_bytes(file: &File) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata().map_err(on_file("fstat", file))?;
    Ok(metadata.blocks() * 512)
}

/// True if a file has any data. A file of holes and preallocated space has none and reads as zeros.
/// The filesystem knows this without reading the file.
pub fn has_data(file: &File) -> Result<bool> {
    match rustix::fs::seek(file, SeekFrom::Data(0)) {
        Ok(_) => Ok(true),
        Err(Errno::NXIO) => Ok(false),
        Err(e) => Err(on_file("SEEK_DATA", file)(e)),
    }
}

/// Calls fsync. An error names the file `what`.
pub fn sync(file: &File, what: &Path) -> Result<()> {
    fsync(file).map_err(|e| Error::io("fsync", what, e))
}

/// Calls fsync on a file, or on a directory that is open for reading.
pub(super) fn fsync(file: &File) -> io::Result<()> {
    effect("file.sync")?;
    file.sync_all()?;
    file_changes::synced(file.as_fd());
    Ok(())
}

/// Calls fsync on a directory.
pub fn sync_dir(dir: BorrowedFd<'_>) -> Result<()> {
    effect("file.sync").map_err(on_file("fsync", dir))?;
    // The handle may be an O_PATH one, on which fsync fails.
    rustix::fs::openat(dir, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(on_file("fsync", dir))?;
    file_changes::synced(dir);
    Ok(())
}

/// True if files in this directory can be cloned. Tries it with two small unlinked files.
pub fn can_clone(dir: BorrowedFd<'_>) -> Result<bool> {
    let (from, to) = (scratch(dir, ".clone-from")?, scratch(dir, ".clone-to")?);
    match (&from)
        .write_all(&[1; 4096])
        .map_err(on_file("write", &from))
    {
        // The test also works on a full pool: an empty file can be cloned as well.
        Err(e) if !e.is_no_space() => return Err(e),
        _ => {}
    }
    match clone(&from, &to) {
        Ok(()) => Ok(true),
        Err(Error::Unsupported { .. }) => Ok(false),
        Err(e) if is_too_new(&e) => Ok(true),
        Err(e) => Err(e),
    }
}

/// Creates a file in `dir` without a name (O_TMPFILE), or unlinks it before returning.
fn scratch(dir: BorrowedFd<'_>, name: &'static str) -> Result<File> {
    effect("file.scratch").map_err(beneath("open", dir, name))?;
    match open_nameless(dir) {
        Ok(file) => return Ok(file),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
        Err(e) => return Err(beneath("O_TMPFILE", dir, ".")(e)),
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::TRUNC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)
        .map_err(beneath("open", dir, name))?;
    rustix::fs::unlinkat(dir, name, AtFlags::empty()).map_err(beneath("unlink", dir, name))?;
    Ok(fd.into())
}

/// Sets the no-copy-on-write attribute (`chattr +C`), which images need on a btrfs, on a new image
/// or on the directory of new images. On another filesystem, changes nothing.
pub fn set_no_cow_on_btrfs(on: BorrowedFd<'_>) -> Result<()> {
    let stat = rustix::fs::fstatfs(on).map_err(on_file("statfs", on))?;
    if stat.f_type != magic::BTRFS {
        return Ok(());
    }
    let flags = rustix::fs::ioctl_getflags(on).map_err(on_file("FS_IOC_GETFLAGS", on))?;
    if flags.contains(IFlags::NOCOW) {
        return Ok(());
    }
    effect("file.no-cow").map_err(on_file("FS_IOC_SETFLAGS", on))?;
    rustix::fs::ioctl_setflags(on, flags | IFlags::NOCOW).map_err(on_file("FS_IOC_SETFLAGS", on))
}

/// True if the file's filesystem can [`unshare`] blocks (FALLOC_FL_UNSHARE_RANGE): only XFS can.
pub fn can_unshare(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|s| { s.f_type } == magic::XFS)
}

/// The block size of an open file's filesystem, in bytes.
pub fn block_size(on: BorrowedFd<'_>) -> Result<u64> {
    let stat = rustix::fs::fstatvfs(on).map_err(on_file("statvfs", on))?;
    Ok(stat.f_bsize)
}

/// Usage of an open file's filesystem.
pub fn usage(on: BorrowedFd<'_>) -> Result<FsUsage> {
    let s = rustix::fs::fstatvfs(on).map_err(on_file("statvfs", on))?;
    Ok(FsUsage {
        total_bytes: s.f_blocks.saturating_mul(s.f_frsize),
        free_bytes: s.f_bfree.saturating_mul(s.f_frsize),
        available_bytes: s.f_bavail.saturating_mul(s.f_frsize),
        total_inodes: s.f_files,
        free_inodes: s.f_ffree,
        read_only: s.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
    })
}

/// True if the filesystem at this path has shut down after an error: it answers no query. XFS shows
/// this nowhere else.
pub fn has_shut_down(path: &Path) -> bool {
    path.metadata().is_err_and(|e| is_shutdown(&e))
}

/// True for the error of a filesystem that has shut down.
pub(super) fn is_shutdown(e: &io::Error) -> bool {
    // EUCLEAN is XFS's EFSCORRUPTED.
    matches!(e.raw_os_error(), Some(libc::EIO | libc::EUCLEAN))
}

/// Opens the root directory of a mount; `NotFound` if the path leads to another mount.
pub(crate) fn open_mount(mount: &MountEntry) -> Result<File> {
    let at = &*mount.mount_point;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = retry(|| rustix::fs::open(at, flags, Mode::empty()))
        .map_err(|e| Error::io("open", at, e.into()))?;
    if mount_id(&dir, "").map_err(|e| Error::io("statx", at, e))? != Some(mount.id) {
        return Err(Error::errno("open the mount at", at, libc::ENOENT));
    }
    Ok(dir.into())
}

/// The ID of the mount that contains this path beneath `dir`, or `dir` itself if the path is empty.
/// Follows no symlink at the end of the path. `None` before Linux 5.8, which does not show the ID.
/// The call does not make a network filesystem ask its server.
pub fn mount_id(dir: impl AsFd, path: impl AsRef<Path>) -> io::Result<Option<u64>> {
    let how = AtFlags::EMPTY_PATH
        | AtFlags::SYMLINK_NOFOLLOW
        | AtFlags::NO_AUTOMOUNT
        | AtFlags::STATX_DONT_SYNC;
    let what = StatxFlags::MNT_ID;
    let found = rustix::fs::statx(dir, path.as_ref(), how, what)?;
    Ok((found.stx_mask & what.bits() != 0).then_some(found.stx_mnt_id))
}

/// Calls syncfs.
pub(crate) fn sync_fs(on: &File) -> Result<()> {
    retry(|| rustix::fs::syncfs(on)).map_err(on_file("syncfs", on))
}

/// Creates a directory beneath `dir`, mode 0700, unless it exists.
pub fn make_dir(dir: BorrowedFd<'_>, name: &str) -> Result<()> {
    single(dir, name)?;
    effect("file.mkdir").map_err(beneath("mkdir", dir, name))?;
    match rustix::fs::mkdirat(dir, name, Mode::RWXU) {
        // A file or a symlink with that name is an error.
        Err(Errno::EXIST) => {
            open_beneath(dir, name.as_ref(), OFlags::PATH | OFlags::DIRECTORY).map(drop)
        }
        made => {
            made.map_err(beneath("mkdir", dir, name))?;
            file_changes::made(dir, name);
            Ok(())
        }
    }
}

/// Opens a file or directory beneath `dir` (openat2, RESOLVE_BENEATH, no symlinks).
pub fn open_beneath(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<File> {
    open_with(dir, path, flags, Mode::empty())
}

/// Like [`open_beneath`], but through no mount (RESOLVE_NO_XDEV).
pub fn open_in_mount(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<File> {
    open_resolved(dir, path, flags, Mode::empty(), ResolveFlags::NO_XDEV)
}

/// Creates a file beneath `dir`, mode 0600; `Io(EEXIST)` if it exists.
pub fn create_beneath(dir: BorrowedFd<'_>, path: &Path) -> Result<File> {
    effect("file.create").map_err(beneath("create", dir, path))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = open_with(dir, path, flags, Mode::RUSR | Mode::WUSR)?;
    file_changes::made(dir, path);
    Ok(file)
}

/// Creates a file without a name (O_TMPFILE) on the filesystem of `dir`, mode 0600. It goes with its
/// last user, unless [`give_name`] has given it a name.
pub fn create_nameless(dir: BorrowedFd<'_>) -> Result<File> {
    effect("file.scratch").map_err(beneath("O_TMPFILE", dir, "."))?;
    open_nameless(dir).map_err(beneath("O_TMPFILE", dir, "."))
}

fn open_nameless(dir: BorrowedFd<'_>) -> std::result::Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
    rustix::fs::openat(dir, ".", flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

/// Gives a file of [`create_nameless`] a name in `dir`; `Io(EEXIST)` if something has it.
pub fn give_name(file: &File, dir: BorrowedFd<'_>, name: &str) -> Result<()> {
    single(dir, name)?;
    effect("file.link").map_err(beneath("link", dir, name))?;
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(rustix::fs::CWD, open, dir, name, AtFlags::SYMLINK_FOLLOW)
        .map_err(beneath("link", dir, name))?;
    file_changes::made(dir, name);
    Ok(())
}

fn open_with(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> Result<File> {
    open_resolved(dir, path, flags, mode, ResolveFlags::empty())
}

fn open_resolved(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    also: ResolveFlags,
) -> Result<File> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | also;
    loop {
        match rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Ok(fd) => return Ok(fd.into()),
            // AGAIN: because of a concurrent rename, the kernel can't prove that the path stays
            // beneath.
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(e) => return Err(beneath("open", dir, path)(e)),
        }
    }
}

/// Creates `name` in `dir` with `content`, or replaces it: temporary file, write, fsync, rename,
/// fsync of the directory. After a crash, `name` has either the old content or the new one. A
/// temporary file (`.<name>.new`) may remain, which the next call reuses.
pub fn replace(dir: BorrowedFd<'_>, name: &str, content: &[u8]) -> Result<()> {
    replace_content(dir, name, content)?;
    sync_dir(dir)
}

/// Like [`replace`], without the fsync of the directory. After a power cut, `name` may have the old
/// content.
pub fn replace_content(
    dir: BorrowedFd<'_>,
    name: &str,
    content: &[u8],
) -> std::result::Result<(), PutError> {
    put(dir, name, content, fsync)
}

/// Like [`replace`], without an fsync. After a crash of the process, `name` has either the old
/// content or the new one. After a power cut it may be old, empty, cut off or missing.
pub fn replace_unsynced(dir: BorrowedFd<'_>, name: &str, content: &[u8]) -> Result<()> {
    Ok(put(dir, name, content, |_| Ok(()))?)
}

/// Why a file has not got its new content.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// A step before the rename failed: the file is as it was.
    #[error(transparent)]
    Before(Error),
    /// The rename failed. Over a network, it may have happened all the same.
    #[error(transparent)]
    Rename(Error),
}

impl From<PutError> for Error {
    fn from(error: PutError) -> Error {
        match error {
            PutError::Before(error) | PutError::Rename(error) => error,
        }
    }
}

/// Writes a temporary file, passes it to `sync`, and renames it to `name`.
fn put(
    dir: BorrowedFd<'_>,
    name: &str,
    content: &[u8],
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> std::result::Result<(), PutError> {
    single(dir, name).map_err(PutError::Before)?;
    let temporary = format!(".{name}.new");
    effect("file.create")
        .map_err(beneath("create", dir, temporary.as_str()))
        .map_err(PutError::Before)?;
    let mut file = own_temporary(dir, &temporary).map_err(PutError::Before)?;
    let mut is_renaming = false;
    let written = (|| -> io::Result<()> {
        effect("file.write")?;
        file_changes::written(&file);
        file.set_len(0)?;
        file.write_all(content)?;
        sync(&file)?;
        effect("file.rename")?;
        is_renaming = true;
        rustix::fs::renameat(dir, &temporary, dir, name)?;
        file_changes::renamed(dir, &temporary, dir, name);
        Ok(())
    })();
    written.map_err(|e| {
        // Best effort: leave no half-written record on a full disk. Report the first error, not
        // this one.
        if rustix::fs::unlinkat(dir, &temporary, AtFlags::empty()).is_ok() {
            file_changes::removed(dir, &temporary);
        }
        let error = Error::io("replace", name_of(dir).join(name), e);
        if is_renaming {
            PutError::Rename(error)
        } else {
            PutError::Before(error)
        }
    })
}

/// Creates `name` in `dir` with `content`. The caller calls fsync on the file and the directory.
pub fn write_new(dir: BorrowedFd<'_>, name: &str, content: &[u8]) -> Result<File> {
    let mut file = create_beneath(dir, name.as_ref())?;
    effect("file.write").map_err(beneath("write", dir, name))?;
    file_changes::written(&file);
    file.write_all(content)
        .map_err(beneath("write", dir, name))?;
    Ok(file)
}

/// Unlinks the file `name` in `dir`, if it exists. Calls no fsync.
pub fn remove(dir: BorrowedFd<'_>, name: &str) -> Result<()> {
    single(dir, name)?;
    effect("file.unlink").map_err(beneath("unlink", dir, name))?;
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) => {
            file_changes::removed(dir, name);
            Ok(())
        }
        Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(beneath("unlink", dir, name)(e)),
    }
}

/// Opens and locks the temporary file of [`replace`]. Concurrent replacements of one name take
/// turns: a caller that waited for the lock finds the file renamed and creates a new one.
fn own_temporary(dir: BorrowedFd<'_>, name: &str) -> Result<File> {
    loop {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW;
        let file = open_with(dir, name.as_ref(), flags, Mode::RUSR | Mode::WUSR)?;
        retry(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))
            .map_err(beneath("flock", dir, name))?;
        let ours = rustix::fs::fstat(&file).map_err(beneath("fstat", dir, name))?;
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(s) if (s.st_dev, s.st_ino) == (ours.st_dev, ours.st_ino) => {
                file_changes::made(dir, name);
                return Ok(file);
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(e) => return Err(beneath("stat", dir, name)(e)),
        }
    }
}

/// Renames an entry, a directory, between two directories beneath the pool. Fails if `to` exists.
/// The caller calls fsync on the directories.
///
/// Some filesystems lack RENAME_NOREPLACE: NFS, ZFS before 2.2, and many in user space. A plain
/// rename of a directory is safe there, too. It replaces nothing but an empty directory, and an
/// entry is never empty. That needs no lock, so it also holds against other clients of an NFS
/// server.
pub fn rename(
    from_dir: BorrowedFd<'_>,
    from: &str,
    to_dir: BorrowedFd<'_>,
    to: &str,
) -> Result<()> {
    single(from_dir, from)?;
    single(to_dir, to)?;
    effect("file.rename").map_err(beneath("rename", from_dir, from))?;
    match rustix::fs::renameat_with(from_dir, from, to_dir, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if inode(to_dir, to)?.is_some() {
                return Err(beneath("rename", to_dir, to)(Errno::EXIST));
            }
            // The slash refuses to move anything but a directory.
            rustix::fs::renameat(from_dir, format!("{from}/"), to_dir, to)
        }
        renamed => renamed,
    }
    .map_err(beneath("rename", from_dir, from))?;
    file_changes::renamed(from_dir, from, to_dir, to);
    Ok(())
}

/// Unlinks the plain files in the directory `name` of `dir`, then the directory. Removes only one
/// level and follows no symlink; a subdirectory is an error. Unlinks `name` itself if it is not a
/// directory. For the pool's own `incoming/` and `trash/`.
pub fn remove_entry(dir: BorrowedFd<'_>, name: &str) -> Result<()> {
    single(dir, name)?;
    let entry = match open_beneath(dir, name.as_ref(), OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(entry) => entry,
        Err(Error::Io { source, .. })
            if matches!(source.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) =>
        {
            effect("file.unlink").map_err(beneath("unlink", dir, name))?;
            rustix::fs::unlinkat(dir, name, AtFlags::empty())
                .map_err(beneath("unlink", dir, name))?;
            file_changes::removed(dir, name);
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    for (file, _) in raw_entries(entry.as_fd())? {
        let path = Path::new(name).join(OsStr::new(&*file.to_string_lossy()));
        effect("file.unlink").map_err(beneath("unlink", dir, &path))?;
        rustix::fs::unlinkat(&entry, &file, AtFlags::empty())
            .map_err(beneath("unlink", dir, path))?;
        file_changes::removed(entry.as_fd(), OsStr::from_bytes(file.to_bytes()));
    }
    effect("file.rmdir").map_err(beneath("rmdir", dir, name))?;
    rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR).map_err(beneath("rmdir", dir, name))?;
    file_changes::removed(dir, name);
    Ok(())
}

/// Names in a directory, sorted. A name that is not UTF-8 (never the driver's) has replacement
/// characters.
pub fn list(dir: BorrowedFd<'_>) -> Result<Vec<String>> {
    Ok(list_inodes(dir)?
        .into_iter()
        .map(|(name, _)| name)
        .collect())
}

/// Like [`list`], with the inode of each entry.
pub fn list_inodes(dir: BorrowedFd<'_>) -> Result<Vec<(String, u64)>> {
    let entries = raw_entries(dir)?.into_iter();
    let mut entries: Vec<_> = entries
        .map(|(name, inode)| (name.to_string_lossy().into_owned(), inode))
        .collect();
    entries.sort_unstable();
    Ok(entries)
}

/// The inode of an entry in a directory; `None` if it does not exist. Follows no symlink.
pub fn inode(dir: BorrowedFd<'_>, name: &str) -> Result<Option<u64>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat.st_ino)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(beneath("stat", dir, name)(e)),
    }
}

fn raw_entries(dir: BorrowedFd<'_>) -> Result<Vec<(std::ffi::CString, u64)>> {
    let mut names = Vec::new();
    // Open it again: the handle may be an O_PATH one, and its offset belongs to the caller.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = rustix::fs::openat(dir, ".", flags, Mode::empty())
        .and_then(rustix::fs::Dir::new)
        .map_err(on_file("readdir", dir))?;
    for entry in entries {
        let entry = entry.map_err(on_file("readdir", dir))?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push((entry.file_name().to_owned(), entry.ino()));
        }
    }
    Ok(names)
}

/// Rejects a name that leads out of the directory or further down.
fn single(dir: BorrowedFd<'_>, name: &str) -> Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(beneath("look up", dir, name)(Errno::INVAL));
    }
    Ok(())
}

/// Repeats the call while a signal interrupts it.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
