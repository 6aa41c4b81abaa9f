//! Refuses sizes to which a filesystem does not grow on this node.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use super::{Controller, Error, Result};
use crate::csi::expansion::{self, GrowthTime};
use crate::kernel::{FsType, ext4_growth};

impl Controller {
    /// Checks that the ext4 in an image can grow to a device of this size at this time. XFS and btrfs
    /// always can. An image without an ext4 passes: staging says what it holds.
    pub(super) fn check_growth(&self, image: &File, bytes: u64, time: GrowthTime) -> Result<()> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", image.as_raw_fd()));
        let ext4 = ext4_growth(self.pools.kernel(), &path, bytes)?;
        match expansion::obstacle(FsType::Ext4, bytes, ext4, time) {
            Some(why) => Err(Error::OutOfRange(expansion::refusal(bytes, &why))),
            None => Ok(()),
        }
    }
}
