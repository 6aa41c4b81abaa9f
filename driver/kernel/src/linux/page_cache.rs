//! What the page cache holds of a file.

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;

use super::ioctl;
use crate::file_name::name_of;
use crate::{Error, Result};

/// Writes a range of a file back, and waits for that.
pub(crate) fn write_back(file: &File, range: Range<u64>) -> Result<()> {
    ioctl::write_back(file, range).map_err(|e| Error::io("sync_file_range", name_of(file), e))
}

/// Drops a range of a file from the page cache, as far as it is on disk.
pub(crate) fn forget(file: &File, range: Range<u64>) -> Result<()> {
    let len = NonZeroU64::new(range.end - range.start);
    rustix::fs::fadvise(file, range.start, len, rustix::fs::Advice::DontNeed)
        .map_err(|e| Error::io("fadvise", name_of(file), e.into()))
}
