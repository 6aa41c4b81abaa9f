//! The records and images of volumes: how they are changed and opened.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::file_names::{EntryKind, IMAGE};
use super::image_stat::ImageStat;
use super::layout::ReplaceError;
use super::load;
use super::pool::CHANGING;
use super::record_sync::RecordSync;
use super::scratch_mount;
use super::state_until_reboot;
use super::{Error, Pool, Pools, Provisioning, Result, Settings};
use super::{FreezeIntent, SnapshotRecord, Stage, VolumeHandle, VolumeId, VolumeRecord};
use crate::diagnose::{VolumeIdentity, lengths_differ};
use crate::kernel::{self, FileId, Kernel, file};

mod create;
mod delete_unused;
mod expand;
mod format_at_create;
#[cfg(test)]
mod tests;

impl Pools {
    /// Takes away a mount of the volume that an earlier version's interrupted thaw left.
    pub fn unmount_scratch(&self, id: VolumeId, image: FileId) -> Result<()> {
        scratch_mount::unmount(&*self.kernel, &self.options.state_dir, id, image)
    }

    /// Identifies a volume with an unusable record, by its image and its `state.json`.
    pub(crate) fn identity_without_record(&self, id: VolumeId) -> VolumeIdentity {
        let Ok(pool) = self.with_id(id.pool()) else {
            return VolumeIdentity::unrecorded(id);
        };
        let image = pool.stat_image(&id).ok().flatten();
        let (stage, _) = pool.state_until_reboot(id);
        VolumeIdentity::without_record(id, image.map(|image| image.file), stage.as_deref())
    }

    /// Changes a record: on disk first, then in the index.
    pub fn update_volume(
        &self,
        id: &VolumeId,
        change: impl FnOnce(&mut VolumeRecord),
    ) -> Result<Arc<VolumeRecord>> {
        let pool = self.with_id(id.pool())?;
        pool.update(id, change)
    }

    /// Clears a completed state from a record. If the pool takes no writes, only the index
    /// changes. The record on disk then claims more than the kernel shows, as after a crash.
    /// [`Pools::tend`] tries to write `volume.json` again. This also works in a pool that a fault has set
    /// aside: no recovery follows the end of that fault, so what is not cleared now would stay.
    pub fn clear_in_volume(
        &self,
        id: &VolumeId,
        change: impl FnOnce(&mut VolumeRecord),
    ) -> Result<()> {
        let pool = match self.with_id(id.pool()) {
            Err(missing) => self.pool_set_aside(id.pool()).ok_or(missing)?,
            open => open?,
        };
        pool.clear(id, change)
    }

    /// Syncs a record for a caller that acknowledges its publications as they are. That fails only
    /// if the disk may have others through a change of this process. On a broken or full disk, what
    /// an earlier process has done must be enough, and [`Pools::tend`] tries again.
    pub fn acknowledge_volume(&self, id: &VolumeId) -> Result<()> {
        let pool = self.with_id(id.pool())?;
        match pool.update(id, |_| {}) {
            Err(Error::Kernel(error))
                if pool.synced.lock().get(id) != Some(&RecordSync::Unsynced) =>
            {
                tracing::warn!(volume = %id, %error, "can't sync the record, which stays as it is");
                pool.to_sync.lock().insert(*id);
                Ok(())
            }
            updated => updated.map(drop),
        }
    }

    /// Opens a volume's image. Fails with [`Error::ImageMissing`] if the image does not exist, and
    /// with [`Error::Corrupt`] if it is shorter than its record says.
    pub fn open_image(&self, volume: &VolumeRecord, write: bool) -> Result<File> {
        let pool = self.with_id(volume.id.pool())?;
        let entry = volume.id.to_string();
        let image = pool.layout.open_image(EntryKind::Volumes, &entry, write)?;
        let len = file::length(&image)?;
        if len < volume.capacity_bytes {
            // A loop device over a short image would show a truncated disk.
            let why = lengths_differ(len, volume.capacity_bytes);
            let path = pool.image_path(&volume.id);
            return Err(Error::Corrupt { path, why });
        }
        Ok(image)
    }

    /// Opens a volume's image for reading, without a check of its length.
    pub(crate) fn open_image_unchecked(&self, volume: &VolumeRecord) -> Result<File> {
        let (pool, entry) = (self.with_id(volume.id.pool())?, volume.id.to_string());
        pool.layout.open_image(EntryKind::Volumes, &entry, false)
    }

    /// Opens a snapshot's image for reading.
    pub fn open_snapshot(&self, snapshot: &SnapshotRecord) -> Result<File> {
        let (pool, entry) = (self.with_id(snapshot.id.pool())?, snapshot.id.to_string());
        pool.layout.open_image(EntryKind::Snapshots, &entry, false)
    }

    /// Changes the settings in the record and the image; a change to thick allocates and unshares
    /// the space. The caller changes the loop device and mounts in use. After [`Error::NoRoom`]
    /// and [`Error::Refused`] nothing has changed.
    pub fn modify_volume(&self, id: &VolumeId, settings: Settings) -> Result<Arc<VolumeRecord>> {
        let record = self.volume(&VolumeHandle::Id(*id))?;
        let pool = self.with_id(id.pool())?;
        let to_thick = settings.provisioning == Provisioning::Thick
            && record.settings.provisioning == Provisioning::Thin;
        if to_thick {
            pool.make_thick(&record, &self.open_image(&record, true)?, true)?;
        }
        pool.update(id, |record| record.settings = settings)
    }
}

impl Pool {
    /// Changes a record: on disk first, then in the index. A change of the state in the running
    /// kernel alone needs no fsync. The durable part is written first. So `format: done` is on disk
    /// before the minor, and NodePublishVolume refuses a volume without a minor.
    ///
    /// The caller acknowledges the record, also one that stays the same. So the first update of a
    /// record that was there before this process syncs it.
    pub(super) fn update(
        &self,
        id: &VolumeId,
        change: impl FnOnce(&mut VolumeRecord),
    ) -> Result<Arc<VolumeRecord>> {
        let _lock = self.lock_record(id);
        self.update_locked(id, change)
    }

    /// [`Pools::clear_in_volume`].
    pub(super) fn clear(
        &self,
        id: &VolumeId,
        change: impl FnOnce(&mut VolumeRecord),
    ) -> Result<()> {
        // Held to the end: the index has the old record meanwhile, the disk perhaps the new one.
        let _lock = self.lock_record(id);
        let mut cleared = None;
        let updated = self.update_locked(id, |record| {
            let before = record.clone();
            change(record);
            cleared = Some((record.clone(), before));
        });
        match (updated, cleared) {
            (Err(Error::Kernel(error)), Some((record, before))) => {
                tracing::warn!(volume = %id, %error, "can't write the record; on disk it claims more than there is");
                self.note_unwritten(&record, &before);
                self.index.write().put_volume(Arc::new(record));
                self.to_sync.lock().insert(*id);
                Ok(())
            }
            (updated, _) => updated.map(drop),
        }
    }

    /// Notes that the disk may lack this change of a record, or have it only until a power cut.
    fn note_unwritten(&self, record: &VolumeRecord, before: &VolumeRecord) {
        if record.same_durable(before) {
            return;
        }
        let mut synced = self.synced.lock();
        let is_behind = synced.get(&record.id) != Some(&RecordSync::Unsynced)
            && record.publications == before.publications;
        let state = if is_behind {
            RecordSync::Behind
        } else {
            RecordSync::Unsynced
        };
        synced.insert(record.id, state);
    }

    /// Keeps others from changing a volume's record: a copy changes its source's record beside
    /// calls that publish it.
    fn lock_record(&self, id: &VolumeId) -> MutexGuard<'_, ()> {
        self.changing[id.uuid().as_u128() as usize % CHANGING].lock()
    }

    /// [`Pool::update`], for a caller that has locked the record.
    fn update_locked(
        &self,
        id: &VolumeId,
        change: impl FnOnce(&mut VolumeRecord),
    ) -> Result<Arc<VolumeRecord>> {
        let found = self.index.read().volumes.get(*id)?;
        let before = found.ok_or(Error::NoVolume(VolumeHandle::Id(*id)))?;
        let mut record = (*before).clone();
        change(&mut record);
        let durable = record.with_state_until_reboot(&before);
        if durable == *before {
            self.sync_or_rewrite(&before)?;
        }
        if record == *before {
            return Ok(before);
        }
        // Encoded first: what can't be encoded changes nothing.
        let state = state_until_reboot::encode(&record, self.layout.boot())?;
        if durable != *before {
            self.replace_durable(durable)?;
        }
        let record = Arc::new(record);
        if !record.same_state_until_reboot(&before) {
            self.layout.replace_state(record.id, state.as_deref())?;
            self.index.write().put_volume(record.clone());
        }
        Ok(record)
    }

    /// Syncs the name of a record, unless that is known to survive a power cut. After a change that
    /// failed, the disk may have another record than the index, and gets this one.
    fn sync_or_rewrite(&self, record: &VolumeRecord) -> Result<()> {
        let synced = self.synced.lock().get(&record.id).copied();
        match synced {
            Some(RecordSync::Synced) => return Ok(()),
            Some(RecordSync::Unsynced | RecordSync::Behind)
                if !self.is_on_disk(record).unwrap_or_default() =>
            {
                self.layout.replace(record)?
            }
            _ => self.layout.sync_volume(record.id)?,
        }
        self.synced.lock().insert(record.id, RecordSync::Synced);
        Ok(())
    }

    /// True if the disk has the durable part of this record; an error if that can't be read.
    fn is_on_disk(&self, record: &VolumeRecord) -> Result<bool> {
        let on_disk: VolumeRecord = load::read_one(&self.layout, record.id)?;
        Ok(on_disk == record.durable())
    }

    /// Syncs records that could not be synced, or writes them again.
    pub(super) fn sync_records_again(&self) {
        let to_sync = std::mem::take(&mut *self.to_sync.lock());
        for id in to_sync {
            // A volume that is gone, or has no usable record, needs no sync.
            if let Err(Error::Kernel(error)) = self.update(&id, |_| {}) {
                tracing::debug!(volume = %id, %error, "can't sync the record yet");
                self.to_sync.lock().insert(id);
            }
        }
    }

    /// Replaces the durable part of a record on disk, then the record in the index.
    fn replace_durable(&self, record: VolumeRecord) -> Result<()> {
        let id = record.id;
        let before = self.synced.lock().insert(id, RecordSync::Unsynced);
        let replaced = self.layout.replace(&record);
        match &replaced {
            Ok(()) => {
                self.synced.lock().insert(id, RecordSync::Synced);
            }
            // The earlier record is as safe as it was, also if the disk can't be read any more.
            Err(ReplaceError::Before(_)) => {
                self.restore_synced(id, before);
                return replaced.map_err(Error::from);
            }
            // Over a network, a rename that failed may have happened.
            Err(ReplaceError::Rename(_)) => match self.is_on_disk(&record) {
                Ok(true) => {}
                Ok(false) => {
                    self.restore_synced(id, before);
                    return replaced.map_err(Error::from);
                }
                // Either record may be on disk, so that of the index is written again.
                Err(_) => {
                    self.to_sync.lock().insert(id);
                    return replaced.map_err(Error::from);
                }
            },
            // The index follows the record on disk. The next update repeats the fsync.
            Err(ReplaceError::Sync(_)) => {}
        }
        self.index.write().put_volume(Arc::new(record));
        replaced.map_err(Error::from)
    }

    fn restore_synced(&self, id: VolumeId, before: Option<RecordSync>) {
        let mut synced = self.synced.lock();
        match before {
            Some(before) => synced.insert(id, before),
            None => synced.remove(&id),
        };
    }

    /// Reads the status of a volume's image without opening it; `None` if it does not exist.
    pub(super) fn stat_image(&self, id: &VolumeId) -> Result<Option<ImageStat>> {
        let entry = id.to_string();
        Ok(self.layout.stat_image(EntryKind::Volumes, &entry)?)
    }

    /// What `state.json` says of a volume.
    pub(super) fn state_until_reboot(
        &self,
        id: VolumeId,
    ) -> (Option<Box<Stage>>, Option<FreezeIntent>) {
        let file = Path::new(&id.to_string()).join(state_until_reboot::FILE);
        state_until_reboot::read(
            id,
            self.layout.entries(EntryKind::Volumes),
            &file,
            self.layout.boot(),
        )
    }

    /// The path of a volume's image, for messages.
    pub(super) fn image_path(&self, id: &VolumeId) -> PathBuf {
        self.layout
            .path_of(EntryKind::Volumes, &id.to_string(), IMAGE)
    }

    /// Fails if the size exceeds the configured maximum of a volume.
    fn limit(&self, capacity_bytes: u64) -> Result<()> {
        match self.limits.max_volume_bytes {
            Some(max) if capacity_bytes > max => Err(Error::NoRoom {
                pool: self.name().to_owned(),
                requested: capacity_bytes,
                available: max,
            }),
            _ => Ok(()),
        }
    }
}

/// Makes an image longer.
fn lengthen(
    kernel: &dyn Kernel,
    image: &File,
    from: u64,
    to: u64,
    provisioning: Provisioning,
) -> kernel::Result<()> {
    match provisioning {
        // The image is longer already: an earlier expansion was interrupted before its record.
        Provisioning::Thin if from >= to => Ok(()),
        Provisioning::Thin => file::set_len(image, to),
        Provisioning::Thick => kernel.allocate(image, 0..to),
    }
}
