//! The records and images of volumes: how they are changed and opened.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file_names::{EntryKind, IMAGE};
use super::image_stat::ImageStat;
use super::load;
use super::pool::CHANGING;
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
    pub fn clear_in_volume(
        &self,
        id: &VolumeId,
        change: impl FnOnce(&mut VolumeRecord),
    ) -> Result<()> {
        let pool = self.with_id(id.pool())?;
        let mut cleared = None;
        let updated = pool.update(id, |record| {
            change(record);
            cleared = Some(record.clone());
        });
        match (updated, cleared) {
            (Err(Error::Kernel(error)), Some(record)) => {
                tracing::warn!(volume = %id, %error, "can't write the record; on disk it claims more than there is");
                pool.index.write().put_volume(Arc::new(record));
                Ok(())
            }
            (updated, _) => updated.map(drop),
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
    /// nothing has changed.
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
        // A copy changes its source's record beside calls that publish it.
        let _alone = self.changing[id.uuid().as_u128() as usize % CHANGING].lock();
        let found = self.index.read().volumes.get(*id)?;
        let before = found.ok_or(Error::NoVolume(VolumeHandle::Id(*id)))?;
        let mut record = (*before).clone();
        change(&mut record);
        let durable = record.with_state_until_reboot(&before);
        if durable == *before {
            self.sync_record(*id)?;
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

    /// Syncs the name of a record, unless that is known to survive a power cut.
    fn sync_record(&self, id: VolumeId) -> Result<()> {
        if self.synced.lock().contains(&id) {
            return Ok(());
        }
        self.layout.sync_volume(id)?;
        self.synced.lock().insert(id);
        Ok(())
    }

    /// Replaces the durable part of a record on disk, then the record in the index.
    fn replace_durable(&self, record: VolumeRecord) -> Result<()> {
        self.synced.lock().remove(&record.id);
        let replaced = self.layout.replace(&record);
        if replaced.is_ok() {
            self.synced.lock().insert(record.id);
        } else {
            // Only the last fsync may have failed, so the index follows the record on disk. The
            // next update repeats the fsync.
            match load::read_one::<VolumeRecord>(&self.layout, record.id) {
                Ok(on_disk) if on_disk == record.durable() => {}
                _ => return replaced,
            }
        }
        self.index.write().put_volume(Arc::new(record));
        replaced
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
                wanted: capacity_bytes,
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
        Provisioning::Thick => kernel.allocate(image, to),
    }
}
