//! The clone of a volume's image at one instant, while it may be written to.

use std::fs::File;

use super::CopyJob;
use crate::kernel::file::Pace;
use crate::record::now_ns;
use crate::storage::{Error, Pool, Pools, Result, copy_image};

/// Why nothing but a clone will do.
const LIVE: &str = "the volume is taken as it is at one instant";

impl Pool {
    /// Fails if this pool would have to copy bytes: the copy would have parts of different times.
    pub(crate) fn check_clones_live(&self) -> Result<()> {
        if self.reflinks() {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "pool {} would have to copy, which mixes different points in time: keep the volume in a \
             pool with reflinks (XFS, btrfs, or image=)",
            self.name()
        )))
    }
}

impl Pools {
    /// Clones an image by one call, without a freeze and without a flush. The clone has every write
    /// that the volume's device has completed, and nothing that is only in the memory of its
    /// filesystem. Writes to the image wait meanwhile. Returns the time, in nanoseconds since 1970.
    pub(in crate::storage) fn clone_live(&self, job: &CopyJob, to: &File) -> Result<u64> {
        if !copy_image::may_share(&job.image, to) {
            return Err(Error::Refused(
                "the filesystem of this pool can't give a thick volume its blocks back after a \
                 clone: make the volume thin, or keep it in a pool on XFS (a block device, or image=)"
                    .to_owned(),
            ));
        }
        let taken_ns = now_ns();
        let copied = copy_image::copy(
            &*self.kernel,
            &job.from,
            to,
            &job.image,
            Some(LIVE),
            Pace::Fast,
            &|| false,
        )?;
        self.finish_copy(job, to, copied)?;
        Ok(taken_ns)
    }
}
