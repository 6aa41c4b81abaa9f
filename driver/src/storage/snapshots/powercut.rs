//! Snapshots that show what a power cut would have left of volumes: neither frozen nor flushed.

use std::sync::Arc;

use super::{Shot, SnapshotFields};
use crate::record::{Consistency, CutMark, Parameters};
use crate::storage::content_source::CloneTime;
use crate::storage::{Pool, Pools, Result, SnapshotRecord, VolumeId};

#[cfg(test)]
mod tests;

impl Pools {
    /// Takes a snapshot that is a power cut. Writes that the volume's device has completed are in
    /// it, and what its filesystem only has in memory is not. Nothing of the volume changes. Fails
    /// with [`Refused`](crate::storage::Error::Refused) in a pool that would have to copy.
    pub fn create_powercut(
        &self,
        volume: &VolumeId,
        name: &str,
        parameters: &Parameters,
    ) -> Result<Arc<SnapshotRecord>> {
        let (taken, _) = self.cut_power(volume, name, parameters, None)?;
        tracing::info!(
            volume = %taken.source,
            snapshot = %taken.id,
            "took a snapshot that is a power cut: nothing was frozen or flushed"
        );
        Ok(taken)
    }

    /// Takes a snapshot that is a power cut, with the mark of a cut if it is one of an exploration.
    pub(super) fn cut_power(
        &self,
        volume: &VolumeId,
        name: &str,
        parameters: &Parameters,
        cut: Option<CutMark>,
    ) -> Result<(Arc<SnapshotRecord>, CloneTime)> {
        let pool = self.with_id(volume.pool())?;
        pool.index.read().snapshots.check_unused(name)?;
        pool.check_clones_live()?;
        let mut shot = self.prepare(&pool, volume, parameters)?;
        let cloned = self.clone_live(&shot.job, &shot.image)?;
        shot.settle(self, parameters)?;
        shot.sync(true)?;
        let fields = SnapshotFields {
            name: name.to_owned(),
            parameters,
            group: None,
            taken_ns: cloned.taken_ns,
            consistency: Consistency::Powercut,
            cut,
        };
        let taken = shot.commit(&fields)?.publish();
        Ok((taken, cloned))
    }

    /// Copies volumes on fault disks as a power cut of all of them at one instant leaves them, and
    /// returns that time. `pools` lists the pool of each volume in the same order.
    pub(in crate::storage) fn cut_group<'a>(
        &'a self,
        pools: &'a [Arc<Pool>],
        volumes: &[VolumeId],
        parameters: &Parameters,
    ) -> Result<(Vec<Shot<'a>>, u64)> {
        pools.iter().try_for_each(|pool| pool.check_clones_live())?;
        let shots = pools.iter().zip(volumes);
        let shots = shots.map(|(pool, id)| self.prepare(pool, id, parameters));
        let mut shots = shots.collect::<Result<Vec<_>>>()?;
        let jobs: Vec<_> = shots.iter().map(|shot| (&shot.job, &shot.image)).collect();
        let taken_ns = self.clone_held(volumes, &jobs)?;
        for shot in &mut shots {
            shot.settle(self, parameters)?;
            shot.sync(true)?;
        }
        tracing::info!(
            ?volumes,
            "took snapshots that are one power cut of these volumes: nothing was frozen or flushed"
        );
        Ok((shots, taken_ns))
    }
}
