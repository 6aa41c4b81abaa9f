//! Finds pools, and the volumes, snapshots and groups in them.

use std::sync::Arc;

use super::{PoolSlot, Pools};
use crate::storage::index::Index;
use crate::storage::{
    Error, GroupId, GroupRecord, Pool, PoolId, Result, SnapshotId, SnapshotRecord, VolumeHandle,
    VolumeRecord,
};

impl Pools {
    /// The open pools, in order.
    pub(in crate::storage) fn pools(&self) -> Vec<Arc<Pool>> {
        let slots = self.slots.read();
        slots.iter().filter_map(|s| s.state.clone().ok()).collect()
    }

    /// [`Error::Unavailable`] while a pool is missing for which `may_hold` is true.
    fn none_missing(&self, may_hold: impl Fn(&PoolSlot) -> bool) -> Result<()> {
        let slots = self.slots.read();
        let mut slots = slots.iter().filter(|slot| may_hold(slot));
        slots.try_for_each(|slot| slot.pool().map(drop))
    }

    /// Finds a pool by name; `None` means the first configured pool. Fails with
    /// [`Error::UnknownPool`], or with [`Error::Unavailable`] if the pool is missing.
    pub fn named(&self, name: Option<&str>) -> Result<Arc<Pool>> {
        let slot = self
            .slot_named(name)
            .ok_or_else(|| Error::UnknownPool(name.unwrap_or_default().to_owned()))?;
        self.slots.read()[slot].pool()
    }

    /// The place of the pool with this name in the configuration; `None` means the first one.
    pub fn slot_named(&self, name: Option<&str>) -> Option<usize> {
        let slots = self.slots.read();
        slots
            .iter()
            .position(|slot| name.is_none_or(|name| slot.spec.name == name))
    }

    /// The names of the pools that allow inline volumes: those with the option `inline`, or the
    /// first pool if none has it.
    pub fn inline_pools(&self) -> Vec<String> {
        let slots = self.slots.read();
        let opened = slots.iter().filter(|slot| slot.spec.inline);
        let mut names: Vec<String> = opened.map(|slot| slot.spec.name.clone()).collect();
        if names.is_empty() {
            names.extend(slots.first().map(|slot| slot.spec.name.clone()));
        }
        names
    }

    /// The inline volumes of all open pools.
    pub fn inline_volumes(&self) -> Vec<Arc<VolumeRecord>> {
        self.all(Index::inline_volumes)
    }

    /// The volumes of all open pools with a fault in their records. The cost does not depend on the
    /// number of other volumes.
    pub fn faulty_volumes(&self) -> Vec<Arc<VolumeRecord>> {
        self.all(Index::faulty_volumes)
    }

    /// Finds a pool by identity. Fails with [`Error::ForeignPool`] if no configured pool has it.
    /// Fails with [`Error::Unavailable`] while a missing pool has this or an unknown identity.
    pub fn with_id(&self, id: PoolId) -> Result<Arc<Pool>> {
        if let Some(pool) = self.pools().into_iter().find(|p| p.id == id) {
            return Ok(pool);
        }
        self.none_missing(|slot| slot.id.is_none_or(|known| known == id))?;
        Err(Error::ForeignPool(id))
    }

    /// Finds a volume. Fails with [`Error::NoVolume`], [`Error::ForeignPool`] or
    /// [`Error::Unavailable`], and with [`Error::Corrupt`] if the record can't be used. A volume of
    /// a pool that could not be synced may come back, so it is not [`Error::NoVolume`].
    pub fn volume(&self, handle: &VolumeHandle) -> Result<Arc<VolumeRecord>> {
        let found = match handle {
            VolumeHandle::Id(id) => {
                let pool = self.with_id(id.pool())?;
                let found = pool.index.read().volumes.get(*id)?;
                if found.is_none() {
                    pool.check_synced()?;
                }
                found
            }
            VolumeHandle::Inline(name) => {
                let found = self.find(|index| index.inline(name));
                if found.is_none() {
                    self.complete()?;
                }
                found
            }
        };
        found.ok_or_else(|| Error::NoVolume(handle.clone()))
    }

    /// Fails with [`Error::Unavailable`] while what an earlier process created in a pool may not
    /// survive a power cut: a caller that found it by its name must not acknowledge it.
    pub fn check_synced(&self, id: PoolId) -> Result<()> {
        self.with_id(id)?.check_synced()
    }

    /// Finds the volume with this name in the open pools.
    pub fn volume_named(&self, name: &str) -> Option<Arc<VolumeRecord>> {
        self.find(|index| index.volumes.named(name))
    }

    /// The volumes of the open pools, oldest first. Missing pools leave theirs out, and
    /// [`Pools::complete`] reports them.
    pub fn volumes(&self) -> Vec<Arc<VolumeRecord>> {
        let mut all = self.all(|index| index.volumes.all().cloned().collect());
        all.sort_by_key(|v| v.id.uuid());
        all
    }

    /// [`Error::Unavailable`] while a pool is missing, because lists then leave out its volumes.
    pub fn complete(&self) -> Result<()> {
        self.none_missing(|_| true)
    }

    /// Finds a snapshot. Errors are those of [`Pools::volume`], with [`Error::NoSnapshot`].
    pub fn snapshot(&self, id: &SnapshotId) -> Result<Arc<SnapshotRecord>> {
        let found = self.indexed_snapshot(id);
        if let Err(Error::NoSnapshot(_)) = found {
            self.with_id(id.pool())?.check_synced()?;
        }
        found
    }

    /// Finds a snapshot, even if its end may not survive a power cut.
    pub(in crate::storage) fn indexed_snapshot(
        &self,
        id: &SnapshotId,
    ) -> Result<Arc<SnapshotRecord>> {
        let pool = self.with_id(id.pool())?;
        let found = pool.index.read().snapshots.get(*id)?;
        found.ok_or(Error::NoSnapshot(*id))
    }

    /// Finds the snapshot with this name in the open pools.
    pub fn snapshot_named(&self, name: &str) -> Option<Arc<SnapshotRecord>> {
        self.find(|index| index.snapshots.named(name))
    }

    /// The snapshots of the open pools, oldest first, like [`Pools::volumes`].
    pub fn snapshots(&self) -> Vec<Arc<SnapshotRecord>> {
        let mut all = self.all(|index| index.snapshots.all().cloned().collect());
        all.sort_by_key(|s| s.id.uuid());
        all
    }

    /// Finds a group. Errors are those of [`Pools::volume`], with [`Error::NoGroup`].
    pub fn group(&self, id: &GroupId) -> Result<Arc<GroupRecord>> {
        let found = self.indexed_group(id);
        if let Err(Error::NoGroup(_)) = found {
            self.with_id(id.pool())?.check_synced()?;
        }
        found
    }

    /// Finds a group, even if its end may not survive a power cut.
    pub(in crate::storage) fn indexed_group(&self, id: &GroupId) -> Result<Arc<GroupRecord>> {
        let pool = self.with_id(id.pool())?;
        let found = pool.index.read().groups.get(*id)?;
        found.ok_or(Error::NoGroup(*id))
    }

    /// Finds the group with this name in the open pools.
    pub fn group_named(&self, name: &str) -> Option<Arc<GroupRecord>> {
        self.find(|index| index.groups.named(name))
    }

    /// The groups of the open pools, oldest first, like [`Pools::volumes`].
    pub fn groups(&self) -> Vec<Arc<GroupRecord>> {
        let mut all = self.all(|index| index.groups.all().cloned().collect());
        all.sort_by_key(|g| g.id.uuid());
        all
    }

    fn find<T>(&self, look: impl Fn(&Index) -> Option<T>) -> Option<T> {
        self.pools()
            .iter()
            .find_map(|pool| look(&pool.index.read()))
    }

    fn all<T>(&self, list: impl Fn(&Index) -> Vec<T>) -> Vec<T> {
        let pools = self.pools();
        pools
            .iter()
            .flat_map(|pool| list(&pool.index.read()))
            .collect()
    }

    /// The configured name of the pool with this identity, for messages to people.
    pub fn name_of(&self, id: PoolId) -> Option<String> {
        let slots = self.slots.read();
        let slot = slots.iter().find(|s| s.id == Some(id))?;
        Some(slot.spec.name.clone())
    }
}
