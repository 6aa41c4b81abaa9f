//! Growth of volumes on the node.

use std::path::Path;

use hostloop_proto::csi;

use super::capability::of_volume;
use super::volume_lookup::AtPath;
use super::{Error, Node, Result, grow, loop_device};
use crate::csi::capability::word;
use crate::csi::int64;
use crate::csi::validate::{self, Invalid, Range, invalid};
use crate::kernel::{FsType, file_id, loop_path};
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
                self.check_growth(&record, fs, size)?;
            }
            record = self.pools.expand_volume(&record.id, size)?;
        }
        let _under_way = self.pools.growths().begin(record.id);
        self.grow(&record, &path, at).map_err(|error| self.explain_full(&record, error))?;
        Ok(csi::NodeExpandVolumeResponse { capacity_bytes: int64(record.capacity_bytes) })
    }

    /// Checks that a mounted filesystem can grow to this size, before anything changes.
    fn check_growth(&self, record: &VolumeRecord, fs: FsType, bytes: u64) -> Result<()> {
        let (_, owner) = self.image(record)?;
        let view = self.look(&owner, &[])?;
        let Some(own) = view.own().next() else {
            return Ok(());
        };
        match grow::obstacle(self.pools.kernel(), &loop_path(own.minor), fs, bytes)? {
            Some(why) => Err(Error::OutOfRange(format!("capacity_range: {bytes} bytes: {why}"))),
            None => Ok(()),
        }
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
