//! SnapshotMetadata: the allocated bytes of a snapshot, and the bytes that differ between two
//! snapshots of one volume.
//!
//! [`crate::kernel::extents`] finds the runs of bytes to report. This module checks requests and
//! converts runs to tuples of one style, a message at a time.

use std::sync::Arc;

use hostloop_proto::csi;

use super::{Controller, Error, Result, lookup};
use crate::csi::validate::{self, invalid};
use crate::kernel::{self, extents};
use crate::record::KEEP_DELETED_BASES;
use crate::storage::{self, Provisioning, SnapshotId, SnapshotRecord};

mod block_metadata;

use block_metadata::{Style, Tuples};

impl Controller {
    /// GetMetadataAllocated: passes answers to `emit` in order; `emit` returns false once the
    /// caller hangs up. INVALID_ARGUMENT for a missing ID or a negative `max_results`, NOT_FOUND,
    /// OUT_OF_RANGE for a `starting_offset` that is negative or behind the end.
    ///
    /// A stream without tuples still has one message, which contains the capacity.
    pub fn get_metadata_allocated(
        &self,
        req: csi::GetMetadataAllocatedRequest,
        emit: &mut dyn FnMut(csi::GetMetadataAllocatedResponse) -> bool,
    ) -> Result<()> {
        Self::require(self.config.snapshot_metadata, "snapshot metadata")?;
        let max = max_results(req.max_results)?;
        let snapshot = self.snapshot("snapshot_id", &req.snapshot_id)?;
        let start = starting_offset(req.starting_offset, snapshot.size_bytes)?;
        let image = self.pools.open_snapshot(&snapshot)?;

        let style = Style::new(self.config.metadata_blocks, snapshot.size_bytes);
        let (block_metadata_type, volume_capacity_bytes) = (style.block_type(), style.capacity());
        send(
            Tuples::new(style, max, &mut |block_metadata| {
                emit(csi::GetMetadataAllocatedResponse {
                    block_metadata_type,
                    volume_capacity_bytes,
                    block_metadata,
                })
            }),
            |add| extents::allocated(&image, style.span(start), add),
        )
    }

    /// GetMetadataDelta, like [`Controller::get_metadata_allocated`]. INVALID_ARGUMENT also for
    /// snapshots of different volumes. The base may be a deleted snapshot that keeps its image;
    /// FAILED_PRECONDITION for one that does not. It never omits a block that differs.
    pub fn get_metadata_delta(
        &self,
        req: csi::GetMetadataDeltaRequest,
        emit: &mut dyn FnMut(csi::GetMetadataDeltaResponse) -> bool,
    ) -> Result<()> {
        Self::require(self.config.snapshot_metadata, "snapshot metadata")?;
        validate::required("base_snapshot_id", &req.base_snapshot_id)?;
        validate::required("target_snapshot_id", &req.target_snapshot_id)?;
        let max = max_results(req.max_results)?;
        let base = self.base(&req.base_snapshot_id)?;
        let target = self.snapshot("target_snapshot_id", &req.target_snapshot_id)?;
        if base.source != target.source {
            let why = "is a snapshot of another volume than base_snapshot_id";
            return Err(invalid("target_snapshot_id", why).into());
        }
        let start = starting_offset(req.starting_offset, target.size_bytes)?;
        let shares = self.unchanged_is_shared(&base, &target)?;
        let base = self
            .pools
            .open_base(&base)
            .map_err(|error| without_base(&base.id, error))?;
        let image = self.pools.open_snapshot(&target)?;

        let style = Style::new(self.config.metadata_blocks, target.size_bytes);
        let (block_metadata_type, volume_capacity_bytes) = (style.block_type(), style.capacity());
        send(
            Tuples::new(style, max, &mut |block_metadata| {
                emit(csi::GetMetadataDeltaResponse {
                    block_metadata_type,
                    volume_capacity_bytes,
                    block_metadata,
                })
            }),
            |add| extents::changed(&base, &image, style.span(start), shares, add),
        )
    }

    /// Finds the snapshot to compare with.
    fn base(&self, value: &str) -> Result<Arc<SnapshotRecord>> {
        let id: SnapshotId = lookup::id("base_snapshot_id", value)?
            .ok_or_else(|| lookup::not_found("snapshot", value))?;
        self.pools
            .base(&id)
            .map_err(|error| without_base(&id, error))
    }

    /// True if unchanged blocks are still shared between two snapshots, so that a different
    /// location means different content. This needs a pool with reflinks and a thin volume: the
    /// blocks of a thick one are separated from every snapshot again.
    fn unchanged_is_shared(&self, base: &SnapshotRecord, target: &SnapshotRecord) -> Result<bool> {
        let pool = self.pools.with_id(target.id.pool())?;
        let are_thin = [base, target]
            .iter()
            .all(|snapshot| snapshot.provisioning == Provisioning::Thin);
        Ok(pool.reflinks() && are_thin)
    }
}

/// The error for a base that can't be found or opened. A deleted snapshot and one that never was
/// are the same here: a tool that asks for either has to read all blocks.
fn without_base(id: &SnapshotId, error: storage::Error) -> Error {
    match error {
        storage::Error::NoSnapshot(_) => Error::FailedPrecondition(format!(
            "base_snapshot_id: snapshot {id} does not exist, and its image is not kept: make a full \
             backup, and set {KEEP_DELETED_BASES} in the class of snapshots that are deleted before \
             the next one"
        )),
        error => error.into(),
    }
}

/// Sends the tuples of the runs that `find` passes to its argument.
fn send(
    mut tuples: Tuples<'_>,
    find: impl FnOnce(&mut dyn FnMut(extents::ByteRange) -> bool) -> kernel::Result<()>,
) -> Result<()> {
    find(&mut |run| tuples.add(run))?;
    tuples.finish();
    Ok(())
}

/// Reads `max_results`; 0 lets the driver choose.
fn max_results(max: i32) -> Result<usize> {
    usize::try_from(max).map_err(|_| invalid("max_results", "is negative").into())
}

/// Reads `starting_offset`, which may be the end itself (then no bytes are left).
fn starting_offset(offset: i64, size: u64) -> Result<u64> {
    u64::try_from(offset)
        .ok()
        .filter(|offset| *offset <= size)
        .ok_or_else(|| {
            Error::OutOfRange(format!(
                "starting_offset: {offset} is not within 0 and {size}"
            ))
        })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::start(0, Some(0))]
    #[case::within(4097, Some(4097))]
    #[case::end(8192, Some(8192))]
    #[case::behind(8193, None)]
    #[case::negative(-1, None)]
    #[case::lowest(i64::MIN, None)]
    #[case::highest(i64::MAX, None)]
    fn offsets(#[case] offset: i64, #[case] expected: Option<u64>) {
        match (starting_offset(offset, 8192), expected) {
            (Ok(offset), Some(expected)) => assert_eq!(offset, expected),
            (Err(Error::OutOfRange(message)), None) => assert!(message.contains("8192")),
            (other, _) => panic!("{other:?}"),
        }
    }

    #[test]
    fn results_are_not_negative() {
        assert_eq!(max_results(0).unwrap(), 0);
        assert_eq!(max_results(7).unwrap(), 7);
        assert!(matches!(max_results(-1), Err(Error::Invalid(_))));
    }
}
