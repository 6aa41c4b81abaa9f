//! The files under a filesystem: the image of a pool, and the files of loop devices under that,
//! down to the last disk that this process can see.
//!
//! A file without all its blocks (a sparse one) takes space from the filesystem that holds it with
//! each new block above. A file with all its blocks takes none, so nothing below it counts.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::Result;
use crate::diagnose::pool::SparseFile;
use crate::kernel::{self, FsUsage, Kernel, LOOP_MAJOR, LoopInfo, MountEntry, file, file_id};

/// How many files under each other are found.
const DEEPEST: usize = 8;

/// A file that holds a filesystem.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) file: File,
    /// Its path, for messages and for the mount that it is on.
    pub(crate) path: PathBuf,
}

impl Layer {
    /// Bytes of the file without a block. A filesystem may count its own blocks for a file, too, so
    /// a file with 0 can lack some (see [`super::Pool::back_thick`]).
    pub(crate) fn lacks_bytes(&self) -> kernel::Result<u64> {
        Ok(file::length(&self.file)?.saturating_sub(file::allocated_bytes(&self.file)?))
    }

    /// `None` if the file has all its blocks.
    fn sparse(&self, kernel: &dyn Kernel) -> kernel::Result<Option<SparseFile>> {
        let lacks_bytes = self.lacks_bytes()?;
        if lacks_bytes == 0 {
            return Ok(None);
        }
        let usage = usage(kernel, &self.file, &self.path)?;
        Ok(Some(SparseFile {
            path: self.path.clone(),
            lacks_bytes,
            usage,
        }))
    }
}

/// The files without all their blocks among these, from the top down to the first one with all.
pub(crate) fn sparse_files(kernel: &dyn Kernel, layers: &[Layer]) -> Result<Vec<SparseFile>> {
    let mut found = Vec::new();
    for layer in layers {
        match layer.sparse(kernel)? {
            Some(file) => found.push(file),
            None => break,
        }
    }
    Ok(found)
}

/// The usage of an open file's filesystem. It counts as read-only also if it stopped after an
/// error, which only its mount shows.
pub(crate) fn usage(kernel: &dyn Kernel, on: &File, path: &Path) -> kernel::Result<FsUsage> {
    let usage = kernel.usage_of(on.as_fd())?;
    if usage.read_only {
        return Ok(usage);
    }
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mounts = kernel.known_mounts()?;
    let Some(point) = real.ancestors().find(|path| mounts.at(path).is_some()) else {
        return Ok(usage);
    };
    let mount = kernel::topmost_mount(kernel, point)?;
    Ok(FsUsage {
        read_only: mount.as_ref().is_some_and(MountEntry::fs_read_only),
        ..usage
    })
}

/// The files under the filesystem of an open file or directory, from the top down.
pub(crate) fn below(kernel: &dyn Kernel, on: &File) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    while layers.len() < DEEPEST {
        let on = layers.last().map_or(on, |layer| &layer.file);
        match next(kernel, on) {
            Ok(Some(layer)) => layers.push(layer),
            Ok(None) => break,
            Err(error) => {
                tracing::debug!(%error, "cannot look below a loop device");
                break;
            }
        }
    }
    layers
}

/// The file under the filesystem of an open file; `None` if that is on no loop device, or if the
/// loop device's file can't be found here: its path is another container's.
fn next(kernel: &dyn Kernel, on: &File) -> kernel::Result<Option<Layer>> {
    let Some(minor) = loop_under(kernel, on)? else {
        return Ok(None);
    };
    let mut device = kernel.loop_info(minor)?;
    for _ in 0..DEEPEST {
        match device.as_ref().and_then(LoopInfo::below) {
            Some(minor) => device = kernel.loop_info(minor)?,
            None => break,
        }
    }
    let Some(backing) = device.as_ref().and_then(|device| device.backing) else {
        return Ok(None);
    };
    let path = PathBuf::from(device.map(|device| device.backing_path).unwrap_or_default());
    // A FIFO at the path would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()).map(File::from) else {
        return Ok(None);
    };
    let same = file_id(&file)? == backing && file.metadata().is_ok_and(|m| m.is_file());
    Ok(same.then_some(Layer { file, path }))
}

/// The minor of the loop device that holds an open file's filesystem.
fn loop_under(kernel: &dyn Kernel, on: &File) -> kernel::Result<Option<u32>> {
    let dev = file_id(on)?.dev;
    match rustix::fs::major(dev) {
        LOOP_MAJOR => Ok(Some(rustix::fs::minor(dev))),
        // Files on btrfs have an anonymous number; its mount shows the device.
        0 => {
            let Ok(Some(id)) = file::mount_id(on, "") else {
                return Ok(None);
            };
            let mounts = kernel.known_mounts()?;
            let mut entries = mounts.entries.iter();
            Ok(entries
                .find(|entry| entry.id == id)
                .and_then(MountEntry::loop_minor))
        }
        _ => Ok(None),
    }
}
