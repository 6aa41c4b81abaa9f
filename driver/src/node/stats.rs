//! The usage of volumes.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_usage::Unit;

use super::volume_lookup::{MountedAt, volume_path};
use super::{Node, Result};
use crate::csi::{int64, validate};
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::kernel::FsUsage;

impl Node {
    /// NodeGetVolumeStats: bytes and inodes of a filesystem, or the size of a device.
    pub fn node_get_volume_stats(
        &self,
        req: csi::NodeGetVolumeStatsRequest,
    ) -> Result<csi::NodeGetVolumeStatsResponse> {
        let id = validate::required("volume_id", &req.volume_id)?;
        validate::required("volume_path", &req.volume_path)?;
        let kernel = self.pools.kernel();
        let (path, at) = if let Some(volume) = self.shared_volume(id, &[])? {
            let path = volume_path(volume, &req.volume_path)?;
            let identity = VolumeIdentity::unrecorded(volume);
            let state = VolumeState::glance(kernel, &identity, &[&path])?;
            let at = self.found_shared(volume, &state, &path)?;
            (path, at)
        } else {
            let record = self.volume(id)?;
            let path = volume_path(record.id, &req.volume_path)?;
            let state = VolumeState::glance(kernel, &self.identity(&record), &[&path])?;
            let at = self.found_at(&record, &state, &path)?;
            (path, at)
        };
        let usage = match at {
            MountedAt::Filesystem(_) => filesystem(&kernel.usage(&path)?),
            MountedAt::Device { bytes: size } => vec![bytes(size)],
        };
        Ok(csi::NodeGetVolumeStatsResponse { usage })
    }
}

/// The usage of a block device: only its size, because only its user knows the rest.
fn bytes(size: u64) -> csi::VolumeUsage {
    csi::VolumeUsage {
        total: int64(size),
        unit: Unit::Bytes.into(),
        ..Default::default()
    }
}

/// The usage of a filesystem: bytes, and inodes unless the filesystem does not count them (btrfs).
fn filesystem(usage: &FsUsage) -> Vec<csi::VolumeUsage> {
    let free = usage.free_bytes;
    let bytes = counted(Unit::Bytes, usage.total_bytes, free, usage.available_bytes);
    let free = usage.free_inodes;
    let inodes = counted(Unit::Inodes, usage.total_inodes, free, free);
    match usage.total_inodes {
        0 => vec![bytes],
        _ => vec![bytes, inodes],
    }
}

fn counted(unit: Unit, total: u64, free: u64, available: u64) -> csi::VolumeUsage {
    csi::VolumeUsage {
        available: int64(available),
        total: int64(total),
        used: int64(total.saturating_sub(free)),
        unit: unit.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_never_negative_and_leaves_out_what_is_not_counted() {
        let usage = FsUsage {
            total_bytes: 1000,
            free_bytes: 400,
            available_bytes: 350,
            total_inodes: 64,
            free_inodes: 60,
            read_only: false,
        };
        let all = filesystem(&usage);
        let units: Vec<_> = all
            .iter()
            .map(|u| (u.unit(), u.total, u.used, u.available))
            .collect();
        let expected = [(Unit::Bytes, 1000, 600, 350), (Unit::Inodes, 64, 4, 60)];
        assert_eq!(units, expected);
        let odd = FsUsage {
            total_bytes: 10,
            free_bytes: 20,
            available_bytes: u64::MAX,
            ..FsUsage::default()
        };
        let all = filesystem(&odd);
        assert_eq!(all.len(), 1, "no inodes are counted");
        assert_eq!((all[0].used, all[0].available), (0, i64::MAX));
    }
}
