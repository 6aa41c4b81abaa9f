//! The clone of a volume's image at one instant, while it may be written to.

use std::fs::File;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::CopyJob;
use crate::kernel::file::Pace;
use crate::record::now_ns;
use crate::storage::{Error, Pool, Pools, Result, copy_image};

/// Why nothing but a clone will do.
const LIVE: &str = "the volume is taken as it is at one instant";

/// When an image was cloned.
#[derive(Clone, Copy, Debug)]
pub(in crate::storage) struct CloneTime {
    /// Right before the clone, nanoseconds since the epoch.
    pub(in crate::storage) taken_ns: u64,
    /// The same moment by CLOCK_MONOTONIC, in nanoseconds.
    pub(in crate::storage) monotonic_ns: u64,
    /// How long the clone took, with what followed it.
    pub(in crate::storage) took: Duration,
}

/// The time by CLOCK_MONOTONIC, in nanoseconds. `Instant` does not tell it.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds * 1_000_000_000 + nanoseconds
}

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
    /// filesystem. Writes to the image wait meanwhile.
    pub(in crate::storage) fn clone_live(&self, job: &CopyJob, to: &File) -> Result<CloneTime> {
        if !copy_image::may_share(&job.image, to) {
            return Err(Error::Refused(
                "the filesystem of this pool can't give a thick volume its blocks back after a \
                 clone: make the volume thin, or keep it in a pool on XFS (a block device, or image=)"
                    .to_owned(),
            ));
        }
        let (taken_ns, monotonic_ns, began) = (now_ns(), monotonic_ns(), Instant::now());
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
        Ok(CloneTime {
            taken_ns,
            monotonic_ns,
            took: began.elapsed(),
        })
    }
}
