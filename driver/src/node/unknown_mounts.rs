//! Mounts of btrfs that did not say on which devices they are.

use std::collections::BTreeMap;
use std::path::Path;

use parking_lot::Mutex;

use crate::kernel::MountEntry;
use crate::storage::{self, Pools, VolumeHandle, VolumeId};

/// The mounts that stagings of this process left because they did not say on which devices they
/// are. Until the staging is complete, no pod has such a mount.
#[derive(Debug, Default)]
pub(super) struct UnknownMounts {
    by_volume: Mutex<BTreeMap<VolumeId, MountEntry>>,
}

impl UnknownMounts {
    pub(super) fn of(&self, volume: VolumeId) -> Option<MountEntry> {
        self.by_volume.lock().get(&volume).cloned()
    }

    pub(super) fn forget(&self, volume: VolumeId) {
        self.by_volume.lock().remove(&volume);
    }

    /// Forgets the mount of a volume at a path, where nothing of it is mounted any more.
    pub(super) fn forget_at(&self, volume: VolumeId, path: &Path) {
        let mut left = self.by_volume.lock();
        left.retain(|id, mount| *id != volume || mount.mount_point != path);
    }

    /// Notes a mount, and forgets those of volumes that are deleted.
    pub(super) fn note(&self, pools: &Pools, volume: VolumeId, mount: MountEntry) {
        let mut left = self.by_volume.lock();
        left.retain(|id, _| {
            let found = pools.volume(&VolumeHandle::Id(*id));
            !matches!(found, Err(storage::Error::NoVolume(_)))
        });
        left.insert(volume, mount);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_volume.lock().is_empty()
    }
}
