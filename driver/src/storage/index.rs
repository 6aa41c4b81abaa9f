//! What a pool holds, in memory: built when it is opened, changed after the disk was.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::record_io::{Broken, Record};
use super::{Error, GroupRecord, SnapshotRecord, VolumeId, VolumeRecord};

#[cfg(test)]
mod tests;

/// Records of one kind, by ID and by name.
#[derive(Debug)]
pub(super) struct Table<R: Named> {
    records: BTreeMap<R::Id, Arc<R>>,
    names: HashMap<String, R::Id>,
    broken: BTreeMap<R::Id, Broken>,
    promised: u64,
}

/// A record with a name (or none), and a size the pool has promised.
pub(super) trait Named: Record {
    /// What it is asked for by. Members of a group have none: they were not made by name.
    fn name(&self) -> Option<&str>;
    /// Bytes promised to it.
    fn promised(&self) -> u64;
}

impl Named for VolumeRecord {
    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn promised(&self) -> u64 {
        self.capacity_bytes
    }
}

impl Named for SnapshotRecord {
    fn name(&self) -> Option<&str> {
        self.group.is_none().then_some(&self.name)
    }

    fn promised(&self) -> u64 {
        self.allocated_bytes
    }
}

impl Named for GroupRecord {
    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn promised(&self) -> u64 {
        0
    }
}

impl<R: Named> Default for Table<R> {
    fn default() -> Self {
        Table {
            records: BTreeMap::new(),
            names: HashMap::new(),
            broken: BTreeMap::new(),
            promised: 0,
        }
    }
}

impl<R: Named> Table<R> {
    /// Takes a record in, in place of an earlier one of its ID.
    pub(super) fn put(&mut self, record: Arc<R>) {
        let id = record.id();
        self.take(id);
        self.promised = self.promised.saturating_add(record.promised());
        // Two of one name can only come from outside; the older one keeps it.
        if let Some(name) = record.name() {
            self.names.entry(name.to_owned()).or_insert(id);
        }
        self.records.insert(id, record);
    }

    /// Takes a record out.
    pub(super) fn take(&mut self, id: R::Id) -> Option<Arc<R>> {
        let record = self.records.remove(&id)?;
        self.promised = self.promised.saturating_sub(record.promised());
        if let Some(name) = record.name()
            && self.names.get(name) == Some(&id)
        {
            self.names.remove(name);
        }
        Some(record)
    }

    /// Notes an entry that can't be used.
    pub(super) fn put_broken(&mut self, id: R::Id, broken: Broken) {
        self.promised = self.promised.saturating_add(broken.bytes);
        self.broken.insert(id, broken);
    }

    /// A record; `Ok(None)` if there is none, and an error if there is one that can't be used.
    pub(super) fn get(&self, id: R::Id) -> Result<Option<Arc<R>>, Error> {
        match (self.records.get(&id), self.broken.get(&id)) {
            (Some(record), _) => Ok(Some(record.clone())),
            (None, Some(broken)) => Err(broken.error()),
            (None, None) => Ok(None),
        }
    }

    /// The record of this name.
    pub(super) fn named(&self, name: &str) -> Option<Arc<R>> {
        self.names
            .get(name)
            .and_then(|id| self.records.get(id))
            .cloned()
    }

    /// An unusable entry that has this name.
    pub(super) fn broken_named(&self, name: &str) -> Option<&Broken> {
        self.broken
            .values()
            .find(|b| b.name.as_deref() == Some(name))
    }

    /// All records, oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<R>> {
        self.records.values()
    }

    /// Bytes promised to all of them.
    pub(super) fn promised(&self) -> u64 {
        self.promised
    }
}

/// Everything a pool holds.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) volumes: Table<VolumeRecord>,
    pub(super) snapshots: Table<SnapshotRecord>,
    pub(super) groups: Table<GroupRecord>,
    inline: HashMap<String, VolumeId>,
}

impl Index {
    /// Takes a volume in, in place of its earlier record.
    pub(super) fn put_volume(&mut self, record: Arc<VolumeRecord>) {
        if let Some(handle) = &record.inline {
            self.inline.insert(handle.clone(), record.id);
        }
        self.volumes.put(record);
    }

    /// Takes a volume out.
    pub(super) fn take_volume(&mut self, id: VolumeId) {
        if let Some(handle) = self.volumes.take(id).and_then(|r| r.inline.clone()) {
            self.inline.remove(&handle);
        }
    }

    /// The volume kubelet calls so.
    pub(super) fn inline(&self, handle: &str) -> Option<Arc<VolumeRecord>> {
        let id = self.inline.get(handle)?;
        self.volumes.get(*id).ok().flatten()
    }

    /// All inline volumes: those that kubelet identifies by a handle.
    pub(super) fn inline_volumes(&self) -> Vec<Arc<VolumeRecord>> {
        let ids = self.inline.values();
        ids.filter_map(|id| self.volumes.get(*id).ok().flatten())
            .collect()
    }

    /// Bytes promised to what is here.
    pub(super) fn promised(&self) -> u64 {
        (self.volumes.promised()).saturating_add(self.snapshots.promised())
    }
}
