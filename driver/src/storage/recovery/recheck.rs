//! Ends findings of recovery that no longer hold: an operator, later calls of kubelet, or the
//! driver itself may have fixed the problem since.

use crate::diagnose::KernelState;
use crate::diagnose::volume::{Length, length};
use crate::kernel::Kernel;
use crate::storage::noted_problem::Holds;
use crate::storage::{Pool, Result, VolumeId, VolumeRecord};

use super::{reconcile_loops, reread};

/// Drops the findings that no longer hold, and uses records that a person has restored. It repairs
/// nothing, and keeps a finding that it can't check.
pub(in crate::storage) fn recheck(pool: &Pool, kernel: &dyn Kernel) {
    let holds: Vec<Holds> = {
        let noted = pool.findings.lock();
        let mut all: Vec<Holds> = noted.iter().map(|n| n.holds.clone()).collect();
        all.retain(|holds| *holds != Holds::Open);
        all
    };
    if holds.is_empty() {
        return;
    }
    // Reading the kernel's state queries every loop device, so only findings about devices need it.
    let of_devices = |holds: &Holds| matches!(holds, Holds::Devices(_) | Holds::Loop(..));
    let view = match holds.iter().any(of_devices) {
        true => KernelState::read(kernel).ok(),
        false => None,
    };
    for check in holds {
        match still(pool, view.as_ref(), &check) {
            Ok(true) => {}
            Ok(false) => over(pool, &check),
            Err(e) => tracing::debug!(
                pool = %pool.name(), ?check, error = %e,
                "cannot recheck an issue"
            ),
        }
    }
}

fn over(pool: &Pool, check: &Holds) {
    pool.findings.lock().retain(|noted| {
        let gone = noted.holds == *check;
        if gone {
            let (about, what) = (&noted.finding.about, &noted.finding.what);
            tracing::info!(pool = %pool.name(), %about, what, "an issue is resolved");
        }
        !gone
    });
}

fn still(pool: &Pool, view: Option<&KernelState>, check: &Holds) -> Result<bool> {
    match check {
        Holds::Open => Ok(true),
        Holds::File(path) => Ok(path.symlink_metadata().is_ok()),
        Holds::Image(id) => of_volume(pool, *id, |volume| {
            let image = pool.stat_image(&volume.id)?;
            let length = image.map(|image| length(image.bytes, volume.capacity_bytes));
            let is_whole = length == Some(Length::Same);
            if is_whole {
                pool.index.write().volumes.count_at_most(volume.id, None);
            }
            Ok(!is_whole)
        }),
        Holds::Frozen(id) => of_volume(pool, *id, |volume| Ok(volume.freeze.is_some())),
        Holds::Devices(id) => of_volume(pool, *id, |volume| {
            let settled = |view| {
                let image = pool.stat_image(&volume.id)?;
                let settled = image.map(|i| reconcile_loops::is_settled(volume, i.file, view));
                Ok(settled.unwrap_or(false))
            };
            view.map_or(Ok(true), |view| settled(view).map(|settled| !settled))
        }),
        Holds::Loop(minor, backing) => Ok(view.is_none_or(|view| {
            let mut devices = view.loops.over(*backing);
            devices.any(|device| device.minor == *minor)
        })),
        Holds::Record(about) => reread::is_still_unusable(pool, about),
        Holds::Snapshot(id) => Ok(pool.index.read().snapshots.get(*id)?.is_some()),
    }
}

/// Checks a finding about a volume; it no longer holds once the volume is deleted.
fn of_volume(
    pool: &Pool,
    id: VolumeId,
    holds: impl FnOnce(&VolumeRecord) -> Result<bool>,
) -> Result<bool> {
    let volume = pool.index.read().volumes.get(id)?;
    volume.map_or(Ok(false), |volume| holds(&volume))
}
