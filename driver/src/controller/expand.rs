//! ControllerExpandVolume grows the image; the node grows the loop device and the filesystem.

use std::sync::Arc;

use hostloop_proto::csi;

use super::{Controller, Error, Result};
use crate::csi::capability::{RequestedCapability, own_fs};
use crate::csi::expansion::{self, GrowthTime};
use crate::csi::int64;
use crate::csi::validate::{self, SizeRange, invalid};
use crate::kernel::FsType;
use crate::storage::{VolumeRecord, VolumeSize};

impl Controller {
    /// ControllerExpandVolume. It requires NodeExpandVolume for raw block volumes too, because
    /// their loop devices must learn the new size.
    pub fn controller_expand_volume(
        &self,
        req: csi::ControllerExpandVolumeRequest,
    ) -> Result<csi::ControllerExpandVolumeResponse> {
        let (record, size) = self.plan_expansion(&req)?;
        if size.bytes > record.capacity_bytes && own_fs(&record) == Some(FsType::Ext4) {
            let image = self.pools.open_image(&record, false)?;
            self.check_growth(&image, size.bytes, self.growth_time(&record))?;
        }
        let record = self
            .pools
            .expand_volume(&record.id, size)
            .map_err(Error::of_expansion)?;
        if record.is_shared() {
            // The other nodes see the size that its own node gives the device.
            self.anchors(record.id)?.grow(&record)?;
        }
        Ok(csi::ControllerExpandVolumeResponse {
            capacity_bytes: int64(record.capacity_bytes),
            node_expansion_required: true,
        })
    }

    /// When the filesystem of a volume grows. A shared one is not unmounted as long as any node uses
    /// it.
    fn growth_time(&self, record: &VolumeRecord) -> GrowthTime {
        if record.is_shared() && record.stage.is_some() {
            GrowthTime::Mounted {
                is_permitted: self.pools.kernel().grows_mounted(FsType::Ext4),
            }
        } else {
            GrowthTime::Any
        }
    }

    /// True if ControllerExpandVolume refuses this request without a look at disks.
    pub(crate) fn refuses_expansion(&self, req: &csi::ControllerExpandVolumeRequest) -> bool {
        self.plan_expansion(req).is_err()
    }

    /// The volume and its new size, by what is known without a look at disks.
    fn plan_expansion(
        &self,
        req: &csi::ControllerExpandVolumeRequest,
    ) -> Result<(Arc<VolumeRecord>, VolumeSize)> {
        Self::require(self.config.expansion, "ControllerExpandVolume")?;
        validate::required("volume_id", &req.volume_id)?;
        let range = validate::range("capacity_range", req.capacity_range.as_ref())?;
        if range == SizeRange::default() {
            return Err(invalid("capacity_range", "is required").into());
        }
        let record = self.volume("volume_id", &req.volume_id)?;
        if record.is_shared() {
            self.anchors(record.id)?;
        }
        if let Some(value) = &req.volume_capability {
            const FIELD: &str = "volume_capability";
            let requested =
                RequestedCapability::read(FIELD, Some(value), &self.config.capabilities)?;
            requested.of(&record).map_err(|why| invalid(FIELD, why))?;
        }
        let largest = self.pools.options().max_volume_bytes;
        let size = expansion::expand(range, &record, None, largest).map_err(Error::OutOfRange)?;
        Ok((record, size))
    }
}
