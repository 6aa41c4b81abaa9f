//! Creation of volumes. `format_at_create` makes their filesystems.

use std::sync::Arc;

use hostloop_events::phase;
use uuid::Uuid;

use super::{format_at_create, lengthen};
use crate::kernel::{file, wanted};
use crate::record::{SCHEMA, now_ns};
use crate::storage::capacity::SpaceRequest;
use crate::storage::record_sync::RecordSync;
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
        let (bytes, provisioning) = (new.capacity_bytes, new.settings.provisioning);
        let job = match &new.source {
            Some(source) => {
                Some(self.copy_job(self.source(source)?, pool, Some(bytes), provisioning)?)
            }
            None => None,
        };
        let request = match &job {
            Some(job) => job.space_request()?,
            None => SpaceRequest::volume(bytes, provisioning),
        };
        let _room = pool.reserve(request)?;
        let id = VolumeId::generate(pool.id);
        let incoming = pool.layout.begin(id.to_string())?;
        let image = incoming.image()?;
        match &job {
            Some(job) => {
                let copied = self.copy_images(&[(job, &image)])?;
                wanted::copied();
                if !copied.is_written_back {
                    // A copy of a frozen filesystem has not waited for the disk.
                    phase("sync", || file::write_back_in_steps(&image))?;
                }
            }
            None => phase("image", || {
                lengthen(&*self.kernel, &image, 0, bytes, provisioning)
            })?,
        }
        let format = new.format(job.as_ref().map(|job| job.source.format()));
        if let (Format::Done(fs), None) = (format, &job) {
            let path = incoming.image_path();
            format_at_create::make(&*self.kernel, &image, &path, &new, id, fs)?;
        }
        let ancestor = job.as_ref().and_then(|job| job.ancestor(pool));
        let mut record = record_of(new, id, format, ancestor);
        pool.index.write().share(&mut record);
        let record = Arc::new(record);
        incoming.commit(&*record, Some(&image))?;
        pool.synced.lock().insert(id, RecordSync::Synced);
        pool.index.write().put_volume(record.clone());
        Ok(record)
    }
}

fn record_of(new: NewVolume, id: VolumeId, format: Format, ancestor: Option<Uuid>) -> VolumeRecord {
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
        ancestor: ancestor.map(Box::new),
        created_ns: now_ns(),
        format,
        fresh: new.inline.is_none(),
        publications: Default::default(),
        stage: None,
        freeze: None,
        inline: new.inline.map(Into::into),
        growth: None,
        fault: None,
        fault_disk: new.fault_disk.map(Box::new),
        reach: new.reach,
    }
}
