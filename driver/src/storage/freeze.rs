//! Holding volumes still while their images are copied, and letting them go again whatever
//! happens.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::copy_image::{self, CopyRequest, Source};
use super::{Error, Result, VolumeId};
use crate::kernel::file::Copied;
use crate::kernel::{self, FileId, FsType, Kernel, MountSpec, MountTable, Probe};

mod freeze_plan;
mod freeze_thread;
mod frozen_set;
#[cfg(test)]
mod tests;

use freeze_plan::FreezeStep;
use frozen_set::Hold;

/// A volume to hold still.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The volume.
    pub volume: VolumeId,
    /// Its image.
    pub image: FileId,
    /// Its record says it is staged as a raw block device.
    pub raw_staged: bool,
    /// Its record has a freeze intent from an earlier time, whose thaw is not known to have
    /// happened: thaw first.
    pub freeze_intent: bool,
}

/// Freeze-intent records: written before anything is frozen, cleared once it is known to be
/// thawed.
pub trait Intents {
    /// Writes an intent into each record.
    fn write(&self, volumes: &[VolumeId]) -> Result<()>;
    /// Removes the intents again, also from records that have none.
    fn clear(&self, volumes: &[VolumeId]) -> Result<()>;
}

/// Under what conditions something may be frozen.
pub struct Limits<'a> {
    /// The longest a filesystem may stay frozen.
    pub max_freeze: Duration,
    /// Asked before the first freeze, with nothing frozen yet: an error while a pool is below its
    /// reserve, since a freeze that can't write back hangs in the kernel.
    pub room: &'a dyn Fn() -> Result<()>,
}

/// Volumes that hold still.
pub struct Still {
    /// Images that may be written to during the copy, and why: they can only be cloned.
    live: Vec<(FileId, &'static str)>,
    /// When the freeze is over, if there is one.
    until: Option<Instant>,
}

impl Still {
    /// Whether a copy must end now, because a filesystem has been frozen for as long as allowed.
    pub fn stop(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// [`populate::copy`] of one of the images, within the limit, and refused if the volume could
    /// only be held still for a clone and this is none.
    pub fn copy(
        &self,
        image: FileId,
        from: &File,
        to: &File,
        want: &CopyRequest,
    ) -> Result<Copied> {
        let live = self.live.iter().find(|(live, _)| *live == image);
        let source = live.map_or(Source::Still, |(_, why)| Source::Live(why));
        copy_image::copy(from, to, want, source, &|| self.stop())
    }
}

/// Runs `copy` while all volumes hold still together: at one point in time, or not at all. After
/// an error, what `copy` made is not to be used, even if `copy` itself succeeded.
///
/// A volume nothing is attached to holds still by itself. A mounted one is frozen, on a thread of
/// its own that thaws it at the end, at the limit, or when a freeze that was given up on succeeds
/// after all. A filesystem that somebody else froze is copied and left frozen. A raw block volume
/// in use is flushed; in a group of several, it is refused with
/// [`Error::CannotFreeze`](super::Error).
pub fn quiesced<T>(
    kernel: &Arc<dyn Kernel>,
    targets: &[Target],
    limits: &Limits<'_>,
    intents: &dyn Intents,
    copy: impl FnOnce(&Still) -> Result<T>,
) -> Result<T> {
    let steps = survey(kernel.as_ref(), targets)?;
    let live = flush(kernel.as_ref(), &steps)?;
    let mut hold = Hold::prepare(kernel, intents, limits, steps)?;
    let until = hold.freeze()?;
    let still = Still { live, until };
    let copied = copy(&still).map_err(|e| match e {
        Error::Kernel(kernel::Error::TimedOut { .. }) if still.stop() => {
            too_long(limits.max_freeze)
        }
        e => e,
    });
    // What somebody else froze must have stayed so, or the copy is of no one time.
    let copied = copied.and_then(|copied| hold.check_foreign().map(|()| copied));
    let released = hold.release();
    copied.and_then(|copied| released.map(|()| copied))
}

/// What each target needs.
fn survey(kernel: &dyn Kernel, targets: &[Target]) -> Result<Vec<FreezeStep>> {
    let mounts = kernel.mounts()?;
    let mut steps = Vec::new();
    for target in targets {
        let loops = kernel.loops_holding(target.image, &target.volume.to_string())?;
        steps.extend(freeze_plan::steps(target, targets.len(), &loops, &mounts)?);
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
                // Detached meanwhile, which wrote everything back.
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

/// Why a volume in use can't be frozen.
fn in_use_as(raw: bool, claimed: bool) -> &'static str {
    match (raw, claimed) {
        (true, _) => "the volume is in use as a raw block device",
        (false, true) => {
            "the volume is unstaged, but its filesystem is still mounted in another mount \
             namespace (a container that started while it was mounted has a copy of the mount), \
             where it can't be frozen"
        }
        (false, false) => "the volume's loop device is still attached, and open somewhere",
    }
}

/// The copy did not fit into the freeze.
fn too_long(max_freeze: Duration) -> Error {
    Error::CannotFreeze(format!(
        "copying takes longer than the {} s its filesystem may stay frozen (--max-freeze): \
         unstage the volume first, raise the limit, or keep such volumes in a pool with reflinks \
         (XFS, btrfs, or image=)",
        max_freeze.as_secs_f32()
    ))
}

/// What [`thaw_leftover`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// No loop device holds the image, or there is no filesystem on it: nothing can be frozen.
    Nothing,
    /// A mounted filesystem was thawed (or had been).
    Mounted,
    /// An unmounted but attached one was mounted again, thawed and unmounted.
    Unmounted,
}

/// Thaws what a freeze with a recorded intent may have left frozen. A frozen filesystem that is
/// unmounted stays frozen as long as its loop device lives; mounting the same device again
/// reaches it. `scratch` is an existing empty directory for that. [`sys::Error::Silent`] while a
/// device does not say what it holds and may hold the image.
pub fn thaw_leftover(
    kernel: &dyn Kernel,
    volume: VolumeId,
    image: FileId,
    scratch: &Path,
) -> Result<Leftover> {
    let loops = kernel.loops_holding(image, &volume.to_string())?;
    let mounts = kernel.mounts()?;
    let mut found = Leftover::Nothing;
    for device in &loops {
        let thawed = if mounts.of_loop(device.minor).next().is_some() {
            thaw_mounted(kernel, device.minor, &mounts)?;
            Leftover::Mounted
        } else if thaw_unmounted(kernel, device.minor, scratch)? {
            Leftover::Unmounted
        } else {
            continue;
        };
        found = thawed;
    }
    Ok(found)
}

/// How long to retry the unmount of a filesystem that was mounted to thaw it. Only a tool that is just
/// starting can have it open.
const UNMOUNT_WAIT: Duration = Duration::from_secs(2);

/// Thaws a filesystem by the first of its mounts that can be opened.
fn thaw_mounted(kernel: &dyn Kernel, minor: u32, mounts: &MountTable) -> Result<()> {
    let mount = frozen_set::open_any(kernel, mounts.of_loop(minor))?;
    Ok(kernel.thaw(&mount)?)
}

/// Mounts an unmounted filesystem to thaw it; false if there is none on the device. Where it was
/// left frozen, the kernel still has it and takes this for a second mount of it.
fn thaw_unmounted(kernel: &dyn Kernel, minor: u32, scratch: &Path) -> Result<bool> {
    let device = kernel::loop_path(minor);
    let Probe::Filesystem { fs, .. } = kernel.probe(&device)? else {
        return Ok(false);
    };
    // In case it was not left frozen after all and this is a first mount: its clone may be mounted.
    let more: &[&str] = match fs {
        FsType::Xfs => &["nouuid"],
        FsType::Ext4 | FsType::Btrfs => &[],
    };
    let options = [kernel::safe_options(fs), more].concat();
    let options: Vec<String> = options.into_iter().map(str::to_owned).collect();
    let mut spec = MountSpec {
        device: &device,
        target: scratch,
        fs,
        read_only: false,
        options: &options,
    };
    match kernel.mount(&spec) {
        // The one left behind is read-only, and a second mount has to agree.
        Err(kernel::Error::Busy { .. }) => {
            spec.read_only = true;
            kernel.mount(&spec)?;
        }
        mounted => mounted?,
    }
    let thawed = thaw_at(kernel, scratch);
    kernel::unmount_retrying(kernel, scratch, UNMOUNT_WAIT)?;
    thawed.map(|()| true)
}

fn thaw_at(kernel: &dyn Kernel, at: &Path) -> Result<()> {
    let mounts = kernel.mounts()?;
    let mount = frozen_set::open_any(kernel, mounts.at(at).into_iter())?;
    Ok(kernel.thaw(&mount)?)
}
