//! Snapshots that show what a power cut would have left of a volume: neither frozen nor flushed.

use std::sync::Arc;

use super::SnapshotFields;
use crate::record::{Consistency, CutMark, Parameters};
use crate::storage::content_source::CloneTime;
use crate::storage::{Pools, Result, SnapshotRecord, VolumeId};

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
}
