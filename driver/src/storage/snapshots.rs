//! Creation and deletion of snapshots.

use std::fs::File;
use std::sync::Arc;

use hostloop_events::phase;

use super::capacity::SpaceRequest;
use super::content_source::{CopyJob, LocatedSource};
use super::file_names::EntryKind;
use super::index::NamedRecord;
use super::layout::Incoming;
use super::lineage::Lineage;
use super::pools::snapshot_quota::Allowance;
use super::reservation::Reservation;
use super::{About, Error, GroupId, Pool, Pools, Provisioning, Result, SnapshotId};
use super::{SnapshotRecord, VolumeHandle, VolumeId, VolumeRecord};
use crate::kernel::{file, wanted};
use crate::record::{Consistency, CutMark, Parameters, SCHEMA};

mod cuts;
mod powercut;
#[cfg(test)]
mod tests;

pub use cuts::{CutError, TakenCut};

/// A copied snapshot without a record. Dropping it removes it.
pub(super) struct Shot<'a> {
    pub(super) pool: &'a Arc<Pool>,
    pub(super) id: SnapshotId,
    incoming: Incoming<'a>,
    image: File,
    job: CopyJob,
    volume: Arc<VolumeRecord>,
    share: SnapshotShare<'a>,
    room: Reservation<'a>,
    allowance: Option<Allowance<'a>>,
}

impl<'a> Shot<'a> {
    /// Reserves what the copy turned out to promise more than was expected: the volume was written
    /// to meanwhile, or could not be cloned.
    fn settle(&mut self, pools: &'a Pools, parameters: &Parameters) -> Result<()> {
        let all = file::allocated_bytes(&self.image)?.min(self.job.source_len);
        self.share.own = all.saturating_sub(self.share.common(&self.image));
        self.room.raise(self.pool, self.share.own)?;
        if !self
            .allowance
            .as_ref()
            .is_some_and(|it| it.covers(self.share.promise(all)))
        {
            self.allowance = None;
            self.allowance = pools.allow_snapshot(self.pool, parameters, |lineage| {
                self.share.promise_in(lineage, all)
            })?;
        }
        Ok(())
    }

    /// Writes the copied image to disk.
    fn sync(&self, is_written_back: bool) -> Result<()> {
        phase("sync", || {
            if !is_written_back {
                file::write_back_in_steps(&self.image)?;
            }
            Ok(file::sync(&self.image, &self.incoming.image_path())?)
        })
    }

    /// Writes the record and moves the snapshot into place. The space stays reserved until the
    /// caller has added the record to the index.
    pub(super) fn commit(self, fields: &SnapshotFields<'_>) -> Result<Committed<'a>> {
        let record = SnapshotRecord {
            schema: SCHEMA,
            id: self.id,
            name: fields.name.clone(),
            source: self.volume.id,
            size_bytes: self.volume.capacity_bytes,
            requested_bytes: self.volume.requested_bytes,
            ancestor: self.job.ancestor(self.pool).map(Box::new),
            created_ns: fields.taken_ns,
            parameters: fields.parameters.clone(),
            group: fields.group,
            format: self.volume.format,
            provisioning: self.volume.settings.provisioning,
            allocated_bytes: file::allocated_bytes(&self.image)?,
            consistency: fields.consistency,
            cut: fields.cut,
        };
        self.incoming.commit(&record, None)?;
        let (pool, record) = (self.pool, Arc::new(record));
        let (share, allowance) = (self.share, self.allowance);
        Ok(Committed {
            pool,
            record,
            share,
            _room: self.room,
            _allowance: allowance,
        })
    }
}

/// What a snapshot shares with the one before it while it is taken. Dropping it ends that.
struct SnapshotShare<'a> {
    pool: &'a Pool,
    volume: VolumeId,
    id: SnapshotId,
    /// The image of the snapshot before it.
    base: Option<File>,
    /// Bytes that the snapshot promises beside its base.
    own: u64,
}

impl<'a> SnapshotShare<'a> {
    /// Chooses the newest snapshot of the volume as the base of this one.
    fn begin(pool: &'a Pool, volume: VolumeId, id: SnapshotId) -> SnapshotShare<'a> {
        let mut share = SnapshotShare {
            pool,
            volume,
            id,
            base: None,
            own: 0,
        };
        let newest = pool.index.read().lineage.newest(volume);
        let base = newest.filter(|_| pool.reflinks).and_then(|newest| {
            // Without an image it shares nothing, and its own calls report that.
            Some((newest, pool.open_base(newest).ok()?))
        });
        if let Some((newest, image)) = base {
            share.base = Some(image);
            pool.index.write().lineage.begin(volume, id, newest);
        }
        share
    }

    /// Bytes that the snapshot promises if it holds `all`, with what it has inherited from deleted
    /// ones.
    fn promise(&self, all: u64) -> u64 {
        self.promise_in(&self.pool.index.read().lineage, all)
    }

    fn promise_in(&self, lineage: &Lineage, all: u64) -> u64 {
        let inherited = lineage.own(self.volume, self.id).unwrap_or_default();
        all.min(self.own.saturating_add(inherited))
    }

    /// Bytes of an image in blocks of the base; none if one of them can't be read.
    fn common(&self, image: &File) -> u64 {
        let common = self
            .base
            .as_ref()
            .and_then(|base| self.pool.kernel.common_bytes(base, image).ok());
        common.unwrap_or_default()
    }
}

impl Drop for SnapshotShare<'_> {
    fn drop(&mut self) {
        let mut index = self.pool.index.write();
        if index
            .snapshot_or_base(self.id)
            .is_ok_and(|found| found.is_none())
        {
            index.lineage.take(self.volume, self.id);
        }
    }
}

/// A snapshot that is on disk but not in the index.
pub(super) struct Committed<'a> {
    pub(super) pool: &'a Arc<Pool>,
    pub(super) record: Arc<SnapshotRecord>,
    share: SnapshotShare<'a>,
    _room: Reservation<'a>,
    _allowance: Option<Allowance<'a>>,
}

impl Committed<'_> {
    /// Adds the record to the index.
    pub(super) fn publish(self) -> Arc<SnapshotRecord> {
        self.pool
            .index
            .write()
            .put_snapshot(self.record.clone(), self.share.own);
        self.record
    }
}

/// Fields of a snapshot's record that do not come from its volume's record.
pub(super) struct SnapshotFields<'a> {
    pub(super) name: String,
    pub(super) parameters: &'a Parameters,
    pub(super) group: Option<GroupId>,
    pub(super) taken_ns: u64,
    pub(super) consistency: Consistency,
    pub(super) cut: Option<CutMark>,
}

impl Pools {
    /// Takes a snapshot; a mounted volume is frozen during the copy.
    pub fn create_snapshot(
        &self,
        volume: &VolumeId,
        name: &str,
        parameters: &Parameters,
    ) -> Result<Arc<SnapshotRecord>> {
        let pools = [self.with_id(volume.pool())?];
        pools[0].index.read().snapshots.check_unused(name)?;
        let (shots, taken_ns) = self.copy(&pools, &[*volume], parameters)?;
        let fields = SnapshotFields {
            name: name.to_owned(),
            parameters,
            group: None,
            taken_ns,
            consistency: Consistency::Frozen,
            cut: None,
        };
        let shot = shots
            .into_iter()
            .next()
            .ok_or(Error::NoVolume(VolumeHandle::Id(*volume)))?;
        Ok(shot.commit(&fields)?.publish())
    }

    /// Takes snapshots of volumes at one point in time, and returns that time. `pools` lists the
    /// pool of each volume in the same order.
    pub(super) fn copy<'a>(
        &'a self,
        pools: &'a [Arc<Pool>],
        volumes: &[VolumeId],
        parameters: &Parameters,
    ) -> Result<(Vec<Shot<'a>>, u64)> {
        let shots = pools.iter().zip(volumes);
        let shots = shots.map(|(pool, id)| self.prepare(pool, id, parameters));
        let mut shots = shots.collect::<Result<Vec<_>>>()?;
        let jobs: Vec<_> = shots.iter().map(|shot| (&shot.job, &shot.image)).collect();
        let copied = self.copy_images(&jobs)?;
        // With reflinks, the next snapshot of a volume counts on this one, and begins after it.
        if pools.iter().all(|pool| !pool.reflinks) {
            wanted::copied();
        }
        for shot in &mut shots {
            shot.settle(self, parameters)?;
            shot.sync(copied.is_written_back)?;
        }
        Ok((shots, copied.taken_ns))
    }

    /// All preparation before the volume is frozen.
    fn prepare<'a>(
        &'a self,
        pool: &'a Arc<Pool>,
        id: &VolumeId,
        parameters: &Parameters,
    ) -> Result<Shot<'a>> {
        let volume = self.volume(&VolumeHandle::Id(*id))?;
        let source = LocatedSource::Volume(volume.clone());
        let job = self.copy_job(source, pool, None, Provisioning::Thin)?;
        let id = SnapshotId::generate(pool.id);
        let mut share = SnapshotShare::begin(pool, volume.id, id);
        let take = job.takes();
        let common = if take == 0 {
            share.common(&job.from)
        } else {
            0
        };
        let all = job.allocated.min(job.source_len);
        share.own = all.saturating_sub(common);
        let allowance =
            self.allow_snapshot(pool, parameters, |lineage| share.promise_in(lineage, all))?;
        let room = pool.reserve(SpaceRequest {
            promise: share.own,
            take,
            thick: false,
        })?;
        let incoming = pool.layout.begin(id.to_string())?;
        let image = incoming.image()?;
        Ok(Shot {
            pool,
            id,
            image,
            incoming,
            job,
            volume,
            share,
            room,
            allowance,
        })
    }

    /// Deletes a snapshot, and frees it unless its image is kept for later deltas. A missing
    /// snapshot is [`Error::NoSnapshot`]; a group's is [`Error::InGroup`].
    pub fn delete_snapshot(&self, id: &SnapshotId) -> Result<()> {
        let named = match self.snapshot(id) {
            Err(Error::Corrupt { .. }) => {
                self.with_id(id.pool())?
                    .index
                    .read()
                    .snapshots
                    .check_deletable(*id)?;
                // The group's record may be in any pool.
                self.complete()?;
                None
            }
            found => found?.group,
        };
        let group = match named.map(|named| (named, self.indexed_group(&named))) {
            // The record may name a deleted group, or, if damaged, a group that never existed.
            None | Some((_, Err(Error::NoGroup(_)))) => self.group_with(id),
            Some((named, _)) => Some(named),
        };
        match group {
            Some(group) => Err(Error::InGroup(*id, group)),
            None => self.with_id(id.pool())?.retire_snapshot(*id),
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
    /// Finds out what the snapshots share that were there before this process, once. Until then
    /// each one promises all that it has.
    pub(super) fn measure_snapshots(&self) {
        let mut measured = self.measured.lock();
        if *measured || !self.reflinks {
            return;
        }
        let pairs = self.index.read().lineage.without_base();
        for (volume, id, base) in pairs {
            // One that can't be read promises all that it has, and its own calls report it.
            let Ok(common) = self.common_bytes(base, id) else {
                continue;
            };
            let mut index = self.index.write();
            if let Ok(Some(record)) = index.snapshot_or_base(id) {
                let own = record.promised().saturating_sub(common);
                index.lineage.count_on(volume, id, base, own);
            }
        }
        *measured = true;
    }

    fn common_bytes(&self, base: SnapshotId, id: SnapshotId) -> Result<u64> {
        let [base, image] = [base, id].map(|id| self.open_base(id));
        Ok(self.kernel.common_bytes(&base?, &image?)?)
    }

    /// Deletes a snapshot and frees its space.
    pub(super) fn drop_snapshot(&self, id: SnapshotId) -> Result<()> {
        let entry = id.to_string();
        self.layout.discard(EntryKind::Snapshots, &entry)?;
        self.index.write().take_snapshot(id);
        self.forget(&About::Snapshot(id));
        self.layout.free(&entry);
        Ok(())
    }

    /// Deletes a snapshot of a group that does not exist, and frees it now or later. False if even
    /// the move to `trash/` failed.
    pub(super) fn abandon_snapshot(&self, id: SnapshotId) -> bool {
        self.index.write().take_snapshot(id);
        self.forget(&About::Snapshot(id));
        self.layout.abandon(EntryKind::Snapshots, id.to_string())
    }
}
