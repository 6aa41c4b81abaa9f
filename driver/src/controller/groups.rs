//! The GroupController service: snapshots of several volumes at one point in time.

use std::collections::BTreeSet;
use std::sync::Arc;

use hostloop_proto::csi;

use super::snapshots::warn_of_ignored;
use super::{Controller, Result, lookup, parameters, to_proto};
use crate::csi::validate::{self, Invalid, invalid};
use crate::storage::{self, Consistency, GroupId, GroupRecord, SnapshotId, VolumeHandle, VolumeId};

/// Compares an existing group of the same name with the request ("Group snapshot already exists but
/// is incompatible"). The order of the volumes does not matter.
fn fits(
    existing: &GroupRecord,
    sources: &[VolumeId],
    parameters: &parameters::Parameters,
) -> std::result::Result<(), &'static str> {
    let existing_sources = BTreeSet::from_iter(&existing.sources);
    if existing_sources != BTreeSet::from_iter(sources) {
        return Err("is of other volumes");
    }
    if parameters::same(&existing.parameters, parameters) {
        Ok(())
    } else {
        Err("has other parameters")
    }
}

const FIELD: &str = "snapshot_ids";

/// Checks that `snapshot_ids` are the group's, in any order ("Snapshot list mismatch").
fn matches(snapshots: &[SnapshotId], snapshot_ids: &[String]) -> std::result::Result<(), Invalid> {
    if snapshot_ids.is_empty() {
        return Err(invalid(FIELD, "is required"));
    }
    let members: BTreeSet<String> = snapshots.iter().map(|s| s.to_string()).collect();
    let named: BTreeSet<String> = snapshot_ids.iter().cloned().collect();
    if let Some(more) = named.difference(&members).next() {
        let why = format!("{} is not a snapshot of the group", lookup::shown(more));
        return Err(invalid(FIELD, why));
    }
    match members.difference(&named).next() {
        Some(less) => Err(invalid(FIELD, format!("{less} of the group is not named"))),
        None => Ok(()),
    }
}

impl Controller {
    /// CreateVolumeGroupSnapshot: idempotent by name.
    pub fn create_volume_group_snapshot(
        &self,
        req: csi::CreateVolumeGroupSnapshotRequest,
    ) -> Result<csi::CreateVolumeGroupSnapshotResponse> {
        let (existing, sources, consistency) = self.plan_group(&req)?;
        let name = req.name.as_str();
        warn_of_ignored(name, &req.parameters);
        let record = match existing {
            None => match consistency {
                Consistency::Frozen => self.pools.create_group(name, &sources, &req.parameters)?,
                Consistency::Powercut => self
                    .pools
                    .create_powercut_group(name, &sources, &req.parameters)
                    .map_err(parameters::of_powercut)?,
            },
            Some(existing) => {
                fits(&existing, &sources, &req.parameters)
                    .map_err(|why| lookup::name_taken("group snapshot", existing.id, name, why))?;
                self.pools.check_synced(existing.id.pool())?;
                existing
            }
        };
        Ok(csi::CreateVolumeGroupSnapshotResponse {
            group_snapshot: Some(self.show(&record)?),
        })
    }

    /// True if CreateVolumeGroupSnapshot refuses this request without a look at disks.
    pub(crate) fn refuses_group(&self, req: &csi::CreateVolumeGroupSnapshotRequest) -> bool {
        self.plan_group(req).is_err()
    }

    /// The group of this name, if there is one, the volumes that are to be its sources, and the state
    /// that it is to show.
    fn plan_group(
        &self,
        req: &csi::CreateVolumeGroupSnapshotRequest,
    ) -> Result<(Option<Arc<GroupRecord>>, Vec<VolumeId>, Consistency)> {
        let name = validate::name("name", &req.name)?;
        let consistency = parameters::group(&req.parameters, self.config.unknown_parameters)?;
        let existing = self.pools.group_named(name);
        let sources = self.sources(&req.source_volume_ids, existing.is_some())?;
        if existing.is_none() && consistency == Consistency::Powercut {
            self.check_group_powercut(&sources)?;
        }
        Ok((existing, sources, consistency))
    }

    /// Checks whether a new group of these volumes may be a power cut: fault disks alone can all stop
    /// at one instant.
    fn check_group_powercut(&self, sources: &[VolumeId]) -> Result<()> {
        for source in sources {
            let volume = self.pools.volume(&VolumeHandle::Id(*source))?;
            if volume.fault_disk.is_none() {
                let why = format!(
                    "is for single snapshots, and for groups of volumes on fault disks: volume \
                     {source} is on another disk (its class has no faultDisk), so the clones would \
                     be of different times, and together a state that no power cut leaves"
                );
                return Err(parameters::refused_powercut(&why).into());
            }
            self.check_powercut(source)?;
        }
        Ok(())
    }

    /// The volumes of a group without duplicates. The volumes of an existing group may be deleted.
    fn sources(&self, ids: &[String], allow_deleted: bool) -> Result<Vec<VolumeId>> {
        const FIELD: &str = "source_volume_ids";
        if ids.is_empty() {
            return Err(invalid(FIELD, "is required").into());
        }
        let mut sources = Vec::with_capacity(ids.len());
        let mut seen = BTreeSet::new();
        for (i, value) in ids.iter().enumerate() {
            let field = format!("{FIELD}[{i}]");
            let handle = lookup::id(&field, value)?;
            let source = match handle.ok_or_else(|| lookup::not_found("volume", value))? {
                VolumeHandle::Id(id) if allow_deleted => id,
                handle => self.pools.volume(&handle)?.id,
            };
            if !seen.insert(source) {
                return Err(invalid(field, "is named twice").into());
            }
            sources.push(source);
        }
        Ok(sources)
    }

    /// DeleteVolumeGroupSnapshot. Deleting an unknown ID succeeds.
    pub fn delete_volume_group_snapshot(
        &self,
        req: csi::DeleteVolumeGroupSnapshotRequest,
    ) -> Result<csi::DeleteVolumeGroupSnapshotResponse> {
        let done = Ok(csi::DeleteVolumeGroupSnapshotResponse {});
        let Some(id) = lookup::id::<GroupId>("group_snapshot_id", &req.group_snapshot_id)? else {
            return done;
        };
        let record = match self.pools.group(&id) {
            // The request names the members, which need no record of the group.
            Err(storage::Error::Corrupt { .. }) => {
                let members = self.members_without_record(id, &req.snapshot_ids)?;
                lookup::unless_gone(self.pools.delete_unrecorded_group(id, &members))?;
                return done;
            }
            found => lookup::unless_gone(found)?,
        };
        let Some(record) = record else {
            return done;
        };
        matches(&record.snapshots, &req.snapshot_ids)?;
        lookup::unless_gone(self.pools.delete_group(&id))?;
        done
    }

    /// The members of a group with an unusable record. Their own records must name the group, but
    /// an unusable one, or a snapshot that is gone, is a member if the request says so.
    fn members_without_record(&self, id: GroupId, named: &[String]) -> Result<Vec<SnapshotId>> {
        self.pools.complete()?;
        let all = self.pools.snapshots().into_iter();
        let mut members: Vec<_> = all.filter(|s| s.group == Some(id)).map(|s| s.id).collect();
        for named in named.iter().filter_map(|named| named.parse().ok()) {
            if self.pools.snapshot(&named).is_err() && !members.contains(&named) {
                members.push(named);
            }
        }
        matches(&members, named)?;
        Ok(members)
    }

    pub fn get_volume_group_snapshot(
        &self,
        req: csi::GetVolumeGroupSnapshotRequest,
    ) -> Result<csi::GetVolumeGroupSnapshotResponse> {
        let record = self.group("group_snapshot_id", &req.group_snapshot_id)?;
        matches(&record.snapshots, &req.snapshot_ids)?;
        Ok(csi::GetVolumeGroupSnapshotResponse {
            group_snapshot: Some(self.show(&record)?),
        })
    }

    fn show(&self, record: &GroupRecord) -> Result<csi::VolumeGroupSnapshot> {
        let here = self.here()?;
        let members = record.snapshots.iter().map(|id| {
            let snapshot = self.pools.snapshot(id)?;
            Ok(to_proto::snapshot(&snapshot, &here))
        });
        Ok(to_proto::group(
            record,
            members.collect::<Result<Vec<_>>>()?,
        ))
    }
}
