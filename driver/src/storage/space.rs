//! Space accounting per filesystem. Several pools may share a filesystem. A pool in an image file
//! takes space from two: the filesystem in the image, and the one that holds the image. No pool
//! promises space that another pool on the same filesystem has promised already.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::OFlags;

use super::capacity::{self, Image, SpaceRequest, SpaceUsage};
use super::file_names::EntryKind;
use super::{Pool, PoolKind, Result, Source, scan};
use crate::kernel::{self, FsUsage, Kernel, file};

/// How long a measurement of the space in the driver's images stays valid. Measuring ten thousand
/// images takes some ten milliseconds, too long for every CreateVolume.
const COUNT_FOR: Duration = Duration::from_secs(2);

/// All filesystems with open pools.
#[derive(Debug, Default)]
pub(super) struct Filesystems {
    known: Mutex<Vec<Weak<Filesystem>>>,
    /// Held while space is promised. Never held across I/O.
    admission: Mutex<()>,
}

/// A filesystem with pools on it.
#[derive(Debug)]
pub(super) struct Filesystem {
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
    /// The pool's image file on this filesystem, if it has one.
    image: Option<Arc<File>>,
}

/// The filesystems that provide a pool's space.
#[derive(Debug)]
pub(super) struct Space {
    all: Arc<Filesystems>,
    /// The filesystem that holds the pool's files.
    own: Arc<Filesystem>,
    /// The filesystem that holds the pool's image, and the image.
    host: Option<(Arc<Filesystem>, Arc<File>)>,
    /// True if the pool's filesystem is known to hold nothing else.
    alone: bool,
    /// Bytes that the filesystem itself uses (its log and its tables) if the pool is alone on it.
    /// Shared blocks count once per image, so sharing at the opening of the pool makes this value
    /// too small, down to 0. The pool then promises too much by that amount, which the default
    /// reserve covers.
    overhead: u64,
}

impl Filesystems {
    /// Sets up the space accounting of a pool with a loaded index.
    pub(super) fn settle(self: &Arc<Self>, pool: &Arc<Pool>, kernel: &dyn Kernel) -> Result<()> {
        let root = pool.layout.root().try_clone_to_owned();
        let root = root.map_err(|e| kernel::Error::io("dup", pool.root(), e))?;
        let own = self.of(File::from(root))?;
        let host = match pool.kind {
            PoolKind::Image => {
                let dir = super::directory::open_dir(&pool.spec.path)?;
                let image = pool.spec.image_name();
                // Kept open: a disk mounted over the directory later would hide the image.
                let image = file::open_beneath(dir.as_fd(), Path::new(&image), OFlags::RDONLY)?;
                Some((self.of(dir)?, Arc::new(image)))
            }
            PoolKind::Directory | PoolKind::Device => None,
        };
        let alone = pool.kind != PoolKind::Directory || is_own_filesystem(pool, kernel)?;
        let overhead = match alone {
            true => used(&pool.usage()?).saturating_sub(allocated(&pool.images()?)),
            false => 0,
        };
        let tenant = |image| Tenant { pool: Arc::downgrade(pool), image };
        own.add(tenant(None));
        if let Some((host, image)) = &host {
            host.add(tenant(Some(image.clone())));
        }
        let space = Space { all: self.clone(), own, host, alone, overhead };
        // Set only once, by the thread that opens the pool.
        let _ = pool.space.set(space);
        Ok(())
    }

    /// Finds or adds the filesystem of an open directory.
    fn of(&self, root: File) -> Result<Arc<Filesystem>> {
        let dev = kernel::file_id(&root)?.dev;
        let mut known = self.known.lock();
        known.retain(|filesystem| filesystem.strong_count() > 0);
        let found = known.iter().filter_map(Weak::upgrade).find(|f| f.dev == dev);
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

impl Filesystem {
    fn add(&self, tenant: Tenant) {
        let mut tenants = self.tenants.lock();
        tenants.retain(|tenant| tenant.pool.strong_count() > 0);
        tenants.push(tenant);
        // The cached value does not count this tenant.
        *self.room.lock() = None;
    }

    fn tenants(&self) -> Vec<(Arc<Pool>, Option<Arc<File>>)> {
        let tenants = self.tenants.lock().clone().into_iter();
        tenants.filter_map(|tenant| Some((tenant.pool.upgrade()?, tenant.image))).collect()
    }

    /// Reads the usage, and the part of it that the driver's images certainly hold.
    fn measure(&self) -> Result<(FsUsage, u64)> {
        let usage = file::usage(self.root.as_fd())?;
        let known = *self.room.lock();
        let room = match known {
            Some(room) if room.at.elapsed() < COUNT_FOR => room,
            _ => {
                let mut ours = 0_u64;
                for (pool, image) in self.tenants() {
                    ours = ours.saturating_add(held_by(&pool, image, &usage)?);
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
    fn books(&self, pool: &Arc<Pool>, (usage, ours): (FsUsage, u64)) -> SpaceUsage {
        let (mut others, mut taking) = (0_u64, 0_u64);
        for (tenant, _) in self.tenants() {
            taking = taking.saturating_add(tenant.under_way.lock().take);
            if !Arc::ptr_eq(&tenant, pool) {
                others = others.saturating_add(tenant.promised());
            }
        }
        let promised = pool.promised();
        SpaceUsage {
            usage,
            // Space that is held but was never promised can't back a promise.
            ours: ours.min(promised.saturating_add(others)),
            promised,
            others,
            taking,
        }
    }
}

/// Bytes that a pool's images hold on a filesystem, at most what the pool promised to them.
fn held_by(pool: &Pool, image: Option<Arc<File>>, usage: &FsUsage) -> Result<u64> {
    let Some(space) = pool.space.get() else {
        return Ok(0);
    };
    let held = match image {
        Some(image) => file::allocated_bytes(&image)?.saturating_sub(space.overhead),
        None if pool.kind != PoolKind::Directory => used(usage).saturating_sub(space.overhead),
        None => {
            let images = pool.images()?;
            match space.alone && nothing_else_in(pool)? {
                // Used space counts shared blocks once; allocated space counts them several times.
                // Only used space includes blocks of other owners.
                true => used(usage).saturating_sub(space.overhead).min(allocated(&images)),
                false => capacity::held(&images, pool.reflinks),
            }
        }
    };
    Ok(held.min(pool.promised()))
}

/// Bytes that count twice: as unused in an image's filesystem, and as held for the pool's promises.
/// They belong to promises that are not written yet, and the image holds their blocks already.
fn counted_twice(held: u64, promised: u64, unused: u64) -> u64 {
    (held.min(promised)).saturating_add(unused).saturating_sub(held)
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

fn nothing_else_in(pool: &Pool) -> Result<bool> {
    Ok(scan::strangers_at_top(pool.layout.root())?.is_empty())
}

impl Pool {
    /// The current accounting of each filesystem that provides the pool's space. Callers promise
    /// space while they hold the guard, so that no space is promised twice.
    pub(super) fn books(self: &Arc<Self>) -> Result<(Vec<SpaceUsage>, Option<MutexGuard<'_, ()>>)> {
        let Some(space) = self.space.get() else {
            return Ok((Vec::new(), None));
        };
        let own = space.own.measure()?;
        let host = match &space.host {
            None => None,
            Some((host, image)) => {
                let (mut usage, ours) = host.measure()?;
                // Space that the image holds but its filesystem does not use needs no new space on
                // the host.
                let allocated = file::allocated_bytes(image)?;
                let unused = allocated.saturating_sub(used(&own.0));
                usage.available_bytes = usage.available_bytes.saturating_add(unused);
                let held = allocated.saturating_sub(space.overhead);
                let twice = counted_twice(held, self.promised(), unused);
                Some((host, (usage, ours.saturating_sub(twice))))
            }
        };
        let guard = space.all.admission.lock();
        let own = space.own.books(self, own);
        let host = host.map(|(host, measured)| host.books(self, measured));
        Ok((std::iter::once(own).chain(host).collect(), Some(guard)))
    }

    /// Space promised to volumes, snapshots and running operations.
    fn promised(&self) -> u64 {
        let SpaceRequest { promise, .. } = *self.under_way.lock();
        self.index.read().promised().saturating_add(promise)
    }

    /// All images with their allocated space and their sources.
    fn images(&self) -> Result<Vec<Image>> {
        let mut images = Vec::new();
        {
            let index = self.index.read();
            for volume in index.volumes.all() {
                let source = volume.source.as_deref().map(|source| match source {
                    Source::Snapshot(id) => id.uuid(),
                    Source::Volume(id) => id.uuid(),
                });
                let entry = volume.id.to_string();
                images.push((EntryKind::Volumes, entry, volume.id.uuid(), source));
            }
            for snapshot in index.snapshots.all() {
                let source = Some(snapshot.source.uuid());
                let entry = snapshot.id.to_string();
                images.push((EntryKind::Snapshots, entry, snapshot.id.uuid(), source));
            }
        }
        let held = images.into_iter().map(|(shelf, entry, id, source)| {
            let stat = self.layout.stat_image(shelf, &entry)?;
            Ok(Image { id, source, allocated: stat.map_or(0, |stat| stat.allocated) })
        });
        held.collect()
    }
}

#[cfg(test)]
mod tests;
