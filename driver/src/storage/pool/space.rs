//! Space accounting per filesystem. Several pools may share a filesystem. A pool in an image file
//! takes space from two: the filesystem in the image, and the one that holds the image, and so does
//! a pool on a loop device that someone else attached. No pool promises space that another pool on
//! the same filesystem has promised already.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::OFlags;

use super::Pool;
use crate::diagnose::pool::SparseFile;
use crate::kernel::{self, FsUsage, Kernel, file};
use crate::storage::capacity::{self, Capacity, Image, SpaceRequest, SpaceUsage};
use crate::storage::file_names::EntryKind;
use crate::storage::image_stat::ImageStat;
use crate::storage::layers::{self, Layer};
use crate::storage::layout::open_dir;
use crate::storage::{PoolKind, Provisioning, Result, scan};

/// How long a measurement of the space in the driver's images stays valid. Measuring ten thousand
/// images takes some ten milliseconds, too long for every CreateVolume.
const COUNT_FOR: Duration = Duration::from_secs(2);

/// How long after the opening of a pool its filesystem may free what was deleted before: XFS and btrfs
/// do that in the background.
const STILL_FREEING: Duration = Duration::from_secs(5 * 60);

/// All filesystems with open pools.
#[derive(Debug, Default)]
pub(in crate::storage) struct PoolFilesystems {
    known: Mutex<Vec<Weak<Filesystem>>>,
    /// Held while space is promised. Never held across I/O.
    admission: Mutex<()>,
}

/// A filesystem with pools on it.
#[derive(Debug)]
pub(in crate::storage) struct Filesystem {
    dev: u64,
    root: File,
    tenants: Mutex<Vec<Tenant>>,
    room: Mutex<Option<Room>>,
}

/// Free space plus the space that the driver's images hold. The sum is cached because writes, trims
/// and deletions hardly change it: one part gains what the other loses.
#[derive(Clone, Copy, Debug)]
struct Room {
    at: Instant,
    bytes: u64,
}

/// A pool that takes space from a filesystem.
#[derive(Clone, Debug)]
struct Tenant {
    pool: Weak<Pool>,
    holds: Holds,
}

/// What a filesystem holds of a pool.
#[derive(Clone, Debug)]
enum Holds {
    /// The pool's files.
    Files,
    /// The pool's image.
    Image(Arc<File>),
    /// A file below, which holds more than the pool. Nothing of it counts as the pool's.
    More,
}

/// A filesystem's usage, the part of it that the driver's images certainly hold, and the part of
/// its free space that a file on it holds already.
type MeasuredSpace = (FsUsage, u64, u64);

/// The filesystems that provide a pool's space.
#[derive(Debug)]
pub(in crate::storage) struct Space {
    all: Arc<PoolFilesystems>,
    /// The filesystem that holds the pool's files.
    own: Arc<Filesystem>,
    /// The pool's image, if it has one.
    image: Option<Arc<File>>,
    /// The files below the pool's files, from the top down, and the filesystem that holds each. The
    /// first one is the pool's image, if it has one.
    layers: Vec<Layer>,
    below: Vec<Arc<Filesystem>>,
    /// True if the pool's filesystem is known to hold nothing else.
    alone: bool,
    /// Bytes that the filesystem itself uses (its log and its tables) if the pool is alone on it.
    /// Shared blocks count once per image, so sharing at the opening of the pool makes this value
    /// too small, down to 0. The pool then promises too much by that amount, which the default
    /// reserve covers.
    overhead: AtomicU64,
    /// When that was first measured.
    settled: Instant,
}

impl PoolFilesystems {
    /// Sets up the space accounting of a pool with a loaded index.
    pub(in crate::storage) fn settle(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        kernel: &dyn Kernel,
    ) -> Result<()> {
        let root = pool.layout.root().try_clone_to_owned();
        let root = root.map_err(|e| kernel::Error::io("dup", pool.root(), e))?;
        let own = self.of(File::from(root))?;
        let mut layers = match pool.kind {
            PoolKind::Image => vec![image_of(pool)?],
            PoolKind::Directory | PoolKind::Device => Vec::new(),
        };
        let image = layers
            .first()
            .map(|layer| layer.file.try_clone())
            .transpose();
        let image = image
            .map_err(|e| kernel::Error::io("dup", pool.root(), e))?
            .map(Arc::new);
        let lowest = image.as_deref().unwrap_or(&own.root);
        layers.extend(layers::below(kernel, lowest));
        let below = layers.iter().map(|layer| {
            let file = layer.file.try_clone();
            self.of(file.map_err(|e| kernel::Error::io("dup", &layer.path, e))?)
        });
        let below = below.collect::<Result<Vec<_>>>()?;
        let alone = pool.kind != PoolKind::Directory || is_own_filesystem(pool, kernel)?;
        let overhead = if alone {
            used(&pool.usage()?).saturating_sub(allocated(&pool.images()?))
        } else {
            0
        };
        own.add(Tenant {
            pool: Arc::downgrade(pool),
            holds: Holds::Files,
        });
        for (i, filesystem) in below.iter().enumerate() {
            let holds = match &image {
                Some(image) if i == 0 => Holds::Image(image.clone()),
                _ => Holds::More,
            };
            filesystem.add(Tenant {
                pool: Arc::downgrade(pool),
                holds,
            });
        }
        let space = Space {
            all: self.clone(),
            own,
            image,
            layers,
            below,
            alone,
            overhead: AtomicU64::new(overhead),
            settled: Instant::now(),
        };
        // Set only once, by the thread that opens the pool.
        let _ = pool.space.set(space);
        Ok(())
    }

    /// Finds or adds the filesystem of an open file or directory.
    fn of(&self, root: File) -> Result<Arc<Filesystem>> {
        let dev = kernel::file_id(&root)?.dev;
        let mut known = self.known.lock();
        known.retain(|filesystem| filesystem.strong_count() > 0);
        let found = known
            .iter()
            .filter_map(Weak::upgrade)
            .find(|f| f.dev == dev);
        Ok(found.unwrap_or_else(|| {
            let made = Arc::new(Filesystem {
                dev,
                root,
                tenants: Mutex::default(),
                room: Mutex::default(),
            });
            known.push(Arc::downgrade(&made));
            made
        }))
    }
}

impl Space {
    fn overhead(&self) -> u64 {
        self.overhead.load(Ordering::Relaxed)
    }
}

impl Filesystem {
    fn add(&self, tenant: Tenant) {
        let mut tenants = self.tenants.lock();
        tenants.retain(|tenant| tenant.pool.strong_count() > 0);
        tenants.push(tenant);
        // The cached value does not count this tenant.
        *self.room.lock() = None;
    }

    fn tenants(&self) -> Vec<(Arc<Pool>, Holds)> {
        let tenants = self.tenants.lock().clone().into_iter();
        tenants
            .filter_map(|tenant| Some((tenant.pool.upgrade()?, tenant.holds)))
            .collect()
    }

    /// Reads the usage, and the part of it that the driver's images certainly hold.
    fn measure(&self, kernel: &dyn Kernel) -> Result<(FsUsage, u64)> {
        let usage = kernel.usage_of(self.root.as_fd())?;
        let known = *self.room.lock();
        let room = match known {
            Some(room) if room.at.elapsed() < COUNT_FOR => room,
            _ => {
                let mut ours = 0_u64;
                for (pool, holds) in self.tenants() {
                    ours = ours.saturating_add(held_by(&pool, &holds, &usage)?);
                }
                let room = Room {
                    at: Instant::now(),
                    bytes: usage.available_bytes.saturating_add(ours.min(used(&usage))),
                };
                *self.room.lock() = Some(room);
                room
            }
        };
        let ours = room.bytes.saturating_sub(usage.available_bytes);
        Ok((usage, ours.min(used(&usage))))
    }

    /// The accounting of one pool on this filesystem.
    fn space_usage(&self, pool: &Arc<Pool>, (usage, ours, unused): MeasuredSpace) -> SpaceUsage {
        let (mut others, mut taking) = (0_u64, 0_u64);
        for (tenant, _) in self.tenants() {
            taking = taking.saturating_add(tenant.under_way.lock().take);
            if !Arc::ptr_eq(&tenant, pool) {
                others = others.saturating_add(tenant.promised());
            }
        }
        let promised = pool.promised();
        SpaceUsage {
            filesystem: usage,
            unused,
            // Space that is held but was never promised can't back a promise.
            ours: ours.min(promised.saturating_add(others)),
            promised,
            others,
            taking,
        }
    }
}

/// The image of a pool that is in one.
fn image_of(pool: &Pool) -> Result<Layer> {
    let dir = open_dir(&pool.spec.path)?;
    let name = pool.spec.image_name();
    // Kept open: a disk mounted over the directory later would hide the image.
    let file = file::open_beneath(dir.as_fd(), Path::new(&name), OFlags::RDWR)?;
    Ok(Layer {
        file,
        path: pool.spec.path.join(name),
    })
}

/// Bytes that a pool's images hold on a filesystem, at most what the pool promised to them.
fn held_by(pool: &Pool, holds: &Holds, usage: &FsUsage) -> Result<u64> {
    let Some(space) = pool.space.get() else {
        return Ok(0);
    };
    let held = match holds {
        Holds::More => 0,
        Holds::Image(image) => file::allocated_bytes(image)?.saturating_sub(space.overhead()),
        Holds::Files if !pool.counts_families() => used_by_images(pool, space, usage),
        Holds::Files => {
            let images = pool.images()?;
            if pool.is_alone_now()? {
                // Used space counts shared blocks once; allocated space counts them several times.
                // Only used space includes blocks of other owners.
                used_by_images(pool, space, usage).min(allocated(&images))
            } else {
                capacity::held(&images, pool.reflinks)
            }
        }
    };
    Ok(held.min(pool.promised()))
}

/// Bytes that count twice: as unused in an image's filesystem, and as held for the pool's promises.
/// They belong to promises that are not written yet, and the image holds their blocks already.
fn counted_twice(held: u64, promised: u64, unused: u64) -> u64 {
    (held.min(promised))
        .saturating_add(unused)
        .saturating_sub(held)
}

/// The used part of a pool's own filesystem, without what the filesystem itself and a fault on request
/// take.
fn used_by_images(pool: &Pool, space: &Space, usage: &FsUsage) -> u64 {
    let filler = pool.filler_bytes.load(Ordering::Relaxed);
    used(usage).saturating_sub(space.overhead().saturating_add(filler))
}

fn used(usage: &FsUsage) -> u64 {
    usage.total_bytes.saturating_sub(usage.free_bytes)
}

fn allocated(images: &[Image]) -> u64 {
    images.iter().map(|image| image.allocated).sum()
}

/// True if the pool's directory is the root of a mounted filesystem and holds nothing else.
fn is_own_filesystem(pool: &Pool, kernel: &dyn Kernel) -> Result<bool> {
    let path = pool.root();
    let path = std::fs::canonicalize(path).map_err(|e| kernel::Error::io("realpath", path, e))?;
    let mounts = kernel.known_mounts()?;
    let whole = mounts.at(&path).is_some_and(|m| m.root == "/");
    Ok(whole && nothing_else_in(pool)?)
}

pub(super) fn nothing_else_in(pool: &Pool) -> Result<bool> {
    Ok(scan::unknown_files_at_top(pool.layout.root())?.is_empty())
}

impl Pool {
    /// The space that the pool can promise to volumes with this provisioning. Fails with
    /// [`Error::Unavailable`](crate::storage::Error::Unavailable) if the pool's next opening would
    /// not find it.
    pub fn capacity(self: &Arc<Self>, provisioning: Provisioning) -> Result<Capacity> {
        self.check_place()?;
        self.measure_snapshots();
        self.promisable(provisioning)
    }

    pub(in crate::storage) fn promisable(
        self: &Arc<Self>,
        provisioning: Provisioning,
    ) -> Result<Capacity> {
        let (mut usages, _) = self.space_usages()?;
        // These go as soon as a request needs their room.
        self.leave_out_bases(&mut usages)?;
        let lacks = self.image().map(|image| image.lacks_bytes()).transpose()?;
        Ok(capacity::capacity(
            &usages,
            &self.limits,
            provisioning,
            lacks.unwrap_or_default(),
        ))
    }

    /// True if what the pool's images hold may have to be counted by their families: only a
    /// directory may have other files on its filesystem.
    pub(in crate::storage) fn counts_families(&self) -> bool {
        self.kind == PoolKind::Directory
    }

    /// Measures again what the filesystem itself uses, for a while after the opening. What was deleted
    /// shortly before that may have counted, and would count as used as long as the process runs. Images
    /// hold more than is left out here, so what becomes of it is not too small.
    pub(in crate::storage) fn tend_overhead(&self) {
        let settling = self.space.get().filter(|space| space.alone);
        let Some(space) = settling.filter(|space| space.settled.elapsed() < STILL_FREEING) else {
            return;
        };
        // A pool that can't be measured is reported elsewhere.
        let (Ok(before), Ok(usage), Ok(after)) = (self.images(), self.usage(), self.images())
        else {
            return;
        };
        // What the file of a fault takes only makes this larger.
        let held = capacity::held(&capacity::at_least(&before, &after), self.reflinks);
        let overhead = used(&usage).saturating_sub(held);
        if space.overhead.fetch_min(overhead, Ordering::Relaxed) > overhead {
            self.forget_room();
        }
    }

    /// Lets the next measurement count what images hold.
    pub(super) fn forget_room(&self) {
        if let Some(space) = self.space.get() {
            *space.own.room.lock() = None;
        }
    }

    /// Size and free space of the pool's filesystem.
    pub fn usage(&self) -> Result<FsUsage> {
        Ok(self.kernel.usage_of(self.layout.root().as_fd())?)
    }

    /// The current accounting of each filesystem that provides the pool's space. Callers promise
    /// space while they hold the guard, so that no space is promised twice.
    pub(in crate::storage) fn space_usages(
        self: &Arc<Self>,
    ) -> Result<(Vec<SpaceUsage>, Option<MutexGuard<'_, ()>>)> {
        let Some(space) = self.space.get() else {
            return Ok((Vec::new(), None));
        };
        let own = space.own.measure(&*self.kernel)?;
        let below = self.measure_below(space, own)?;
        let guard = space.all.admission.lock();
        let own = space.own.space_usage(self, (own.0, own.1, 0));
        let below = space
            .below
            .iter()
            .zip(below)
            .map(|(on, measured)| on.space_usage(self, measured));
        Ok((std::iter::once(own).chain(below).collect(), Some(guard)))
    }

    /// Measures the filesystems below, down to the first one that holds a file with all its blocks.
    fn measure_below(&self, space: &Space, own: (FsUsage, u64)) -> Result<Vec<MeasuredSpace>> {
        let mut measured = Vec::new();
        let (mut above, mut held) = own;
        for (i, (layer, on)) in space.layers.iter().zip(&space.below).enumerate() {
            if layer.lacks_bytes()? == 0 {
                break;
            }
            let (usage, mut ours) = on.measure(&*self.kernel)?;
            let allocated = file::allocated_bytes(&layer.file)?;
            // Space that the file holds but the filesystem in it does not use needs no new space.
            let unused;
            if i == 0 && space.image.is_some() {
                unused = allocated.saturating_sub(used(&above));
                let in_image = allocated.saturating_sub(space.overhead());
                ours = ours.saturating_sub(counted_twice(in_image, self.promised(), unused));
                held = in_image.min(self.promised());
            } else {
                // Some filesystems count neither their log nor their tables as used.
                let taken = file::length(&layer.file)?.saturating_sub(above.free_bytes);
                unused = allocated.saturating_sub(taken);
                ours = ours.saturating_add(held);
            }
            above = usage;
            let available_bytes = usage.available_bytes.saturating_add(unused);
            measured.push((
                FsUsage {
                    available_bytes,
                    ..usage
                },
                ours,
                unused,
            ));
        }
        Ok(measured)
    }

    /// True if the pool's filesystem is known to hold nothing else.
    pub fn is_alone(&self) -> bool {
        self.space.get().is_some_and(|space| space.alone)
    }

    /// True if the pool's filesystem holds nothing else at this moment, too.
    fn is_alone_now(&self) -> Result<bool> {
        Ok(self.is_alone() && (!self.counts_families() || nothing_else_in(self)?))
    }

    /// Bytes that do not count as held without the deleted snapshots that keep their images, to
    /// which this much is promised.
    pub(in crate::storage) fn held_by_kept_bases(&self, promised: u64) -> Result<u64> {
        if !self.reflinks || self.is_alone_now()? {
            // They hold what is promised to them, or their part of what the filesystem uses.
            Ok(promised)
        } else {
            Ok(capacity::held_by_kept_bases(&self.images()?))
        }
    }

    /// The files under this pool without all their blocks, from the top down.
    pub(in crate::storage) fn sparse_files(&self, kernel: &dyn Kernel) -> Result<Vec<SparseFile>> {
        let layers = self.space.get().map(|space| space.layers.as_slice());
        layers::sparse_files(kernel, layers.unwrap_or_default())
    }

    /// The pool's image, if it has one.
    pub(in crate::storage) fn image(&self) -> Option<&Layer> {
        let space = self.space.get().filter(|space| space.image.is_some());
        space.and_then(|space| space.layers.first())
    }

    /// Space promised to volumes, snapshots and running operations.
    fn promised(&self) -> u64 {
        let SpaceRequest { promise, .. } = *self.under_way.lock();
        self.index.read().promised().saturating_add(promise)
    }

    /// All images with their allocated space and their families.
    fn images(&self) -> Result<Vec<Image>> {
        let (volumes, snapshots, bases): (Vec<_>, Vec<_>, Vec<_>) = {
            let index = self.index.read();
            (
                index.volumes.all().cloned().collect(),
                index.snapshots.all().cloned().collect(),
                index.bases().cloned().collect(),
            )
        };
        let mut images = Vec::with_capacity(volumes.len() + snapshots.len() + bases.len());
        for volume in &volumes {
            let entry = volume.id.to_string();
            let stat = self.layout.stat_image(EntryKind::Volumes, &entry)?;
            images.push(Image::of_volume(volume, allocated_in(stat)));
        }
        for snapshot in &snapshots {
            let entry = snapshot.id.to_string();
            let stat = self.layout.stat_image(EntryKind::Snapshots, &entry)?;
            images.push(Image::of_snapshot(snapshot, allocated_in(stat)));
        }
        for base in &bases {
            let stat = self.layout.stat_kept(base.id)?;
            images.push(Image::of_kept_base(base, allocated_in(stat)));
        }
        Ok(images)
    }
}

/// An image that has gone meanwhile has nothing.
fn allocated_in(stat: Option<ImageStat>) -> u64 {
    stat.map_or(0, |stat| stat.allocated)
}

#[cfg(test)]
mod tests;
