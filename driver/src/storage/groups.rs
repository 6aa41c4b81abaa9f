//! Snapshots of several volumes at one point in time.
//!
//! A group exists while its record is under `groups/`. CreateVolumeGroupSnapshot writes the record
//! under `incoming/` first, and moves it into place after the snapshots. DeleteVolumeGroupSnapshot
//! moves the record to `trash/` first, and removes it last. If the process dies in between, a
//! record in one of these two directories lists the snapshots to free. A snapshot is kept if its
//! group has no record at all: the record was lost, or the snapshot's own record is damaged.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::file_names::EntryKind;
use super::layout::Left;
use super::snapshots::{Committed, Facts, Shot};
use super::{About, Error, GroupId, GroupRecord, Pool, Pools, Result, SnapshotId, VolumeId};
use crate::record::SCHEMA;

#[cfg(test)]
mod tests;

impl Pools {
    /// Takes snapshots of several volumes at one point in time. After an error no snapshot exists.
    pub fn create_group(
        &self,
        name: &str,
        volumes: &[VolumeId],
        parameters: &BTreeMap<String, String>,
    ) -> Result<Arc<GroupRecord>> {
        let pools = volumes.iter().map(|v| self.with_id(v.pool()));
        let pools = pools.collect::<Result<Vec<_>>>()?;
        let home = pools
            .first()
            .ok_or_else(|| Error::Refused("a group of no volumes".to_owned()))?;
        home.index.read().groups.check_unused(name)?;
        let (shots, taken_ns) = self.copy(&pools, volumes, parameters)?;
        let id = GroupId::generate(home.id);
        let record = GroupRecord {
            schema: SCHEMA,
            id,
            name: name.to_owned(),
            snapshots: shots.iter().map(|s| s.id).collect(),
            sources: volumes.to_vec(),
            parameters: parameters.clone(),
            created_ns: taken_ns,
        };
        let members = commit(shots, &record, home)?;
        let record = Arc::new(record);
        // The group before its members: a member of a missing group would look like a leftover.
        home.index.write().groups.put(record.clone());
        for member in members {
            member.publish();
        }
        Ok(record)
    }

    /// Frees a group and its snapshots. A missing group is [`Error::NoGroup`].
    pub fn delete_group(&self, id: &GroupId) -> Result<()> {
        let record = self.group(id)?;
        let home = self.with_id(id.pool())?;
        let pools = record.snapshots.iter().map(|s| self.with_id(s.pool()));
        let pools = pools.collect::<Result<Vec<_>>>()?;
        let entry = id.to_string();
        home.layout.discard(EntryKind::Groups, &entry)?;
        home.index.write().groups.take(*id);
        home.forget(&About::Group(*id));
        // The snapshots no longer exist; those that can't be freed now are freed later.
        let mut all_away = true;
        for (pool, member) in pools.iter().zip(&record.snapshots) {
            all_away &= pool.abandon_snapshot(*member);
        }
        if all_away {
            home.layout.free(&entry)
        } else {
            // The record lists the snapshots until then, even after a restart.
            home.layout.remove_later(Left::Trash, entry)
        }
        Ok(())
    }
}

impl Pools {
    /// Frees a group with an unusable record, and these members. They go first: the record can't
    /// list them for a later start.
    pub fn delete_unrecorded_group(&self, id: GroupId, members: &[SnapshotId]) -> Result<()> {
        let home = self.with_id(id.pool())?;
        home.index.read().groups.check_deletable(id)?;
        for member in members {
            self.with_id(member.pool())?.drop_snapshot(*member)?;
        }
        let entry = id.to_string();
        home.layout.discard(EntryKind::Groups, &entry)?;
        home.index.write().groups.take(id);
        home.forget(&About::Group(id));
        home.layout.free(&entry);
        Ok(())
    }
}

/// Moves the members into place, then the group, which has its record on disk before both. Removes
/// all of them after an error.
fn commit<'a>(
    shots: Vec<Shot<'a>>,
    record: &GroupRecord,
    home: &'a Arc<Pool>,
) -> Result<Vec<Committed<'a>>> {
    let mut group = home.layout.begin(record.id.to_string())?;
    group.write(record, None)?;
    group.sync()?;
    let mut members = Vec::new();
    let committed = (|| {
        for shot in shots {
            let facts = Facts {
                // For people only: no RPC finds a member by name.
                name: format!("{}/{}", record.name, members.len()),
                parameters: &record.parameters,
                group: Some(record.id),
                taken_ns: record.created_ns,
            };
            members.push(shot.commit(&facts)?);
        }
        group.place(EntryKind::Groups)
    })();
    match committed {
        Ok(()) => Ok(members),
        Err(e) => {
            let mut all_away = true;
            for member in members {
                all_away &= member.pool.abandon_snapshot(member.record.id);
            }
            // Last: until then the record lists the snapshots to free.
            if all_away {
                drop(group)
            } else {
                group.leave()
            }
            Err(e)
        }
    }
}
