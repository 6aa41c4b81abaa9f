//! `gone` and `eio-from`: the loop device ends early, and I/O behind its end fails. What only reads
//! failed for heals in place. A filesystem that failed to write stops until it is mounted again.

use hostloop_controllers::api::claim_fault::FaultKind;

use super::target::Target;
use super::{FaultError, Obstacle};
use crate::kernel::BLOCK_SIZE;

/// What is left of a disk that is gone: the kernel knows no limit of zero.
pub(super) const GONE: u64 = BLOCK_SIZE as u64;

pub(super) fn obstacle(target: &Target<'_>, kind: FaultKind) -> Option<Obstacle> {
    let bytes = target.record.capacity_bytes;
    match kind {
        FaultKind::EioFrom(offset) if offset >= bytes => Some(Obstacle::BeyondEnd { bytes }),
        _ => None,
    }
}

/// Limits the volume's device to what the record says.
pub(super) fn set(target: &Target<'_>) -> Result<(), FaultError> {
    match target.record.own_limit() {
        Some(limit) => change(target, |now| now != limit, limit),
        None => Ok(()),
    }
}

/// Ends the limit, if it is the one in the record: another one is of a user of the device.
pub(super) fn lift(target: &Target<'_>) -> Result<(), FaultError> {
    match target.record.own_limit() {
        Some(limit) => change(target, |now| now == limit, 0),
        None => Ok(()),
    }
}

fn change(target: &Target<'_>, is_due: impl Fn(u64) -> bool, bytes: u64) -> Result<(), FaultError> {
    let kernel = target.kernel();
    for info in target.state.own().filter(|info| is_due(info.size_limit)) {
        let device = kernel.loop_reopen(info)?;
        let limited = kernel.loop_limit(&device, bytes);
        // Only after a change: otherwise each look would make the next calls for other volumes read
        // all devices again.
        kernel.forget_loops();
        limited?;
    }
    Ok(())
}
