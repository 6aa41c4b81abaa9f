//! What pools have.

use std::sync::Arc;

use hostloop_driver::storage::{GroupRecord, Pools, SnapshotRecord, VolumeRecord, scan};

/// The content of pools.
#[derive(Clone, Default)]
pub(crate) struct Contents {
    pub(crate) volumes: Vec<Arc<VolumeRecord>>,
    pub(crate) snapshots: Vec<Arc<SnapshotRecord>>,
    pub(crate) groups: Vec<Arc<GroupRecord>>,
}

impl Contents {
    /// What a driver knows of its pools.
    pub(super) fn of(pools: &Pools) -> Contents {
        Contents {
            volumes: pools.volumes(),
            snapshots: pools.snapshots(),
            groups: pools.groups(),
        }
    }

    /// What of a pool's disk can be read.
    pub(super) fn on_disk(found: scan::Contents) -> Contents {
        let volumes = found.volumes.into_iter();
        let snapshots = found.snapshots.into_iter();
        let groups = found.groups.into_iter();
        Contents {
            volumes: volumes
                .filter_map(|one| one.record.ok().map(Arc::new))
                .collect(),
            snapshots: snapshots
                .filter_map(|one| one.record.ok().map(Arc::new))
                .collect(),
            groups: groups
                .filter_map(|one| one.record.ok().map(Arc::new))
                .collect(),
        }
    }

    /// The handles of all volumes, snapshots and groups.
    pub(super) fn handles(&self) -> impl Iterator<Item = String> {
        let volumes = self.volumes.iter().map(|volume| volume.id.to_string());
        let snapshots = self.snapshots.iter();
        let snapshots = snapshots.map(|snapshot| snapshot.id.to_string());
        let groups = self.groups.iter().map(|group| group.id.to_string());
        volumes.chain(snapshots).chain(groups)
    }
}
