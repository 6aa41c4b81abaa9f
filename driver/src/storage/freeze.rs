//! Freezes the filesystems of volumes while their images are copied, and thaws them on every exit
//! path.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::copy_image::{self, NewImage};
use super::{Error, Result, VolumeId, VolumeRecord};
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::kernel::file::{Copied, Pace};
use crate::kernel::{self, FileId, Kernel, Probe};

mod freeze_plan;
mod freeze_thread;
mod frozen_set;
#[cfg(test)]
mod tests;

use freeze_plan::FreezeStep;
pub(crate) use freeze_thread::keep_off;
use frozen_set::FrozenSet;
pub(crate) use frozen_set::hanging;

/// A volume to copy at one point in time.
#[derive(Clone, Copy, Debug)]
pub struct FreezeTarget {
    pub volume: VolumeId,
    /// The volume's image.
    pub image: FileId,
    /// The record says that the volume is staged as a raw block device.
    pub raw_staged: bool,
    /// The record has a freeze intent from an earlier freeze that may still be in force, so the
    /// filesystem must be thawed first.
    pub freeze_intent: bool,
}

/// Freeze-intent records, written before the first freeze and cleared after the confirmed thaw.
pub trait Intents {
    /// Writes an intent into each record.
    fn write(&self, volumes: &[VolumeId]) -> Result<()>;
    /// Removes the intents; records without an intent are left as they are.
    fn clear(&self, volumes: &[VolumeId]) -> Result<()>;
}

/// The limits of a freeze.
pub struct FreezeLimits<'a> {
    /// The longest time that a filesystem may stay frozen.
    pub max_freeze: Duration,
    /// Called before the first freeze, while writers still run. It fails while a pool is below its
    /// reserve, because a freeze that can't write back hangs in the kernel. It also fails if the
    /// copy is known to take longer than `max_freeze`.
    pub check: &'a dyn Fn() -> Result<()>,
}

/// Volumes that do not change, or not within one clone call.
pub struct Still {
    kernel: Arc<dyn Kernel>,
    /// Images that may be written to during the copy, with the reason: they can only be cloned.
    live: Vec<(FileId, &'static str)>,
    /// The time when the freeze ends; `None` if nothing was frozen by this driver.
    until: Option<Instant>,
    /// A filesystem is frozen, by this driver or another process.
    frozen: bool,
    /// The time when the freeze began, or the copy if nothing was frozen by this driver.
    since: Instant,
}

impl Still {
    /// The start of the time that [`FreezeLimits::max_freeze`] limits.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// True if a copy must stop now, because a filesystem reached the maximum freeze time.
    pub fn stop(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Runs [`copy_image::copy`] for one of the images within the freeze limit. It refuses a copy
    /// other than a clone if the image may be written to meanwhile.
    pub fn copy(&self, image: FileId, from: &File, to: &File, want: &NewImage) -> Result<Copied> {
        let live = self.live.iter().find(|(live, _)| *live == image);
        let live = live.map(|(_, why)| *why);
        copy_image::copy(&*self.kernel, from, to, want, live, self.pace(), &|| {
            self.stop()
        })
    }

    /// How copies treat the disk.
    pub fn pace(&self) -> Pace {
        if self.frozen {
            Pace::Fast
        } else {
            Pace::Gentle
        }
    }
}

/// Runs `copy` while all volumes are at rest, so that the copies are of one point in time. After
/// an error the caller must discard the copies, even if `copy` itself succeeded.
///
/// A volume without a loop device needs no freeze. A mounted volume is frozen on a separate
/// thread, which thaws it at the end or at the limit. The thread also thaws a freeze that succeeds
/// only after its caller gave up. A filesystem that another process froze is copied and left
/// frozen. A raw block volume in use is flushed; in a group of several volumes, it is refused with
/// [`Error::CannotFreeze`](super::Error).
pub fn quiesced<T>(
    kernel: &Arc<dyn Kernel>,
    targets: &[FreezeTarget],
    limits: &FreezeLimits<'_>,
    intents: &dyn Intents,
    copy: impl FnOnce(&Still) -> Result<T>,
) -> Result<T> {
    let steps = survey(kernel.as_ref(), targets)?;
    let live = flush(kernel.as_ref(), &steps)?;
    let mut set = FrozenSet::prepare(kernel, intents, limits, steps)?;
    let until = set.freeze()?;
    let since = until.map_or_else(Instant::now, |until| until - limits.max_freeze);
    let still = Still {
        kernel: kernel.clone(),
        live,
        until,
        frozen: !set.is_empty(),
        since,
    };
    let copied = copy(&still).map_err(|e| match e {
        Error::Kernel(kernel::Error::Stopped { .. }) if still.stop() => too_long(limits.max_freeze),
        Error::Kernel(kernel::Error::CloneStopped { extents, .. }) if still.stop() => {
            let cloning =
                format!("cloning {extents} extents of the image, and there are more, takes");
            clones_longer_than(&cloning, limits.max_freeze)
        }
        e => e,
    });
    // A filesystem that another process froze must still be frozen, or the copies differ in time.
    let copied = copied.and_then(|copied| set.check_foreign().map(|()| copied));
    let released = set.release();
    copied.and_then(|copied| released.map(|()| copied))
}

/// Lists the steps that the targets need.
fn survey(kernel: &dyn Kernel, targets: &[FreezeTarget]) -> Result<Vec<FreezeStep>> {
    if targets.is_empty() {
        return Ok(Vec::new());
    }
    let mounts = kernel.mounts()?;
    let mut steps = Vec::new();
    for target in targets {
        let loops = kernel::loops_holding(kernel, target.image, &target.volume.to_string())?;
        let found = freeze_plan::steps(target, targets.len(), &loops, &mounts)?;
        for step in &found {
            // Its filesystem would not be frozen.
            if let FreezeStep::Flush {
                minor, raw: false, ..
            } = *step
            {
                kernel::refuse_unknown_mount(kernel, &mounts, minor)?;
            }
        }
        steps.extend(found);
    }
    Ok(steps)
}

/// Flushes devices that can't be frozen. Returns their images, and why they can't be frozen.
fn flush(kernel: &dyn Kernel, steps: &[FreezeStep]) -> Result<Vec<(FileId, &'static str)>> {
    let mut live = Vec::new();
    for step in steps {
        if let FreezeStep::Flush { image, minor, raw } = *step {
            match kernel.loop_open(minor, image) {
                Ok(device) => kernel.loop_flush(&device)?,
                // Detached meanwhile; the kernel wrote all data back at the detach.
                Err(kernel::Error::NotFound { .. }) => {}
                Err(e) => return Err(e.into()),
            }
            live.push((
                image,
                in_use_as(raw, kernel.is_claimed(&kernel::loop_path(minor))?),
            ));
        }
    }
    Ok(live)
}

/// The reason why a volume in use can't be frozen.
fn in_use_as(raw: bool, claimed: bool) -> &'static str {
    if raw {
        "the volume is in use as a raw block device"
    } else if claimed {
        "the volume is unstaged, but its filesystem is still mounted in another mount namespace (a \
         container that started while it was mounted has a copy of the mount), where it can't be \
         frozen"
    } else {
        "the volume's loop device is still attached, and open somewhere"
    }
}

/// The error for a copy that did not end within the freeze limit.
fn too_long(max_freeze: Duration) -> Error {
    longer_than("copying takes", max_freeze)
}

/// The error for a copy beyond the freeze limit. `copying` says what takes how long.
pub(super) fn longer_than(copying: &str, max_freeze: Duration) -> Error {
    Error::CannotFreeze(format!(
        "{copying} longer than the {} s its filesystem may stay frozen (--max-freeze): \
         unstage the volume first, raise the limit, or keep such volumes in a pool with reflinks \
         (XFS, btrfs, or image=)",
        max_freeze.as_secs_f32()
    ))
}

/// Like [`longer_than`], for a clone: the image is in too many pieces.
pub(super) fn clones_longer_than(cloning: &str, max_freeze: Duration) -> Error {
    Error::CannotFreeze(format!(
        "{cloning} longer than the {} s its filesystem may stay frozen (--max-freeze): unstage the \
         volume first, raise the limit, or copy the files to a new volume: its image has fewer \
         extents",
        max_freeze.as_secs_f32()
    ))
}

/// The result of [`thaw_leftover`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoverFreeze {
    /// No loop device holds the image, or the device has no filesystem: nothing can be frozen.
    Nothing,
    /// A mounted filesystem was thawed, or was not frozen.
    Mounted,
    /// An unmounted filesystem on an attached device was thawed.
    Unmounted,
}

/// Thaws a filesystem that a freeze with a recorded intent may have left frozen. An unmounted
/// filesystem stays frozen as long as its loop device exists, and another mount of the device
/// reaches it. Fails with [`kernel::Error::Silent`] while a device that may hold the image does not
/// report its backing file.
pub fn thaw_leftover(
    kernel: &dyn Kernel,
    volume: VolumeId,
    image: FileId,
) -> Result<LeftoverFreeze> {
    let loops = kernel::loops_holding(kernel, image, &volume.to_string())?;
    let mut found = LeftoverFreeze::Nothing;
    for device in &loops {
        let mounts = kernel::mounts_of_loop(kernel, device.minor)?;
        found = if !mounts.is_empty() {
            kernel.thaw(&frozen_set::open_any(kernel, mounts.iter())?)?;
            LeftoverFreeze::Mounted
        } else if thaw_unmounted(kernel, device.minor)? {
            LeftoverFreeze::Unmounted
        } else {
            continue;
        };
    }
    Ok(found)
}

/// Like [`thaw_leftover`], also if the volume's image can't be opened: then a mounted filesystem is there
/// all the same. False if there is neither.
pub(crate) fn thaw_volume(
    kernel: &dyn Kernel,
    record: &VolumeRecord,
    identity: &VolumeIdentity,
) -> Result<bool> {
    if let Some(image) = identity.image() {
        thaw_leftover(kernel, record.id, image)?;
        return Ok(true);
    }
    let Some(stage) = record.stage.as_deref() else {
        return Ok(false);
    };
    let state = VolumeState::look(kernel, identity, &[])?;
    let Some(mount) = state.staged_mount(stage) else {
        return Ok(false);
    };
    kernel.thaw(&kernel.open_mount(mount)?)?;
    Ok(true)
}

/// Thaws an unmounted filesystem; false if the device has none.
fn thaw_unmounted(kernel: &dyn Kernel, minor: u32) -> Result<bool> {
    let device = kernel::loop_path(minor);
    let Probe::Filesystem { fs, .. } = kernel.probe(&device)? else {
        return Ok(false);
    };
    let root = kernel.open_filesystem(&device, fs)?;
    kernel.thaw(&root)?;
    Ok(true)
}
