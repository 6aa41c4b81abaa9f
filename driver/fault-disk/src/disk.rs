//! The disk itself: its image, its write cache, and its rules. It knows nothing of FUSE.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::aligned_buffer::{ALIGNMENT, AlignedBuffer};
use crate::draw::Draws;
use crate::image::{Image, Zeroing};
use crate::limits::{Limits, Queues};
use crate::power_cut::{self, Loss, PowerCutReport, WriteOutcome};
use crate::rules::{ActiveRules, DiskError, MOST_RULES, Operation, Rule};
use crate::write_cache::{Unflushed, WriteCache};
use crate::{Error, Result};

#[cfg(test)]
mod tests;

/// How long rules delay operations after the last request for the disk's state, or for other settings. A
/// driver asks every few seconds. One that has died can't end the delays: sync(2) of the node would wait
/// for the disk until the next driver starts.
const LONGEST_UNASKED: Duration = Duration::from_secs(60);

/// What a disk does besides its work. It can change while the disk is in use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Its rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// The seed of their draws.
    #[serde(default)]
    pub seed: u64,
    /// Its limits.
    #[serde(default)]
    pub limits: Limits,
}

impl Settings {
    /// Refuses settings with a mistake.
    pub fn check(&self) -> Result<()> {
        if self.rules.len() > MOST_RULES {
            let reason = format!("{} are more than {MOST_RULES}", self.rules.len());
            return Err(Error::invalid("rules", reason));
        }
        self.rules.iter().try_for_each(Rule::check)?;
        self.limits.check()
    }
}

/// What a disk has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Operations, those that failed among them.
    pub operations: u64,
    /// Those that a rule made fail.
    pub failed: u64,
    /// Those that a rule or a limit delayed.
    pub delayed: u64,
}

/// A disk, as the server has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DiskState {
    /// Its name.
    pub name: String,
    /// Its power was cut.
    pub is_cut: bool,
    /// Its settings.
    pub settings: Settings,
    /// What it has done.
    pub counts: Counts,
}

/// What the settings do to an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decision {
    pub(crate) error: Option<DiskError>,
    /// When its answer may come, if not at once.
    pub(crate) due: Option<Instant>,
}

/// A disk.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) name: String,
    /// The inode number that `stat` shows of its file. No other disk has it, also not one that gets
    /// the device number of this one later.
    pub(crate) inode: u64,
    image: Image,
    size: AtomicU64,
    /// Of one without a write cache, a write reaches the image before it is acknowledged.
    has_cache: bool,
    /// Held for reading while the image is in use, and for writing while the cache changes.
    cache: RwLock<Option<WriteCache>>,
    /// The disk answers nothing after a power cut.
    is_cut: AtomicBool,
    settings: Mutex<ActiveSettings>,
    made: Instant,
    operations: AtomicU64,
    failed: AtomicU64,
    delayed: AtomicU64,
}

#[derive(Debug)]
struct ActiveSettings {
    rules: ActiveRules,
    limits: Limits,
    queues: Queues,
    /// As they were set.
    settings: Settings,
    /// When the disk was last asked for, since it was made.
    asked: Duration,
}

impl Disk {
    /// A disk with the bytes of this file. A cache of 0 bytes is none.
    pub(crate) fn new(
        name: String,
        image: std::fs::File,
        cache_bytes: usize,
        settings: Settings,
    ) -> Result<Disk> {
        settings.check()?;
        let image = Image::new(image)?;
        let cache = match cache_bytes {
            0 => None,
            bytes => Some(WriteCache::new(bytes)?),
        };
        Ok(Disk {
            // A number that neither the kernel nor users of other filesystems can choose.
            inode: RandomState::new().hash_one(&name) | (1 << 32),
            name,
            size: image.size()?.into(),
            image,
            has_cache: cache.is_some(),
            cache: RwLock::new(cache),
            is_cut: AtomicBool::new(false),
            settings: Mutex::new(ActiveSettings {
                rules: ActiveRules::new(&settings.rules, settings.seed),
                limits: settings.limits,
                queues: Queues::default(),
                settings,
                asked: Duration::ZERO,
            }),
            made: Instant::now(),
            operations: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            delayed: AtomicU64::new(0),
        })
    }

    /// Replaces the settings. Operations that wait keep their time.
    pub(crate) fn set(&self, settings: Settings) -> Result<()> {
        settings.check()?;
        let mut active = self.settings.lock();
        active.rules = ActiveRules::new(&settings.rules, settings.seed);
        active.limits = settings.limits;
        active.queues = Queues::default();
        active.settings = settings;
        active.asked = self.made.elapsed();
        Ok(())
    }

    /// Its state. Its rules go on to delay operations for [`LONGEST_UNASKED`].
    pub(crate) fn state(&self) -> DiskState {
        self.settings.lock().asked = self.made.elapsed();
        DiskState {
            name: self.name.clone(),
            is_cut: self.is_cut(),
            settings: self.settings(),
            counts: self.counts(),
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings.lock().settings.clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            operations: self.operations.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            delayed: self.delayed.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Makes the disk as large as its image is now.
    pub(crate) fn grow(&self) -> Result<u64> {
        let size = self.image.size()?;
        self.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    pub(crate) fn filesystem(&self) -> io::Result<rustix::fs::StatFs> {
        self.image.filesystem()
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// What rules and limits do to an operation that comes now. It counts.
    pub(crate) fn decide(&self, operation: Operation, bytes: Range<u64>) -> Decision {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let now = self.made.elapsed();
        let mut active = self.settings.lock();
        let verdict = active.rules.decide(operation, &bytes);
        let delay = if now.saturating_sub(active.asked) > LONGEST_UNASKED {
            Duration::ZERO
        } else {
            verdict.delay
        };
        let ActiveSettings { limits, queues, .. } = &mut *active;
        let len = bytes.end.saturating_sub(bytes.start);
        let ends = queues.admit(limits, operation, len, now);
        drop(active);
        let wait = (ends - now).saturating_add(delay);
        if verdict.error.is_some() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        if wait.is_zero() {
            return Decision {
                error: verdict.error,
                due: None,
            };
        }
        self.delayed.fetch_add(1, Ordering::Relaxed);
        Decision {
            error: verdict.error,
            due: self.made.checked_add(now.saturating_add(wait)),
        }
    }

    fn check_power(&self) -> io::Result<()> {
        if self.is_cut() {
            return Err(Errno::IO.into());
        }
        Ok(())
    }

    pub(crate) fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.check_power()?;
        let cache = self.cache.read();
        self.image.read(bytes, offset)?;
        if let Some(cache) = &*cache {
            cache.overlay(bytes, offset);
        }
        self.check_power()
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.put(offset, Unflushed::Data(bytes))
    }

    pub(crate) fn zero(&self, offset: u64, len: u64, zeroing: Zeroing) -> io::Result<()> {
        self.put(offset, Unflushed::Zeroes(len, zeroing))
    }

    fn put(&self, offset: u64, write: Unflushed<'_>) -> io::Result<()> {
        self.check_power()?;
        if !self.has_cache {
            // A cut waits until it is done.
            let _cache = self.cache.read();
            self.check_power()?;
            return self.apply(offset, write);
        }
        let mut cache = self.cache.write();
        self.check_power()?;
        let Some(cache) = &mut *cache else {
            return self.apply(offset, write);
        };
        let len = match write {
            Unflushed::Data(data) => data.len(),
            Unflushed::Zeroes(..) => 0,
        };
        while !cache.has_room(len) {
            // A disk may write what it has cached at any time.
            let Some((offset, oldest)) = cache.oldest() else {
                return self.apply(offset, write);
            };
            self.apply(offset, oldest)?;
            cache.drop_oldest();
        }
        match write {
            Unflushed::Data(data) => cache.push(offset, data),
            Unflushed::Zeroes(len, zeroing) => cache.push_zeroes(offset, len, zeroing),
        }
        Ok(())
    }

    fn apply(&self, offset: u64, write: Unflushed<'_>) -> io::Result<()> {
        match write {
            Unflushed::Data(data) => self.image.write(data, offset),
            Unflushed::Zeroes(len, zeroing) => self.image.zero(offset, len, zeroing),
        }
    }

    /// Makes the storage below keep all that was written.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.check_power()?;
        if self.has_cache {
            let mut cache = self.cache.write();
            self.check_power()?;
            if let Some(cache) = &mut *cache {
                while let Some((offset, oldest)) = cache.oldest() {
                    self.apply(offset, oldest)?;
                    cache.drop_oldest();
                }
            }
        }
        self.image.sync()
    }

    /// After the last user has gone: what is cached reaches the image, unless power was cut.
    pub(crate) fn finish(&self) -> io::Result<()> {
        if self.is_cut() {
            return Ok(());
        }
        self.flush()
    }
}

/// A cache that its disk waits for.
type LockedCache<'d> = RwLockWriteGuard<'d, Option<WriteCache>>;

/// The disks, each of them once, in the order in which all calls lock them: so two calls that lock
/// the same disks never wait for each other. The order is that of their names, because a seed draws
/// in this order.
fn in_order<'d>(disks: &[&'d Disk]) -> Vec<&'d Disk> {
    let mut disks = disks.to_vec();
    disks.sort_unstable_by(|a, b| (&a.name, a.inode).cmp(&(&b.name, b.inode)));
    disks.dedup_by(|a, b| std::ptr::eq(*a, *b));
    disks
}

/// Locks all of these disks, which are in order. Then none of them has an operation under way, and
/// none acknowledges a write. Only calls for one of them, and its users, wait meanwhile. Fails if a disk
/// has not ended its operations until then.
fn lock_all<'d>(disks: &[&'d Disk], until: Instant) -> Result<Vec<LockedCache<'d>>> {
    let mut caches = Vec::with_capacity(disks.len());
    for disk in disks {
        let Some(cache) = disk.cache.try_write_until(until) else {
            // The message takes memory, which may wait for a disk that is locked.
            drop(caches);
            return Err(Error::Busy(disk.name.clone()));
        };
        caches.push(cache);
    }
    Ok(caches)
}

/// Holds all I/O of these disks from one instant on, while `meanwhile` runs. By then, an image has
/// each write that its disk has acknowledged, but for those in its write cache. Fails if a disk has
/// not ended its operations until then, or has had a power cut.
///
/// The kernel may write pages of these disks back before it gives memory to this process, so
/// `meanwhile` must take none.
pub(crate) fn hold<T>(disks: &[&Disk], until: Instant, meanwhile: impl FnOnce() -> T) -> Result<T> {
    let disks = in_order(disks);
    let caches = lock_all(&disks, until)?;
    if let Some(cut) = disks.iter().find(|disk| disk.is_cut()) {
        drop(caches);
        return Err(Error::Cut(cut.name.clone()));
    }
    let done = meanwhile();
    drop(caches);
    Ok(done)
}

/// Cuts the power of these disks at one instant. From then on, they answer nothing but EIO. Fails,
/// and cuts none, if a disk has not ended its operations until then.
pub(crate) fn cut_power(
    disks: &[&Disk],
    until: Instant,
    loss: Loss,
    seed: u64,
) -> Result<Vec<PowerCutReport>> {
    let disks = in_order(disks);
    // What this cut needs, it has before any of the disks waits for it.
    let mut block = AlignedBuffer::new(ALIGNMENT);
    let mut counts = vec![(0, 0, 0); disks.len()];
    let mut caches = lock_all(&disks, until)?;

    let mut seeds = Draws::new(seed);
    let mut failed = None;
    for (number, disk) in disks.iter().enumerate() {
        let mut draws = Draws::new(seeds.bits());
        if disk.is_cut.swap(true, Ordering::AcqRel) {
            continue;
        }
        match lose(disk, &mut caches[number], loss, &mut draws, &mut block) {
            Ok(count) => counts[number] = count,
            Err(e) => failed = Some((disk, e)),
        }
    }
    // A message takes memory, which may wait for a disk that is locked.
    drop(caches);
    if let Some((disk, e)) = failed {
        let what = format!("to write what a power cut keeps of {}", disk.name);
        return Err(Error::system(what, e));
    }
    let reports = disks.iter().zip(counts);
    Ok(reports
        .map(|(disk, (unflushed, lost, torn))| PowerCutReport {
            name: disk.name.clone(),
            unflushed,
            lost,
            torn,
        })
        .collect())
}

/// Writes what survives, and counts writes that were not flushed, lost and torn ones.
fn lose(
    disk: &Disk,
    cache: &mut LockedCache<'_>,
    loss: Loss,
    draws: &mut Draws,
    block: &mut AlignedBuffer,
) -> io::Result<(usize, usize, usize)> {
    let Some(cache) = &mut **cache else {
        return Ok((0, 0, 0));
    };
    cache.shuffle(draws);
    let (mut lost, mut torn) = (0, 0);
    for (offset, write) in cache.iter() {
        match (power_cut::outcome(loss, draws), write) {
            (WriteOutcome::Lost, _) => lost += 1,
            (WriteOutcome::Torn, Unflushed::Data(data)) => {
                torn += 1;
                tear(disk, offset, data, loss, draws, block)?;
            }
            (WriteOutcome::Whole, _) | (WriteOutcome::Torn, Unflushed::Zeroes(..)) => {
                disk.apply(offset, write)?;
            }
        }
    }
    let unflushed = cache.len();
    cache.clear();
    disk.image.sync()?;
    Ok((unflushed, lost, torn))
}

/// Writes parts of a write.
fn tear(
    disk: &Disk,
    offset: u64,
    data: &[u8],
    loss: Loss,
    draws: &mut Draws,
    block: &mut AlignedBuffer,
) -> io::Result<()> {
    let mut at = offset;
    for written in data.chunks(ALIGNMENT) {
        let block = &mut block[..written.len()];
        disk.image.read(block, at)?;
        power_cut::tear(loss, draws, block, written);
        disk.image.write(block, at)?;
        at += written.len() as u64;
    }
    Ok(())
}
