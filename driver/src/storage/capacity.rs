//! The space that a pool can promise: pure arithmetic over filesystem usage and the promises in
//! the records. All figures are bytes.
//!
//! Every volume may grow to its whole size, and every snapshot to all that it held when it was
//! taken: a write to a volume that shares blocks with a snapshot allocates new blocks. The sum of
//! both is the *promised* space. It must fit the pool's *room*: the free space plus the space that
//! the driver's images hold already.

use std::collections::HashMap;

use uuid::Uuid;

use super::{PoolOptions, Provisioning, Reserve, SnapshotRecord, VolumeRecord};
use crate::kernel::{FsUsage, whole_blocks};

#[cfg(test)]
mod tests;

/// The configured limits of a pool, see [`PoolOptions`] and [`PoolSpec`](super::PoolSpec).
#[derive(Clone, Debug)]
pub(super) struct CapacityLimits {
    pub(super) overcommit: f64,
    pub(super) reserve: Reserve,
    pub(super) max_volume_bytes: Option<u64>,
    pub(super) capacity_bytes: Option<u64>,
}

impl CapacityLimits {
    pub(super) fn new(options: &PoolOptions, capacity_bytes: Option<u64>) -> Self {
        CapacityLimits {
            overcommit: options.overcommit,
            reserve: options.reserve,
            max_volume_bytes: options.max_volume_bytes,
            capacity_bytes,
        }
    }
}

/// The space that a pool can promise now, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Total for new volumes.
    pub available: u64,
    /// Largest size of a single volume.
    pub largest: u64,
}

/// A pool's space accounting on one filesystem, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpaceUsage {
    /// The filesystem's size and free space. What a file on it holds for the filesystem above is
    /// free as well, if it is unused there.
    pub(super) filesystem: FsUsage,
    /// The part of the free space that such a file holds already.
    pub(super) unused: u64,
    /// Space that the driver's images hold, as a lower bound: see [`held`].
    pub(super) ours: u64,
    /// Promised to volumes, snapshots and running operations.
    pub(super) promised: u64,
    /// Promised by other pools on the same filesystem.
    pub(super) others: u64,
    /// Space that running operations are about to allocate.
    pub(super) taking: u64,
}

/// The space that an operation requests from a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpaceRequest {
    /// Bytes that the operation promises.
    pub(super) promise: u64,
    /// Bytes of the promise that it allocates at once: thick volumes, and copies without reflinks.
    pub(super) take: u64,
    /// True for a thick volume: the pool's image must have all its blocks, too.
    pub(super) thick: bool,
}

impl SpaceRequest {
    /// The request of a new volume: a thick volume allocates its space at once, a thin one later.
    pub(super) fn volume(bytes: u64, provisioning: Provisioning) -> Self {
        let thick = provisioning == Provisioning::Thick;
        SpaceRequest {
            promise: bytes,
            take: if thick { bytes } else { 0 },
            thick,
        }
    }
}

/// Space that can still be promised to volumes with this provisioning. Every filesystem of the
/// pool must have that space. `lacks` is the number of bytes for which the pool's image has no
/// blocks: before the first thick volume, it gets all of them from the filesystem that holds it,
/// the second one.
pub(super) fn capacity(
    usages: &[SpaceUsage],
    limits: &CapacityLimits,
    provisioning: Provisioning,
    lacks: u64,
) -> Capacity {
    let thin = promisable(usages, limits);
    let available = match (provisioning, usages) {
        (Provisioning::Thin, _) => thin,
        // With all its blocks, the image needs no further space below.
        (Provisioning::Thick, [own, ..]) if lacks > 0 && fits_below(usages, limits, lacks) => {
            thin.min(takeable(&[*own], limits))
        }
        (Provisioning::Thick, [_, ..]) if lacks > 0 => 0,
        (Provisioning::Thick, _) => thin.min(takeable(usages, limits)),
    };
    let available = whole_blocks(available);
    Capacity {
        available,
        largest: whole_blocks(available.min(limits.max_volume_bytes.unwrap_or(u64::MAX))),
    }
}

/// True if the filesystems below the pool's own have this much free space, in bytes, without that
/// which the files on them hold already.
pub(super) fn fits_below(usages: &[SpaceUsage], limits: &CapacityLimits, bytes: u64) -> bool {
    let below = usages.get(1..).unwrap_or_default();
    below.is_empty() || bytes <= takeable_without(below, limits, |on| on.unused)
}

/// Checks that an operation fits. The error is the size in bytes that would fit.
pub(super) fn admit(
    usages: &[SpaceUsage],
    limits: &CapacityLimits,
    request: SpaceRequest,
) -> Result<(), u64> {
    let promisable = promisable(usages, limits);
    if request.promise > promisable {
        return Err(whole_blocks(promisable));
    }
    let takeable = takeable(usages, limits);
    if request.take > takeable {
        return Err(whole_blocks(takeable.min(promisable)));
    }
    Ok(())
}

/// Space that can be promised, with overcommit.
fn promisable(usages: &[SpaceUsage], limits: &CapacityLimits) -> u64 {
    let each = usages.iter().map(|on| promisable_on(on, limits));
    each.min().unwrap_or(0)
}

fn promisable_on(usage: &SpaceUsage, limits: &CapacityLimits) -> u64 {
    let room = (usage.filesystem.available_bytes.saturating_add(usage.ours))
        .saturating_sub(limits.reserve.of(usage.filesystem.total_bytes));
    // Floats are exact only up to 8 PiB, so the default factor of 1 avoids them.
    let room = if limits.overcommit == 1.0 {
        room
    } else {
        (room as f64 * limits.overcommit) as u64
    };
    let room = room.saturating_sub(usage.others);
    let room = room.min(limits.capacity_bytes.unwrap_or(u64::MAX));
    room.saturating_sub(usage.promised)
}

/// Free space that can be allocated now.
fn takeable(usages: &[SpaceUsage], limits: &CapacityLimits) -> u64 {
    takeable_without(usages, limits, |_| 0)
}

fn takeable_without(
    usages: &[SpaceUsage],
    limits: &CapacityLimits,
    less: fn(&SpaceUsage) -> u64,
) -> u64 {
    let each = usages.iter().map(|on| {
        let reserve = limits.reserve.of(on.filesystem.total_bytes);
        let kept = reserve.saturating_add(on.taking).saturating_add(less(on));
        on.filesystem.available_bytes.saturating_sub(kept)
    });
    each.min().unwrap_or(0)
}

/// An image, as input of [`held`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Image {
    /// The identity of the image's volume or snapshot.
    pub(super) id: Uuid,
    /// The eldest known volume or snapshot with which it may share blocks, if it is a copy. Either
    /// may be deleted.
    pub(super) eldest: Option<Uuid>,
    /// Bytes allocated to the image, including shared blocks.
    pub(super) allocated: u64,
    /// True for a deleted snapshot that keeps its image.
    pub(super) is_kept_base: bool,
}

impl Image {
    pub(super) fn of_volume(record: &VolumeRecord, allocated: u64) -> Image {
        Image {
            id: record.id.uuid(),
            eldest: record.eldest(),
            allocated,
            is_kept_base: false,
        }
    }

    pub(super) fn of_snapshot(record: &SnapshotRecord, allocated: u64) -> Image {
        Image {
            id: record.id.uuid(),
            eldest: Some(record.eldest()),
            allocated,
            is_kept_base: false,
        }
    }

    pub(super) fn of_kept_base(record: &SnapshotRecord, allocated: u64) -> Image {
        Image {
            is_kept_base: true,
            ..Image::of_snapshot(record, allocated)
        }
    }
}

/// What images had between two measurements at least. One that came or went meanwhile, or grew, may not
/// have had more at that time, while another one still had what it has lost since.
pub(super) fn at_least(before: &[Image], after: &[Image]) -> Vec<Image> {
    let later: HashMap<Uuid, u64> = after.iter().map(|i| (i.id, i.allocated)).collect();
    let both = before.iter().filter_map(|image| {
        let allocated = image.allocated.min(*later.get(&image.id)?);
        Some(Image {
            allocated,
            ..*image
        })
    });
    both.collect()
}

/// Space that these images hold together at least. With reflinks, every image counts its shared
/// blocks in full, so only the largest image of each family (an image, its snapshots, their
/// clones…) counts. Once the images differ, that is less than they hold; promising too little is
/// the safe side.
pub(super) fn held(images: &[Image], share: bool) -> u64 {
    if !share {
        return images.iter().map(|image| image.allocated).sum();
    }
    let copies = images.iter();
    let mut elders: HashMap<Uuid, Uuid> = copies.filter_map(|i| Some((i.id, i.eldest?))).collect();
    let mut families: HashMap<Uuid, u64> = HashMap::new();
    for image in images {
        let largest = families.entry(eldest(image.id, &mut elders)).or_default();
        *largest = (*largest).max(image.allocated);
    }
    families.values().sum()
}

/// Space that does not count as [`held`] without the deleted snapshots that keep their images, if images
/// share blocks.
pub(super) fn held_by_kept_bases(images: &[Image]) -> u64 {
    let mut others = images.to_vec();
    others.retain(|image| !image.is_kept_base);
    held(images, true).saturating_sub(held(&others, true))
}

/// The eldest known one of an image's family, even if its own image is gone. All that lie between
/// lead straight to it from then on: records of earlier builds name only their source, so a line of
/// copies may be as long as there are images.
fn eldest(id: Uuid, elders: &mut HashMap<Uuid, Uuid>) -> Uuid {
    let mut eldest = id;
    let mut younger = Vec::new();
    // Taking each one out ends cycles in broken records.
    while let Some(elder) = elders.remove(&eldest) {
        younger.push(eldest);
        eldest = elder;
    }
    let younger = younger.into_iter().filter(|id| *id != eldest);
    elders.extend(younger.map(|id| (id, eldest)));
    eldest
}
