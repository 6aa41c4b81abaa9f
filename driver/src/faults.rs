//! Faults of mounted volumes, which their claims or classes ask for.
//!
//! [`decide`] compares what a claim asks for with the volume's record, [`effects`] lists what each
//! fault does, and [`reconcile`] does it. The record is written before an effect, so that the driver
//! knows its own faults after a restart, and `fsck` in another process knows them, too.

use std::sync::Arc;
use std::time::Duration;

use hostloop_controllers::api::claim_fault::ClaimFault;
use hostloop_controllers::api::constants::FAULT;
use hostloop_controllers::claim_faults::{FaultReport, FaultState};

use crate::blocking::Blocking;
use crate::record::{FaultRecord, VolumeRecord, now_ns};
use crate::storage::{self, Pools, VolumeHandle};

mod decide;
mod effects;
mod error;
mod fault_disk;
mod file_ranges;
mod frozen;
mod full;
mod offered;
mod powercut;
mod read_only;
mod size_limit;
mod target;
#[cfg(test)]
mod tests;

use decide::FaultStep;
pub use error::{EndsLater, FaultError, Obstacle};
pub use offered::{offered, offered_by_fault_disks};
use target::Target;

/// How often the driver looks whether a fault still has its effect, which another staging ends.
const LOOK: Duration = Duration::from_secs(5);

/// The volumes with a recorded fault, by their handles. From memory.
pub fn faulty(pools: &Pools) -> Vec<String> {
    let volumes = pools.faulty_volumes().into_iter();
    volumes.map(|volume| volume.id.to_string()).collect()
}

/// Thaws what faults have frozen, and ends the delays of fault disks, before the process ends: another
/// one may never start. Each such volume has a thread of its own, so one that hangs holds up no other.
pub(crate) async fn unblock_all(pools: &Arc<Pools>, blocking: &Blocking) {
    let mut volumes = pools.faulty_volumes();
    // Thousands may have had another fault, and are in no use now.
    volumes.retain(|volume| volume.is_frozen_by_fault() || volume.has_slow_disk());
    let unblocked = volumes.into_iter().map(|volume| {
        let pools = pools.clone();
        blocking.run("faults", move || unblock(&pools, volume))
    });
    futures::future::join_all(unblocked).await;
}

/// Ends what the fault of a volume makes others wait for. The record keeps the fault, which the next
/// process goes on with while it lasts. Calls may be under way.
fn unblock(pools: &Pools, volume: Arc<VolumeRecord>) {
    // Without a look at the volume: its pool may hang.
    pools.fault_disks().end_delays(&volume);
    if !volume.is_frozen_by_fault() {
        return;
    }
    let id = volume.id;
    let target = Target::find(pools, volume);
    if let Err(error) = target.and_then(|target| frozen::thaw_at_end(&target)) {
        tracing::warn!(volume = %id, %error, "a fault leaves the filesystem frozen");
    }
}

/// The answer about a volume with nothing to begin and nothing to end, from memory. Such a volume
/// needs no lock, so calls for it are not aborted.
pub fn at_rest(pools: &Pools, volume: &str, requested: Option<&ClaimFault>) -> Option<FaultReport> {
    let handle = volume.parse::<VolumeHandle>().ok();
    let record = handle.and_then(|handle| pools.volume(&handle).ok())?;
    match (&record.fault, requested) {
        (None, None) => Some(FaultReport::none()),
        (None, Some(requested)) if record.is_shared() => {
            Some(refused(requested, &Obstacle::Shared))
        }
        (None, Some(requested)) if record.stage.is_none() => Some(waiting(requested)),
        _ => None,
    }
}

/// Gives a volume the fault that its claim asks for, and takes away any other. Blocks. The caller
/// holds the volume's lock.
pub fn reconcile(
    pools: &Pools,
    volume: &str,
    requested: Option<&ClaimFault>,
) -> Result<FaultReport, FaultError> {
    let Ok(handle) = volume.parse::<VolumeHandle>() else {
        return Ok(FaultReport::none());
    };
    let record = match pools.volume(&handle) {
        Err(storage::Error::NoVolume(_) | storage::Error::ForeignPool(_)) => {
            return Ok(FaultReport::none());
        }
        found => found?,
    };
    if record.fault.is_none() && requested.is_none() {
        return Ok(FaultReport::none());
    }
    let target = Target::find(pools, record)?;
    let record = &target.record;
    let step = decide::decide(
        record.fault.as_deref(),
        requested,
        target.is_in_use(),
        now_ns(),
    );
    match (step, requested) {
        (FaultStep::Begin, Some(requested)) => begin(&target, requested),
        (FaultStep::Keep, Some(requested)) => keep(&target, requested),
        (FaultStep::Expire, _) => expire(&target).or_else(later),
        (FaultStep::End, _) => match (end(&target), requested) {
            // The record has no fault now, or a withdrawn one, so this is done at most once.
            (Ok(_), Some(_)) => reconcile(pools, volume, requested),
            (ended, _) => ended.or_else(later),
        },
        (FaultStep::Wait, Some(requested)) => Ok(waiting(requested)),
        (FaultStep::Rest, Some(requested)) => Ok(FaultReport {
            state: FaultState::Over,
            message: over(&requested.to_string()),
            again: None,
        }),
        _ => Ok(FaultReport::none()),
    }
}

/// Begins a fault, or refuses it.
fn begin(target: &Target<'_>, requested: &ClaimFault) -> Result<FaultReport, FaultError> {
    let effect = effects::of(requested.kind);
    if let Some(why) = (effect.obstacle)(target, requested.kind) {
        return Ok(refused(requested, &why));
    }
    let file = requested.file.as_ref();
    let ranges = match file.map(|file| file_ranges::find(target, file)) {
        None => Vec::new(),
        Some(Ok(ranges)) => ranges,
        Some(Err(FaultError::Impossible(why))) => return Ok(refused(requested, &why)),
        Some(Err(error)) => return Err(error),
    };
    let (id, now) = (target.record.id, now_ns());
    let fault = FaultRecord {
        fault: requested.to_string(),
        since_ns: now,
        over: false,
        limit: (effect.limit)(target, requested.kind),
        file: None,
        ranges,
        is_past: false,
        under_way: requested.lasts.is_none(),
        is_withdrawn: false,
    };
    let earlier = target.record.fault.clone();
    let record = target
        .pools
        .update_volume(&id, |record| record.fault = Some(Box::new(fault)))?;
    tracing::warn!(volume = %id, fault = %requested, "the volume gets the fault that its claim asks for");
    let target = target.with(record);
    match cause(&target, requested) {
        Ok(()) => Ok(active(requested, now)),
        Err(FaultError::Impossible(why)) => {
            end(&target)?;
            if earlier.is_some() {
                // It is what stops the filesystem, and not the fault that never began.
                target
                    .pools
                    .clear_in_volume(&id, |record| record.fault = earlier)?;
            }
            Ok(refused(requested, &why))
        }
        Err(error) => Err(error),
    }
}

/// Causes the fault in the record, and records of one that happens at one instant whether it has. A
/// staging takes one that is under way for one that has happened.
fn cause(target: &Target<'_>, requested: &ClaimFault) -> Result<(), FaultError> {
    let caused = (effects::of(requested.kind).begin)(target);
    if requested.lasts.is_some() {
        return caused;
    }
    let over = caused.is_ok();
    let recorded = target.clear_in_fault(|fault| (fault.over, fault.under_way) = (over, false));
    caused.and(recorded)
}

/// Repeats the effect of a fault that has it no more: the volume was staged again, or a copy of it
/// had to thaw it.
fn keep(target: &Target<'_>, requested: &ClaimFault) -> Result<FaultReport, FaultError> {
    let since_ns = target.record.fault.as_ref().map_or(0, |f| f.since_ns);
    if requested.lasts.is_some() {
        cause(target, requested)?;
    } else {
        // It failed before, or the process ended between the effect and its record.
        let record = target.update_fault(|fault| fault.under_way = true)?;
        cause(&target.with(record), requested)?;
    }
    Ok(active(requested, since_ns))
}

/// Ends a fault after its time has passed, and remembers it.
fn expire(target: &Target<'_>) -> Result<FaultReport, FaultError> {
    effects::end(target)?;
    target.clear_in_fault(FaultRecord::end)?;
    let ended = ended(&target.look_again()?);
    let state = match ended.state {
        FaultState::Healed => FaultState::Expired,
        other => other,
    };
    Ok(FaultReport { state, ..ended })
}

/// Ends a fault, and forgets it once it stops the volume's filesystem no more.
fn end(target: &Target<'_>) -> Result<FaultReport, FaultError> {
    let ended = if target.is_withdrawn() {
        // It has no effect any more, and others end what it has left.
        ended(target)
    } else {
        effects::end(target)?;
        ended(&target.look_again()?)
    };
    let id = target.record.id;
    if ended.state == FaultState::NeedsRestage {
        if !target.is_withdrawn() {
            target.clear_in_fault(|fault| {
                fault.end();
                fault.is_withdrawn = true;
            })?;
        }
        return Ok(FaultReport {
            again: Some(LOOK),
            ..ended
        });
    }
    target
        .pools
        .clear_in_volume(&id, |record| record.fault = None)?;
    tracing::info!(volume = %id, fault = target.recorded(), "the volume's fault has ended");
    Ok(ended)
}

fn active(requested: &ClaimFault, since_ns: u64) -> FaultReport {
    let Some(lasts) = requested.lasts else {
        return FaultReport {
            state: FaultState::Active,
            message: over(&requested.to_string()),
            again: None,
        };
    };
    let left = decide::left(since_ns, lasts, now_ns());
    FaultReport {
        state: FaultState::Active,
        message: format!(
            "The volume has the fault {requested}, which its claim or its class asks for. To end it, \
             remove the annotation {FAULT} of the claim, or set it to none if it is the fault of the \
             class"
        ),
        again: Some(left.clamp(Duration::from_millis(100), LOOK)),
    }
}

fn waiting(requested: &ClaimFault) -> FaultReport {
    FaultReport {
        state: FaultState::Waiting,
        message: format!("The volume gets the fault {requested} once a pod uses it"),
        again: Some(LOOK),
    }
}

fn refused(requested: &ClaimFault, why: &Obstacle) -> FaultReport {
    FaultReport {
        state: FaultState::Refused,
        message: format!("The volume can't have the fault {requested}: {why}"),
        again: None,
    }
}

/// What is left of a fault that has ended.
fn ended(target: &Target<'_>) -> FaultReport {
    let fault = target.recorded();
    if target.record.stopping_fault().is_some() && target.has_stopped() {
        FaultReport {
            state: FaultState::NeedsRestage,
            message: format!(
                "The fault {fault} has ended, and the volume's filesystem stays stopped: delete the \
                 pods that use the volume, and it is checked and mounted again for the next ones. \
                 To restart their containers is not enough"
            ),
            again: None,
        }
    } else {
        FaultReport {
            state: FaultState::Healed,
            message: format!("The fault {fault} has ended, and the volume works again"),
            again: None,
        }
    }
}

/// What is reported of a fault that can't end yet.
fn later(error: FaultError) -> Result<FaultReport, FaultError> {
    match error {
        FaultError::Later(why) => Ok(FaultReport {
            state: FaultState::Waiting,
            message: format!("The fault can't end yet: {why}"),
            again: Some(LOOK),
        }),
        error => Err(error),
    }
}

/// What is said of a fault that happened at one instant.
fn over(fault: &str) -> String {
    format!(
        "The volume has had the fault {fault}: delete the pods that use it, and it is mounted again \
         for the next ones, as after a power cut. Another seed repeats the fault"
    )
}

impl<'a> Target<'a> {
    /// This volume after its record has changed.
    fn with(&self, record: Arc<VolumeRecord>) -> Target<'a> {
        Target {
            record,
            pools: self.pools,
            identity: self.identity.clone(),
            state: self.state.clone(),
        }
    }
}
