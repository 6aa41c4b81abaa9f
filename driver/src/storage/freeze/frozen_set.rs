//! A set of filesystems that are frozen together and thawed together.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::freeze_plan::{FreezeStep, MountedVolume};
use super::freeze_thread::{Done, FreezeThread, Phase};
use super::{FreezeLimits, Intents, too_long};
use crate::kernel::{self, FileId, Kernel, MountEntry};
use crate::storage::{Error, Result, VolumeId};

/// Limit of the write-back before the freeze. Writers are not blocked during that time.
const WRITE_BACK: Duration = Duration::from_secs(120);

/// The advice for a filesystem that is too busy to freeze.
const LESS_BUSY: &str = "try again when it is less busy";

/// Limit of a thaw; a longer thaw is reported as hanging.
const THAW: Duration = Duration::from_secs(10);

/// A filesystem to freeze.
struct HeldFilesystem {
    volume: VolumeId,
    /// The volume's image and the loop device's minor.
    device: (FileId, u32),
    mount: Arc<File>,
    thread: FreezeThread,
    /// Another process froze the filesystem.
    foreign: bool,
}

/// Filesystems that are frozen, or about to be frozen. Dropping the set thaws them.
pub(super) struct FrozenSet<'a> {
    kernel: &'a Arc<dyn Kernel>,
    intents: &'a dyn Intents,
    max_freeze: Duration,
    held: Vec<HeldFilesystem>,
    /// Volumes with a freeze intent in their record.
    intended: BTreeSet<VolumeId>,
    /// The time when the freezes end.
    until: Option<Instant>,
}

impl<'a> FrozenSet<'a> {
    /// Writes back the filesystems before the freeze. It freezes nothing and writes no intent.
    pub(super) fn prepare(
        kernel: &'a Arc<dyn Kernel>,
        intents: &'a dyn Intents,
        limits: &FreezeLimits<'_>,
        steps: Vec<FreezeStep>,
    ) -> Result<Self> {
        let mut set = FrozenSet {
            kernel,
            intents,
            max_freeze: limits.max_freeze,
            held: Vec::new(),
            intended: BTreeSet::new(),
            until: None,
        };
        let mounted = steps.into_iter().filter_map(|step| match step {
            FreezeStep::Freeze(mounted) => Some(mounted),
            FreezeStep::Flush { .. } => None,
        });
        for (i, mounted) in mounted.enumerate() {
            if i == 0 {
                (limits.check)()?;
            }
            set.add(&mounted)?;
        }
        set.wait_ready()?;
        Ok(set)
    }

    /// True if it has no filesystem: nothing is frozen.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn add(&mut self, mounted: &MountedVolume) -> Result<()> {
        let (volume, device) = (mounted.volume, mounted.device);
        let mount = Arc::new(open_any(self.kernel.as_ref(), mounted.mounts.iter())?);
        if mounted.thaw_first {
            self.kernel.thaw(&mount)?;
        }
        let thread = start(self.kernel, &mount, volume, device)?;
        self.held.push(HeldFilesystem {
            volume,
            device,
            mount,
            thread,
            foreign: false,
        });
        Ok(())
    }

    fn wait_ready(&self) -> Result<()> {
        let until = Instant::now() + WRITE_BACK;
        for held in &self.held {
            held.thread.wait_ready(until, |phase| match phase {
                Phase::Preparing => {
                    let seconds = WRITE_BACK.as_secs();
                    let why = format!("its dirty data was not written back within {seconds} s");
                    Err(cannot_freeze(held.volume, &format!("{why}: {LESS_BUSY}")))
                }
                Phase::Done(Done::Failed(e)) => Err(failed(held.volume, e)),
                _ => Ok(()),
            })?;
        }
        Ok(())
    }

    /// Freezes all filesystems. Returns the time of the thaw, or `None` if the driver froze none.
    pub(super) fn freeze(&mut self) -> Result<Option<Instant>> {
        if self.held.is_empty() {
            return Ok(None);
        }
        let volumes: BTreeSet<VolumeId> = self.held.iter().map(|h| h.volume).collect();
        self.intend(volumes)?;
        let until = Instant::now() + self.max_freeze;
        self.until = Some(until);
        self.held.iter().for_each(|h| h.thread.freeze(until));
        let mut own = false;
        for held in &mut self.held {
            match wait_frozen(held, until, self.max_freeze)? {
                Frozen::ByUs => own = true,
                Frozen::ByAnother => held.foreign = true,
            }
        }
        self.disown_foreign();
        Ok(own.then_some(until))
    }

    fn intend(&mut self, volumes: BTreeSet<VolumeId>) -> Result<()> {
        let list: Vec<VolumeId> = volumes.iter().copied().collect();
        // Noted before the write: after an error, some of the intents may be on disk.
        self.intended.extend(volumes);
        self.intents.write(&list)
    }

    /// Clears the intents of filesystems that another process froze. If this process dies now,
    /// recovery must not thaw them.
    fn disown_foreign(&mut self) {
        let own = self.held.iter().filter(|held| !held.foreign);
        let own: BTreeSet<VolumeId> = own.map(|held| held.volume).collect();
        let foreign: BTreeSet<VolumeId> = self.intended.difference(&own).copied().collect();
        if self.clear(&foreign) {
            self.intended = own;
        }
    }

    /// Checks that filesystems that another process froze have stayed frozen until now.
    pub(super) fn check_foreign(&mut self) -> Result<()> {
        let foreign: Vec<usize> = (0..self.held.len())
            .filter(|i| self.held[*i].foreign)
            .collect();
        if foreign.is_empty() {
            return Ok(());
        }
        // FIFREEZE is the only way to check; it succeeds if the filesystem was thawed.
        self.intend(foreign.iter().map(|i| self.held[*i].volume).collect())?;
        let until = Instant::now() + self.max_freeze;
        for i in foreign {
            let held = &mut self.held[i];
            held.thread = start(self.kernel, &held.mount, held.volume, held.device)?;
            held.thread.freeze(until);
            if let Frozen::ByUs = wait_frozen(held, until, self.max_freeze)? {
                let why = "another process had frozen its filesystem, and thawed it before the \
                           copy was complete: try again";
                return Err(cannot_freeze(held.volume, why));
            }
        }
        Ok(())
    }

    /// Thaws all filesystems and clears the intents. Fails if a thaw came too early or failed. An
    /// intent that could not be cleared is harmless and only logged.
    pub(super) fn release(mut self) -> Result<()> {
        self.thaw_all()
    }

    fn thaw_all(&mut self) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        held.iter().for_each(|h| h.thread.release());
        let mut result = Ok(());
        let mut left = BTreeSet::new();
        let limit = self.until.unwrap_or_else(Instant::now);
        for h in &held {
            let thawed = match h.thread.wait_done(limit, THAW) {
                Some(Done::Thawed { late: true }) => Err(too_long(self.max_freeze)),
                Some(Done::ThawFailed(e)) => {
                    tracing::error!(volume = %h.volume, error = %e, "cannot thaw the filesystem");
                    left.insert(h.volume);
                    Err(e.into())
                }
                None => {
                    tracing::error!(volume = %h.volume, "freeze or thaw hangs in the kernel");
                    left.insert(h.volume);
                    Err(hanging(h.volume))
                }
                Some(_) => Ok(()),
            };
            result = result.and(thawed);
        }
        let intended = std::mem::take(&mut self.intended);
        self.clear(&intended.difference(&left).copied().collect());
        result
    }

    /// Clears intents; false if they stay on record. That is harmless: the next freeze or recovery
    /// then thaws a filesystem that is not frozen.
    fn clear(&self, volumes: &BTreeSet<VolumeId>) -> bool {
        let list: Vec<VolumeId> = volumes.iter().copied().collect();
        if list.is_empty() {
            return true;
        }
        let cleared = self.intents.clear(&list);
        if let Err(e) = &cleared {
            tracing::warn!(volumes = ?list, error = %e, "cannot clear freeze intents");
        }
        cleared.is_ok()
    }
}

impl Drop for FrozenSet<'_> {
    fn drop(&mut self) {
        // After `release` nothing is left to thaw; all other paths return an error already.
        let _ = self.thaw_all();
    }
}

fn start(
    kernel: &Arc<dyn Kernel>,
    mount: &Arc<File>,
    volume: VolumeId,
    device: (FileId, u32),
) -> Result<FreezeThread> {
    FreezeThread::start(Arc::clone(kernel), Arc::clone(mount), device)
        .map_err(|e| kernel::Error::io("start a thread for", kernel::loop_path(device.1), e))?
        .ok_or_else(|| hanging(volume))
}

fn cannot_freeze(volume: VolumeId, why: &str) -> Error {
    Error::CannotFreeze(format!("volume {volume}: {why}"))
}

/// The error for a volume that another freeze or thaw of this process has.
pub(crate) fn hanging(volume: VolumeId) -> Error {
    let why = "an attempt to freeze its filesystem hangs in the kernel; it is thawed as soon as it \
               comes back";
    cannot_freeze(volume, why)
}

/// The error for a failed freeze, or for a failed write-back before it.
fn failed(volume: VolumeId, e: &kernel::Error) -> Error {
    match e {
        kernel::Error::NoSpace { op, path } => Error::Kernel(kernel::Error::NoSpace {
            op,
            path: path.clone(),
        }),
        e => cannot_freeze(volume, &format!("its filesystem can't be frozen: {e}")),
    }
}

/// The owner of a freeze.
enum Frozen {
    ByUs,
    ByAnother,
}

fn wait_frozen(held: &HeldFilesystem, until: Instant, max_freeze: Duration) -> Result<Frozen> {
    held.thread.wait_frozen(until, |phase| match phase {
        Phase::Frozen => Ok(Frozen::ByUs),
        Phase::Done(Done::AlreadyFrozen) => Ok(Frozen::ByAnother),
        Phase::Done(Done::Failed(e)) => Err(failed(held.volume, e)),
        Phase::Preparing | Phase::Ready | Phase::Freezing => {
            let seconds = max_freeze.as_secs_f32();
            let why = format!("its filesystem was not frozen within {seconds} s (--max-freeze)");
            Err(cannot_freeze(held.volume, &format!("{why}: {LESS_BUSY}")))
        }
        Phase::Thawing | Phase::Done(_) => Err(too_long(max_freeze)),
    })
}

/// Opens a filesystem through the first of its mounts that can be reached.
pub(super) fn open_any<'m>(
    kernel: &dyn Kernel,
    mounts: impl Iterator<Item = &'m MountEntry>,
) -> Result<File> {
    let mut last = None;
    for mount in mounts {
        match kernel.open_mount(mount) {
            Ok(file) => return Ok(file),
            Err(e) => last = Some(e),
        }
    }
    let why = last.map_or_else(String::new, |e| format!(": {e}"));
    Err(Error::CannotFreeze(format!(
        "the volume's filesystem is mounted, but none of its mounts can be reached{why}"
    )))
}
