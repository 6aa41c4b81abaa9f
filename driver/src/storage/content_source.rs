//! Sources of copies: volumes and snapshots, and the freeze of volumes during the copy.

use std::fs::File;
use std::sync::Arc;

use super::capacity::SpaceRequest;
use super::copy_image::{self, CopyRequest};
use super::freeze::{self, Intents, Limits, Still, Target};
use super::volumes::{length, now_ns};
use super::{Access, Error, Format, FreezeIntent, NewVolume, Pool, PoolId, Pools, Provisioning};
use super::{Result, Source, VolumeHandle, VolumeId, VolumeRecord};
use crate::kernel::file::{self, Copied};
use crate::kernel::{self, FileId};

/// An opened copy source.
#[derive(Debug)]
pub(super) struct Origin {
    /// The pool of the source.
    pool: PoolId,
    /// The source's image, open for reading.
    pub(super) image: File,
    /// The image's length in bytes.
    pub(super) len: u64,
    /// Bytes allocated to the image.
    pub(super) allocated: u64,
    /// The source's state of formatting.
    pub(super) format: Format,
    id: FileId,
    /// The source volume; `None` if the source is a snapshot.
    volume: Option<Arc<VolumeRecord>>,
}

impl Origin {
    fn new(
        image: File,
        pool: PoolId,
        format: Format,
        volume: Option<Arc<VolumeRecord>>,
    ) -> Result<Origin> {
        Ok(Origin {
            pool,
            len: length(&image)?,
            allocated: file::allocated_bytes(&image)?,
            format,
            id: kernel::file_id(&image)?,
            volume,
            image,
        })
    }

    /// The request to copy the source into a new image of this pool.
    pub(super) fn copy_request(
        &self,
        pool: &Pool,
        len: u64,
        provisioning: Provisioning,
    ) -> CopyRequest {
        CopyRequest {
            len,
            provisioning,
            reflinks: self.shares_with(pool),
            thick_source: self.is_thick_volume(),
        }
    }

    /// True if a copy in this pool can share blocks with the source.
    fn shares_with(&self, pool: &Pool) -> bool {
        pool.reflinks && self.pool == pool.id
    }

    /// True if the source is a volume that must not share blocks.
    fn is_thick_volume(&self) -> bool {
        let volume = self.volume.as_ref();
        volume.is_some_and(|v| v.settings.provisioning == Provisioning::Thick)
    }

    /// The volume to freeze during the copy; `None` for a snapshot.
    pub(super) fn target(&self) -> Option<Target> {
        let volume = self.volume.as_ref()?;
        let staged = volume.stage.as_ref().map(|s| &s.capability.access);
        Some(Target {
            volume: volume.id,
            image: self.id,
            raw_staged: staged == Some(&Access::Block),
            freeze_intent: volume.freeze.is_some(),
        })
    }

    /// The space that a volume made from this source requests from its pool.
    pub(super) fn need(&self, pool: &Pool, new: &NewVolume) -> Result<SpaceRequest> {
        if self.len > new.capacity_bytes {
            return Err(Error::Refused(format!(
                "the source has {} bytes, more than the {} of the new volume",
                self.len, new.capacity_bytes
            )));
        }
        let whole = SpaceRequest::volume(new.capacity_bytes, new.settings.provisioning);
        Ok(SpaceRequest { take: whole.take.max(self.copy_takes(pool)), ..whole })
    }

    /// Bytes that a copy in this pool allocates at once. A copy without shared blocks allocates all
    /// of them. So does a copy of a thick volume, because the volume gets unshared blocks again.
    pub(super) fn copy_takes(&self, pool: &Pool) -> u64 {
        if self.shares_with(pool) && !self.is_thick_volume() {
            0
        } else {
            self.allocated.min(self.len)
        }
    }
}

impl Pools {
    /// Opens the source of a new volume.
    pub(super) fn origin(&self, source: &Source) -> Result<Origin> {
        match source {
            Source::Snapshot(id) => {
                let snapshot = self.snapshot(id)?;
                let image = self.open_snapshot(&snapshot)?;
                Origin::new(image, id.pool(), snapshot.format, None)
            }
            Source::Volume(id) => self.origin_volume(self.volume(&VolumeHandle::Id(*id))?),
        }
    }

    /// Opens a volume as a source.
    pub(super) fn origin_volume(&self, volume: Arc<VolumeRecord>) -> Result<Origin> {
        let image = self.open_image(&volume, false)?;
        Origin::new(image, volume.id.pool(), volume.format, Some(volume))
    }

    /// Completes a copy after the thaw. A thick source volume gets unshared blocks again.
    pub(super) fn finish_copy(
        &self,
        origin: &Origin,
        to: &File,
        want: &CopyRequest,
        copied: Copied,
    ) -> Result<()> {
        copy_image::finish(to, want, copied)?;
        match &origin.volume {
            Some(volume) if want.thick_source => {
                copy_image::keep_thick(&self.open_image(volume, true)?, origin.len, copied)
            }
            _ => Ok(()),
        }
    }

    /// Runs `copy` while all these volumes are frozen or at rest.
    pub(super) fn still<T>(
        &self,
        targets: &[Target],
        copy: impl FnOnce(&Still) -> Result<T>,
    ) -> Result<T> {
        let room = || self.room_to_freeze(targets);
        let limits = Limits { max_freeze: self.options.max_freeze, room: &room };
        freeze::quiesced(&self.kernel, targets, &limits, &Recorded(self), copy)
    }

    /// Fails if a pool is nearly full: a freeze writes back first, and hangs in the kernel without
    /// space for that.
    fn room_to_freeze(&self, targets: &[Target]) -> Result<()> {
        for target in targets {
            let pool = self.with_id(target.volume.pool())?;
            if pool.below_reserve()? {
                return Err(Error::CannotFreeze(format!(
                    "pool {} is nearly full, and freezing a filesystem in it might not end: free some space first",
                    pool.name()
                )));
            }
        }
        Ok(())
    }
}

/// Stores freeze intents in the records of the volumes.
struct Recorded<'a>(&'a Pools);

impl Recorded<'_> {
    fn set(&self, volumes: &[VolumeId], freeze: Option<FreezeIntent>) -> Result<()> {
        for id in volumes {
            self.0.update_volume(id, |record| record.freeze = freeze)?;
        }
        Ok(())
    }
}

impl Intents for Recorded<'_> {
    fn write(&self, volumes: &[VolumeId]) -> Result<()> {
        self.set(volumes, Some(FreezeIntent { since_ns: now_ns() }))
    }

    fn clear(&self, volumes: &[VolumeId]) -> Result<()> {
        self.set(volumes, None)
    }
}
