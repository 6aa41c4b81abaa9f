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
use super::recovery::Unfinished;
use super::snapshots::{Committed, Shot, SnapshotFields};
use super::{About, Error, GroupId, GroupRecord, Pool, Pools, Result, SnapshotId, VolumeId};
use crate::record::{Consistency, SCHEMA};

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
        self.take_group(name, volumes, parameters, Consistency::Frozen)
    }

    /// Takes snapshots of several volumes on fault disks, which are one power cut of all of them.
    /// After an error no snapshot exists.
    pub fn create_powercut_group(
        &self,
        name: &str,
        volumes: &[VolumeId],
        parameters: &BTreeMap<String, String>,
    ) -> Result<Arc<GroupRecord>> {
        self.take_group(name, volumes, parameters, Consistency::Powercut)
    }

    fn take_group(
        &self,
        name: &str,
        volumes: &[VolumeId],
        parameters: &BTreeMap<String, String>,
        consistency: Consistency,
    ) -> Result<Arc<GroupRecord>> {
        let pools = volumes.iter().map(|v| self.with_id(v.pool()));
        let pools = pools.collect::<Result<Vec<_>>>()?;
        let home = pools
            .first()
            .ok_or_else(|| Error::Refused("a group of no volumes".to_owned()))?;
        home.index.read().groups.check_unused(name)?;
        let (shots, taken_ns) = match consistency {
            Consistency::Frozen => self.copy(&pools, volumes, parameters)?,
            Consistency::Powercut => self.cut_group(&pools, volumes, parameters)?,
        };
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
        let members = commit(shots, &record, home, consistency)?;
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
        let waiting = abandon_all(pools.iter().zip(record.snapshots.iter().copied()));
        if waiting.is_empty() {
            home.layout.free(&entry);
        } else {
            home.finish_later(*id, Left::Trash, waiting);
        }
        Ok(())
    }
}

impl Pool {
    /// Keeps the record of a group where it is until these members are in `trash/` for good: after
    /// a power cut, only it says that they must go. See [`Pools::settle_groups`].
    fn finish_later(&self, group: GroupId, left: Left, waiting: Vec<SnapshotId>) {
        self.unfinished.lock().push(Unfinished {
            group,
            left,
            waiting,
        });
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

/// Moves these members to `trash/`, and returns those that must wait.
fn abandon_all<'a>(
    members: impl IntoIterator<Item = (&'a Arc<Pool>, SnapshotId)>,
) -> Vec<SnapshotId> {
    let mut waiting = Vec::new();
    for (pool, member) in members {
        if !pool.abandon_snapshot(member) {
            waiting.push(member);
        }
    }
    waiting
}

/// Moves the members into place, then the group, which has its record on disk before both. Removes
/// all of them after an error.
fn commit<'a>(
    shots: Vec<Shot<'a>>,
    record: &GroupRecord,
    home: &'a Arc<Pool>,
    consistency: Consistency,
) -> Result<Vec<Committed<'a>>> {
    let mut group = home.layout.begin(record.id.to_string())?;
    group.write(record, None)?;
    group.sync()?;
    let mut members = Vec::new();
    // A member that fails may be in place, too: perhaps only its fsync has failed.
    let mut begun: Vec<(&Arc<Pool>, SnapshotId)> = Vec::new();
    let committed = (|| {
        for shot in shots {
            begun.push((shot.pool, shot.id));
            let fields = SnapshotFields {
                // For people only: no RPC finds a member by name.
                name: format!("{}/{}", record.name, members.len()),
                parameters: &record.parameters,
                group: Some(record.id),
                taken_ns: record.created_ns,
                consistency,
                cut: None,
            };
            members.push(shot.commit(&fields)?);
        }
        group.place(EntryKind::Groups)
    })();
    match committed {
        Ok(()) => Ok(members),
        Err(e) => {
            // In its place, the record would stand for a whole group after a restart. So it leaves
            // first, and all members wait for that.
            let waiting = if group.withdraw() {
                abandon_all(begun)
            } else {
                begun.into_iter().map(|(_, member)| member).collect()
            };
            // Last: until then the record lists the snapshots to free.
            if waiting.is_empty() {
                drop(group);
            } else if let Some(left) = group.leave() {
                home.finish_later(record.id, left, waiting);
            }
            Err(e)
        }
    }
}
