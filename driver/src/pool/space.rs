//! The filesystems that pools take their space from. Pools may share one, and a pool in an image
//! file takes from two: the one in the image, and the one the image is on. So there are books for
//! each filesystem, and none promises what another pool on it has promised already.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::accounting::{self, Books, Image, Need};
use super::layout::Shelf;
use super::locks::{lock, read};
use super::{Pool, PoolKind, PoolSpec, Result, Source, readonly};
use crate::sys::{self, FsUsage, Kernel, file};

/// How long a count of what our images hold is relied on. Looking at ten thousand images takes
/// some ten milliseconds, too long for every CreateVolume.
const COUNT_FOR: Duration = Duration::from_secs(2);

/// All filesystems with open pools.
#[derive(Debug, Default)]
pub(super) struct Filesystems {
    known: Mutex<Vec<Weak<Filesystem>>>,
    /// Held while room is promised. Never across I/O.
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

/// Free space and what our images hold, together. The sum hardly moves while volumes are written,
/// trimmed or deleted, since what one loses the other gains; so it is what is kept.
#[derive(Clone, Copy, Debug)]
struct Room {
    at: Instant,
    bytes: u64,
}

/// A pool that takes space from a filesystem.
#[derive(Clone, Debug)]
struct Tenant {
    pool: Weak<Pool>,
    /// The file on it that the pool is in, if it is in one.
    image: Option<Arc<File>>,
}

/// Where a pool's space comes from.
#[derive(Debug)]
pub(super) struct Space {
    all: Arc<Filesystems>,
    /// The filesystem its files are on.
    own: Arc<Filesystem>,
    /// The filesystem that its image is on, and the image.
    host: Option<(Arc<Filesystem>, Arc<File>)>,
    /// Nothing else is on its filesystem, as far as that is known.
    alone: bool,
    /// What the filesystem itself takes where the pool is alone on it: its log and its tables. Less
    /// than that, or 0, if images shared blocks when the pool was opened, since each of them counts
    /// what it shares. Then as much too much is promised, which the default reserve covers.
    overhead: u64,
}

impl Filesystems {
    /// Finds the filesystems of a pool whose records are read.
    pub(super) fn settle(self: &Arc<Self>, pool: &Arc<Pool>, kernel: &dyn Kernel) -> Result<()> {
        let root = pool.layout.root().try_clone_to_owned();
        let root = root.map_err(|e| sys::Error::io("dup", pool.root(), e))?;
        let own = self.of(File::from(root))?;
        let host = match pool.kind {
            PoolKind::Image => {
                let dir = super::open::open_dir(&pool.spec.path)?;
                let image = PoolSpec::image_name(pool.name());
                // Held open: a disk that is mounted over the directory later would hide it.
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
        let tenant = |image| Tenant {
            pool: Arc::downgrade(pool),
            image,
        };
        own.add(tenant(None));
        if let Some((host, image)) = &host {
            host.add(tenant(Some(image.clone())));
        }
        let space = Space {
            all: self.clone(),
            own,
            host,
            alone,
            overhead,
        };
        // It is settled once, by the thread that opens it.
        let _ = pool.space.set(space);
        Ok(())
    }

    /// The filesystem that an open directory is on.
    fn of(&self, root: File) -> Result<Arc<Filesystem>> {
        let dev = sys::file_id(&root)?.dev;
        let mut known = lock(&self.known);
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

impl Filesystem {
    fn add(&self, tenant: Tenant) {
        let mut tenants = lock(&self.tenants);
        tenants.retain(|tenant| tenant.pool.strong_count() > 0);
        tenants.push(tenant);
        // It was counted without this one.
        *lock(&self.room) = None;
    }

    fn tenants(&self) -> Vec<(Arc<Pool>, Option<Arc<File>>)> {
        let tenants = lock(&self.tenants).clone().into_iter();
        tenants
            .filter_map(|tenant| Some((tenant.pool.upgrade()?, tenant.image)))
            .collect()
    }

    /// Usage, and how much of it our images surely hold.
    fn measure(&self) -> Result<(FsUsage, u64)> {
        let usage = file::usage(self.root.as_fd())?;
        let known = *lock(&self.room);
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
                *lock(&self.room) = Some(room);
                room
            }
        };
        let ours = room.bytes.saturating_sub(usage.available_bytes);
        Ok((usage, ours.min(used(&usage))))
    }

    /// The books of one pool on it.
    fn books(&self, pool: &Arc<Pool>, (usage, ours): (FsUsage, u64)) -> Books {
        let (mut others, mut taking) = (0_u64, 0_u64);
        for (tenant, _) in self.tenants() {
            taking = taking.saturating_add(lock(&tenant.under_way).take);
            if !Arc::ptr_eq(&tenant, pool) {
                others = others.saturating_add(tenant.promised());
            }
        }
        let promised = pool.promised();
        Books {
            usage,
            // What is held without having been promised is no room for a promise.
            ours: ours.min(promised.saturating_add(others)),
            promised,
            others,
            taking,
        }
    }
}

/// What a pool's images hold of a filesystem, as far as it was promised to them.
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
                // Shared blocks count once in what is used, and more than once in what is
                // allocated; blocks of somebody else's count in what is used alone.
                true => used(usage)
                    .saturating_sub(space.overhead)
                    .min(allocated(&images)),
                false => accounting::held(&images, pool.reflinks),
            }
        }
    };
    Ok(held.min(pool.promised()))
}

/// What is counted both as unused by an image's filesystem and as held for what the pool promises:
/// a promise that is not written yet, of blocks that the image holds already.
fn counted_twice(held: u64, promised: u64, unused: u64) -> u64 {
    (held.min(promised))
        .saturating_add(unused)
        .saturating_sub(held)
}

fn used(usage: &FsUsage) -> u64 {
    usage.total_bytes.saturating_sub(usage.free_bytes)
}

fn allocated(images: &[Image]) -> u64 {
    images.iter().map(|image| image.allocated).sum()
}

/// Whether the pool's directory is the root of a mounted filesystem, with nothing else in it.
fn is_own_filesystem(pool: &Pool, kernel: &dyn Kernel) -> Result<bool> {
    let path = pool.root();
    let path = std::fs::canonicalize(path).map_err(|e| sys::Error::io("realpath", path, e))?;
    let mounts = kernel.mounts()?;
    let whole = mounts.at(&path).is_some_and(|m| m.root.as_os_str() == "/");
    Ok(whole && nothing_else_in(pool)?)
}

fn nothing_else_in(pool: &Pool) -> Result<bool> {
    Ok(readonly::strangers_at_top(pool.layout.root())?.is_empty())
}

impl Pool {
    /// The books of each filesystem that its space comes from, now. Room is promised while the
    /// guard is held, so that no two promises are made of the same room.
    pub(super) fn books(self: &Arc<Self>) -> Result<(Vec<Books>, Option<MutexGuard<'_, ()>>)> {
        let Some(space) = self.space.get() else {
            return Ok((Vec::new(), None));
        };
        let own = space.own.measure()?;
        let host = match &space.host {
            None => None,
            Some((host, image)) => {
                let (mut usage, ours) = host.measure()?;
                // What the image holds and its filesystem does not use needs no space of the host.
                let allocated = file::allocated_bytes(image)?;
                let unused = allocated.saturating_sub(used(&own.0));
                usage.available_bytes = usage.available_bytes.saturating_add(unused);
                let held = allocated.saturating_sub(space.overhead);
                let twice = counted_twice(held, self.promised(), unused);
                Some((host, (usage, ours.saturating_sub(twice))))
            }
        };
        let guard = lock(&space.all.admission);
        let own = space.own.books(self, own);
        let host = host.map(|(host, measured)| host.books(self, measured));
        Ok((std::iter::once(own).chain(host).collect(), Some(guard)))
    }

    /// Promised to volumes and snapshots, and to operations under way.
    fn promised(&self) -> u64 {
        let Need { promise, .. } = *lock(&self.under_way);
        read(&self.index).promised().saturating_add(promise)
    }

    /// All images with what they hold, and where they came from.
    fn images(&self) -> Result<Vec<Image>> {
        let mut images = Vec::new();
        {
            let index = read(&self.index);
            for volume in index.volumes.all() {
                let source = volume.source.map(|source| match source {
                    Source::Snapshot(id) => id.uuid(),
                    Source::Volume(id) => id.uuid(),
                });
                let entry = volume.id.to_string();
                images.push((Shelf::Volumes, entry, volume.id.uuid(), source));
            }
            for snapshot in index.snapshots.all() {
                let source = Some(snapshot.source.uuid());
                let entry = snapshot.id.to_string();
                images.push((Shelf::Snapshots, entry, snapshot.id.uuid(), source));
            }
        }
        let held = images.into_iter().map(|(shelf, entry, id, source)| {
            let stat = self.layout.stat_image(shelf, &entry)?;
            Ok(Image {
                id,
                source,
                allocated: stat.map_or(0, |stat| stat.allocated),
            })
        });
        held.collect()
    }
}

#[cfg(test)]
mod tests;
