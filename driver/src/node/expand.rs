//! Growth of volumes on the node.

use std::path::Path;

use hostloop_proto::csi;

use super::stage::of_volume;
use super::volume_lookup::{MountedAt, volume_path};
use super::{Error, Node, Result, attach_loop, grow};
use crate::csi::capability::word;
use crate::csi::validate::{self, Invalid, invalid};
use crate::csi::{expansion, int64};
use crate::diagnose::VolumeState;
use crate::kernel::{FsType, LoopInfo, file_id, loop_path};
use crate::storage::{Access, VolumeRecord};

/// Checks that the request's capability matches what is at its path ("Exceeds capabilities").
pub(super) fn matches_path(requested: &Access, at: MountedAt) -> std::result::Result<(), Invalid> {
    if (requested == &Access::Block) == matches!(at, MountedAt::Device { .. }) {
        Ok(())
    } else {
        Err(invalid(
            "volume_capability",
            format!(
                "is {}, which the volume is not at this path",
                word(requested)
            ),
        ))
    }
}

impl Node {
    /// NodeExpandVolume: grows device and filesystem to the size of the image, in use or not.
    pub fn node_expand_volume(
        &self,
        req: csi::NodeExpandVolumeRequest,
    ) -> Result<csi::NodeExpandVolumeResponse> {
        if !self.config.expansion {
            return Err(Error::Off("NodeExpandVolume"));
        }
        let id = validate::required("volume_id", &req.volume_id)?;
        validate::required("volume_path", &req.volume_path)?;
        let range = validate::range("capacity_range", req.capacity_range.as_ref())?;
        if let Some(volume) = self.shared_volume(id, &[])? {
            return self.expand_shared(volume, &req, range);
        }
        let mut record = self.volume(id)?;
        let path = volume_path(record.id, &req.volume_path)?;
        let state = self.state(&self.identity(&record), &[&path])?;
        let at = self.found_at(&record, &state, &path)?;
        if let Some(value) = &req.volume_capability {
            let requested = of_volume(self.requested_capability(Some(value))?, &record);
            let requested = requested.map_err(|e| invalid("volume_capability", e.to_string()))?;
            matches_path(&requested.access, at)?;
        }
        let fs = match at {
            MountedAt::Filesystem(fs) => Some(fs),
            MountedAt::Device { .. } => None,
        };
        let size = expansion::expand(range, &record, fs, self.config.max_volume_bytes)
            .map_err(Error::OutOfRange)?;
        let enlarges = size.bytes > record.capacity_bytes;
        if enlarges {
            // Without the controller's half, this call enlarges the image.
            if let Some(fs) = fs {
                self.check_growth(&state, fs, size.bytes)?;
            }
            record = self
                .pools
                .expand_volume(&record.id, size)
                .map_err(Error::of_expansion)?;
        }
        let _under_way = self.pools.growths().begin(record.id);
        // To allocate and sync a larger image takes long enough for others to unmount.
        self.grow_to_image(&record, state, &path, at, enlarges)
            .map_err(|error| self.explain_full(&record, error))?;
        Ok(csi::NodeExpandVolumeResponse {
            capacity_bytes: int64(record.capacity_bytes),
        })
    }

    /// Checks that a mounted filesystem can grow to this size, before anything changes.
    fn check_growth(&self, state: &VolumeState, fs: FsType, bytes: u64) -> Result<()> {
        let Some(own) = state.own().next() else {
            return Ok(());
        };
        match grow::obstacle(self.pools.kernel(), &loop_path(own.minor), fs, bytes)? {
            Some(why) => Err(Error::OutOfRange(expansion::refusal(bytes, &why))),
            None => Ok(()),
        }
    }

    /// Grows the devices of a volume to the size of its image, and the filesystem at a path to that of
    /// its device.
    pub(super) fn grow_to_image(
        &self,
        record: &VolumeRecord,
        mut state: VolumeState,
        path: &Path,
        at: MountedAt,
        is_outdated: bool,
    ) -> Result<()> {
        let kernel = self.pools.kernel();
        let (image, identity) = self.image(record)?;
        self.end_disk_delays(record);
        if self.thaw(record, &identity)? || is_outdated {
            state = self.state(&identity, &[path])?;
        }
        let mut devices = Vec::new();
        for own in state.own() {
            refuse_faulty(record, own)?;
            let device = kernel.loop_open(own.minor, file_id(&image)?)?;
            attach_loop::follow_size(self, record, &device, &image)?;
            devices.push(device);
        }
        for over in state.read_only() {
            kernel.loop_grow(&kernel.loop_reopen(over)?)?;
        }
        self.grow_readable_pins(&state)?;
        let MountedAt::Filesystem(fs) = at else {
            return Ok(());
        };
        let entry = state.whole_mount(path).ok_or_else(|| {
            Error::FailedPrecondition(format!(
                "the filesystem at {} is read-only and can't grow",
                path.display()
            ))
        })?;
        let device = devices.iter().find(|d| entry.is_on_loop(d.minor));
        match device {
            Some(device) => self.grow_mounted(record, &image, device, &entry.mount_point, fs),
            None => Ok(()),
        }
    }
}

/// A filesystem would look as large as the limited device already.
fn refuse_faulty(record: &VolumeRecord, own: &LoopInfo) -> Result<()> {
    if own.size_limit == 0 || record.own_limit() != Some(own.size_limit) {
        return Ok(());
    }
    Err(Error::FailedPrecondition(format!(
        "volume {} has a fault that its claim asks for, which limits its device: it grows once the \
         fault has ended",
        record.id
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::ext4;

    #[test]
    fn the_capability_is_that_of_the_path() {
        let device = MountedAt::Device { bytes: 0 };
        let table = [
            (&Access::Block, device, true),
            (&Access::Block, MountedAt::Filesystem(FsType::Xfs), false),
            (&ext4(), MountedAt::Filesystem(FsType::Ext4), true),
            (&ext4(), device, false),
        ];
        for (requested, at, fits) in table {
            assert_eq!(
                matches_path(requested, at).is_ok(),
                fits,
                "{requested:?} {at:?}"
            );
        }
    }
}
