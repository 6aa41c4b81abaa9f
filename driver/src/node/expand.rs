//! Growth of volumes on the node.

use std::fs::File;
use std::path::Path;

use hostloop_proto::csi;

use super::capability::of_volume;
use super::volume_lookup::AtPath;
use super::{Error, Node, Result, loop_device};
use crate::csi::capability::word;
use crate::csi::int64;
use crate::csi::validate::{self, Invalid, Range, invalid};
use crate::kernel::{FsType, Kernel, LoopDevice, file_id};
use crate::storage::{Access, VolumeRecord};

/// The size after the expansion: the requested size, which is at most `max`, or the current size. A
/// volume never shrinks.
fn target_bytes(range: &Range, now: u64, max: Option<u64>) -> Result<u64> {
    if let Some(max) = max.filter(|max| range.required > *max) {
        return Err(Error::OutOfRange(format!(
            "{} bytes are asked for, and this node allows a volume {max} \
             (--max-volume-size-node)",
            range.required
        )));
    }
    let size = range.size(now);
    size.filter(|size| range.allows(*size)).ok_or_else(|| {
        Error::OutOfRange(format!(
            "the volume has {now} bytes and does not shrink, at least {} are asked for and at \
             most {}",
            range.required,
            range.limit.map_or("any".to_owned(), |l| l.to_string())
        ))
    })
}

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
        let size = target_bytes(&range, record.capacity_bytes, self.config.max_volume_bytes)?;
        if size > record.capacity_bytes {
            // Without the controller's half, this call enlarges the image.
            if let AtPath::Filesystem(fs) = at {
                growable(self.pools.kernel(), fs, size)?;
            }
            record = self.pools.expand_volume(&record.id, size)?;
        }
        self.grow(&record, &path, at).map_err(|error| self.explain_full(&record, error))?;
        Ok(csi::NodeExpandVolumeResponse { capacity_bytes: int64(record.capacity_bytes) })
    }

    fn grow(&self, record: &VolumeRecord, path: &Path, at: AtPath) -> Result<()> {
        let kernel = self.pools.kernel();
        let (image, owner) = self.image(record)?;
        self.thaw(record, &owner)?;
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
        Ok(self.pools.refill_thick(record, image)?)
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
    fn expands_to_what_is_asked_for_and_never_shrinks() {
        const GI: u64 = 1 << 30;
        // required, limit, current size, the node's limit → new size, or out of range
        let table = [
            (0, None, GI, None, Some(GI)),
            (GI, None, GI, None, Some(GI)),
            (GI / 2, None, GI, None, Some(GI)),
            (2 * GI, None, GI, None, Some(2 * GI)),
            (GI + 1, None, GI, None, Some(GI + 4096)),
            (GI + 1, Some(GI + 2), GI, None, None),
            (2 * GI, Some(2 * GI), GI, None, Some(2 * GI)),
            (0, Some(GI / 2), GI, None, None),
            (u64::MAX, None, GI, None, None),
            (GI, None, 4096, Some(GI), Some(GI)),
            (GI + 1, None, 4096, Some(GI), None),
            // A volume that is larger already keeps its size.
            (0, None, 2 * GI, Some(GI), Some(2 * GI)),
        ];
        for (required, limit, now, max, expected) in table {
            let what = format!("{required} {limit:?} {now} {max:?}");
            match (target_bytes(&Range { required, limit }, now, max), expected) {
                (Ok(got), Some(expected)) => assert_eq!(got, expected, "{what}"),
                (Err(Error::OutOfRange(_)), None) => {}
                (got, _) => panic!("{what}: {got:?}"),
            }
        }
    }

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
