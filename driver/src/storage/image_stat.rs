//! The status of an image file.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::diagnose::volume::ImageState;
use crate::kernel::{Error, FileId, Result};

/// The file status of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageStat {
    /// Device and inode.
    pub file: FileId,
    /// The length in bytes.
    pub bytes: u64,
    /// Allocated bytes, including extents shared with other files.
    pub allocated: u64,
    /// When the file was last written, in nanoseconds since the epoch.
    pub written_ns: u64,
}

impl ImageStat {
    /// Reads the status of an open file; `None` if it is not a regular file.
    pub fn of(open: &File, what: &Path) -> Result<Option<ImageStat>> {
        let m = open.metadata().map_err(|e| Error::io("fstat", what, e))?;
        Ok(m.is_file().then(|| ImageStat {
            file: FileId {
                dev: m.dev(),
                ino: m.ino(),
            },
            bytes: m.len(),
            allocated: m.blocks() * 512,
            written_ns: nanoseconds(m.mtime(), m.mtime_nsec()),
        }))
    }

    /// Reads the status of the file at a path; `None` if it is missing or not a regular file.
    pub fn at(path: &Path) -> Result<Option<ImageStat>> {
        match File::open(path) {
            Ok(open) => ImageStat::of(&open, path),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("open", path, e)),
        }
    }
}

impl From<Option<ImageStat>> for ImageState {
    fn from(image: Option<ImageStat>) -> ImageState {
        image.map_or(ImageState::Missing, |image| ImageState::Present {
            bytes: image.bytes,
            allocated: image.allocated,
        })
    }
}

/// A time of `stat` as nanoseconds. A time before the epoch is the epoch.
pub(super) fn nanoseconds(seconds: i64, nanoseconds: i64) -> u64 {
    u64::try_from(
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(nanoseconds),
    )
    .unwrap_or(0)
}
