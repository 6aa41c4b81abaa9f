//! `frozen`: writes wait. The freeze is recorded like that of a copy, so a restart of the driver, an
//! unstaging, a growth and a copy of the volume thaw it; the next look freezes it again.

use std::time::{Duration, Instant};

use hostloop_controllers::api::claim_fault::FaultKind;
use tokio::sync::SemaphorePermit;

use super::target::Target;
use super::{FaultError, Obstacle, fault_disk};
use crate::kernel::under_way::UnderWayGuard;
use crate::kernel::{FileId, Freeze};
use crate::record::{FreezeIntent, VolumeRecord, now_ns};
use crate::storage::{self, freeze as storage_freeze};

/// How long the end of the process waits for another freeze or thaw of a volume.
const TURN_WAIT: Duration = Duration::from_millis(500);

/// How often it tries.
const TURN_POLL: Duration = Duration::from_millis(10);

/// While it exists, this process freezes and thaws the volume for its owner alone.
type FreezeTurn = Vec<UnderWayGuard<'static, (FileId, u32)>>;

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
    let id = target.record.id;
    // The end of the process would otherwise thaw just before the freeze, and forget that it is coming.
    let _turn = take_turn(target).ok_or_else(|| storage_freeze::hanging(id))?;
    let is_recorded = target.pools.volume(&target.handle())?.freeze.is_some();
    // A filesystem that is frozen already waits for no writes.
    let _place = if is_recorded {
        None
    } else {
        Some(take_place(target)?)
    };
    // The freeze writes back first, so a fault disk has no limits as long as the fault lasts.
    fault_disk::set(target)?;
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

/// Takes one of the places for freezes that wait for writes under way.
fn take_place<'a>(target: &Target<'a>) -> Result<SemaphorePermit<'a>, storage::Error> {
    let place = target.pools.fault_freezes().try_acquire();
    place.map_err(|_| {
        let id = target.record.id;
        let why = "the freezes of others wait for writes under way; try again";
        storage::Error::CannotFreeze(format!("volume {id}: {why}"))
    })
}

pub(super) fn thaw(target: &Target<'_>) -> Result<(), FaultError> {
    let record = target.pools.volume(&target.handle())?;
    thaw_recorded(target, &record)?;
    fault_disk::clear(target)
}

/// Thaws before the process ends, beside calls under way.
pub(super) fn thaw_at_end(target: &Target<'_>) -> Result<(), FaultError> {
    let turn = wait_for_turn(target);
    // Meanwhile a freeze may have found that another program has frozen the filesystem.
    let record = target.pools.volume(&target.handle());
    let record = record.unwrap_or_else(|_| target.record.clone());
    if turn.is_none() {
        tracing::warn!(
            volume = %record.id,
            "the filesystem of a volume with the fault frozen is being frozen, by the fault or by a copy. \
             If it stays frozen, the next start thaws it"
        );
    } else {
        // Before the turn ends: a copy may record a freeze of its own next.
        thaw_recorded(target, &record)?;
    }
    fault_disk::clear(target)
}

/// Thaws what the record says is frozen, and forgets the freeze.
fn thaw_recorded(target: &Target<'_>, record: &VolumeRecord) -> Result<(), FaultError> {
    if record.freeze.is_some()
        && storage_freeze::thaw_volume(target.kernel(), record, &target.identity)?
    {
        forget(target)?;
    }
    Ok(())
}

/// Waits a little for the turn to thaw: a thaw amid a copy would make it one of several points in time.
fn wait_for_turn(target: &Target<'_>) -> Option<FreezeTurn> {
    let end = Instant::now() + TURN_WAIT;
    loop {
        let turn = take_turn(target);
        if turn.is_some() || Instant::now() >= end {
            return turn;
        }
        std::thread::sleep(TURN_POLL);
    }
}

/// Takes the turn to freeze or thaw a volume. `None` while a copy, or another caller, has it.
fn take_turn(target: &Target<'_>) -> Option<FreezeTurn> {
    let image = target.identity.image();
    let devices = target.state.own();
    let devices = devices.filter_map(|device| Some((image?, device.minor)));
    devices.map(storage_freeze::keep_off).collect()
}

fn forget(target: &Target<'_>) -> Result<(), FaultError> {
    let id = target.record.id;
    Ok(target
        .pools
        .clear_in_volume(&id, |record| record.freeze = None)?)
}
