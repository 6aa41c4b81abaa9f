//! Creation and deletion of snapshots.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use hostloop_events::phase;

use super::capacity::SpaceRequest;
use super::content_source::{CopyJob, Origin};
use super::directory::Incoming;
use super::file_names::EntryKind;
use super::reservation::Reservation;
use super::{About, Error, GroupId, Pool, Pools, Provisioning, Result, SnapshotId, SnapshotRecord};
use super::{VolumeHandle, VolumeId, VolumeRecord};
use crate::kernel::file;
use crate::record::SCHEMA;

#[cfg(test)]
mod tests;

/// A copied snapshot without a record. Dropping it removes it.
pub(super) struct Shot<'a> {
    pub(super) pool: &'a Arc<Pool>,
    pub(super) id: SnapshotId,
    incoming: Incoming<'a>,
    image: File,
    origin: Origin,
    volume: Arc<VolumeRecord>,
    _room: Reservation<'a>,
}

impl<'a> Shot<'a> {
    fn job(&self) -> CopyJob<'_> {
        let (origin, pool) = (&self.origin, self.pool);
        let want = origin.copy_request(pool, origin.len, Provisioning::Thin);
        CopyJob { origin, to: &self.image, pool: pool.id, want }
    }

    /// Writes the record and moves the snapshot into place. The space stays reserved until the
    /// caller has added the record to the index.
    pub(super) fn commit(self, facts: &Facts<'_>) -> Result<Committed<'a>> {
        let record = SnapshotRecord {
            schema: SCHEMA,
            id: self.id,
            name: facts.name.clone(),
            source: self.volume.id,
            size_bytes: self.volume.capacity_bytes,
            requested_bytes: self.volume.requested_bytes,
            created_ns: facts.taken_ns,
            parameters: facts.parameters.clone(),
            group: facts.group,
            format: self.volume.format,
            provisioning: self.volume.settings.provisioning,
            allocated_bytes: file::allocated_bytes(&self.image)?,
        };
        self.incoming.commit(&record, None)?;
        Ok(Committed { pool: self.pool, record: Arc::new(record), _room: self._room })
    }
}

/// A snapshot that is on disk but not in the index.
pub(super) struct Committed<'a> {
    pub(super) pool: &'a Arc<Pool>,
    pub(super) record: Arc<SnapshotRecord>,
    _room: Reservation<'a>,
}

impl Committed<'_> {
    /// Adds the record to the index.
    pub(super) fn publish(self) -> Arc<SnapshotRecord> {
        self.pool.index.write().snapshots.put(self.record.clone());
        self.record
    }
}

/// Fields of a snapshot's record that do not come from its volume's record.
pub(super) struct Facts<'a> {
    pub(super) name: String,
    pub(super) parameters: &'a BTreeMap<String, String>,
    pub(super) group: Option<GroupId>,
    pub(super) taken_ns: u64,
}

impl Pools {
    /// Takes a snapshot; a mounted volume is frozen during the copy.
    pub fn create_snapshot(
        &self,
        volume: &VolumeId,
        name: &str,
        parameters: &BTreeMap<String, String>,
    ) -> Result<Arc<SnapshotRecord>> {
        let pools = [self.with_id(volume.pool())?];
        pools[0].index.read().snapshots.check_unused(name)?;
        let (shots, taken_ns) = self.copy(&pools, &[*volume])?;
        let facts = Facts { name: name.to_owned(), parameters, group: None, taken_ns };
        let shot = shots.into_iter().next().ok_or(Error::NoVolume(VolumeHandle::Id(*volume)))?;
        Ok(shot.commit(&facts)?.publish())
    }

    /// Takes snapshots of volumes at one point in time, and returns that time. `pools` lists the
    /// pool of each volume in the same order.
    pub(super) fn copy<'a>(
        &self,
        pools: &'a [Arc<Pool>],
        volumes: &[VolumeId],
    ) -> Result<(Vec<Shot<'a>>, u64)> {
        let shots = pools.iter().zip(volumes).map(|(pool, id)| self.prepare(pool, id));
        let shots = shots.collect::<Result<Vec<_>>>()?;
        let jobs: Vec<CopyJob<'_>> = shots.iter().map(Shot::job).collect();
        let taken_ns = self.copy_images(&jobs)?;
        for shot in &shots {
            phase("sync", || file::sync(&shot.image, &shot.incoming.image_path()))?;
        }
        Ok((shots, taken_ns))
    }

    /// All preparation before the volume is frozen.
    fn prepare<'a>(&self, pool: &'a Arc<Pool>, id: &VolumeId) -> Result<Shot<'a>> {
        let volume = self.volume(&VolumeHandle::Id(*id))?;
        let origin = self.origin_volume(volume.clone())?;
        let room = pool.reserve(SpaceRequest {
            promise: origin.allocated.min(origin.len),
            take: origin.copy_takes(pool),
            thick: false,
        })?;
        let id = SnapshotId::generate(pool.id);
        let incoming = pool.layout.begin(id.to_string())?;
        Ok(Shot { pool, id, image: incoming.image()?, incoming, origin, volume, _room: room })
    }

    /// Frees a snapshot. A missing snapshot is [`Error::NoSnapshot`]; a group's is
    /// [`Error::InGroup`].
    pub fn delete_snapshot(&self, id: &SnapshotId) -> Result<()> {
        let named = match self.snapshot(id) {
            Err(Error::Corrupt { .. }) => {
                self.with_id(id.pool())?.index.read().snapshots.check_deletable(*id)?;
                // The group's record may be in any pool.
                self.complete()?;
                None
            }
            found => found?.group,
        };
        let group = match named.map(|named| (named, self.group(&named))) {
            // The record may name a deleted group, or, if damaged, a group that never existed.
            None | Some((_, Err(Error::NoGroup(_)))) => self.group_with(id),
            Some((named, _)) => Some(named),
        };
        match group {
            Some(group) => Err(Error::InGroup(*id, group)),
            None => self.with_id(id.pool())?.drop_snapshot(*id),
        }
    }

    /// Finds the group that lists a snapshot in its record.
    fn group_with(&self, member: &SnapshotId) -> Option<GroupId> {
        let groups = self.groups();
        let group = groups.iter().find(|g| g.snapshots.contains(member))?;
        Some(group.id)
    }
}

impl Pool {
    /// Deletes a snapshot and frees its space.
    pub(super) fn drop_snapshot(&self, id: SnapshotId) -> Result<()> {
        let entry = id.to_string();
        self.layout.discard(EntryKind::Snapshots, &entry)?;
        self.index.write().snapshots.take(id);
        self.forget(&About::Snapshot(id));
        self.layout.free(&entry);
        Ok(())
    }

    /// Deletes a snapshot of a group that does not exist, and frees it now or later. False if even
    /// the move to `trash/` failed.
    pub(super) fn abandon_snapshot(&self, id: SnapshotId) -> bool {
        self.index.write().snapshots.take(id);
        self.forget(&About::Snapshot(id));
        self.layout.abandon(EntryKind::Snapshots, id.to_string())
    }
}
