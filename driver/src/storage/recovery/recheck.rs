//! Ends problems that recovery noted and that are over: an operator, later calls of kubelet, or the
//! driver itself may have solved them since.

use std::sync::atomic::Ordering;

use crate::diagnose::KernelState;
use crate::diagnose::volume::{ImageState, image_problem};
use crate::kernel::Kernel;
use crate::storage::noted_problem::Until;
use crate::storage::{Pool, Result, VolumeId, VolumeRecord};

use super::{reconcile_loops, reread};

/// Drops the noted problems that are over, and uses records that a person has restored. It repairs
/// nothing, and keeps a problem that it can't check.
pub(in crate::storage) fn recheck(pool: &Pool, kernel: &dyn Kernel) {
    let mut noted: Vec<Until> = {
        let noted = pool.noted.lock();
        noted.iter().map(|noted| noted.until.clone()).collect()
    };
    noted.retain(|until| *until != Until::Reopened);
    if noted.is_empty() {
        return;
    }
    // Reading the kernel's state queries every loop device, so only problems of devices need it.
    let state = if noted.iter().any(is_of_devices) {
        KernelState::read(kernel).ok()
    } else {
        None
    };
    for until in noted {
        match is_over(pool, state.as_ref(), &until) {
            Ok(true) => end(pool, &until),
            Ok(false) => {}
            Err(e) => tracing::debug!(
                pool = %pool.name(), ?until, error = %e,
                "cannot recheck a problem"
            ),
        }
    }
}

fn is_of_devices(until: &Until) -> bool {
    matches!(until, Until::DevicesSettled(_) | Until::LoopDetached(..))
}

fn end(pool: &Pool, until: &Until) {
    pool.noted.lock().retain(|noted| {
        let is_over = noted.until == *until;
        if is_over {
            let (about, problem) = (&noted.about, &noted.problem);
            tracing::info!(pool = %pool.name(), %about, %problem, "a problem is solved");
        }
        !is_over
    });
}

fn is_over(pool: &Pool, state: Option<&KernelState>, until: &Until) -> Result<bool> {
    match until {
        Until::Reopened => Ok(false),
        Until::Synced => Ok(!pool.unsynced.load(Ordering::SeqCst)),
        Until::FileGone(path) => Ok(path.symlink_metadata().is_err()),
        Until::ImageWhole(id) => of_volume(pool, *id, |volume| {
            let image = ImageState::from(pool.stat_image(&volume.id)?);
            let is_whole = image_problem(&image, volume.capacity_bytes).is_none();
            if is_whole {
                pool.index.write().volumes.count_at_most(volume.id, None);
            }
            Ok(is_whole)
        }),
        Until::Thawed(id) => of_volume(pool, *id, |volume| Ok(volume.freeze.is_none())),
        Until::DevicesSettled(id) => of_volume(pool, *id, |volume| {
            let (Some(state), Some(image)) = (state, pool.stat_image(&volume.id)?) else {
                return Ok(false);
            };
            Ok(reconcile_loops::is_settled(volume, image.file, state))
        }),
        Until::LoopDetached(minor, backing) => Ok(state.is_some_and(|state| {
            let mut devices = state.loops.over(*backing);
            !devices.any(|device| device.minor == *minor)
        })),
        Until::RecordUsable(about) => Ok(!reread::is_still_unusable(pool, about)?),
        Until::SnapshotGone(id) => Ok(pool.index.read().snapshots.get(*id)?.is_none()),
    }
}

/// Checks a problem of a volume; it is over once the volume is deleted.
fn of_volume(
    pool: &Pool,
    id: VolumeId,
    is_over: impl FnOnce(&VolumeRecord) -> Result<bool>,
) -> Result<bool> {
    let volume = pool.index.read().volumes.get(id)?;
    volume.map_or(Ok(true), |volume| is_over(&volume))
}
