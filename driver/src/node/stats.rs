//! NodeGetVolumeStats: bytes and inodes of a filesystem, or the size of a device.

use std::path::{Path, PathBuf};

use hostloop_proto::csi;
use hostloop_proto::csi::volume_usage::Unit;

use super::{Error, Node, Result, target_path};
use crate::csi::validate;
use crate::diagnose::{Found, VolumeState};
use crate::kernel::FsUsage;
use crate::storage::Access;

/// A path of a request as the mount table shows it. An invalid path, such as a relative one, is
/// answered like a missing one (CSI: the volume does not exist on it).
pub(super) fn place(path: &str) -> Option<PathBuf> {
    let path = validate::path("volume_path", path).ok()?;
    target_path::place(&path).ok()
}

impl Node {
    pub(super) fn stats(
        &self,
        req: &csi::NodeGetVolumeStatsRequest,
    ) -> Result<Vec<csi::VolumeUsage>> {
        let id = validate::required("volume_id", &req.volume_id)?;
        validate::required("volume_path", &req.volume_path)?;
        let record = self.volume(id)?;
        let not_there = || Error::NotFound(format!("volume {} at this path", record.id));
        let path = place(&req.volume_path).ok_or_else(not_there)?;
        let kernel = self.pools.kernel().as_ref();
        let view = VolumeState::read(kernel, &self.owner(&record))?;
        let staged = |path: &Path| {
            let stage = record.stage.as_ref();
            stage.is_some_and(|s| s.path == path && s.capability.access == Access::Block)
        };
        match view.at(&path) {
            Found::Filesystem { .. } => Ok(filesystem(&kernel.usage(&path)?)),
            Found::Device { minor, .. } => {
                let size = view
                    .kernel()
                    .device(minor)
                    .ok_or_else(not_there)?
                    .size_bytes;
                Ok(vec![bytes(size)])
            }
            Found::Nothing if staged(&path) => {
                let own = view.own().next().ok_or_else(not_there)?;
                Ok(vec![bytes(own.size_bytes)])
            }
            _ => Err(not_there()),
        }
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
    let mut all = vec![csi::VolumeUsage {
        available: int64(usage.available_bytes),
        total: int64(usage.total_bytes),
        used: int64(usage.total_bytes.saturating_sub(usage.free_bytes)),
        unit: Unit::Bytes.into(),
    }];
    if usage.total_inodes > 0 {
        all.push(csi::VolumeUsage {
            available: int64(usage.free_inodes),
            total: int64(usage.total_inodes),
            used: int64(usage.total_inodes.saturating_sub(usage.free_inodes)),
            unit: Unit::Inodes.into(),
        });
    }
    all
}

fn int64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
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

    #[test]
    fn what_is_no_path_has_nothing_at_it() {
        for path in ["some/path", "/", "/a/../b", "/a\0b", ""] {
            assert_eq!(place(path), None, "{path:?}");
        }
        assert_eq!(place("/none//below/."), Some(PathBuf::from("/none/below")));
    }
}
