//! Snapshots of several volumes at one point in time.
//!
//! A group exists from the moment its record does: the snapshots come first, naming it, and its
//! record last; deleting it begins with the record. So a snapshot whose group has no record is
//! rubbish, whenever the process died.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::layout::Shelf;
use super::locks::{read, write};
use super::record::SCHEMA;
use super::snapshots::{Committed, Facts, Shot};
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
        let (shots, taken_ns) = self.shoot(&pools, volumes)?;
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
        home.layout.discard(Shelf::Groups, &entry)?;
        write(&home.index).groups.take(*id);
        home.forget(&About::Group(*id));
        home.layout.free(&entry);
        // From here on the snapshots do not exist; what can't be freed now is freed later.
        for (pool, member) in pools.iter().zip(&record.snapshots) {
            pool.abandon_snapshot(*member);
        }
        Ok(())
    }
}

/// The members first, then the group. On a failure nothing stays.
fn commit<'a>(
    shots: Vec<Shot<'a>>,
    record: &GroupRecord,
    home: &'a Arc<Pool>,
) -> Result<Vec<Committed<'a>>> {
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
        home.layout.begin(record.id.to_string())?.commit(record)
    })();
    match committed {
        Ok(()) => Ok(members),
        Err(e) => {
            for member in members {
                member.pool.abandon_snapshot(member.record.id);
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
