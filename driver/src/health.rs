//! The health of volumes and pools: facts gathered from disk and kernel, and what they mean.
//!
//! Gathering is at the edge ([`View`], [`PoolFacts::gather`]); judging is pure ([`of_volume`],
//! [`of_pool`]). What is judged comes out as [`Condition`]s, each with a status and a reason of
//! its own, as the specification asks ("ControllerListVolumeHealth", "NodeGetStorageHealth").

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hostloop_proto::csi;
use hostloop_proto::csi::node_get_storage_health_response::StorageBackendHealth;
use hostloop_proto::csi::volume_health::VolumeHealthEntry;
use hostloop_proto::csi::{StorageHealthErrorType, VolumeHealthErrorType};

mod gather;
#[cfg(test)]
mod tests;

pub use gather::View;

use crate::pool::{Access, Pools, Provisioning, VolumeHandle, VolumeRecord};
use crate::sys::{FsUsage, LoopInfo};

/// Something wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// How bad it is.
    pub status: VolumeHealthErrorType,
    /// What it is, in one CamelCase word; one condition of a volume each.
    pub reason: &'static str,
    /// What it is, for people.
    pub message: String,
}

/// Something wrong with a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The pool's name.
    pub pool: String,
    /// How bad it is.
    pub status: StorageHealthErrorType,
    /// What it is, in one CamelCase word; one problem of a pool each.
    pub reason: &'static str,
    /// What it is, for people.
    pub message: String,
}

/// What is wrong with a volume; nothing, if nothing is known to be.
pub fn volume(pools: &Pools, record: &VolumeRecord) -> Vec<VolumeHealthEntry> {
    entries(View::take(pools).judge(pools, record))
}

/// What is wrong with the pools; nothing, if nothing is known to be.
pub fn storage(pools: &Pools) -> Vec<Problem> {
    let looks = pools.look().into_iter();
    looks
        .flat_map(|(slot, look)| of_pool(&PoolFacts::of(pools, &slot, look)))
        .collect()
}

/// What is wrong with the pools, as NodeGetStorageHealth answers it: one entry for each status and
/// reason, whatever the number of pools it holds for.
pub fn backends(problems: &[Problem]) -> Vec<StorageBackendHealth> {
    let mut merged: BTreeMap<(i32, &str), Vec<String>> = BTreeMap::new();
    for problem in problems {
        let message = format!("pool {}: {}", problem.pool, problem.message);
        let key = (problem.status as i32, problem.reason);
        merged.entry(key).or_default().push(message);
    }
    let entry = |((status, reason), messages): ((i32, &str), Vec<String>)| StorageBackendHealth {
        status,
        reason: reason.to_owned(),
        message: messages.join("; "),
        volume_capability: None,
    };
    merged.into_iter().map(entry).collect()
}

/// Conditions as the protocol carries them.
pub fn entries(conditions: Vec<Condition>) -> Vec<VolumeHealthEntry> {
    let entry = |c: Condition| VolumeHealthEntry {
        status: c.status as i32,
        reason: c.reason.to_owned(),
        message: c.message,
    };
    conditions.into_iter().map(entry).collect()
}

/// A volume's health as the protocol carries it.
pub fn message(id: impl ToString, health_statuses: Vec<VolumeHealthEntry>) -> csi::VolumeHealth {
    csi::VolumeHealth {
        volume_id: id.to_string(),
        health_statuses,
    }
}

/// What is known of a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolFacts {
    /// Its name.
    pub name: String,
    /// Why it is not open, if it is not.
    pub missing: Option<String>,
    /// Why it does not answer, if it is open and does not.
    pub silent: Option<String>,
    /// Usage of the filesystem it is on, if that could be had.
    pub usage: Option<FsUsage>,
    /// Bytes that are never promised.
    pub reserve_bytes: u64,
    /// What it noticed about itself.
    pub findings: Vec<String>,
}

impl PoolFacts {
    /// How full it is, if so little is free that thin volumes may soon meet its end: less than the
    /// reserve; where none is kept, less than a hundredth.
    fn nearly_full(&self) -> Option<String> {
        let usage = self.usage?;
        let floor = self.reserve_bytes.max(usage.total_bytes / 100);
        (usage.available_bytes < floor).then(|| {
            format!(
                "{} of {} bytes are free, less than the {floor} that are kept free",
                usage.available_bytes, usage.total_bytes
            )
        })
    }
}

/// What a pool's facts mean.
pub fn of_pool(facts: &PoolFacts) -> Vec<Problem> {
    use StorageHealthErrorType::{StorageDegraded, StorageUnreachable};
    let problem = |status, reason, message: String| Problem {
        pool: facts.name.clone(),
        status,
        reason,
        message,
    };
    if let Some(why) = &facts.missing {
        return vec![problem(StorageUnreachable, "PoolMissing", why.clone())];
    }
    if let Some(why) = &facts.silent {
        return vec![problem(StorageUnreachable, "PoolGone", why.clone())];
    }
    let mut problems = Vec::new();
    if facts.usage.is_some_and(|usage| usage.read_only) {
        let message = "the filesystem it is on is read-only".to_owned();
        problems.push(problem(StorageUnreachable, "PoolReadOnly", message));
    }
    if let Some(message) = facts.nearly_full() {
        problems.push(problem(StorageDegraded, "PoolNearlyFull", message));
    }
    if !facts.findings.is_empty() {
        let message = facts.findings.join("; ");
        problems.push(problem(StorageDegraded, "PoolNeedsAttention", message));
    }
    problems
}

/// What is known of a volume's image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Image {
    /// There, and as long as its record says.
    #[default]
    Present,
    /// Not there. Loop devices that still hold the deleted file, if any, are named.
    Missing {
        /// Minors of these.
        held_by: Vec<u32>,
    },
    /// There, and shorter than its record says.
    Short(String),
    /// It could not be looked at.
    Unreadable(String),
}

/// What is known of the filesystem in a volume, as it is mounted.
#[derive(Clone, Debug, Default)]
pub struct Filesystem {
    /// Options of the filesystem, from the mount table.
    pub options: Vec<String>,
    /// What it says of its own errors.
    pub errors: Option<String>,
}

/// How a volume that is staged looks in the kernel.
#[derive(Clone, Debug, Default)]
pub struct Staged {
    /// Where.
    pub path: PathBuf,
    /// Staged as a raw block device.
    pub block: bool,
    /// Staged for reading alone.
    pub read_only: bool,
    /// The loop device recorded for it; none while staging has not come so far.
    pub minor: Option<u32>,
    /// Targets whose read-only second loop device is gone.
    pub lost_targets: Vec<PathBuf>,
    /// It has been mounted before, so it takes no time to speak of from attached to mounted.
    pub formatted: bool,
    /// Its filesystem is mounted at the path.
    pub mounted: bool,
}

/// What is known of a volume.
#[derive(Clone, Debug, Default)]
pub struct VolumeFacts {
    /// Its pool.
    pub pool: PoolFacts,
    /// Its image.
    pub image: Image,
    /// What it is to be: thin or thick, with or without direct I/O.
    pub provisioning: Provisioning,
    /// Direct I/O is asked for.
    pub direct_io: bool,
    /// Loop devices over the image.
    pub loops: Vec<LoopInfo>,
    /// How it is staged, if it is.
    pub staged: Option<Staged>,
    /// Its filesystem, if it is mounted.
    pub filesystem: Option<Filesystem>,
    /// How long it has been frozen for a copy, if longer than is allowed.
    pub frozen_too_long: Option<Duration>,
    /// What the pool noticed about it.
    pub findings: Vec<String>,
}

/// What a volume's facts mean.
pub fn of_volume(facts: &VolumeFacts) -> Vec<Condition> {
    use VolumeHealthErrorType::{Degraded, Inaccessible};
    if let Some(why) = facts.pool.missing.as_ref().or(facts.pool.silent.as_ref()) {
        let message = format!("pool {}: {why}", facts.pool.name);
        return vec![condition(Inaccessible, "PoolGone", message)];
    }
    let mut all = Vec::new();
    all.extend(image_conditions(&facts.image));
    all.extend(loop_conditions(facts));
    all.extend(filesystem_conditions(facts));
    if let Some(time) = facts.frozen_too_long {
        let message = format!(
            "its filesystem was frozen for a copy {} s ago and not thawed",
            time.as_secs()
        );
        all.push(condition(Inaccessible, "Frozen", message));
    }
    if let (Provisioning::Thin, Some(full)) = (facts.provisioning, facts.pool.nearly_full()) {
        let message = format!(
            "pool {}: {full}; writes may soon find no space",
            facts.pool.name
        );
        all.push(condition(Degraded, "PoolNearlyFull", message));
    }
    if !facts.findings.is_empty() {
        let message = facts.findings.join("; ");
        all.push(condition(Degraded, "NeedsAttention", message));
    }
    all
}

/// The condition of a volume in a missing pool that this node has had before.
pub fn of_missing_pool(pools: &Pools, volume: &VolumeHandle) -> Option<Condition> {
    let VolumeHandle::Id(id) = volume else {
        return None;
    };
    let slots = pools.slots().into_iter();
    let slot = { slots }.find(|slot| slot.id == Some(id.pool()))?;
    let why = slot.state.err()?;
    let message = format!("pool {}: {why}", slot.spec.name);
    let status = VolumeHealthErrorType::Inaccessible;
    Some(condition(status, "PoolGone", message))
}

/// What it means that a volume's record can't be read.
pub fn unreadable_record(why: &str) -> Condition {
    condition(VolumeHealthErrorType::Inaccessible, "RecordUnreadable", why)
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

fn image_conditions(image: &Image) -> Option<Condition> {
    use VolumeHealthErrorType::{DataLoss, Inaccessible};
    match image {
        Image::Present => None,
        Image::Missing { held_by } if held_by.is_empty() => {
            Some(condition(DataLoss, "ImageMissing", "its image is missing"))
        }
        Image::Missing { held_by } => {
            let devices = held_by.iter().map(|minor| format!("/dev/loop{minor}"));
            let devices = devices.collect::<Vec<_>>().join(", ");
            let message = format!(
                "its image was deleted; its data is lost as soon as {devices} is detached: copy it now"
            );
            Some(condition(DataLoss, "ImageDeleted", message))
        }
        Image::Short(why) => Some(condition(DataLoss, "ImageTruncated", why)),
        Image::Unreadable(why) => Some(condition(Inaccessible, "ImageUnreadable", why)),
    }
}

fn loop_conditions(facts: &VolumeFacts) -> Vec<Condition> {
    use VolumeHealthErrorType::{Degraded, Inaccessible};
    let mut all = Vec::new();
    if let Some(lost) = facts.staged.as_ref().and_then(|s| lost_loop(facts, s)) {
        all.push(condition(Inaccessible, "LoopDeviceLost", lost));
    }
    if let [first, second, ..] = facts.loops.as_slice() {
        let message = format!(
            "its image is attached twice, to /dev/loop{} and /dev/loop{}: writing through both destroys it",
            first.minor, second.minor
        );
        all.push(condition(Degraded, "AttachedTwice", message));
    }
    let changed = facts.loops.iter().find_map(|l| Some((l, l.tampered()?)));
    if let Some((device, why)) = changed {
        let message = format!(
            "/dev/loop{} was changed by one of its users: {why}",
            device.minor
        );
        all.push(condition(Inaccessible, "DeviceChanged", message));
    }
    let buffered = facts.loops.iter().find(|l| !l.direct_io);
    if let (true, Some(device)) = (facts.direct_io, buffered) {
        let message = format!(
            "/dev/loop{} does buffered I/O, and direct I/O is asked for",
            device.minor
        );
        all.push(condition(Degraded, "DirectIOLost", message));
    }
    all
}

/// Why the device a staged volume is used through is not what it was.
fn lost_loop(facts: &VolumeFacts, staged: &Staged) -> Option<String> {
    let minor = staged.minor?;
    // A damaged image is not looked for under its devices: that has a condition of its own.
    if facts.image != Image::Present {
        return None;
    }
    let path = staged.path.display();
    match facts.loops.as_slice() {
        [] => Some(format!(
            "it is staged at {path} and no loop device has its image"
        )),
        loops if staged.block && loops.iter().all(|l| l.minor != minor) => Some(format!(
            "it was staged at {path} as /dev/loop{minor} and is /dev/loop{} now: its users must start again",
            loops[0].minor
        )),
        _ => {
            let target = staged.lost_targets.first()?;
            Some(format!(
                "{} has lost its read-only device",
                target.display()
            ))
        }
    }
}

fn filesystem_conditions(facts: &VolumeFacts) -> Vec<Condition> {
    use VolumeHealthErrorType::{Degraded, Inaccessible};
    let Some(staged) = facts.staged.as_ref().filter(|staged| !staged.block) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    let attached = !facts.loops.is_empty();
    // Between attaching and mounting a new filesystem is made, which is no fault.
    let elsewhere = facts.filesystem.is_some();
    if attached && !staged.mounted && (staged.formatted || elsewhere) {
        let message = format!("its filesystem is not mounted at {}", staged.path.display());
        all.push(condition(Inaccessible, "NotMounted", message));
    }
    let Some(filesystem) = &facts.filesystem else {
        return all;
    };
    let says = |word: &str| filesystem.options.iter().any(|o| o == word);
    if says("shutdown") {
        let message = "its filesystem has shut down after an error";
        all.push(condition(Inaccessible, "FilesystemShutDown", message));
    } else if (says("ro") || says("emergency_ro")) && !staged.read_only {
        let message = "its filesystem has become read-only";
        all.push(condition(Inaccessible, "FilesystemReadOnly", message));
    }
    if let Some(errors) = &filesystem.errors {
        all.push(condition(Degraded, "FilesystemErrors", errors));
    }
    all
}

/// Whether a volume is staged for reading alone.
fn staged_read_only(capability: &crate::pool::Capability) -> bool {
    let asked = match &capability.access {
        Access::Mount { flags, .. } => flags.iter().any(|f| f == "ro"),
        Access::Block => false,
    };
    asked || capability.mode.is_read_only()
}

/// How long ago a freeze began, if that is longer than one may last.
fn overdue(since_ns: u64, limit: Duration) -> Option<Duration> {
    // Thawing and writing that down take a moment themselves.
    const GRACE: Duration = Duration::from_secs(5);
    let since = UNIX_EPOCH + Duration::from_nanos(since_ns);
    let time = SystemTime::now().duration_since(since).ok()?;
    (time > limit + GRACE).then_some(time)
}
