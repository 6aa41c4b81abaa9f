//! Faults of fault disks: `eio`, `enospc` and `slow` are rules of the disk, which the record of the
//! volume makes. `powercut,loss=LOSS` cuts its power.

use hostloop_controllers::api::claim_fault::{ClaimFault, FaultKind};
use hostloop_fault_disk::Settings;

use super::target::Target;
use super::{FaultError, Obstacle};

pub(super) fn obstacle(target: &Target<'_>, _kind: FaultKind) -> Option<Obstacle> {
    let is_plain = target.record.fault_disk.is_none();
    is_plain.then_some(Obstacle::NoFaultDisk)
}

/// Gives the disk the rule of the fault in the record.
pub(super) fn set(target: &Target<'_>) -> Result<(), FaultError> {
    change(target, &target.record.disk_settings())
}

/// Takes the rule away.
pub(super) fn clear(target: &Target<'_>) -> Result<(), FaultError> {
    change(target, &target.record.disk_settings_without_fault())
}

/// Changes the settings of the disk, if the volume has one.
fn change(target: &Target<'_>, settings: &Settings) -> Result<(), FaultError> {
    if target.record.fault_disk.is_none() {
        return Ok(());
    }
    Ok(target.pools.fault_disks().set(target.record.id, settings)?)
}

/// Cuts the power of the disk.
pub(super) fn cut(target: &Target<'_>) -> Result<(), FaultError> {
    let Ok(ClaimFault {
        kind: FaultKind::DiskCut(loss),
        seed,
        ..
    }) = ClaimFault::parse(target.recorded())
    else {
        return Ok(());
    };
    Ok(target
        .pools
        .fault_disks()
        .cut_power(target.record.id, loss, seed)?)
}
