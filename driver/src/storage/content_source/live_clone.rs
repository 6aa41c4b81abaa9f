//! Clones of volumes' images at one instant, while they may be written to.

use std::fs::File;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::CopyJob;
use crate::kernel::file::{Copied, Pace};
use crate::record::now_ns;
use crate::storage::{Error, Pool, Pools, Result, VolumeId, copy_image};

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
        check_shares(job, to)?;
        let (taken_ns, monotonic_ns, began) = (now_ns(), monotonic_ns(), Instant::now());
        let copied = self.clone_at_once(job, to)?;
        self.finish_copy(job, to, copied)?;
        Ok(CloneTime {
            taken_ns,
            monotonic_ns,
            took: began.elapsed(),
        })
    }

    /// Clones the images of volumes on fault disks as they are at one instant, and returns that time.
    /// The disks are held meanwhile, for no longer than a filesystem may be frozen.
    pub(in crate::storage) fn clone_held(
        &self,
        volumes: &[VolumeId],
        jobs: &[(&CopyJob, &File)],
    ) -> Result<u64> {
        for (job, to) in jobs {
            check_shares(job, to)?;
        }
        let disks = self.fault_disks();
        let held = disks.hold(volumes, self.options.max_freeze);
        let held = held.map_err(|error| not_held(&error))?;
        let taken_ns = now_ns();
        let cloned = jobs.iter().map(|(job, to)| self.clone_at_once(job, to));
        let cloned = cloned.collect::<Result<Vec<_>>>()?;
        held.release().map_err(|error| {
            Error::Refused(format!(
                "the clones of the group may be of different times (--max-freeze limits them): \
                 {error}"
            ))
        })?;
        for ((job, to), copied) in jobs.iter().zip(cloned) {
            self.finish_copy(job, to, copied)?;
        }
        Ok(taken_ns)
    }

    /// Clones an image by one call.
    fn clone_at_once(&self, job: &CopyJob, to: &File) -> Result<Copied> {
        copy_image::copy(
            &*self.kernel,
            &job.from,
            to,
            &job.image,
            Some(LIVE),
            Pace::Fast,
            &|| false,
        )
    }
}

/// Fails for a thick volume that would not stay thick.
fn check_shares(job: &CopyJob, to: &File) -> Result<()> {
    if copy_image::may_share(&job.image, to) {
        return Ok(());
    }
    Err(Error::Refused(
        "the filesystem of this pool can't give a thick volume its blocks back after a clone: make \
         the volume thin, or keep it in a pool on XFS (a block device, or image=)"
            .to_owned(),
    ))
}

/// Why the disks of a group can't be held.
fn not_held(error: &hostloop_fault_disk::Error) -> Error {
    Error::Refused(match error {
        hostloop_fault_disk::Error::NotFound(volume) => format!(
            "volume {volume} has no fault disk in use on this node: start a pod that uses the volume"
        ),
        error => format!("the fault disks of the group can't be held at one instant: {error}"),
    })
}
