//! Creation, modification and deletion of volumes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_events::phase;

use super::boot_state;
use super::capacity::SpaceRequest;
use super::content_source::CopyJob;
use super::copy_image;
use super::file_names::{EntryKind, IMAGE};
use super::image_file::Image;
use super::load;
use super::scratch_mount;
use super::trial_mount;
use super::{
    About, CHANGING, Error, Format, Freed, NewVolume, Pool, Pools, Provisioning, Result, Settings,
};
use super::{
    FreezeIntent, SnapshotRecord, Stage, VolumeHandle, VolumeId, VolumeRecord, VolumeSize,
};
use crate::diagnose::{KernelState, VolumeIdentity, VolumeState, lengths_differ};
use crate::kernel::file::Copied;
use crate::kernel::{self, Detached, FileId, Kernel, LoopInfo, MkfsSpec, extents, file, wanted};
use crate::record::{SCHEMA, now_ns};

#[cfg(test)]
mod tests;

impl Pools {
    /// Creates a volume in this pool. It reserves the space, builds and fills the image under
    /// `incoming/`, syncs it and renames it into place. A mounted source volume is frozen during
    /// the copy. A volume without a source gets its filesystem here, where no user and no loop
    /// device has the image yet. Fails with [`Error::NoRoom`] if the pool can't promise the space.
    pub fn create_volume(&self, pool: &Arc<Pool>, new: NewVolume) -> Result<Arc<VolumeRecord>> {
        pool.index.read().volumes.check_unused(&new.name)?;
        pool.limit(new.capacity_bytes)?;
        let origin = new
            .source
            .as_ref()
            .map(|source| self.origin(source))
            .transpose()?;
        let request = match &origin {
            Some(origin) => origin.space_request(pool, &new)?,
            None => SpaceRequest::volume(new.capacity_bytes, new.settings.provisioning),
        };
        let _room = pool.reserve(request)?;
        let id = VolumeId::generate(pool.id);
        let incoming = pool.layout.begin(id.to_string())?;
        let image = incoming.image()?;
        match &origin {
            Some(origin) => {
                let settings = &new.settings;
                let want = origin.copy_request(pool, new.capacity_bytes, settings.provisioning);
                let copied = self.copy_images(&[CopyJob {
                    origin,
                    to: &image,
                    pool: pool.id,
                    want,
                }])?;
                wanted::copied();
                if !copied.is_written_back {
                    // A copy of a frozen filesystem has not waited for the disk.
                    phase("sync", || file::write_back_in_steps(&image))?;
                }
            }
            None => phase("image", || {
                let provisioning = new.settings.provisioning;
                lengthen(&*self.kernel, &image, 0, new.capacity_bytes, provisioning)
            })?,
        }
        let format = format_of(&new, origin.as_ref().map(|o| o.format));
        if let (Format::Done(fs), None) = (format, &origin) {
            self.kernel.mkfs(&MkfsSpec {
                device: &incoming.image_path(),
                image: Some(&image),
                fs,
                options: &new.mkfs_options,
                discard: false,
                uuid: None,
                force: false,
            })?;
            if !new.mkfs_options.is_empty() {
                trial_mount::try_mount(&*self.kernel, &image, id, fs)?;
            }
        }
        let mut record = record_of(new, id, format);
        pool.index.write().share(&mut record);
        let record = Arc::new(record);
        incoming.commit(&*record, Some(&image))?;
        pool.index.write().put_volume(record.clone());
        Ok(record)
    }

    /// Takes away a mount of the volume that an earlier version's interrupted thaw left.
    pub fn unmount_scratch(&self, id: VolumeId, image: FileId) -> Result<()> {
        scratch_mount::unmount(&*self.kernel, &self.options.state_dir, id, image)
    }

    /// Deletes a volume and frees its space. Fails with [`Error::Attached`] while the volume is
    /// staged, or used in this mount namespace. A container with a copy of the mount, or a program
    /// with an open handle, may still hold the loop device. The device then detaches at its last
    /// close, and only that frees the space. A missing volume is [`Error::NoVolume`].
    pub fn delete_volume(&self, id: &VolumeId) -> Result<()> {
        let record = self.volume(&VolumeHandle::Id(*id))?;
        self.delete(*id, record.stage.as_deref())
    }

    /// Deletes a volume with an unusable record, like [`Pools::delete_volume`]. Its publications
    /// are unknown, so its `state.json` and the kernel show whether it is in use.
    pub fn delete_unrecorded_volume(&self, id: VolumeId) -> Result<()> {
        let pool = self.with_id(id.pool())?;
        pool.index.read().volumes.check_deletable(id)?;
        let (stage, _) = pool.boot_state(id);
        self.delete(id, stage.as_deref())
    }

    /// Identifies a volume with an unusable record, by its image and its `state.json`.
    pub(crate) fn identity_without_record(&self, id: VolumeId) -> VolumeIdentity {
        let Ok(pool) = self.with_id(id.pool()) else {
            return VolumeIdentity::unrecorded(id);
        };
        let image = pool.stat_image(&id).ok().flatten();
        let (stage, _) = pool.boot_state(id);
        VolumeIdentity::without_record(id, image.map(|image| image.file), stage.as_deref())
    }

    /// Deletes a volume that was just unstaged, though its record still has the stage. If this
    /// fails, recovery uses the stage to find the volume.
    pub fn delete_unstaged_volume(&self, id: &VolumeId) -> Result<()> {
        self.delete(*id, None)
    }

    fn delete(&self, id: VolumeId, stage: Option<&Stage>) -> Result<()> {
        let pool = self.with_id(id.pool())?;
        let image = pool.stat_image(&id)?.map(|image| image.file);
        if let Some(image) = image {
            self.unmount_scratch(id, image)?;
        }
        self.detach_idle(id, stage, image)?;
        pool.drop_volume(id)?;
        self.growths.forget(id);
        Ok(())
    }

    /// Detaches the image's loop devices, if they have no users in this mount namespace. A device
    /// may also hold an image that was removed: then it has the only copy of the data.
    fn detach_idle(
        &self,
        id: VolumeId,
        stage: Option<&Stage>,
        image: Option<FileId>,
    ) -> Result<()> {
        if let Some(image) = image
            && kernel::loops_holding(&*self.kernel, image, &id.to_string())?.is_empty()
        {
            return Ok(());
        }
        // A mount that is not known yet would lose its image, so this reads everything.
        let kernel_state = KernelState::read(&*self.kernel)?;
        let state = VolumeState::of(
            &kernel_state,
            VolumeIdentity::without_record(id, image, stage),
        );
        let attached: Vec<&LoopInfo> = state.own().collect();
        for device in &attached {
            let mut users = kernel_state.users(device.minor);
            if let Some(stage) = stage {
                users.push(format!("staged at {}", stage.path.display()));
            }
            if users.is_empty() {
                kernel::refuse_unknown_mount(&*self.kernel, &kernel_state.mounts, device.minor)?;
            } else {
                let freed = Freed::Volume(id.to_string());
                self.announce_at_detach(device, freed);
                return Err(Error::Attached {
                    volume: VolumeHandle::Id(id),
                    by: format!("/dev/loop{} is {}", device.minor, users.join(", ")),
                });
            }
        }
        for device in attached {
            // This also marks a device that is held elsewhere to detach at its last close.
            if self.kernel.loop_release(device)? == Detached::WhenClosed {
                tracing::info!(
                    volume = %id, device = %kernel::loop_path(device.minor).display(),
                    "the volume's device is held elsewhere: its space is free when that ends"
                );
                self.announce_at_detach(device, Freed::Room);
            }
        }
        Ok(())
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

    /// Allocates the lost space of a thick volume again: trimming its filesystem or discarding
    /// blocks of its device returns space to the pool. After [`Error::NoRoom`] nothing has changed.
    pub fn refill_thick(&self, volume: &VolumeRecord, image: &File) -> Result<()> {
        if volume.settings.provisioning != Provisioning::Thick {
            return Ok(());
        }
        let pool = self.with_id(volume.id.pool())?;
        // Earlier versions made thick volumes in images without all their blocks. Such a volume
        // can still be used, and its health reports a full disk below.
        if let Err(error) = pool.back_thick(SpaceRequest::default()) {
            tracing::warn!(volume = %volume.id, %error, "a thick volume has no certain space below");
        }
        if file::allocated_bytes(image)? >= volume.capacity_bytes {
            return Ok(());
        }
        tracing::info!(volume = %volume.id, "a thick volume has lost space; allocating it again");
        pool.make_thick(volume, image, false)
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
        let image = self.open_image_unchecked(volume, write)?;
        let len = file::length(&image)?;
        if len < volume.capacity_bytes {
            // A loop device over a short image would show a truncated disk.
            let why = lengths_differ(len, volume.capacity_bytes);
            let path = self.with_id(volume.id.pool())?.image_path(&volume.id);
            return Err(Error::Corrupt { path, why });
        }
        Ok(image)
    }

    /// Opens a volume's image without a check of its length.
    pub(crate) fn open_image_unchecked(&self, volume: &VolumeRecord, write: bool) -> Result<File> {
        let pool = self.with_id(volume.id.pool())?;
        pool.open_image(EntryKind::Volumes, &volume.id.to_string(), write)
    }

    /// Opens a snapshot's image for reading.
    pub fn open_snapshot(&self, snapshot: &SnapshotRecord) -> Result<File> {
        let pool = self.with_id(snapshot.id.pool())?;
        pool.open_image(EntryKind::Snapshots, &snapshot.id.to_string(), false)
    }

    /// Grows the image (and allocates the space if thick), then the record. Never shrinks. The node
    /// service grows the loop device. After [`Error::NoRoom`] nothing has changed.
    pub fn expand_volume(
        &self,
        id: &VolumeId,
        size: impl Into<VolumeSize>,
    ) -> Result<Arc<VolumeRecord>> {
        let VolumeSize {
            bytes: capacity_bytes,
            requested,
        } = size.into();
        let record = self.volume(&VolumeHandle::Id(*id))?;
        let pool = self.with_id(id.pool())?;
        if capacity_bytes <= record.capacity_bytes {
            return pool.update(id, |record| record.requested_bytes = requested);
        }
        pool.limit(capacity_bytes)?;
        let image = self.open_image(&record, true)?;
        let more = capacity_bytes - record.capacity_bytes;
        let _room = pool.reserve(SpaceRequest::volume(more, record.settings.provisioning))?;
        let before = file::length(&image)?;
        let (kernel, provisioning) = (&*self.kernel, record.settings.provisioning);
        let grown = phase("image", || {
            lengthen(kernel, &image, before, capacity_bytes, provisioning)
        })
        // The image first: opening the pool repairs a record with a smaller size, but a record
        // with a larger size would mean a damaged volume.
        .and_then(|()| phase("sync", || file::sync(&image, &pool.image_path(id))))
        .map_err(Error::from)
        .and_then(|()| {
            pool.update(id, |record| {
                record.capacity_bytes = capacity_bytes;
                record.requested_bytes = requested;
            })
        });
        if grown.is_err() {
            pool.take_back(&record, &image, before);
        }
        grown
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
    /// Deletes a volume and frees its space.
    pub(super) fn drop_volume(&self, id: VolumeId) -> Result<()> {
        let entry = id.to_string();
        self.layout.discard(EntryKind::Volumes, &entry)?;
        self.index.write().take_volume(id);
        self.forget(&About::Volume(id));
        self.layout.free(&entry);
        Ok(())
    }

    /// Changes a record: on disk first, then in the index. A change of the state in the running
    /// kernel alone needs no fsync. The durable part is written first. So `format: done` is on disk
    /// before the minor, and NodePublishVolume refuses a volume without a minor.
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
        if record == *before {
            return Ok(before);
        }
        // Encoded first: what can't be encoded changes nothing.
        let state = boot_state::encode(&record, self.layout.boot())?;
        let durable = record.with_boot_state(&before);
        if durable != *before {
            self.replace_durable(durable)?;
        }
        let record = Arc::new(record);
        if !record.same_boot_state(&before) {
            self.layout.replace_state(record.id, state.as_deref())?;
            self.index.write().put_volume(record.clone());
        }
        Ok(record)
    }

    /// Replaces the durable part of a record on disk, then the record in the index.
    fn replace_durable(&self, record: VolumeRecord) -> Result<()> {
        let replaced = self.layout.replace(&record);
        if replaced.is_err() {
            // Only the last fsync may have failed, so the index follows the record on disk.
            match load::read_one::<VolumeRecord>(&self.layout, record.id) {
                Ok(on_disk) if on_disk == record.durable() => {}
                _ => return replaced,
            }
        }
        self.index.write().put_volume(Arc::new(record));
        replaced
    }

    /// Restores the length of an image after a failed expansion: the new end is still unused, and
    /// a thick image returns its space. Does nothing if the record already has the new size,
    /// because only the last fsync of its replacement failed.
    fn take_back(&self, before: &VolumeRecord, image: &File, len: u64) {
        let on_disk = load::read_one::<VolumeRecord>(&self.layout, before.id);
        let undone = match on_disk {
            Ok(record) if record.capacity_bytes == before.capacity_bytes => {
                file::set_len(image, len).map_err(Error::from)
            }
            Ok(_) => return,
            Err(e) => Err(e),
        };
        if let Err(e) = undone {
            tracing::warn!(
                volume = %before.id, error = %e,
                "cannot shorten an image after a failed expansion"
            );
        }
    }

    /// Allocates all of an image's space, and unshares shared blocks. `thick` as in
    /// [`SpaceRequest`].
    fn make_thick(
        self: &Arc<Self>,
        volume: &VolumeRecord,
        image: &File,
        thick: bool,
    ) -> Result<()> {
        let len = volume.capacity_bytes;
        // Blocks shared with a copy are allocated a second time.
        let shared = if self.reflinks {
            extents::shared_bytes(image)?
        } else {
            0
        };
        let missing = len.saturating_sub(file::allocated_bytes(image)?);
        let take = missing.saturating_add(shared).min(len);
        let _room = self.reserve(SpaceRequest {
            promise: 0,
            take,
            thick,
        })?;
        phase("allocate", || self.kernel.allocate(image, len))?;
        if shared > 0 {
            copy_image::keep_thick(image, len, Copied::Shared)?;
        }
        Ok(file::sync(image, &self.image_path(&volume.id))?)
    }

    /// Reads the status of a volume's image without opening it; `None` if it does not exist.
    pub(super) fn stat_image(&self, id: &VolumeId) -> Result<Option<Image>> {
        let entry = id.to_string();
        Ok(self.layout.stat_image(EntryKind::Volumes, &entry)?)
    }

    /// What `state.json` says of a volume.
    pub(super) fn boot_state(&self, id: VolumeId) -> (Option<Box<Stage>>, Option<FreezeIntent>) {
        let file = Path::new(&id.to_string()).join(boot_state::FILE);
        boot_state::read(
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

    /// Opens an image; [`Error::ImageMissing`] if it does not exist.
    pub(super) fn open_image(&self, kind: EntryKind, entry: &str, write: bool) -> Result<File> {
        self.layout
            .open_image(kind, entry, write)
            .map_err(|e| match e {
                kernel::Error::NotFound { .. } => Error::ImageMissing {
                    path: self.layout.path_of(kind, entry, IMAGE),
                },
                e => e.into(),
            })
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

/// The state of formatting of a new volume. CreateVolume makes the filesystem, except for an inline
/// volume: there, `Done` means that a pod had the volume.
fn format_of(new: &NewVolume, source: Option<Format>) -> Format {
    match (new.capabilities.iter().find_map(|c| c.access.fs()), source) {
        // The content of a raw block volume belongs to its user, whatever its source.
        (None, _) => Format::Raw,
        (Some(_), Some(format)) => format,
        (Some(_), None) if new.inline.is_some() => Format::None,
        (Some(fs), None) => Format::Done(fs),
    }
}

fn record_of(new: NewVolume, id: VolumeId, format: Format) -> VolumeRecord {
    VolumeRecord {
        schema: SCHEMA,
        id,
        name: new.name.into(),
        capacity_bytes: new.capacity_bytes,
        requested_bytes: new.requested_bytes,
        capabilities: new.capabilities.into(),
        parameters: new.parameters.into(),
        mutable_parameters: new.mutable_parameters.into(),
        settings: new.settings,
        mkfs_options: new.mkfs_options.into(),
        source: new.source.map(Box::new),
        created_ns: now_ns(),
        format,
        fresh: new.inline.is_none(),
        publications: Default::default(),
        stage: None,
        freeze: None,
        inline: new.inline.map(Into::into),
        growth: None,
    }
}
