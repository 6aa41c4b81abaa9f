//! Snapshots of several volumes at one point in time.
//!
//! A group exists while its record is in its place. Its record is written first, under `incoming/`,
//! and moved into place after the snapshots; deleting the group moves it to `trash/` first, and
//! removes it there last. So whenever the process dies, a record in one of these two lists the
//! snapshots that are to be freed. A snapshot whose group has no record at all is kept: the record
//! was lost, or the snapshot's own is damaged.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::directory::{EntryKind, Left};
use super::record::SCHEMA;
use super::snapshots::{Committed, Facts, Shot};
use super::sync::{read, write};
use super::{About, Error, GroupId, GroupRecord, Pool, Pools, Result, VolumeId};

#[cfg(test)]
mod tests;

impl Pools {
    /// Takes snapshots of several volumes at one point in time, or of none.
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
        home.group_name_is_free(name)?;
        let (shots, taken_ns) = self.copy(&pools, volumes)?;
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
        // The group before its members: one whose group is nowhere would look like rubbish.
        write(&home.index).groups.put(record.clone());
        for member in members {
            member.publish();
        }
        Ok(record)
    }

    /// Frees a group and its snapshots. Missing is [`Error::NoGroup`].
    pub fn delete_group(&self, id: &GroupId) -> Result<()> {
        let record = self.group(id)?;
        let home = self.with_id(id.pool())?;
        let pools = record.snapshots.iter().map(|s| self.with_id(s.pool()));
        let pools = pools.collect::<Result<Vec<_>>>()?;
        let entry = id.to_string();
        home.layout.discard(EntryKind::Groups, &entry)?;
        write(&home.index).groups.take(*id);
        home.forget(&About::Group(*id));
        // From here on the snapshots do not exist; what can't be freed now is freed later.
        let mut all_away = true;
        for (pool, member) in pools.iter().zip(&record.snapshots) {
            all_away &= pool.abandon_snapshot(*member);
        }
        match all_away {
            true => home.layout.free(&entry),
            // Until then the record lists them, also for the next start.
            false => home.layout.remove_later(Left::Trash, entry),
        }
        Ok(())
    }
}

/// Puts the members into their places, then the group, whose record is on disk before both. On a
/// failure nothing stays.
fn commit<'a>(
    shots: Vec<Shot<'a>>,
    record: &GroupRecord,
    home: &'a Arc<Pool>,
) -> Result<Vec<Committed<'a>>> {
    let mut group = home.layout.begin(record.id.to_string())?;
    group.write(record)?;
    group.sync()?;
    let mut members = Vec::new();
    let committed = (|| {
        for shot in shots {
            let facts = Facts {
                // For people: nobody asks for a member by name.
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
            // After them: until then its record says what is to be freed.
            match all_away {
                true => drop(group),
                false => group.leave(),
            }
            Err(e)
        }
    }
}

impl Pool {
    /// An existing group keeps its name, also one whose record can't be used.
    fn group_name_is_free(&self, name: &str) -> Result<()> {
        let index = read(&self.index);
        if let Some(broken) = index.groups.broken_named(name) {
            return Err(broken.error());
        }
        match index.groups.named(name) {
            None => Ok(()),
            Some(taken) => {
                let id = taken.id;
                Err(Error::Refused(format!(
                    "group {id} has the name {name:?} already"
                )))
            }
        }
    }
}
