//! Creation of volumes. `format_at_create` makes their filesystems.

use std::sync::Arc;

use hostloop_events::phase;

use super::{format_at_create, lengthen};
use crate::kernel::{file, wanted};
use crate::record::{SCHEMA, now_ns};
use crate::storage::capacity::SpaceRequest;
use crate::storage::content_source::CopyJob;
use crate::storage::{Format, NewVolume, Pool, Pools, Result, VolumeId, VolumeRecord};

#[cfg(test)]
mod tests;

impl Pools {
    /// Creates a volume in this pool. It reserves the space, builds and fills the image under
    /// `incoming/`, syncs it and renames it into place. A mounted source volume is frozen during
    /// the copy. A volume without a source gets its filesystem here, where no user and no loop
    /// device has the image yet. Fails with [`NoRoom`](crate::storage::Error::NoRoom) if the pool
    /// can't promise the space.
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
        let format = new.format(origin.as_ref().map(|o| o.format));
        if let (Format::Done(fs), None) = (format, &origin) {
            let path = incoming.image_path();
            format_at_create::make(&*self.kernel, &image, &path, &new, id, fs)?;
        }
        let mut record = record_of(new, id, format);
        pool.index.write().share(&mut record);
        let record = Arc::new(record);
        incoming.commit(&*record, Some(&image))?;
        pool.index.write().put_volume(record.clone());
        Ok(record)
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
