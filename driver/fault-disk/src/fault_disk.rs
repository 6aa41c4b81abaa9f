//! A fault disk that is served by threads of this process.

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::answer_queue::AnswerQueue;
use crate::disk::{self, Counts, Disk, DiskState, Settings};
use crate::fuse_message::{self, MOST_OPERATIONS};
use crate::mount::Mount;
use crate::power_cut::{Loss, PowerCutReport};
use crate::slots::Slots;
use crate::worker::{self, Answer, Shared};
use crate::write_cache::WriteCache;
use crate::{Error, Result};

/// The threads of a disk that do its I/O, and with it the most that it does at a time.
const WORKERS: usize = 8;

/// The most reads with an answer that waits, at a time. Further operations wait in the kernel.
const DELAYED_READS: usize = 64;

/// The answers that may wait: for each operation, and some for those that the kernel begins
/// meanwhile.
const DELAYED: usize = 2 * MOST_OPERATIONS as usize;

/// With locked memory, a stack takes all of its memory at once.
const STACK: usize = 128 * 1024;

/// The longest name: of a file.
const LONGEST_NAME: usize = 255;

/// A disk that fails on request. It ends with the last user of its file, not with this handle.
#[derive(Clone, Debug)]
pub struct FaultDisk(Arc<Shared>);

impl FaultDisk {
    /// Makes a disk with the bytes of this image, which must be open for reading and writing.
    /// Returns the file to attach a loop device to: with direct I/O, and with this name, which must
    /// be another one for each volume, as its path.
    ///
    /// A write cache of 0 bytes is none: then a power cut loses nothing.
    pub fn serve(
        name: &str,
        image: File,
        cache_bytes: usize,
        settings: Settings,
    ) -> Result<(FaultDisk, File)> {
        check_name(name)?;
        let disk = Disk::new(name.to_owned(), image, cache_bytes, settings)?;
        let slots = Slots::new(WORKERS + DELAYED_READS);
        let mut slot = slots.take();
        let mount = Mount::new(&mut slot)?;
        slots.give(slot);
        let (fuse, context) = mount.into_parts();
        let shared = Arc::new(Shared {
            disk,
            fuse,
            slots,
            later: AnswerQueue::new(DELAYED),
            workers: Mutex::new(0),
            has_ended: Mutex::new(false),
            end: Condvar::new(),
        });
        // If one of them can't be started, the filesystem goes with its context, and with it the
        // others.
        for _ in 0..WORKERS {
            *shared.workers.lock() += 1;
            if let Err(e) = start("fault-disk", &shared, worker::work) {
                *shared.workers.lock() -= 1;
                return Err(e);
            }
        }
        start("fault-disk-late", &shared, worker::answer_later)?;
        let file = Mount::open(context, name)?;
        Ok((FaultDisk(shared), file))
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.disk.name
    }

    /// Replaces its settings. Operations that wait keep their time.
    pub fn set(&self, settings: Settings) -> Result<()> {
        self.0.disk.set(settings)
    }

    /// Its state. A request for it keeps the rules' delays, see [`Disk::state`].
    pub(crate) fn state(&self) -> DiskState {
        self.0.disk.state()
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        self.0.disk.counts()
    }

    /// True after a power cut.
    pub fn is_cut(&self) -> bool {
        self.0.disk.is_cut()
    }

    /// Makes it as large as its image is now. The loop device then has to look
    /// (LOOP_SET_CAPACITY).
    pub fn grow(&self) -> Result<u64> {
        let size = self.0.disk.grow()?;
        let message = fuse_message::attributes_have_changed();
        rustix::io::write(&self.0.fuse, &message)
            .map_err(|e| Error::system(format!("to announce the size of {}", self.name()), e))?;
        Ok(size)
    }

    /// Waits until nothing uses its file any more, and the image has all that was written. False if
    /// that takes longer than this.
    pub fn has_ended(&self, longest: Duration) -> bool {
        let mut has_ended = self.0.has_ended.lock();
        self.0
            .end
            .wait_while_for(&mut has_ended, |has_ended| !*has_ended, longest);
        *has_ended
    }

    /// How much memory a disk takes with a write cache of this size.
    pub fn memory(cache_bytes: usize) -> usize {
        let cache = match cache_bytes {
            0 => 0,
            bytes => WriteCache::cost(bytes),
        };
        Slots::cost(WORKERS + DELAYED_READS)
            + AnswerQueue::<Answer>::cost(DELAYED)
            + (WORKERS + 1) * STACK
            + cache
    }
}

/// Cuts the power of these disks at one instant: what they have not flushed is lost as this says.
/// From then on, they answer nothing but EIO. The same seed repeats what becomes of the same writes.
/// Fails, and cuts none, if that instant does not come until then.
pub fn cut_power(
    disks: &[FaultDisk],
    until: Instant,
    loss: Loss,
    seed: u64,
) -> Result<Vec<PowerCutReport>> {
    let disks: Vec<&Disk> = disks.iter().map(|disk| &disk.0.disk).collect();
    disk::cut_power(&disks, until, loss, seed)
}

/// Holds all I/O of these disks from one instant on, while `meanwhile` runs, which must take no memory.
/// Fails if that instant does not come until then.
pub(crate) fn hold<T>(
    disks: &[FaultDisk],
    until: Instant,
    meanwhile: impl FnOnce() -> T,
) -> Result<T> {
    let disks: Vec<&Disk> = disks.iter().map(|disk| &disk.0.disk).collect();
    disk::hold(&disks, until, meanwhile)
}

fn check_name(name: &str) -> Result<()> {
    let is_right = (1..=LONGEST_NAME).contains(&name.len())
        && !matches!(name, "." | "..")
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'/');
    if is_right {
        return Ok(());
    }
    let reason = format!("{name:?} is not the name of a file");
    Err(Error::invalid("name", reason))
}

fn start(name: &str, shared: &Arc<Shared>, run: fn(&Shared)) -> Result<()> {
    let shared = Arc::clone(shared);
    thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK)
        .spawn(move || run(&shared))
        .map_err(|e| Error::system("to start a thread of a fault disk", e))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_file() {
        let table = [
            ("vol-0192", true),
            ("", false),
            ("..", false),
            ("a/b", false),
            ("a b", false),
            (&"x".repeat(255), true),
            (&"x".repeat(256), false),
        ];
        for (name, is_right) in table {
            assert_eq!(check_name(name).is_ok(), is_right, "{name}");
        }
    }

    #[test]
    fn a_disk_has_a_known_size_in_memory() {
        let without = FaultDisk::memory(0);
        assert!((8 << 20..16 << 20).contains(&without), "{without}");
        let with = FaultDisk::memory(16 << 20);
        assert!((16 << 20..17 << 20).contains(&(with - without)), "{with}");
    }
}
