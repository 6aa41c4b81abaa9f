//! The status of an image file.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::kernel::{Error, FileId, Result};

/// The file status of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Device and inode.
    pub file: FileId,
    /// The length in bytes.
    pub bytes: u64,
    /// Allocated bytes, including extents shared with other files.
    pub allocated: u64,
}

impl Image {
    /// Reads the status of an open file; `None` if it is not a regular file.
    pub fn of(open: &File, what: &Path) -> Result<Option<Image>> {
        let m = open.metadata().map_err(|e| Error::io("fstat", what, e))?;
        Ok(m.is_file().then(|| Image {
            file: FileId { dev: m.dev(), ino: m.ino() },
            bytes: m.len(),
            allocated: m.blocks() * 512,
        }))
    }

    /// Reads the status of the file at a path; `None` if it is missing or not a regular file.
    pub fn at(path: &Path) -> Result<Option<Image>> {
        match File::open(path) {
            Ok(open) => Image::of(&open, path),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("open", path, e)),
        }
    }
}
