//! Finds the record, the image and the kernel identity of the volume ID in a request.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_terminal::humanize;

use super::{Error, Node, Result, btrfs_devices, target_path};
use crate::csi::validate;
use crate::diagnose::{MountedObject, VolumeIdentity, VolumeState};
use crate::kernel::{self, FsType, LoopInfo, file_id};
use crate::storage::{self, Access, VolumeHandle, VolumeId, VolumeRecord, freeze};

/// What the driver knows of a volume that a call undoes.
pub(super) enum FoundVolume {
    /// The ID is not the driver's, or is kubelet's handle of a deleted inline volume.
    Unknown,
    /// No record can be read: it is damaged, the volume is deleted, or its pool is missing or on
    /// another node.
    Unrecorded(VolumeIdentity),
    /// The volume has a record.
    Recorded(Arc<VolumeRecord>),
}

/// What the volume path of a request shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountedAt {
    /// The volume's filesystem.
    Filesystem(FsType),
    /// The volume's device, or the path at which the device is staged.
    Device {
        /// The device's size.
        bytes: u64,
    },
}

/// The volume path of a request as the mount table shows it. NOT_FOUND for an invalid path, such as
/// a relative one, as for a missing one (CSI: the volume does not exist on it).
pub(super) fn volume_path(volume: VolumeId, path: &str) -> Result<PathBuf> {
    place(path).ok_or_else(|| not_there(volume))
}

fn place(path: &str) -> Option<PathBuf> {
    let path = validate::path("volume_path", path).ok()?;
    target_path::place(&path).ok()
}

/// The error for a volume that is not at the path.
pub(super) fn not_there(volume: VolumeId) -> Error {
    Error::NotFound(format!("volume {volume} at this path"))
}

/// The filesystem of a volume that is mounted at a path.
pub(super) fn filesystem_at(
    volume: VolumeId,
    state: &VolumeState,
    path: &Path,
) -> Result<MountedAt> {
    let fs = state.mount_at(path).and_then(|e| FsType::parse(&e.fs_type));
    fs.map(MountedAt::Filesystem)
        .ok_or_else(|| not_there(volume))
}

impl Node {
    /// Finds what of a volume is at a path. NOT_FOUND if it is not there, UNAVAILABLE while a btrfs
    /// at the path does not say whether it is the volume's.
    pub(super) fn found_at(
        &self,
        record: &VolumeRecord,
        state: &VolumeState,
        path: &Path,
    ) -> Result<MountedAt> {
        let device = match state.at(path) {
            MountedObject::Filesystem { .. } => return filesystem_at(record.id, state, path),
            MountedObject::Device { minor, .. } => state.kernel().device(minor),
            MountedObject::Nothing
                if record
                    .stage
                    .as_deref()
                    .is_some_and(|s| s.path == path && s.capability.access == Access::Block) =>
            {
                state.own().next()
            }
            _ => {
                btrfs_devices::refuse_unknown(self.pools.kernel(), state, path)?;
                None
            }
        };
        let device = device.ok_or_else(|| not_there(record.id))?;
        self.device_at(record.id, device)
    }

    /// A device of a volume, with the size that it has now.
    pub(super) fn device_at(&self, volume: VolumeId, device: &LoopInfo) -> Result<MountedAt> {
        let now = self.pools.kernel().loop_info(device.minor)?;
        let now = now.filter(|now| now.is_same(device));
        Ok(MountedAt::Device {
            bytes: now.ok_or_else(|| not_there(volume))?.size_bytes,
        })
    }

    /// Finds a volume that must exist. A foreign ID is NOT_FOUND.
    pub(super) fn volume(&self, id: &str) -> Result<Arc<VolumeRecord>> {
        let Ok(handle) = id.parse::<VolumeHandle>() else {
            return Err(missing(id));
        };
        self.pools.volume(&handle).map_err(|error| match error {
            storage::Error::NoVolume(_) => missing(id),
            other => other.into(),
        })
    }

    /// Finds a volume that may be deleted. A missing pool is an error for a handle that names no
    /// pool.
    pub(super) fn found_volume(&self, id: &str) -> Result<FoundVolume> {
        let Ok(handle) = id.parse::<VolumeHandle>() else {
            return Ok(FoundVolume::Unknown);
        };
        let error = match self.pools.volume(&handle) {
            Ok(record) => return Ok(FoundVolume::Recorded(record)),
            Err(error) => error,
        };
        use storage::Error::{Corrupt, ForeignPool, NoVolume, Unavailable};
        match (error, handle) {
            (Corrupt { .. }, VolumeHandle::Id(id)) => Ok(FoundVolume::Unrecorded(
                self.pools.identity_without_record(id),
            )),
            (NoVolume(_) | ForeignPool(_) | Unavailable { .. }, VolumeHandle::Id(id)) => {
                Ok(FoundVolume::Unrecorded(VolumeIdentity::unrecorded(id)))
            }
            (NoVolume(_) | ForeignPool(_), VolumeHandle::Inline(_)) => Ok(FoundVolume::Unknown),
            (error, _) => Err(error.into()),
        }
    }

    /// Opens a volume's complete image for an attach, and returns the identity of its loop devices.
    pub(super) fn image(&self, record: &VolumeRecord) -> Result<(File, VolumeIdentity)> {
        let image = self.pools.open_image(record, true)?;
        let identity = VolumeIdentity::of(record, Some(file_id(&image)?));
        Ok((image, identity))
    }

    /// Looks at a volume's loop devices and mounts now, and at these paths.
    pub(super) fn state(
        &self,
        identity: &VolumeIdentity,
        paths: &[&Path],
    ) -> kernel::Result<VolumeState> {
        VolumeState::look(self.pools.kernel(), identity, paths)
    }

    /// The identity of a volume's loop devices, even if its image or pool is broken. A pod must be
    /// able to leave a pool that returns only errors.
    pub(super) fn identity(&self, record: &VolumeRecord) -> VolumeIdentity {
        let image = self.pools.open_image(record, false);
        let image = image.and_then(|image| Ok(file_id(&image)?));
        if let Err(error) = &image {
            tracing::warn!(volume = %record.id, %error, "can't open the image; finding its loop devices by path");
        }
        VolumeIdentity::of(record, image.ok())
    }

    /// Checks that the controller published the volume to this node (`--check-volume-lifecycle`).
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

    /// Thaws a filesystem that an interrupted copy may have left frozen. True if the caller must
    /// look at the kernel again. An unmounted filesystem is thawed by a mount, so a volume that was
    /// handed out as a device is left alone.
    pub(super) fn thaw(&self, record: &VolumeRecord, identity: &VolumeIdentity) -> Result<bool> {
        let stage = record.stage.as_deref();
        let is_block = stage.is_some_and(|stage| stage.capability.access == Access::Block);
        if record.freeze.is_none() || is_block {
            return Ok(false);
        }
        if !freeze::thaw_volume(self.pools.kernel(), record, identity)? {
            return Ok(false);
        }
        self.pools
            .clear_in_volume(&record.id, |r| r.freeze = None)?;
        Ok(true)
    }

    /// Turns a kernel error into RESOURCE_EXHAUSTED if the pool is full. In a full pool, writes to
    /// a loop device fail as plain I/O errors.
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
            "the pool of volume {} is full ({} are left): {error}",
            record.id,
            humanize::bytes(free)
        ))
    }
}

/// With less free space than this, in bytes, a pool can't take the metadata of the smallest
/// filesystem.
const FULL_BYTES: u64 = 256 << 10;

/// The error for a missing volume.
pub(super) fn missing(id: &str) -> Error {
    match validate::name("volume_id", id) {
        Ok(id) => Error::NotFound(format!("volume {id:?}")),
        // The message omits the ID, which may have any length.
        Err(_) => Error::NotFound("volume of this ID".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_path_has_no_place() {
        for path in ["some/path", "/", "/a/../b", "/a\0b", ""] {
            assert_eq!(place(path), None, "{path:?}");
        }
        assert_eq!(place("/none//below/."), Some(PathBuf::from("/none/below")));
    }
}
