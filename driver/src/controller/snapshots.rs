//! CreateSnapshot, DeleteSnapshot and GetSnapshot.

use std::sync::Arc;

use hostloop_proto::csi;

use super::{Controller, Error, Result, accessibility, lookup, parameters, to_proto};
use crate::csi::validate;
use crate::storage::{SnapshotId, SnapshotRecord, VolumeId};

/// Compares an existing snapshot of the same name with the request ("Snapshot already exists but is
/// incompatible").
fn fits(existing: &SnapshotRecord, source: &VolumeId) -> std::result::Result<(), String> {
    if existing.source != *source {
        return Err(format!("is of volume {}", existing.source));
    }
    match &existing.group {
        Some(group) => Err(format!("belongs to group {group}")),
        None => Ok(()),
    }
}

impl Controller {
    /// CreateSnapshot: idempotent by name. It answers once the snapshot is complete.
    pub fn create_snapshot(
        &self,
        req: csi::CreateSnapshotRequest,
    ) -> Result<csi::CreateSnapshotResponse> {
        let name = validate::name("name", &req.name)?;
        validate::required("source_volume_id", &req.source_volume_id)?;
        parameters::none(&req.parameters, self.config.unknown_parameters)?;
        let ours = self.here()?;
        if !accessibility::satisfied(req.accessibility_requirements.as_ref(), &ours)? {
            return Err(Error::ResourceExhausted(
                "snapshots of this node are usable from none of the requisite topologies".into(),
            ));
        }
        let record = self.snapshot_of(name, &req)?;
        let mut snapshot = to_proto::snapshot(&record, &ours);
        if accessibility::names_us_alone(req.accessibility_requirements.as_ref(), &ours) {
            snapshot.accessible_topology.clear();
        }
        Ok(csi::CreateSnapshotResponse {
            snapshot: Some(snapshot),
        })
    }

    fn snapshot_of(
        &self,
        name: &str,
        req: &csi::CreateSnapshotRequest,
    ) -> Result<Arc<SnapshotRecord>> {
        // A snapshot outlives its volume, so a repeated call still gets the same answer.
        let id: Option<VolumeId> = req.source_volume_id.parse().ok();
        let existing = self.pools.snapshot_named(name);
        let source = match (&existing, id) {
            (Some(_), Some(id)) => id,
            _ => self.volume("source_volume_id", &req.source_volume_id)?.id,
        };
        let Some(existing) = existing else {
            return Ok(self.pools.create_snapshot(&source, name, &req.parameters)?);
        };
        fits(&existing, &source)
            .map_err(|why| lookup::name_taken("snapshot", existing.id, name, why))?;
        Ok(existing)
    }

    /// DeleteSnapshot. Deleting an unknown ID succeeds, unless the snapshot may be on another node.
    pub fn delete_snapshot(
        &self,
        req: csi::DeleteSnapshotRequest,
    ) -> Result<csi::DeleteSnapshotResponse> {
        if let Some(id) = lookup::id::<SnapshotId>("snapshot_id", &req.snapshot_id)? {
            lookup::unless_gone(self.pools.delete_snapshot(&id))?;
        }
        Ok(csi::DeleteSnapshotResponse {})
    }

    pub fn get_snapshot(&self, req: csi::GetSnapshotRequest) -> Result<csi::GetSnapshotResponse> {
        let snapshot = self.snapshot("snapshot_id", &req.snapshot_id)?;
        Ok(csi::GetSnapshotResponse {
            snapshot: Some(to_proto::snapshot(&snapshot, &*self.here()?)),
        })
    }
}
