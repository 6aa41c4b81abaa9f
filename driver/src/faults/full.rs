//! `full`: a file in the root directory takes all free room of the filesystem. Its name says what it
//! is. Room that others free later stays free.

use std::fs::{File, Metadata};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use hostloop_controllers::api::claim_fault::FaultKind;
use rustix::fs::OFlags;

use super::target::Target;
use super::{EndsLater, FaultError, Obstacle};
use crate::kernel::{self, BLOCK_SIZE, file};
use crate::storage::free_room::{self, FILLER};

pub(super) fn obstacle(target: &Target<'_>, _kind: FaultKind) -> Option<Obstacle> {
    let Some(mount) = target.mount() else {
        return Some(Obstacle::NoFilesystem);
    };
    mount.fs_read_only().then_some(Obstacle::ReadOnly)
}

/// Makes the file and fills the filesystem, unless that is done.
pub(super) fn fill(target: &Target<'_>) -> Result<(), FaultError> {
    let root = target.root()?;
    let own = match own_file(target, &root)? {
        Some(own) if !target.is_under_way() && file::length(&own)? > 0 => return Ok(()),
        // The process ended before the file had all the room.
        Some(own) => {
            note(target, metadata(&own)?.ino())?;
            own
        }
        None => make(target, &root)?,
    };
    take_free_room(target, &own)?;
    // From now on, room that others free stays free.
    target.clear_in_fault(|fault| fault.under_way = false)
}

/// Makes the file, with nothing in it.
fn make(target: &Target<'_>, root: &File) -> Result<File, FaultError> {
    if file::inode(root.as_fd(), FILLER)?.is_some() {
        return Err(Obstacle::FileOfUsers { file: FILLER }.into());
    }
    // The record has the file before others can see it: otherwise a process that ends between the two
    // leaves one that seems to be of users.
    let made = file::create_nameless(root.as_fd())?;
    note(target, metadata(&made)?.ino())?;
    match file::give_name(&made, root.as_fd(), FILLER) {
        // Users have made it meanwhile.
        Err(kernel::Error::Io { source, .. }) if source.raw_os_error() == Some(libc::EEXIST) => {
            Err(Obstacle::FileOfUsers { file: FILLER }.into())
        }
        named => {
            named?;
            Ok(made)
        }
    }
}

/// Records the file, and that it does not have all the room yet.
fn note(target: &Target<'_>, inode: u64) -> Result<(), FaultError> {
    target.update_fault(|fault| (fault.file, fault.under_way) = (Some(inode), true))?;
    Ok(())
}

/// Removes the file, unless users have put another one in its place, or written to it.
pub(super) fn remove(target: &Target<'_>) -> Result<(), FaultError> {
    if target.recorded_file().is_none() {
        return Ok(());
    }
    if target.fs().is_none() {
        return Err(EndsLater::Unused { file: FILLER }.into());
    }
    if target.has_stopped() {
        return Err(EndsLater::Stopped { file: FILLER }.into());
    }
    let root = target.root()?;
    if let Some(own) = own_file(target, &root)? {
        // Its room is free at once, also while a process has it open.
        file::set_len(&own, 0)?;
        file::remove(root.as_fd(), FILLER)?;
    }
    // The record forgets the file next. A power cut must not bring it back then, also if an earlier try
    // has removed it.
    Ok(file::sync_dir(root.as_fd())?)
}

/// Opens the file, if it is the one in the record, and has nothing that users have written. They may
/// have removed it: then any new file can have its inode number.
fn own_file(target: &Target<'_>, root: &File) -> Result<Option<File>, FaultError> {
    let Some(recorded) = target.recorded_file() else {
        return Ok(None);
    };
    // To open a device of users could do something, so this looks before it opens.
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let found = match file::open_beneath(root.as_fd(), Path::new(FILLER), flags) {
        Ok(found) => found,
        Err(kernel::Error::NotFound { .. }) => return Ok(None),
        // A symlink.
        Err(kernel::Error::Io { source, .. }) if source.raw_os_error() == Some(libc::ELOOP) => {
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    let metadata = metadata(&found)?;
    if !metadata.is_file() || metadata.ino() != recorded {
        return Ok(None);
    }
    // The same file, whatever has its name by now. A lease that users have on it delays nothing.
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let own = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let own = own.map_err(|e| kernel::Error::io("open", FILLER, e))?;
    Ok((!file::has_data(&own)?).then_some(own))
}

fn metadata(file: &File) -> Result<Metadata, FaultError> {
    let metadata = file.metadata();
    Ok(metadata.map_err(|e| kernel::Error::io("fstat", FILLER, e))?)
}

/// Gives the file all free room, and at least a length.
fn take_free_room(target: &Target<'_>, file: &File) -> Result<(), FaultError> {
    let kernel = target.kernel();
    let at = target.mount().map(|mount| mount.mount_point.to_path_buf());
    let free = match at {
        Some(at) => kernel.usage(&at)?.free_bytes,
        None => 0,
    };
    free_room::take(kernel, file, free)?;
    if file::length(file)? == 0 {
        // There was no room. An empty file would take what users free later.
        file::set_len(file, BLOCK_SIZE.into())?;
    }
    Ok(())
}
