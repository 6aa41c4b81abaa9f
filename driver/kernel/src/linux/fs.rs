//! Mounted filesystems: sizes, usage, freezing, and the errors that they report.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::superblock::{self, ext4};
use super::{attributes, ioctl, mount, open, read_attribute};
use crate::failpoint::effect;
use crate::file::{self, is_shutdown, name_of};
use crate::{Error, Freeze, FsType, FsUsage, Result, magic, reflink_support};

pub(super) fn size(mounted_at: &Path, device: &Path, fs: FsType) -> Result<u64> {
    match fs {
        // The mounted filesystem keeps its superblock in the device's page cache.
        FsType::Ext4 => ext4_size_on(device),
        // XFS and btrfs keep theirs outside the device's page cache, so ask the filesystem.
        FsType::Xfs => reflink_support::xfs_bytes(open(mounted_at)?.as_fd()),
        FsType::Btrfs => ioctl::btrfs_device(&open(mounted_at)?)
            .map(|device| device.total_bytes)
            .map_err(|e| Error::io("BTRFS_IOC_DEV_INFO", mounted_at, e)),
    }
}

/// Size of the ext4 on a device, mounted or not, in bytes.
pub(super) fn ext4_size_on(device: &Path) -> Result<u64> {
    let block = superblock::block_at(device, ext4::START)?;
    block.as_ref().and_then(ext4::size).ok_or_else(|| {
        let e = io::Error::other("no ext4 superblock");
        Error::io("read", device, e)
    })
}

pub(super) fn freeze(on: &File) -> Result<Freeze> {
    if rustix::fs::fstatfs(on).is_ok_and(|s| s.f_type == magic::XFS) {
        // The mount sets this limit, unless it was interrupted or another program mounted it.
        // Without the limit, a freeze on a full pool never returns.
        mount::xfs_gives_up(on.metadata().map_err(|e| not_frozen(on, e))?.dev())?;
    }
    effect("freeze").map_err(|e| not_frozen(on, e))?;
    match ioctl::freeze(on) {
        Ok(()) => Ok(Freeze::Frozen),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Ok(Freeze::AlreadyFrozen),
        Err(e) => Err(not_frozen(on, e)),
    }
}

fn not_frozen(on: &File, e: io::Error) -> Error {
    Error::io("FIFREEZE", name_of(on), e)
}

pub(super) fn thaw(on: &File) -> Result<()> {
    match effect("thaw").and_then(|()| ioctl::thaw(on)) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        thawed => thawed.map_err(|e| Error::io("FITHAW", name_of(on), e)),
    }
}

pub(super) fn shut_down(on: &File) -> Result<()> {
    effect("shut-down")
        .and_then(|()| ioctl::shut_down(on))
        .map_err(|e| Error::io("shut down", name_of(on), e))
}

pub(super) fn trigger_error(minor: u32) -> Result<()> {
    let path = ext4_attribute_path(minor, "trigger_fs_error");
    // The text becomes the message in the kernel's log.
    effect("trigger-error")
        .and_then(|()| attributes::write(&path, "a fault that was asked for"))
        .map_err(|e| Error::io("write", &path, e))
}

pub(super) fn usage(at: &Path) -> Result<FsUsage> {
    // Open the path once, so that the result is the usage of the topmost mount.
    let on = rustix::fs::open(
        at,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .map_err(|e| Error::io("open", at, e.into()))?;
    file::usage(on.as_fd())
}

pub(super) fn errors(mounted_at: &Path, minor: u32, fs: FsType) -> Result<Option<String>> {
    // A filesystem that has shut down fails every other query.
    let dir = open(mounted_at).and_then(|dir| match dir.metadata() {
        Ok(_) => Ok(dir),
        Err(e) => Err(Error::io("stat", mounted_at, e)),
    });
    match (dir, fs) {
        (Err(Error::Io { source, .. }), _) if is_shutdown(&source) => Ok(Some(format!(
            "{fs} has shut down after an error ({source})"
        ))),
        (Err(e), _) => Err(e),
        (Ok(_), FsType::Ext4) => ext4_errors(minor),
        (Ok(_), FsType::Xfs) => Ok(None),
        (Ok(dir), FsType::Btrfs) => btrfs_errors(&dir, mounted_at),
    }
}

fn ext4_errors(minor: u32) -> Result<Option<String>> {
    let count = ext4_attribute(minor, "errors_count")?;
    if count == "0" {
        return Ok(None);
    }
    // This attribute is newer than the count and may be missing. Report the count without it then.
    let place = ext4_attribute(minor, "last_error_func").unwrap_or_default();
    Ok(Some(match place.as_str() {
        "" => format!("ext4 counts {count} errors"),
        place => format!("ext4 counts {count} errors, the last one in {place}"),
    }))
}

fn ext4_attribute(minor: u32, name: &str) -> Result<String> {
    read_attribute(&ext4_attribute_path(minor, name))
}

fn ext4_attribute_path(minor: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/sys/fs/ext4/loop{minor}/{name}"))
}

fn btrfs_errors(dir: &File, mounted_at: &Path) -> Result<Option<String>> {
    let stats =
        ioctl::btrfs_stats(dir).map_err(|e| Error::io("BTRFS_IOC_GET_DEV_STATS", mounted_at, e))?;
    Ok(btrfs_words(&stats.values))
}

fn btrfs_words(counts: &[u64; 5]) -> Option<String> {
    let kinds = ["write", "read", "flush", "corruption", "generation"];
    let words: Vec<String> = kinds
        .iter()
        .zip(counts)
        .filter(|(_, count)| **count > 0)
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    (!words.is_empty()).then(|| format!("btrfs counts errors: {}", words.join(", ")))
}

/// True if a rename between two directories of the filesystem is one change of it. An ext4 shows
/// how it keeps its data consistent (`data=`) only if it has a journal.
pub(super) fn renames_whole(on: BorrowedFd<'_>) -> bool {
    let Ok(statfs) = rustix::fs::fstatfs(on) else {
        return false;
    };
    statfs.f_type != magic::EXT4 || has_journal(on).unwrap_or(false)
}

fn has_journal(on: BorrowedFd<'_>) -> Option<bool> {
    let device = rustix::fs::fstat(on).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let options = Path::new("/proc/fs/ext4")
        .join(link.file_name()?)
        .join("options");
    let options = std::fs::read_to_string(options).ok()?;
    Some(options.lines().any(|option| option.starts_with("data=")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn btrfs_counts_in_words() {
        assert_eq!(btrfs_words(&[0; 5]), None);
        let words = btrfs_words(&[2, 0, 0, 7, 0]).unwrap();
        assert_eq!(words, "btrfs counts errors: 2 write, 7 corruption");
    }
}
