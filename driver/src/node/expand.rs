//! Growth of volumes on the node.

use std::fs::File;
use std::path::Path;

use hostloop_proto::csi;

use super::capability::of_volume;
use super::volume_lookup::AtPath;
use super::{Error, Node, Result, loop_device};
use crate::csi::capability::word;
use crate::csi::validate::{self, Invalid, invalid};
use crate::csi::{capacity_range, int64};
use crate::kernel::{FsType, Kernel, LoopDevice, file_id};
use crate::storage::{self, Access, VolumeRecord, VolumeSize};

/// Checks that the request's capability matches what is at its path ("Exceeds capabilities").
fn matches_path(asked: &Access, at: AtPath) -> std::result::Result<(), Invalid> {
    match (asked == &Access::Block) == matches!(at, AtPath::Device { .. }) {
        true => Ok(()),
        false => Err(invalid(
            "volume_capability",
            format!("is {}, which the volume is not at this path", word(asked)),
        )),
    }
}

/// Checks that this process can grow a mounted filesystem to this size.
fn growable(kernel: &dyn Kernel, fs: FsType, bytes: u64) -> Result<()> {
    let least = fs.minimum_grown_bytes();
    if bytes < least {
        return Err(Error::OutOfRange(format!(
            "{fs} grows to {least} bytes at least, not to {bytes}"
        )));
    }
    if !kernel.grows_mounted(fs) {
        return Err(Error::FailedPrecondition(format!(
            "the driver may not grow a mounted {fs} (it lacks CAP_SYS_RESOURCE); it grows when the \
             volume is staged next"
        )));
    }
    Ok(())
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
        let mut record = self.volume(id)?;
        let (path, at) = self.volume_path(&record, &req.volume_path)?;
        if let Some(value) = &req.volume_capability {
            let asked = of_volume(self.asked(Some(value))?, &record);
            let asked = asked.map_err(|e| invalid("volume_capability", e.to_string()))?;
            matches_path(&asked.access, at)?;
        }
        let now = record.capacity_bytes;
        let fs = match at {
            AtPath::Filesystem(fs) => Some(fs),
            AtPath::Device { .. } => None,
        };
        let grown = fs.map_or(0, FsType::minimum_grown_bytes);
        let bytes = capacity_range::expand(range, now, grown, self.config.max_volume_bytes)
            .map_err(Error::OutOfRange)?;
        if bytes > now {
            // Without the controller's half, this call enlarges the image.
            if let Some(fs) = fs {
                growable(self.pools.kernel(), fs, bytes)?;
            }
            let requested = capacity_range::requested_after(range, bytes, &record);
            let size = VolumeSize { bytes, requested };
            record = self.pools.expand_volume(&record.id, size).map_err(Error::of_expansion)?;
        }
        self.grow(&record, &path, at).map_err(|error| self.explain_full(&record, error))?;
        Ok(csi::NodeExpandVolumeResponse { capacity_bytes: int64(record.capacity_bytes) })
    }

    fn grow(&self, record: &VolumeRecord, path: &Path, at: AtPath) -> Result<()> {
        let kernel = self.pools.kernel();
        let (image, owner) = self.image(record)?;
        self.thaw(record, &owner, path)?;
        let view = self.look(&owner, &[path])?;
        let mut devices = Vec::new();
        for own in view.own() {
            let device = kernel.loop_open(own.minor, file_id(&image)?)?;
            loop_device::follow_size(kernel, &device, &image)?;
            devices.push(device);
        }
        for over in view.read_only() {
            kernel.loop_grow(&kernel.loop_reopen(over)?)?;
        }
        let AtPath::Filesystem(fs) = at else {
            return Ok(());
        };
        let entry = view.whole_mount(path).ok_or_else(|| {
            Error::FailedPrecondition(format!(
                "the filesystem at {} is read-only and can't grow",
                path.display()
            ))
        })?;
        let device = devices.iter().find(|d| Some(d.minor) == entry.loop_minor());
        match device {
            Some(device) => self.grow_mounted(record, &image, device, &entry.mount_point, fs),
            None => Ok(()),
        }
    }

    /// Grows a filesystem that is smaller than its device.
    fn grow_mounted(
        &self,
        record: &VolumeRecord,
        image: &File,
        device: &LoopDevice,
        mounted_at: &Path,
        fs: FsType,
    ) -> Result<()> {
        let kernel = self.pools.kernel();
        let size = kernel.loop_size(device)?;
        if kernel.fs_size(mounted_at, &device.path(), fs)? >= size {
            return Ok(());
        }
        growable(kernel, fs, size)?;
        kernel.grow(&device.path(), mounted_at, fs)?;
        // ext4 zeroes its new inode tables, which punches holes into the image.
        self.pools.refill_thick(record, image).map_err(|error| match error {
            // The call had an effect: the filesystem has grown.
            error @ storage::Error::NoRoom { .. } => Error::ResourceExhausted(error.to_string()),
            error => error.into(),
        })
    }

    /// Grows the filesystem of a volume during staging. A filesystem that can't grow now may grow
    /// later.
    pub(super) fn grow_if_possible(
        &self,
        record: &VolumeRecord,
        image: &File,
        device: &LoopDevice,
        mounted_at: &Path,
        fs: FsType,
    ) -> Result<()> {
        match self.grow_mounted(record, image, device, mounted_at, fs) {
            Err(error @ (Error::OutOfRange(_) | Error::FailedPrecondition(_))) => {
                let path = mounted_at.display();
                tracing::warn!(
                    staging_target_path = %path, %error,
                    "cannot grow the mounted filesystem: it stays smaller than its volume"
                );
                Ok(())
            }
            grown => grown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::ext4;

    #[test]
    fn the_capability_is_that_of_the_path() {
        let device = AtPath::Device { bytes: 0 };
        let table = [
            (&Access::Block, device, true),
            (&Access::Block, AtPath::Filesystem(FsType::Xfs), false),
            (&ext4(), AtPath::Filesystem(FsType::Ext4), true),
            (&ext4(), device, false),
        ];
        for (asked, at, fits) in table {
            assert_eq!(matches_path(asked, at).is_ok(), fits, "{asked:?} {at:?}");
        }
    }
}
