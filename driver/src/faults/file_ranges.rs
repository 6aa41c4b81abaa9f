//! The bytes of a volume's disk that a file has, for faults of one file. They are found once, when the
//! fault begins, and are in its record.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hostloop_controllers::api::claim_fault::FilePart;
use hostloop_fault_disk::rules::MOST_RANGES;
use rustix::fs::OFlags;

use super::target::Target;
use super::{FaultError, Obstacle};
use crate::kernel::extents::{DeviceRanges, device_ranges};
use crate::kernel::{self, FsType, file};

/// Finds the bytes of the disk that a part of a file has now.
pub(super) fn find(target: &Target<'_>, part: &FilePart) -> Result<Vec<Range<u64>>, FaultError> {
    match target.fs() {
        Some(FsType::Ext4 | FsType::Xfs) => {}
        Some(FsType::Btrfs) => return Err(Obstacle::BtrfsAddresses.into()),
        None => return Err(Obstacle::NoFilesystem.into()),
    }
    let file = open(&target.root()?, &part.path)?;
    let bytes = part.bytes.clone().unwrap_or(0..u64::MAX);
    match device_ranges(&file, &bytes, MOST_RANGES)? {
        DeviceRanges::Known(ranges) if ranges.is_empty() => Err(Obstacle::NoBlocks.into()),
        DeviceRanges::Known(ranges) => Ok(ranges),
        DeviceRanges::NotInBlocks => Err(Obstacle::NotInBlocks.into()),
        DeviceRanges::TooMany => Err(Obstacle::TooManyRanges { most: MOST_RANGES }.into()),
    }
}

/// Opens a regular file beneath the root of the volume's mount. Users choose the path, and what is
/// there.
fn open(root: &File, path: &str) -> Result<File, FaultError> {
    // To open a device or a pipe of users could do something, so this looks before it opens.
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let found = match file::open_in_mount(root.as_fd(), Path::new(path), flags) {
        Ok(found) => found,
        Err(error) if leads_nowhere(&error) => return Err(no_file(path)),
        Err(error) => return Err(error.into()),
    };
    let metadata = found.metadata();
    let metadata = metadata.map_err(|e| kernel::Error::io("fstat", path, e))?;
    if !metadata.is_file() {
        return Err(no_file(path));
    }
    // The file that it looked at, whatever the name is for by now. A lease of users holds nothing up.
    let opened = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", found.as_raw_fd()));
    Ok(opened.map_err(|e| kernel::Error::io("open", path, e))?)
}

fn no_file(path: &str) -> FaultError {
    let path = path.to_owned();
    Obstacle::NoFile { path }.into()
}

/// True for the errors of a path that leads to nothing in the volume.
fn leads_nowhere(error: &kernel::Error) -> bool {
    match error {
        kernel::Error::NotFound { .. } => true,
        kernel::Error::Io { source, .. } => matches!(
            source.raw_os_error(),
            Some(libc::ELOOP | libc::EXDEV | libc::ENOTDIR | libc::ENAMETOOLONG)
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
