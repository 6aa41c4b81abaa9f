//! Refuses sizes to which a filesystem does not grow on this node.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use super::{Controller, Error, Result};
use crate::kernel::{Ext4Growth, ext4_growth};
use crate::storage::{Source, VolumeHandle};

impl Controller {
    /// Checks that the ext4 in an image can grow to a device of this size, when its volume is
    /// mounted or before. XFS and btrfs always can. An image without an ext4 passes: staging
    /// says what it holds.
    pub(super) fn check_growth(&self, image: &File, bytes: u64) -> Result<()> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", image.as_raw_fd()));
        match ext4_growth(self.pools.kernel(), &path, bytes)? {
            Some(Ext4Growth::Not(why)) => Err(Error::OutOfRange(format!(
                "capacity_range.required_bytes: the volume would have {bytes} bytes, and {why}"
            ))),
            Some(Ext4Growth::Done | Ext4Growth::Mounted | Ext4Growth::Unmounted) | None => Ok(()),
        }
    }

    /// Opens the image of a source.
    pub(super) fn source_image(&self, source: &Source) -> Result<File> {
        Ok(match source {
            Source::Snapshot(id) => self.pools.open_snapshot(&*self.pools.snapshot(id)?)?,
            Source::Volume(id) => self
                .pools
                .open_image(&*self.pools.volume(&VolumeHandle::Id(*id))?, false)?,
        })
    }
}
