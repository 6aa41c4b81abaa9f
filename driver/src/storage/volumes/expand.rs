//! Expansion of volumes.

use std::fs::File;
use std::sync::Arc;

use hostloop_events::phase;

use super::lengthen;
use crate::kernel::file;
use crate::storage::capacity::SpaceRequest;
use crate::storage::{
    Error, Pool, Pools, Result, VolumeHandle, VolumeId, VolumeRecord, VolumeSize, load,
};

impl Pools {
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
}

impl Pool {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{MI, Site};

    #[test]
    fn expansion_grows_and_never_shrinks() {
        let mut site = Site::fake(&["a"]);
        let made = site.make("one");
        for bytes in [8 * MI, 6 * MI] {
            site.pools().expand_volume(&made.id, bytes).unwrap();
        }
        for _ in 0..2 {
            let volume = site.volume(made.id);
            let image = site.pools().open_image(&volume, false).unwrap();
            let sizes = (volume.capacity_bytes, file::length(&image).unwrap());
            assert_eq!(sizes, (8 * MI, 8 * MI));
            site.open();
        }
    }
}
