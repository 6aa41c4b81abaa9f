//! Thick volumes: their images have all their blocks, and so has the image of their pool. What a
//! trim or a discard has freed is allocated again.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hostloop_events::phase;

use super::capacity::{self, SpaceRequest};
use super::copy_image;
use super::{Error, Pool, Pools, Provisioning, Result, VolumeRecord};
use crate::kernel::file::Copied;
use crate::kernel::{file, foreground};

impl Pools {
    /// Allocates the lost space of a thick volume again: trimming its filesystem or discarding
    /// blocks of its device returns space to the pool. True if that may have taken long: the pool's
    /// own image gets its blocks first. After [`Error::NoRoom`] nothing has changed.
    pub fn refill_thick(&self, volume: &VolumeRecord, image: &File) -> Result<bool> {
        if volume.settings.provisioning != Provisioning::Thick {
            return Ok(false);
        }
        let pool = self.with_id(volume.id.pool())?;
        // Earlier versions made thick volumes in images without all their blocks. Such a volume
        // can still be used, and its health reports a full disk below.
        if let Err(error) = pool.back_thick(SpaceRequest::default()) {
            tracing::warn!(volume = %volume.id, %error, "a thick volume has no certain space below");
        }
        if file::allocated_bytes(image)? >= volume.capacity_bytes {
            return Ok(pool.image().is_some());
        }
        tracing::info!(volume = %volume.id, "a thick volume has lost space; allocating it again");
        pool.make_thick(volume, image, false)?;
        Ok(true)
    }
}

impl Pool {
    /// Allocates all of an image's space, and unshares shared blocks. A call in the foreground
    /// steps back for that, which may take minutes. `thick` as in [`SpaceRequest`]. After
    /// [`Error::NoRoom`] and [`Error::Refused`] nothing has changed.
    pub(super) fn make_thick(
        self: &Arc<Self>,
        volume: &VolumeRecord,
        image: &File,
        thick: bool,
    ) -> Result<()> {
        let len = volume.capacity_bytes;
        // Blocks shared with a copy are allocated a second time.
        let shared = if self.reflinks {
            self.kernel.shared_bytes(image)?
        } else {
            0
        };
        if shared > 0 && !file::can_unshare(image) {
            return Err(Error::Refused(format!(
                "volume {} can't be thick: it shares blocks with its snapshots or clones, which the \
                 pool's filesystem can't separate; delete these first, or keep it thin",
                volume.id
            )));
        }
        let missing = len.saturating_sub(file::allocated_bytes(image)?);
        let take = missing.saturating_add(shared).min(len);
        let _room = self.reserve(SpaceRequest {
            promise: 0,
            take,
            thick,
        })?;
        foreground::step_back(|| {
            phase("allocate", || self.kernel.allocate(image, 0..len))?;
            if shared > 0 {
                copy_image::keep_thick(image, len, Copied::Shared)?;
            }
            Ok(file::sync(image, &self.image_path(&volume.id))?)
        })
    }

    /// Gives the pool's image all its blocks, so that no write to a thick volume needs space of the
    /// disk below. Only all blocks are enough: the pool's own log and tables are written to as
    /// well, and a pool that can't write these answers no volume. `request` is the request of the
    /// thick volume. After [`Error::NoRoom`] and [`Error::NoRoomBelow`] nothing has changed.
    pub(super) fn back_thick(self: &Arc<Self>, request: SpaceRequest) -> Result<()> {
        let Some(image) = self.image() else {
            return Ok(());
        };
        // Once in each process, also if the file seems to lack no block. Later, a trim of the
        // pool's filesystem may have taken blocks away.
        let lacks = image.lacks_bytes()?;
        if lacks == 0 && self.backed.load(Relaxed) {
            return Ok(());
        }
        let (usages, guard) = self.space_usages()?;
        drop(guard);
        let own = &usages[..1.min(usages.len())];
        if !self.may_fit_without_bases(own, request)? {
            self.admit(own, request)?;
        }
        if !capacity::fits_below(&usages, &self.limits, lacks) {
            let free = usages
                .get(1)
                .map_or(0, |on| on.filesystem.available_bytes - on.unused);
            let path = image.path.clone();
            return Err(Error::NoRoomBelow {
                pool: self.name().to_owned(),
                path,
                lacks,
                free,
            });
        }
        let (usages, guard) = self.usages_with_room(request, 1)?;
        drop(guard);
        self.admit(&usages[..1.min(usages.len())], request)?;
        if lacks > 0 {
            let pool = self.name();
            tracing::info!(
                pool,
                lacks,
                "the pool's image gets all its blocks for a thick volume"
            );
        }
        let len = file::length(&image.file)?;
        foreground::step_back(|| {
            phase("allocate", || self.kernel.allocate(&image.file, 0..len))?;
            file::sync(&image.file, &image.path)
        })?;
        self.backed.store(true, Relaxed);
        Ok(())
    }
}
