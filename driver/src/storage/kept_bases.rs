//! Deleted snapshots that keep their images, so that a later snapshot can be compared with them.
//!
//! A map of the blocks would not do: once no other image has a block, it is overwritten in place or
//! given to others, and equal addresses then mean other content. So the image itself stays, under
//! `trash/`, if the snapshot's class says so. No call lists it, restores it or finds its name.
//!
//! Nothing depends on it: without it, a backup tool reads all blocks. So it goes before anything
//! is refused for want of room, the oldest first, and with its volume: no later snapshot could be
//! compared with it, and who deletes a volume wants its data gone.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::capacity::{SpaceRequest, SpaceUsage};
use super::file_names::{EntryKind, kept_id, kept_name};
use super::index::Index;
use super::load;
use super::{About, Error, Pool, Pools, Result, SnapshotId, SnapshotRecord, VolumeId};
use crate::kernel::file;
use crate::record::{KEEP_DELETED_BASES, deleted_bases, namespace_of};

#[cfg(test)]
mod tests;

/// How long a filesystem may take to free a removed file before the next one goes. XFS frees its
/// blocks a moment later; btrfs may take longer.
const FREEING: Duration = Duration::from_millis(500);

/// How long a call waits for that in all. The images of one namespace may be many and small, and the
/// calls of others must not wait for each of them.
const FREEING_ALL: Duration = Duration::from_secs(5);

/// How often to look whether it has.
const LOOK: Duration = Duration::from_millis(10);

/// The time that a call may still wait for a filesystem to free what was removed.
pub(super) struct FreeingTime {
    left: Duration,
}

impl FreeingTime {
    pub(super) fn begin() -> FreeingTime {
        FreeingTime { left: FREEING_ALL }
    }

    /// Waits until there is room, or the filesystem has had its time to free what was removed.
    pub(super) fn wait(&mut self, mut has_room: impl FnMut() -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        let longest = FREEING.min(self.left);
        while !has_room()? && began.elapsed() < longest {
            std::thread::sleep(LOOK);
        }
        self.left = self.left.saturating_sub(began.elapsed());
        Ok(())
    }
}

/// How many deleted snapshots of a volume the class of one of them lets keep their images. A
/// member of a group is deleted with its group, as a whole.
fn most(snapshot: &SnapshotRecord) -> usize {
    let value = snapshot.parameters.get(KEEP_DELETED_BASES);
    let value = value.filter(|_| snapshot.group.is_none());
    value
        .and_then(|value| deleted_bases(value))
        .unwrap_or_default()
}

/// The deleted snapshots of one volume that are too many, from the newest to the oldest with the
/// number that each one's class allows. Each is kept while fewer newer ones are.
fn surplus(newest_first: impl IntoIterator<Item = (SnapshotId, usize)>) -> Vec<SnapshotId> {
    let mut kept = 0;
    let mut surplus = Vec::new();
    for (id, most) in newest_first {
        if kept < most {
            kept += 1;
        } else {
            surplus.push(id);
        }
    }
    surplus
}

/// The deleted snapshots of a volume, the newest first, with the number that each one's class
/// allows.
fn newest_first(index: &Index, volume: VolumeId) -> Vec<(SnapshotId, usize)> {
    let bases = index.bases().rev().filter(|base| base.source == volume);
    bases.map(|base| (base.id, most(base))).collect()
}

/// False for a volume that is deleted. One with an unusable record is there.
fn has_volume(index: &Index, volume: VolumeId) -> bool {
    !matches!(index.volumes.get(volume), Ok(None))
}

impl Pools {
    /// Finds a snapshot to compare with: one that exists, or a deleted one that keeps its image.
    /// Errors are those of [`Pools::snapshot`].
    pub fn base(&self, id: &SnapshotId) -> Result<Arc<SnapshotRecord>> {
        let pool = self.with_id(id.pool())?;
        let kept = pool.index.read().base(*id).cloned();
        kept.map_or_else(|| self.snapshot(id), Ok)
    }

    /// Opens the image of a snapshot for reading, also of a deleted one that keeps it.
    pub fn open_base(&self, base: &SnapshotRecord) -> Result<File> {
        self.with_id(base.id.pool())?.open_base(base.id)
    }

    /// The deleted snapshots that keep their images in the open pools, oldest first.
    pub fn kept_bases(&self) -> Vec<Arc<SnapshotRecord>> {
        let pools = self.pools();
        let bases = pools.iter().flat_map(|pool| -> Vec<Arc<SnapshotRecord>> {
            pool.index.read().bases().cloned().collect()
        });
        bases.collect()
    }

    /// Frees the oldest deleted snapshot of a namespace that keeps its image, in any pool, for a
    /// snapshot in this one. False if there is none.
    pub(super) fn drop_oldest_base_of(&self, namespace: &str, pool: &Pool) -> bool {
        let bases = self.kept_bases();
        let its = bases
            .iter()
            .filter(|base| namespace_of(&base.parameters) == namespace);
        let Some(oldest) = its.min_by_key(|base| base.id.uuid()) else {
            return false;
        };
        let Ok(holder) = self.with_id(oldest.id.pool()) else {
            return false;
        };
        if holder.id == pool.id {
            holder.drop_base(oldest.id);
        } else {
            // Another pool may hang, so [`Pools::tend`] frees it.
            holder.index.write().take_base(oldest.id);
            holder.layout.free_later(kept_name(oldest.id));
        }
        true
    }
}

impl Pool {
    /// Deletes a snapshot. It keeps its image if its class says so, its volume exists, and no more
    /// newer ones than allowed keep theirs. Otherwise its space is freed.
    pub(super) fn retire_snapshot(&self, id: SnapshotId) -> Result<()> {
        let Some(volume) = self.keeps(id) else {
            return self.drop_retired(id);
        };
        if !self.layout.keep_base(id)? {
            return self.drop_retired(id);
        }
        self.index.write().keep_base(id);
        self.forget(&About::Snapshot(id));
        tracing::debug!(snapshot = %id, %volume, "a deleted snapshot keeps its image");
        // The volume may have been deleted meanwhile.
        self.drop_surplus_bases(volume);
        Ok(())
    }

    /// Deletes a snapshot and frees its space, also that of an image which an earlier deletion has kept:
    /// it failed only at an fsync, or a person has copied the snapshot back.
    fn drop_retired(&self, id: SnapshotId) -> Result<()> {
        self.drop_snapshot(id)?;
        if !matches!(self.layout.stat_kept(id), Ok(None)) {
            self.drop_base(id);
        }
        Ok(())
    }

    /// The volume of a snapshot that is to keep its image; `None` if its image goes with it.
    fn keeps(&self, id: SnapshotId) -> Option<VolumeId> {
        let index = self.index.read();
        let snapshot = index.snapshots.get(id).ok().flatten()?;
        let volume = snapshot.source;
        let mut all = newest_first(&index, volume);
        let newer = all.iter().take_while(|(other, _)| *other > id).count();
        all.insert(newer, (id, most(&snapshot)));
        let is_kept = has_volume(&index, volume) && !surplus(all).contains(&id);
        is_kept.then_some(volume)
    }

    /// Frees the deleted snapshots of a volume that are too many; all of them once the volume is
    /// deleted.
    pub(super) fn drop_surplus_bases(&self, volume: VolumeId) {
        let surplus = {
            let index = self.index.read();
            let all = newest_first(&index, volume);
            if has_volume(&index, volume) {
                surplus(all)
            } else {
                all.into_iter().map(|(id, _)| id).collect()
            }
        };
        for id in surplus {
            self.drop_base(id);
        }
    }

    /// Frees a deleted snapshot that keeps its image. Who has the image open can read it to its
    /// end.
    fn drop_base(&self, id: SnapshotId) {
        tracing::debug!(snapshot = %id, "freeing the image of a deleted snapshot");
        self.index.write().take_base(id);
        self.layout.free(&kept_name(id));
    }

    /// Bytes that would not be promised without the deleted snapshots that keep their images.
    pub fn promised_to_bases(&self) -> u64 {
        self.index.read().promised_to_bases()
    }

    /// Frees the oldest deleted snapshot that keeps its image. False if there is none.
    pub(super) fn drop_oldest_base(&self) -> bool {
        let oldest = self.index.read().bases().next().map(|base| base.id);
        if let Some(id) = oldest {
            self.drop_base(id);
        }
        oldest.is_some()
    }

    /// Frees deleted snapshots that keep their images, the oldest first, while less than the
    /// reserve is free. False if less is free without them, too.
    pub(super) fn restore_reserve(&self) -> Result<bool> {
        let mut freeing = FreeingTime::begin();
        while self.below_reserve()? {
            if !self.drop_oldest_base() {
                return Ok(false);
            }
            freeing.wait(|| Ok(!self.below_reserve()?))?;
        }
        Ok(true)
    }

    /// Frees one deleted snapshot that keeps its image if less than the reserve is free. Some
    /// filesystems free space only later, so this is called periodically.
    pub(super) fn tend_bases(&self) {
        let has_bases = self.index.read().bases().next().is_some();
        // A pool that can't be measured is reported elsewhere.
        if has_bases && self.below_reserve().unwrap_or_default() {
            self.drop_oldest_base();
        }
    }

    /// True if a request may fit without the deleted snapshots that keep their images. It may
    /// measure all images.
    pub(super) fn may_fit_without_bases(
        &self,
        usages: &[SpaceUsage],
        request: SpaceRequest,
    ) -> Result<bool> {
        let mut without = usages.to_vec();
        self.leave_out_bases(&mut without)?;
        Ok(self.admit(&without, request).is_ok())
    }

    /// Makes these figures those without the deleted snapshots that keep their images. What is
    /// promised to them is the most that they free: their volumes may share it.
    pub(super) fn leave_out_bases(&self, usages: &mut [SpaceUsage]) -> Result<()> {
        let promised = self.promised_to_bases();
        if promised == 0 {
            return Ok(());
        }
        let held = self.held_by_kept_bases(promised)?;
        for usage in usages.iter_mut() {
            usage.promised = usage.promised.saturating_sub(promised);
        }
        if let Some(own) = usages.first_mut() {
            let available = &mut own.filesystem.available_bytes;
            *available = available.saturating_add(promised);
            own.ours = own.ours.saturating_sub(held);
        }
        Ok(())
    }

    /// Opens the image of a snapshot for reading, also of a deleted one that keeps it.
    /// [`Error::NoSnapshot`] if neither is there.
    pub(super) fn open_base(&self, id: SnapshotId) -> Result<File> {
        let entry = id.to_string();
        let opened = self.layout.open_image(EntryKind::Snapshots, &entry, false);
        let Err(Error::ImageMissing { .. }) = opened else {
            return opened;
        };
        let kept = self.layout.open_kept(id);
        let is_there = !matches!(self.index.read().snapshots.get(id), Ok(None));
        match kept {
            // The record is there, and its image is not.
            Err(Error::NoSnapshot(_)) if is_there => opened,
            kept => kept,
        }
    }
}

/// Adds the deleted snapshots that keep their images to the index of a pool that is being opened.
/// Frees those that are not whole, are too many, or have no volume any more.
pub(super) fn recover(pool: &Pool) -> Result<()> {
    let mut buffer = Vec::new();
    let mut volumes = BTreeSet::new();
    for name in file::list(pool.layout.trash())? {
        let Some(id) = kept_id(&name).filter(|id| id.pool() == pool.id) else {
            continue;
        };
        // A filesystem without a journal may have kept both names, until a person has decided.
        if !matches!(pool.index.read().snapshots.get(id), Ok(None)) {
            continue;
        }
        match whole(pool, &name, id, &mut buffer) {
            Some(record) => {
                volumes.insert(record.source);
                pool.index.write().put_base(Arc::new(record));
            }
            None => pool.layout.free(&name),
        }
    }
    for volume in volumes {
        pool.drop_surplus_bases(volume);
    }
    Ok(())
}

/// The record of a deleted snapshot; `None` if it was being freed, or can't be used.
fn whole(pool: &Pool, name: &str, id: SnapshotId, buffer: &mut Vec<u8>) -> Option<SnapshotRecord> {
    let record: SnapshotRecord = load::stored(pool.layout.trash(), name, id, buffer).ok()?;
    let image = pool.layout.stat_kept(id).ok().flatten()?;
    (image.bytes >= record.size_bytes).then_some(record)
}
