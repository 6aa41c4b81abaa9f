//! Cuts: power cuts of a volume in use, many in one burst. Each is a snapshot with a mark, which
//! expires unless the mark is taken off.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hostloop_events::phase;
use rustix::fs::OFlags;

use crate::kernel::file;
use crate::record::{CutMark, owner_of};
use crate::storage::file_names::EntryKind;
use crate::storage::record_io::Record;
use crate::storage::{
    Error, Pool, Pools, Result, SnapshotId, SnapshotRecord, VolumeHandle, VolumeId, VolumeRecord,
    encoding,
};

#[cfg(test)]
mod tests;

/// Why a cut is not taken.
#[derive(Debug, thiserror::Error)]
pub enum CutError {
    #[error("volume {0} is not in use on this node: start a pod that uses it")]
    NotInUse(VolumeId),
    #[error(
        "pool {0} has less free space than its reserve, and cuts must not fill it up: free some \
         space"
    )]
    NearlyFull(String),
    #[error(transparent)]
    Storage(#[from] Error),
}

/// A cut that is in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenCut {
    pub record: Arc<SnapshotRecord>,
    /// Right before the clone, by CLOCK_MONOTONIC, in nanoseconds.
    pub monotonic_ns: u64,
    /// How long the clone took.
    pub clone: Duration,
    /// Bytes that the cut promises beside those of the snapshots before it.
    pub promised_bytes: u64,
}

impl Pools {
    /// Checks that cuts of this volume can be taken now.
    pub fn check_cuts(
        &self,
        volume: &VolumeId,
    ) -> std::result::Result<Arc<VolumeRecord>, CutError> {
        let pool = self.with_id(volume.pool())?;
        let record = self.volume(&VolumeHandle::Id(*volume))?;
        pool.check_clones_live()?;
        if record.stage.is_none() {
            return Err(CutError::NotInUse(*volume));
        }
        if pool.below_reserve()? {
            return Err(CutError::NearlyFull(pool.name().to_owned()));
        }
        Ok(record)
    }

    /// Takes a cut of a volume that is staged.
    pub fn take_cut(
        &self,
        volume: &VolumeId,
        cut: CutMark,
    ) -> std::result::Result<TakenCut, CutError> {
        let parameters = owner_of(&self.check_cuts(volume)?.parameters);
        let name = cut.snapshot_name();
        let (record, cloned) = self.cut_power(volume, &name, &parameters, Some(cut))?;
        let promised_bytes = self.promised_to(&record);
        Ok(TakenCut {
            record,
            monotonic_ns: cloned.monotonic_ns,
            clone: cloned.took,
            promised_bytes,
        })
    }

    /// The cuts in the open pools, by exploration and number.
    pub fn cuts(&self) -> Vec<(CutMark, Arc<SnapshotRecord>)> {
        let snapshots = self.snapshots().into_iter();
        let cuts = snapshots.filter_map(|snapshot| Some((snapshot.cut?, snapshot)));
        let mut cuts: Vec<_> = cuts.collect();
        cuts.sort_by_key(|(cut, _)| (cut.exploration, cut.number));
        cuts
    }

    /// Bytes that its pool promises to a snapshot beside those of the snapshots before it.
    pub fn promised_to(&self, snapshot: &SnapshotRecord) -> u64 {
        let Ok(pool) = self.with_id(snapshot.id.pool()) else {
            return 0;
        };
        let index = pool.index.read();
        index.promised_to(snapshot)
    }

    /// Makes an ordinary snapshot of a cut. Other snapshots stay as they are.
    pub fn keep_cut(&self, id: &SnapshotId) -> Result<Arc<SnapshotRecord>> {
        let pool = self.with_id(id.pool())?;
        let record = self.snapshot(id)?;
        let kept = Arc::new(SnapshotRecord {
            cut: None,
            ..(*record).clone()
        });
        pool.replace_snapshot(&record, &kept)?;
        // What it shares with others stays.
        pool.index.write().snapshots.put(kept.clone());
        Ok(kept)
    }

    /// Deletes a snapshot that is a cut for which `condition` holds. False if it is none, or gone.
    pub fn drop_cut(
        &self,
        id: &SnapshotId,
        condition: impl FnOnce(&CutMark) -> bool,
    ) -> Result<bool> {
        let record = match self.snapshot(id) {
            Err(Error::NoSnapshot(_)) => return Ok(false),
            found => found?,
        };
        if !record.cut.as_ref().is_some_and(condition) {
            return Ok(false);
        }
        self.with_id(id.pool())?.drop_snapshot(*id)?;
        Ok(true)
    }
}

impl Pool {
    /// Replaces a snapshot's record on disk. If they are the same, an earlier process may have
    /// replaced it without the fsync that follows.
    fn replace_snapshot(&self, before: &SnapshotRecord, record: &SnapshotRecord) -> Result<()> {
        let content = encoding::encode(record, SnapshotRecord::FILE)?;
        let entry = record.id.to_string();
        let entries = self.layout.entries(EntryKind::Snapshots);
        let dir = file::open_beneath(entries, Path::new(&entry), OFlags::DIRECTORY)?;
        Ok(phase("record", || {
            if before == record {
                file::sync_dir(dir.as_fd())
            } else {
                file::replace(dir.as_fd(), SnapshotRecord::FILE, &content)
            }
        })?)
    }
}
