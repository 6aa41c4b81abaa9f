//! The pool's books, taken from the filesystem and the index, and reservations in them.

use std::time::{Duration, Instant};

use super::accounting::{self, Books, Image, Need};
use super::layout::Shelf;
use super::locks::{lock, read};
use super::{Error, Pool, PoolKind, Result, Source};
use crate::sys::FsUsage;

/// How long a count of what our images hold is relied on. Looking at ten thousand images takes
/// some ten milliseconds, too long for every CreateVolume.
const COUNT_FOR: Duration = Duration::from_secs(2);

/// Free space and what our images hold, together. The sum hardly moves while volumes are written,
/// trimmed or deleted, since what one loses the other gains; so it is what is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    at: Instant,
    bytes: u64,
}

/// Room that is promised to an operation under way; given back when it ends, since what it made is
/// in the index by then.
#[derive(Debug)]
pub(super) struct Reservation<'a> {
    pool: &'a Pool,
    need: Need,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut under_way = lock(&self.pool.under_way);
        under_way.promise -= self.need.promise;
        under_way.take -= self.need.take;
    }
}

impl Pool {
    /// Promises room to an operation, or says what could be promised.
    pub(super) fn reserve(&self, need: Need) -> Result<Reservation<'_>> {
        let (usage, ours) = self.measure()?;
        let mut under_way = lock(&self.under_way);
        let books = self.books_with(usage, ours, *under_way);
        accounting::admit(&books, &self.limits, need).map_err(|available| Error::NoRoom {
            pool: self.name().to_owned(),
            wanted: need.promise.max(need.take),
            available,
        })?;
        under_way.promise += need.promise;
        under_way.take += need.take;
        Ok(Reservation { pool: self, need })
    }

    /// The books now.
    pub(super) fn books(&self) -> Result<Books> {
        let (usage, ours) = self.measure()?;
        let under_way = *lock(&self.under_way);
        Ok(self.books_with(usage, ours, under_way))
    }

    fn books_with(&self, usage: FsUsage, ours: u64, under_way: Need) -> Books {
        Books {
            usage,
            ours,
            promised: read(&self.index)
                .promised()
                .saturating_add(under_way.promise),
            taking: under_way.take,
        }
    }

    /// Whether less than the reserve is free: the wrong moment to freeze what must write back.
    pub(super) fn below_reserve(&self) -> Result<bool> {
        let usage = self.usage()?;
        Ok(usage.free_bytes < self.limits.reserve(usage.total_bytes))
    }

    /// Usage of the filesystem, and how much of it is surely ours.
    fn measure(&self) -> Result<(FsUsage, u64)> {
        let usage = self.usage()?;
        let used = usage.total_bytes.saturating_sub(usage.free_bytes);
        if self.kind != PoolKind::Directory {
            // Nothing but the pool is on it, and statfs counts shared blocks once.
            return Ok((usage, used));
        }
        let known = *lock(&self.room);
        let room = match known {
            Some(room) if room.at.elapsed() < COUNT_FOR => room,
            _ => {
                let ours = accounting::held(&self.images()?, self.reflinks).min(used);
                let room = Room {
                    at: Instant::now(),
                    bytes: usage.available_bytes.saturating_add(ours),
                };
                *lock(&self.room) = Some(room);
                room
            }
        };
        let ours = room.bytes.saturating_sub(usage.available_bytes);
        Ok((usage, ours.min(used)))
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
