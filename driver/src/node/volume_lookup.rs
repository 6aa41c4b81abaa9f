//! From the volume ID of a request to a record, an image, and what the kernel is asked by.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::{Error, Node, Result};
use crate::csi::validate;
use crate::diagnose::VolumeIdentity;
use crate::kernel::file_id;
use crate::storage::{self, VolumeHandle, VolumeId, VolumeRecord, freeze};

/// What is known of a volume that is to be undone.
pub(super) enum Known {
    /// No ID of this driver, or kubelet's of an inline volume that is gone.
    Nobody,
    /// An ID without a record: deleted, or of a pool that is not on this node.
    Unrecorded(VolumeIdentity),
    /// Its pool is missing just now, and why.
    Away(Option<VolumeIdentity>, storage::Error),
    /// A volume.
    Recorded(Arc<VolumeRecord>),
}

impl Node {
    /// A volume that must be there. What is no ID of this driver is missing.
    pub(super) fn volume(&self, id: &str) -> Result<Arc<VolumeRecord>> {
        let Ok(handle) = id.parse::<VolumeHandle>() else {
            return Err(missing(id));
        };
        self.pools.volume(&handle).map_err(|error| match error {
            storage::Error::NoVolume(_) => missing(id),
            other => other.into(),
        })
    }

    /// A volume that may be gone.
    pub(super) fn known(&self, id: &str) -> Result<Known> {
        let Ok(handle) = id.parse::<VolumeHandle>() else {
            return Ok(Known::Nobody);
        };
        let owner = match &handle {
            VolumeHandle::Id(id) => Some(VolumeIdentity::unrecorded(*id)),
            VolumeHandle::Inline(_) => None,
        };
        match (self.pools.volume(&handle), owner) {
            (Ok(record), _) => Ok(Known::Recorded(record)),
            (Err(error @ storage::Error::Unavailable { .. }), owner) => {
                Ok(Known::Away(owner, error))
            }
            (Err(storage::Error::NoVolume(_) | storage::Error::ForeignPool(_)), owner) => {
                Ok(owner.map_or(Known::Nobody, Known::Unrecorded))
            }
            (Err(other), _) => Err(other.into()),
        }
    }

    /// A volume's image, whole and opened to be attached, and what tells its loop devices.
    pub(super) fn image(&self, record: &VolumeRecord) -> Result<(File, VolumeIdentity)> {
        let image = self.pools.open_image(record, true)?;
        let owner = VolumeIdentity::of(record, Some(file_id(&image)?));
        Ok((image, owner))
    }

    /// Identifies a volume's loop devices even if its image or its pool is broken: a pod must be
    /// able to leave a pool that answers nothing but errors.
    pub(super) fn owner(&self, record: &VolumeRecord) -> VolumeIdentity {
        let image = self.pools.open_image(record, false);
        let image = image.and_then(|image| Ok(file_id(&image)?));
        if let Err(error) = &image {
            tracing::warn!(volume = %record.id, %error, "can't open the image; finding its loop devices by path");
        }
        VolumeIdentity::of(record, image.ok())
    }

    /// With `--check-volume-lifecycle`: published to this node by the controller.
    pub(super) fn check_lifecycle(&self, record: &VolumeRecord) -> Result<()> {
        let node = &self.config.node_id;
        if self.config.check_lifecycle && !record.publications.contains_key(node) {
            return Err(Error::FailedPrecondition(format!(
                "volume {} is not published to node {node}: ControllerPublishVolume comes first",
                record.id
            )));
        }
        Ok(())
    }

    /// Thaws what an interrupted copy may have left frozen, mounted or not. `scratch` is a
    /// directory where nothing is mounted but this volume.
    pub(super) fn thaw(
        &self,
        record: &VolumeRecord,
        owner: &VolumeIdentity,
        scratch: &Path,
    ) -> Result<()> {
        if let (Some(_), Some(image)) = (record.freeze, owner.image()) {
            freeze::thaw_leftover(self.pools.kernel().as_ref(), record.id, image, scratch)?;
            self.clear_record(&record.id, |r| r.freeze = None)?;
        }
        Ok(())
    }

    /// Clears something that is over from the record. A full, read-only or shut-down pool can't
    /// store that now, but the pod must be able to leave. So the index changes at once. The record
    /// on disk follows with its next change, or when recovery compares it with the kernel.
    pub(super) fn clear_record(
        &self,
        id: &VolumeId,
        change: impl FnOnce(&mut VolumeRecord),
    ) -> Result<()> {
        Ok(self.pools.clear_in_volume(id, change)?)
    }

    /// Says "no room" where a tool failed for want of it: into a full pool, a loop device's writes
    /// fail as plain I/O errors.
    pub(super) fn explain_full(&self, record: &VolumeRecord, error: Error) -> Error {
        let Error::Kernel(_) = &error else {
            return error;
        };
        let free = self
            .pools
            .with_id(record.id.pool())
            .and_then(|pool| pool.usage())
            .map_or(u64::MAX, |usage| usage.free_bytes);
        if free >= FULL_BYTES {
            return error;
        }
        Error::ResourceExhausted(format!(
            "the pool of volume {} is full ({free} bytes are left): {error}",
            record.id
        ))
    }
}

/// A pool with less room than this can't take the metadata of the smallest filesystem.
const FULL_BYTES: u64 = 256 << 10;

/// A volume that is not there.
pub(super) fn missing(id: &str) -> Error {
    match validate::name("volume_id", id) {
        Ok(id) => Error::NotFound(format!("volume {id:?}")),
        // Not repeated: it may be of any length.
        Err(_) => Error::NotFound("volume of this ID".to_owned()),
    }
}
