//! The health of volumes and pools, as CSI reports it.
//!
//! [`View`] gathers facts, [`diagnose`](crate::diagnose) finds the problems in them, and this
//! module maps each [`Problem`] to a [`Condition`]. Each condition has its own status and reason,
//! as the specification requires ("ControllerListVolumeHealth", "NodeGetStorageHealth").

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use hostloop_controllers::api::message::cut;
use hostloop_proto::csi;
use hostloop_proto::csi::node_get_storage_health_response::StorageBackendHealth;
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use hostloop_proto::csi::{StorageHealthErrorType, VolumeHealthErrorType};

mod filesystem_size;
mod gather;
#[cfg(test)]
mod tests;

pub use gather::View;

use crate::csi::error::Error;
use crate::diagnose::pool::{PoolFacts, pool_problems};
use crate::diagnose::{Problem, VolumeState, elapsed};
use crate::storage::{self, Pools, Provisioning, VolumeHandle, VolumeRecord};

/// A problem of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The severity, as a CSI status.
    pub status: VolumeHealthErrorType,
    /// The problem as one CamelCase word. A volume has at most one condition per reason.
    pub reason: &'static str,
    /// A message for people.
    pub message: String,
}

/// A problem of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCondition {
    /// The pool's name.
    pub pool: String,
    /// The severity, as a CSI status.
    pub status: StorageHealthErrorType,
    /// The problem as one CamelCase word. A pool has at most one condition per reason.
    pub reason: &'static str,
    /// A message for people.
    pub message: String,
}

/// The most conditions of a volume, or of the storage, that the API server stores. Kubelet writes
/// them as they are, and the API server refuses the whole status with one condition or one byte
/// more.
const MAX_CONDITIONS: usize = 16;

/// The longest message of a condition that the API server stores, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Returns the conditions of a volume, none for a healthy one, and what the kernel shows of it and
/// at these paths. The latter is `None` if it can't be asked, or the pool does not answer.
pub(crate) fn volume(
    pools: &Pools,
    record: &VolumeRecord,
    paths: &[&Path],
) -> (Vec<Condition>, Option<VolumeState>) {
    View::of_one(pools).conditions_at(pools, record, paths)
}

/// Returns the conditions of the pools; empty if they are healthy.
pub fn storage(pools: &Pools) -> Vec<PoolCondition> {
    let looks = pools.look().into_iter();
    looks
        .flat_map(|(slot, look)| pool_conditions(&PoolFacts::of(pools, &slot, look)))
        .collect()
}

/// Formats the conditions of the pools for NodeGetStorageHealth: one entry for each status and
/// reason, however many pools have it. The most severe ones come first, and the rest is left out
/// where the API server stores no more.
pub fn backends(conditions: &[PoolCondition]) -> Vec<StorageBackendHealth> {
    let mut merged: BTreeMap<(Reverse<i32>, &str), Vec<String>> = BTreeMap::new();
    for condition in conditions {
        let message = format!("pool {}: {}", condition.pool, condition.message);
        let key = (Reverse(condition.status as i32), condition.reason);
        merged.entry(key).or_default().push(message);
    }
    merged
        .into_iter()
        .take(MAX_CONDITIONS)
        .map(
            |((status, reason), messages): ((Reverse<i32>, &str), Vec<String>)| {
                StorageBackendHealth {
                    status: status.0,
                    reason: reason.to_owned(),
                    message: cut(&messages.join("; "), MAX_MESSAGE),
                    volume_capability: None,
                }
            },
        )
        .collect()
}

/// Builds the CSI message with a volume's health: one entry for each status and reason. The most
/// severe ones come first, and the rest is left out where the API server stores no more.
pub fn message(id: impl ToString, mut conditions: Vec<Condition>) -> csi::VolumeHealth {
    // The numbers of the statuses grow with their severity.
    conditions.sort_by_key(|condition| Reverse(condition.status as i32));
    let mut reasons = BTreeSet::new();
    conditions.retain(|condition| reasons.insert((condition.status as i32, condition.reason)));
    conditions.truncate(MAX_CONDITIONS);
    let health_statuses = conditions.into_iter().map(|condition| VolumeHealthEntry {
        status: condition.status as i32,
        reason: condition.reason.to_owned(),
        message: cut(&condition.message, MAX_MESSAGE),
    });
    csi::VolumeHealth {
        volume_id: id.to_string(),
        health_statuses: health_statuses.collect(),
    }
}

/// Maps a pool's facts to conditions.
pub fn pool_conditions(facts: &PoolFacts) -> Vec<PoolCondition> {
    pool_problems(facts)
        .iter()
        .filter_map(|problem| pool_condition(&facts.name, problem))
        .collect()
}

/// The condition that a problem of a pool causes; `None` for a problem of something else.
fn pool_condition(pool: &str, problem: &Problem) -> Option<PoolCondition> {
    use StorageHealthErrorType::{StorageDegraded, StorageUnreachable};
    let (status, reason) = match problem {
        Problem::PoolFault(fault) if fault.total => (StorageUnreachable, "FaultInjected"),
        Problem::PoolFault(_) => (StorageDegraded, "FaultInjected"),
        Problem::PoolMissing(_) => (StorageUnreachable, "PoolMissing"),
        Problem::PoolSilent(_) => (StorageUnreachable, "PoolGone"),
        Problem::PoolLost(lost) => (StorageUnreachable, lost.reason),
        Problem::PoolReadOnly(_) => (StorageUnreachable, "PoolReadOnly"),
        Problem::PoolNearlyFull(_) => (StorageDegraded, "PoolNearlyFull"),
        Problem::PoolNeedsAttention(_) => (StorageDegraded, "PoolNeedsAttention"),
        _ => return None,
    };
    Some(PoolCondition {
        pool: pool.to_owned(),
        status,
        reason,
        message: problem.message(),
    })
}

/// Facts about a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeFacts {
    /// Facts about the volume's pool.
    pub(crate) pool: PoolFacts,
    /// Needed because only a thin volume needs free space in its pool.
    pub(crate) provisioning: Provisioning,
    /// The volume's own problems.
    pub(crate) problems: Vec<Problem>,
    /// Maximum duration of a freeze.
    pub(crate) max_freeze: Duration,
    /// Problems of the volume that recovery noted.
    pub(crate) noted: Vec<String>,
}

/// Maps a volume's facts to conditions, at most one for each reason.
pub(crate) fn volume_conditions(facts: &VolumeFacts) -> Vec<Condition> {
    use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
    if let Some(why) = facts.pool.unreachable() {
        let message = format!("pool {}: {why}", facts.pool.name);
        return vec![Condition::new(Inaccessible, "PoolGone", message)];
    }
    let problems = facts.problems.iter();
    let mut all: Vec<Condition> = problems
        .filter(|problem| !is_freeze_within(problem, facts.max_freeze))
        .filter_map(condition)
        .collect();
    // A thick volume has its space in the pool, but maybe not below.
    let full = match facts.provisioning {
        Provisioning::Thin => facts.pool.nearly_full(),
        Provisioning::Thick => facts.pool.nearly_full_below(),
    };
    if let Some(full) = full {
        let message = format!(
            "writes may soon find no space: pool {}: {}",
            facts.pool.name,
            Problem::PoolNearlyFull(full).message()
        );
        all.push(Condition::new(Degraded, "PoolNearlyFull", message));
    }
    if let Some(lost) = &facts.pool.lost {
        let status = if lost.data { DataLoss } else { Degraded };
        let message = format!("pool {}: {}", facts.pool.name, lost.message());
        all.push(Condition::new(status, lost.reason, message));
    }
    if !facts.noted.is_empty() {
        let message = facts.noted.join("; ");
        all.push(Condition::new(Degraded, "NeedsAttention", message));
    }
    let mut reasons = BTreeSet::new();
    all.retain(|condition| reasons.insert(condition.reason));
    all
}

/// The condition of a volume if this error kept its record from being found: the record is
/// unreadable, or in a missing pool that this node had before.
pub fn without_record(pools: &Pools, volume: &str, error: &Error) -> Option<Condition> {
    match error {
        Error::Pool(error) => unreadable_record(error).or_else(|| of_missing_pool(pools, volume)),
        _ => None,
    }
}

fn of_missing_pool(pools: &Pools, volume: &str) -> Option<Condition> {
    let Ok(VolumeHandle::Id(id)) = volume.parse() else {
        return None;
    };
    let slots = pools.slots().into_iter();
    let slot = { slots }.find(|slot| slot.id == Some(id.pool()))?;
    let why = slot.state.err()?;
    let message = format!("pool {}: {why}", slot.spec.name);
    let status = VolumeHealthErrorType::Inaccessible;
    Some(Condition::new(status, "PoolGone", message))
}

/// The condition of a volume with an unreadable record; `None` for another error.
pub(crate) fn unreadable_record(error: &storage::Error) -> Option<Condition> {
    let storage::Error::Corrupt { path, why } = error else {
        return None;
    };
    let message = format!("its record {} {why}", path.display());
    Some(Condition::new(
        VolumeHealthErrorType::Inaccessible,
        "RecordUnreadable",
        message,
    ))
}

impl Condition {
    fn new(
        status: VolumeHealthErrorType,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Condition {
        Condition {
            status,
            reason,
            message: message.into(),
        }
    }
}

/// The condition that a problem causes for users of the volume. `None` if it does not harm them, or
/// if a running call explains it.
pub(crate) fn condition(problem: &Problem) -> Option<Condition> {
    use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
    let (status, reason) = match problem {
        Problem::ImageMissing { held_by } if held_by.is_empty() => (DataLoss, "ImageMissing"),
        Problem::ImageMissing { .. } => (DataLoss, "ImageDeleted"),
        Problem::ImageShort { .. } => (DataLoss, "ImageTruncated"),
        Problem::ImageUnreadable(_) => (Inaccessible, "ImageUnreadable"),
        Problem::DeviceSilent { .. } => (Inaccessible, "DeviceSilent"),
        Problem::AttachedTwice { .. } => (Degraded, "AttachedTwice"),
        Problem::DeviceChanged { .. } => (Inaccessible, "DeviceChanged"),
        Problem::Buffered { .. } => (Degraded, "DirectIOLost"),
        Problem::NoDevice { minor: Some(_), .. }
        | Problem::OtherDevice { .. }
        | Problem::ReadOnlyDeviceLost { .. } => (Inaccessible, "LoopDeviceLost"),
        Problem::NotMounted { staging: false, .. } => (Inaccessible, "NotMounted"),
        Problem::FaultDiskGone => (Inaccessible, "FaultDiskGone"),
        Problem::FilesystemShutDown => (Inaccessible, "FilesystemShutDown"),
        Problem::FilesystemReadOnly => (Inaccessible, "FilesystemReadOnly"),
        Problem::FilesystemErrors(_) => (Degraded, "FilesystemErrors"),
        Problem::FilesystemSmaller(_) => (Degraded, "FilesystemSmaller"),
        Problem::MountOptionsRefused(_) => (Degraded, "MountOptionsRefused"),
        Problem::Frozen { .. } => (Inaccessible, "Frozen"),
        Problem::Fault { total: true, .. } | Problem::StoppedByFault(_) => {
            (Inaccessible, "FaultInjected")
        }
        Problem::Fault { total: false, .. } => (Degraded, "FaultInjected"),
        Problem::NotPublished { .. } => (Inaccessible, "NotPublished"),
        Problem::TargetLost { .. } => (Inaccessible, "DeviceLost"),
        Problem::ForeignMount { .. } => (Inaccessible, "ForeignMount"),
        Problem::NotStaged { .. } => (Inaccessible, "NotStaged"),
        Problem::ForeignStagingMount { .. } | Problem::DeviceAtStaging { .. } => {
            (Inaccessible, "ForeignStagingMount")
        }
        // NodeStageVolume is running, or the next call repairs it.
        Problem::NoDevice { minor: None, .. }
        | Problem::NotMounted { staging: true, .. }
        | Problem::Formatting(_)
        | Problem::ImageLong { .. }
        | Problem::NotThick { .. }
        | Problem::DeviceSmall { .. }
        | Problem::UsedUnstaged { .. } => return None,
        // Of a volume, noted problems are one condition.
        Problem::RecordUnusable(_)
        | Problem::GroupMissing(_)
        | Problem::GroupIncomplete(_)
        | Problem::UnknownFile
        | Problem::Unrepaired(_) => return None,
        Problem::PoolFault(_)
        | Problem::PoolMissing(_)
        | Problem::PoolSilent(_)
        | Problem::PoolLost(_)
        | Problem::PoolReadOnly(_)
        | Problem::PoolNearlyFull(_)
        | Problem::PoolNeedsAttention(_) => return None,
    };
    Some(Condition::new(status, reason, problem.message()))
}

/// True for a freeze that a running copy explains.
fn is_freeze_within(problem: &Problem, limit: Duration) -> bool {
    matches!(problem, Problem::Frozen { since_ns } if !is_overdue(*since_ns, limit))
}

/// True if a freeze began longer ago than the limit.
fn is_overdue(since_ns: u64, limit: Duration) -> bool {
    // Thawing and recording it take a moment.
    const GRACE: Duration = Duration::from_secs(5);
    elapsed(since_ns).is_some_and(|time| time > limit + GRACE)
}
