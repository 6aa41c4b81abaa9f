//! `frozen`: writes wait. The freeze is recorded like that of a copy, so a restart of the driver, an
//! unstaging, a growth and a copy of the volume thaw it; the next look freezes it again.

use hostloop_controllers::api::claim_fault::FaultKind;

use super::target::Target;
use super::{FaultError, Obstacle, fault_disk};
use crate::kernel::Freeze;
use crate::record::{FreezeIntent, now_ns};
use crate::storage::freeze as storage_freeze;

pub(super) fn obstacle(target: &Target<'_>, _kind: FaultKind) -> Option<Obstacle> {
    if target.fs().is_none() {
        return Some(Obstacle::NoFilesystem);
    }
    nearly_full(target)
}

/// Why a filesystem in this pool can't be frozen now.
fn nearly_full(target: &Target<'_>) -> Option<Obstacle> {
    let pool = target.pools.with_id(target.record.id.pool()).ok()?;
    let is_full = matches!(pool.below_reserve(), Ok(true));
    is_full.then_some(Obstacle::PoolNearlyFull)
}

pub(super) fn freeze(target: &Target<'_>) -> Result<(), FaultError> {
    let root = target.root()?;
    // The freeze writes back first, so a fault disk has no limits as long as the fault lasts.
    fault_disk::set(target)?;
    let id = target.record.id;
    let is_recorded = target.record.freeze.is_some();
    if !is_recorded {
        // A copy has thawed it, or it was staged again, and the pool may have filled meanwhile.
        if let Some(why) = nearly_full(target) {
            return Err(why.into());
        }
        let since_ns = now_ns();
        target.pools.update_volume(&id, |record| {
            record.freeze = Some(FreezeIntent { since_ns });
        })?;
        // A fault of the pool looks at the record. One of the two sees the other.
        if let Err(unavailable) = target.pools.check_answers(id.pool()) {
            forget(target)?;
            return Err(unavailable.into());
        }
    }
    match target.kernel().freeze(&root) {
        Ok(Freeze::AlreadyFrozen) if !is_recorded => {
            // The program that froze it has to thaw it.
            forget(target)?;
            Err(Obstacle::FrozenByOthers.into())
        }
        Ok(_) => Ok(()),
        Err(error) => {
            if !is_recorded {
                forget(target)?;
            }
            Err(error.into())
        }
    }
}

pub(super) fn thaw(target: &Target<'_>) -> Result<(), FaultError> {
    let record = target.pools.volume(&target.handle())?;
    if record.freeze.is_some()
        && storage_freeze::thaw_volume(target.kernel(), &record, &target.identity)?
    {
        forget(target)?;
    }
    fault_disk::clear(target)
}

/// Thaws before the process ends, beside calls under way.
pub(super) fn thaw_at_end(target: &Target<'_>) -> Result<(), FaultError> {
    let record = &target.record;
    match storage_freeze::thaw_unless_copied(target.kernel(), record, &target.identity)? {
        Some(true) => forget(target)?,
        Some(false) => {}
        None => tracing::warn!(
            volume = %record.id,
            "a copy has frozen the filesystem of a volume with the fault frozen. If it does not end, \
             the next start thaws it"
        ),
    }
    fault_disk::clear(target)
}

fn forget(target: &Target<'_>) -> Result<(), FaultError> {
    let id = target.record.id;
    Ok(target
        .pools
        .clear_in_volume(&id, |record| record.freeze = None)?)
}
