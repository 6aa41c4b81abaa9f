//! What a pool can promise: pure arithmetic over what the filesystem says and what the records
//! promise already. All figures are bytes.
//!
//! Every volume may come to hold its whole size, and every snapshot all it held when it was
//! taken, since writing to a volume that shares its blocks with a snapshot allocates anew. The
//! sum of both is what has been *promised*; it is measured against the pool's *room*: what is free
//! and what our images hold already.

use std::collections::HashMap;

use uuid::Uuid;

use super::{Capacity, PoolOptions, Provisioning, Reserve};
use crate::kernel::{BLOCK_SIZE, FsUsage};

#[cfg(test)]
mod tests;

/// The limits a pool is kept within, as configured.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// See [`PoolOptions`].
    pub(super) overcommit: f64,
    /// See [`PoolOptions`].
    pub(super) reserve: Reserve,
    /// See [`PoolOptions`].
    pub(super) max_volume_bytes: Option<u64>,
    /// See [`PoolSpec`](super::PoolSpec).
    pub(super) capacity_bytes: Option<u64>,
}

impl Limits {
    pub(super) fn new(options: &PoolOptions, capacity_bytes: Option<u64>) -> Self {
        Limits {
            overcommit: options.overcommit,
            reserve: options.reserve,
            max_volume_bytes: options.max_volume_bytes,
            capacity_bytes,
        }
    }
}

/// A pool's space accounting on one filesystem, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpaceUsage {
    /// The filesystem's size and free space.
    pub(super) usage: FsUsage,
    /// What our images hold of the used space; never more than is surely ours.
    pub(super) ours: u64,
    /// Promised to volumes, snapshots and whatever is being made.
    pub(super) promised: u64,
    /// Promised by other pools on the same filesystem.
    pub(super) others: u64,
    /// Space that operations under way are about to take at once.
    pub(super) taking: u64,
}

/// What an operation asks of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpaceRequest {
    /// Bytes it promises.
    pub(super) promise: u64,
    /// Bytes of these that it takes at once: what is thick, and copies by value.
    pub(super) take: u64,
}

impl SpaceRequest {
    /// A promise that may be taken later, or at once.
    pub(super) fn volume(bytes: u64, provisioning: Provisioning) -> Self {
        SpaceRequest {
            promise: bytes,
            take: if provisioning == Provisioning::Thick {
                bytes
            } else {
                0
            },
        }
    }
}

/// Space that can still be promised to volumes with this provisioning. Each of the filesystems must
/// have that space.
pub(super) fn capacity(
    books: &[SpaceUsage],
    limits: &Limits,
    provisioning: Provisioning,
) -> Capacity {
    let thin = promisable(books, limits);
    let available = match provisioning {
        Provisioning::Thin => thin,
        Provisioning::Thick => thin.min(takeable(books, limits)),
    };
    let available = in_blocks(available);
    Capacity {
        available,
        largest: in_blocks(available.min(limits.max_volume_bytes.unwrap_or(u64::MAX))),
    }
}

/// Whether an operation fits; if not, what would have.
pub(super) fn admit(books: &[SpaceUsage], limits: &Limits, need: SpaceRequest) -> Result<(), u64> {
    let promisable = promisable(books, limits);
    if need.promise > promisable {
        return Err(in_blocks(promisable));
    }
    let takeable = takeable(books, limits);
    if need.take > takeable {
        return Err(in_blocks(takeable.min(promisable)));
    }
    Ok(())
}

/// What may be promised with the hope that it is not all taken.
fn promisable(books: &[SpaceUsage], limits: &Limits) -> u64 {
    let each = books.iter().map(|books| promisable_on(books, limits));
    each.min().unwrap_or(0)
}

fn promisable_on(books: &SpaceUsage, limits: &Limits) -> u64 {
    let room = (books.usage.available_bytes.saturating_add(books.ours))
        .saturating_sub(limits.reserve.of(books.usage.total_bytes));
    // A float is exact up to 8 PiB; a factor of one stays out of it all the same.
    let room = if limits.overcommit == 1.0 {
        room
    } else {
        (room as f64 * limits.overcommit) as u64
    };
    let room = room.saturating_sub(books.others);
    let room = room.min(limits.capacity_bytes.unwrap_or(u64::MAX));
    room.saturating_sub(books.promised)
}

/// What is there to be taken now.
fn takeable(books: &[SpaceUsage], limits: &Limits) -> u64 {
    let each = books.iter().map(|books| takeable_on(books, limits));
    each.min().unwrap_or(0)
}

fn takeable_on(books: &SpaceUsage, limits: &Limits) -> u64 {
    (books.usage.available_bytes)
        .saturating_sub(limits.reserve.of(books.usage.total_bytes))
        .saturating_sub(books.taking)
}

fn in_blocks(bytes: u64) -> u64 {
    bytes - bytes % u64::from(BLOCK_SIZE)
}

/// An image, for [`held`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Image {
    /// Its own identity.
    pub(super) id: Uuid,
    /// What it was copied from, and may share blocks with.
    pub(super) source: Option<Uuid>,
    /// Bytes allocated to it, shared ones included.
    pub(super) allocated: u64,
}

/// What these images surely hold together. Where files share blocks, every image counts its
/// shared ones in full; so of each family (an image, its snapshots, their clones…) only the
/// largest is counted. That is less than they hold once they differ: to promise too little is the
/// safe side.
pub(super) fn held(images: &[Image], share: bool) -> u64 {
    if !share {
        return images.iter().map(|image| image.allocated).sum();
    }
    let sources: HashMap<Uuid, Option<Uuid>> = images.iter().map(|i| (i.id, i.source)).collect();
    let mut families: HashMap<Uuid, u64> = HashMap::new();
    for image in images {
        let largest = families.entry(ancestor(image.id, &sources)).or_default();
        *largest = (*largest).max(image.allocated);
    }
    families.values().sum()
}

/// The oldest ancestor that is known, even if its own image is gone.
fn ancestor(mut id: Uuid, sources: &HashMap<Uuid, Option<Uuid>>) -> Uuid {
    // No lineage is longer than the images are many: a circle in broken records ends here too.
    for _ in 0..sources.len() {
        match sources.get(&id) {
            Some(Some(source)) => id = *source,
            _ => break,
        }
    }
    id
}
