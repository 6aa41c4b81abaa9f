//! The number of a device's attachment.

use std::io;

use super::unless_gone;
use crate::linux::{read_attribute, sysfs};
use crate::{Error, Result};

/// Reads it from sysfs; `None` if the kernel has none. It counts on at each attach of a file to any
/// device, and at each detach.
pub(in crate::linux) fn diskseq(minor: u32) -> Result<Option<u64>> {
    let path = sysfs(minor, "diskseq");
    let Some(text) = unless_gone(read_attribute(&path))? else {
        return Ok(None);
    };
    let number = text
        .parse::<u64>()
        .map_err(|e| Error::io("read", path, io::Error::other(e)))?;
    Ok(Some(number))
}
