//! The health of volumes and pools, as CSI reports it.
//!
//! [`View`] gathers facts, [`diagnose`] judges them, and this module maps the issues to
//! [`Condition`]s. Each condition has its own status and reason, as the specification requires
//! ("ControllerListVolumeHealth", "NodeGetStorageHealth").

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
use crate::diagnose::{
    self,
    pool::{PoolFacts, PoolIssue, READ_ONLY_TO_DO},
    volume::{Issue, TO_MOUNT_AGAIN},
};
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
pub struct Problem {
    /// The pool's name.
    pub pool: String,
    /// The severity, as a CSI status.
    pub status: StorageHealthErrorType,
    /// The problem as one CamelCase word. A pool has at most one problem per reason.
    pub reason: &'static str,
    /// A message for people.
    pub message: String,
}

/// The most conditions of a volume, or of the storage, that the API server stores. Kubelet writes
/// them as they are, and the API server refuses the whole status with one condition or one byte more.
const MAX_CONDITIONS: usize = 16;

/// The longest message of a condition that the API server stores, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Returns the known problems of a volume; empty for a healthy one.
pub fn volume(pools: &Pools, record: &VolumeRecord) -> Vec<Condition> {
    View::of_one(pools).judge(pools, record)
}

/// Returns the known problems of the pools; empty if they are healthy.
pub fn storage(pools: &Pools) -> Vec<Problem> {
    let looks = pools.look().into_iter();
    looks
        .flat_map(|(slot, look)| of_pool(&PoolFacts::of(pools, &slot, look)))
        .collect()
}

/// Formats the problems of the pools for NodeGetStorageHealth: one entry for each status and
/// reason, however many pools have it. The most severe ones come first, and the rest is left out
/// where the API server stores no more.
pub fn backends(problems: &[Problem]) -> Vec<StorageBackendHealth> {
    let mut merged: BTreeMap<(Reverse<i32>, &str), Vec<String>> = BTreeMap::new();
    for problem in problems {
        let message = format!("pool {}: {}", problem.pool, problem.message);
        let key = (Reverse(problem.status as i32), problem.reason);
        merged.entry(key).or_default().push(message);
    }
    let entry =
        |((status, reason), messages): ((Reverse<i32>, &str), Vec<String>)| StorageBackendHealth {
            status: status.0,
            reason: reason.to_owned(),
            message: cut(&messages.join("; "), MAX_MESSAGE),
            volume_capability: None,
        };
    merged.into_iter().take(MAX_CONDITIONS).map(entry).collect()
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

/// Maps a pool's facts to problems.
pub fn of_pool(facts: &PoolFacts) -> Vec<Problem> {
    use StorageHealthErrorType::{StorageDegraded, StorageUnreachable};
    let problem = |status, reason, message: String| Problem {
        pool: facts.name.clone(),
        status,
        reason,
        message,
    };
    let of = |issue| match issue {
        PoolIssue::Missing(why) => problem(StorageUnreachable, "PoolMissing", why),
        PoolIssue::Silent(why) => problem(StorageUnreachable, "PoolGone", why),
        PoolIssue::Lost(lost) => problem(StorageUnreachable, lost.reason, lost.message()),
        PoolIssue::ReadOnly(which) => {
            let message = format!("{which}: {READ_ONLY_TO_DO}");
            problem(StorageUnreachable, "PoolReadOnly", message)
        }
        PoolIssue::NearlyFull(message) => problem(StorageDegraded, "PoolNearlyFull", message),
        PoolIssue::Findings(message) => problem(StorageDegraded, "PoolNeedsAttention", message),
    };
    diagnose::pool::judge(facts).into_iter().map(of).collect()
}

/// Facts about a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeFacts {
    /// Facts about the volume's pool.
    pub(crate) pool: PoolFacts,
    /// Needed because only a thin volume needs free space in its pool.
    pub(crate) provisioning: Provisioning,
    /// Differences between the volume's record, its image and the kernel.
    pub(crate) issues: Vec<Issue>,
    /// Errors that the mounted filesystem reports.
    pub(crate) errors: Option<String>,
    /// The names of mount options that it is mounted with and that no class may set.
    pub(crate) refused_options: Vec<String>,
    /// How the mounted filesystem is smaller than its device, and why.
    pub(crate) smaller: Option<String>,
    /// Maximum duration of a freeze.
    pub(crate) max_freeze: Duration,
    /// Problems that the pool reports about the volume.
    pub(crate) findings: Vec<String>,
}

/// Maps a volume's facts to conditions, at most one for each reason.
pub(crate) fn of_volume(facts: &VolumeFacts) -> Vec<Condition> {
    use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
    if let Some(why) = facts.pool.unreachable() {
        let message = format!("pool {}: {why}", facts.pool.name);
        return vec![condition(Inaccessible, "PoolGone", message)];
    }
    let issues = facts.issues.iter();
    let mut all: Vec<_> = issues
        .filter_map(|i| of_issue(i, facts.max_freeze))
        .collect();
    if let Some(errors) = &facts.errors {
        all.push(condition(Degraded, "FilesystemErrors", errors));
    }
    if let Some(smaller) = &facts.smaller {
        all.push(condition(Degraded, "FilesystemSmaller", smaller));
    }
    if !facts.refused_options.is_empty() {
        let message = format!(
            "it is mounted with options that no class may set any more: {}; remove them from the \
             mountOptions of its PersistentVolume and of its class",
            facts.refused_options.join(", ")
        );
        all.push(condition(Degraded, "MountOptionsRefused", message));
    }
    // A thick volume has its space in the pool, but maybe not below.
    let full = match facts.provisioning {
        Provisioning::Thin => facts.pool.nearly_full(),
        Provisioning::Thick => facts.pool.nearly_full_below(),
    };
    if let Some(full) = full {
        let message = format!(
            "pool {}: {full}; writes may soon find no space",
            facts.pool.name
        );
        all.push(condition(Degraded, "PoolNearlyFull", message));
    }
    if let Some(lost) = &facts.pool.lost {
        let status = if lost.data { DataLoss } else { Degraded };
        let message = format!("pool {}: {}", facts.pool.name, lost.message());
        all.push(condition(status, lost.reason, message));
    }
    if !facts.findings.is_empty() {
        let message = facts.findings.join("; ");
        all.push(condition(Degraded, "NeedsAttention", message));
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
    Some(condition(status, "PoolGone", message))
}

/// The condition of a volume with an unreadable record; `None` for another error.
pub(crate) fn unreadable_record(error: &storage::Error) -> Option<Condition> {
    let storage::Error::Corrupt { path, why } = error else {
        return None;
    };
    let message = format!("its record {} {why}", path.display());
    Some(condition(
        VolumeHealthErrorType::Inaccessible,
        "RecordUnreadable",
        message,
    ))
}

fn condition(
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

/// The condition that an issue causes for users of the volume. `None` if it does not harm them, or
/// if a running call explains it.
fn of_issue(issue: &Issue, max_freeze: Duration) -> Option<Condition> {
    use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
    let device = |minor: &u32| format!("/dev/loop{minor}");
    let devices = |minors: &[u32], and| minors.iter().map(device).collect::<Vec<_>>().join(and);
    let (status, reason, message) = match issue {
        Issue::ImageMissing { held_by } if held_by.is_empty() => {
            (DataLoss, "ImageMissing", "its image is missing".to_owned())
        }
        Issue::ImageMissing { held_by } => {
            let devices = devices(held_by, ", ");
            let message = format!(
                "its image was deleted; its data is lost as soon as {devices} is detached: copy it now"
            );
            (DataLoss, "ImageDeleted", message)
        }
        Issue::ImageShort { bytes, recorded } => {
            let message = format!("its image has {bytes} bytes, and its record says {recorded}");
            (DataLoss, "ImageTruncated", message)
        }
        Issue::ImageUnreadable(why) => (Inaccessible, "ImageUnreadable", why.clone()),
        Issue::DeviceSilent { minor } => {
            let message = format!(
                "{} does not report its backing file: that filesystem has shut down or hangs",
                device(minor)
            );
            (Inaccessible, "DeviceSilent", message)
        }
        Issue::AttachedTwice { minors } => {
            let message = format!(
                "its image is attached to {} at once: writing through several destroys it",
                devices(minors, " and ")
            );
            (Degraded, "AttachedTwice", message)
        }
        Issue::DeviceChanged { minor, why } => {
            let message = format!("{} was changed by one of its users: {why}", device(minor));
            (Inaccessible, "DeviceChanged", message)
        }
        Issue::Buffered { minor } => {
            let message = format!(
                "{} does buffered I/O, and direct I/O is asked for",
                device(minor)
            );
            (Degraded, "DirectIOLost", message)
        }
        Issue::NoDevice {
            path,
            minor: Some(_),
        } => {
            let message = format!(
                "it is staged at {} and no loop device has its image",
                path.display()
            );
            (Inaccessible, "LoopDeviceLost", message)
        }
        Issue::OtherDevice { path, was, is } => {
            let message = format!(
                "it was staged at {} as {} and is {} now: its users must start again",
                path.display(),
                device(was),
                device(is)
            );
            (Inaccessible, "LoopDeviceLost", message)
        }
        Issue::ReadOnlyDeviceLost { target, .. } => {
            let message = format!("{} has lost its read-only device", target.display());
            (Inaccessible, "LoopDeviceLost", message)
        }
        Issue::NotMounted {
            path,
            staging: false,
        } => {
            let message = format!("its filesystem is not mounted at {}", path.display());
            (Inaccessible, "NotMounted", message)
        }
        Issue::FilesystemShutDown => {
            let message = format!("its filesystem has shut down after an error. {TO_MOUNT_AGAIN}");
            (Inaccessible, "FilesystemShutDown", message)
        }
        Issue::FilesystemReadOnly => {
            let message = format!("its filesystem has become read-only. {TO_MOUNT_AGAIN}");
            (Inaccessible, "FilesystemReadOnly", message)
        }
        Issue::Frozen { since_ns } => {
            let time = overdue(*since_ns, max_freeze)?;
            let message = format!(
                "its filesystem was frozen for a copy {} s ago and not thawed",
                time.as_secs()
            );
            (Inaccessible, "Frozen", message)
        }
        // NodeStageVolume is running, or the next call repairs it.
        Issue::NoDevice { minor: None, .. }
        | Issue::NotMounted { staging: true, .. }
        | Issue::Formatting(_)
        | Issue::ImageLong { .. }
        | Issue::NotThick { .. }
        | Issue::DeviceSmall { .. }
        | Issue::UsedUnstaged { .. } => return None,
    };
    Some(condition(status, reason, message))
}

/// How long ago a freeze began, if that exceeds the limit.
fn overdue(since_ns: u64, limit: Duration) -> Option<Duration> {
    // Thawing and recording it take a moment.
    const GRACE: Duration = Duration::from_secs(5);
    let since = UNIX_EPOCH + Duration::from_nanos(since_ns);
    let time = SystemTime::now().duration_since(since).ok()?;
    (time > limit + GRACE).then_some(time)
}
