//! CreateSnapshot, DeleteSnapshot and GetSnapshot.

use std::sync::Arc;

use hostloop_proto::csi;

use super::{Controller, Error, Result, accessibility, lookup, parameters, to_proto};
use crate::csi::topology::Segments;
use crate::csi::validate;
use crate::storage::{Consistency, SnapshotId, SnapshotRecord, VolumeId};

/// Compares an existing snapshot of the same name with the request ("Snapshot already exists but is
/// incompatible").
fn fits(
    existing: &SnapshotRecord,
    source: &VolumeId,
    consistency: Consistency,
) -> std::result::Result<(), String> {
    if existing.source != *source {
        return Err(format!("is of volume {}", existing.source));
    }
    if existing.consistency != consistency {
        let is = existing.consistency.as_str();
        return Err(format!(
            "has consistency {is}, not {}",
            consistency.as_str()
        ));
    }
    if let Some(cut) = &existing.cut {
        // It expires, and no orchestrator knows when.
        return Err(format!("is a cut of {}", cut.exploration));
    }
    match &existing.group {
        Some(group) => Err(format!("belongs to group {group}")),
        None => Ok(()),
    }
}

/// Warns of parameters of a new snapshot or group that have no effect. A look whether a request is
/// refused comes before the call, so only the call itself warns.
pub(super) fn warn_of_ignored(name: &str, accepted: &parameters::Parameters) {
    for (key, value) in parameters::ignored(accepted) {
        if key == parameters::DELETION_POLICY {
            tracing::warn!(
                value,
                snapshot = name,
                "ignored the parameter deletionPolicy of a snapshot class: only its field \
                 deletionPolicy counts"
            );
        } else {
            tracing::warn!(
                key,
                snapshot = name,
                "ignored a parameter of a snapshot class: this driver does not have it"
            );
        }
    }
}

impl Controller {
    /// CreateSnapshot: idempotent by name. It answers once the snapshot is complete.
    pub fn create_snapshot(
        &self,
        req: csi::CreateSnapshotRequest,
    ) -> Result<csi::CreateSnapshotResponse> {
        let (ours, consistency) = self.check_snapshot(&req)?;
        warn_of_ignored(&req.name, &req.parameters);
        let record = self.snapshot_of(&req.name, &req, consistency)?;
        let mut snapshot = to_proto::snapshot(&record, &ours);
        if accessibility::names_us_alone(req.accessibility_requirements.as_ref(), &ours) {
            snapshot.accessible_topology.clear();
        }
        Ok(csi::CreateSnapshotResponse {
            snapshot: Some(snapshot),
        })
    }

    /// True if CreateSnapshot refuses the parameters or the topology of this request for a new
    /// snapshot.
    pub(crate) fn refuses_snapshot(&self, req: &csi::CreateSnapshotRequest) -> bool {
        match self.check_snapshot(req) {
            Ok((_, Consistency::Powercut)) => {
                let source = self.volume("source_volume_id", &req.source_volume_id);
                source
                    .and_then(|source| self.check_powercut(&source.id))
                    .is_err()
            }
            checked => checked.is_err(),
        }
    }

    /// Checks a snapshot, but for its source. Returns the topology of this node, and the state that
    /// the snapshot is to show.
    fn check_snapshot(
        &self,
        req: &csi::CreateSnapshotRequest,
    ) -> Result<(Arc<Segments>, Consistency)> {
        validate::name("name", &req.name)?;
        validate::required("source_volume_id", &req.source_volume_id)?;
        let consistency = parameters::snapshot(&req.parameters, self.config.unknown_parameters)?;
        let ours = self.here()?;
        if !accessibility::satisfied(req.accessibility_requirements.as_ref(), &ours)? {
            return Err(Error::ResourceExhausted(
                "snapshots of this node are usable from none of the requisite topologies".into(),
            ));
        }
        Ok((ours, consistency))
    }

    /// Checks whether a new snapshot of this volume may be a power cut. One that was taken earlier
    /// is an answer to its repeated call, whatever the flags say by now.
    pub(super) fn check_powercut(&self, source: &VolumeId) -> Result<()> {
        if !self.config.faults {
            return Err(parameters::refused_powercut(parameters::FAULTS_ARE_OFF).into());
        }
        let pool = self.pools.with_id(source.pool())?;
        Ok(pool.check_clones_live().map_err(parameters::of_powercut)?)
    }

    fn snapshot_of(
        &self,
        name: &str,
        req: &csi::CreateSnapshotRequest,
        consistency: Consistency,
    ) -> Result<Arc<SnapshotRecord>> {
        // A snapshot outlives its volume, so a repeated call still gets the same answer.
        let id: Option<VolumeId> = req.source_volume_id.parse().ok();
        let existing = self.pools.snapshot_named(name);
        let source = match (&existing, id) {
            (Some(_), Some(id)) => id,
            _ => self.volume("source_volume_id", &req.source_volume_id)?.id,
        };
        let Some(existing) = existing else {
            return self.take_snapshot(&source, req, consistency);
        };
        fits(&existing, &source, consistency)
            .map_err(|why| lookup::name_taken("snapshot", existing.id, name, why))?;
        self.pools.check_synced(existing.id.pool())?;
        Ok(existing)
    }

    fn take_snapshot(
        &self,
        source: &VolumeId,
        req: &csi::CreateSnapshotRequest,
        consistency: Consistency,
    ) -> Result<Arc<SnapshotRecord>> {
        let (name, parameters) = (&req.name, &req.parameters);
        let taken = match consistency {
            Consistency::Frozen => self.pools.create_snapshot(source, name, parameters),
            Consistency::Powercut => {
                self.check_powercut(source)?;
                self.pools
                    .create_powercut(source, name, parameters)
                    .map_err(parameters::of_powercut)
            }
        };
        Ok(taken?)
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
