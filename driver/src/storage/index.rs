//! The in-memory index of a pool: built when the pool opens, and updated after each disk change.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::lineage::Lineage;
use super::record_io::{Record, UnusableEntry};
use super::{Capability, Error, GroupRecord, SnapshotId, SnapshotRecord, VolumeId, VolumeRecord};
use crate::kernel::interned::Interned;
use crate::record::namespace_of;

#[cfg(test)]
mod tests;

/// Records of one kind, by ID and by name.
#[derive(Debug)]
pub(super) struct RecordTable<R: NamedRecord> {
    records: BTreeMap<R::Id, Arc<R>>,
    names: HashSet<ByName<R>>,
    unusable: BTreeMap<R::Id, UnusableEntry>,
    /// The most that counts of the promises in some records, in bytes.
    most: BTreeMap<R::Id, u64>,
    promised: u64,
}

/// A record with an optional name and a promised size.
pub(super) trait NamedRecord: Record {
    /// The name in the create request. `None` for members of a group, which have no request.
    fn name(&self) -> Option<&str>;
    /// Bytes that the pool promised to the object.
    fn promised(&self) -> u64;
    /// The kind of object, for messages.
    const NOUN: &'static str;
}

impl NamedRecord for VolumeRecord {
    const NOUN: &'static str = "volume";

    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn promised(&self) -> u64 {
        self.capacity_bytes
    }
}

impl NamedRecord for SnapshotRecord {
    const NOUN: &'static str = "snapshot";

    fn name(&self) -> Option<&str> {
        self.group.is_none().then_some(&self.name)
    }

    fn promised(&self) -> u64 {
        self.allocated_bytes.min(self.size_bytes)
    }
}

impl NamedRecord for GroupRecord {
    const NOUN: &'static str = "group";

    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn promised(&self) -> u64 {
        0
    }
}

/// A record with a name, in a set of names.
#[derive(Debug)]
struct ByName<R>(Arc<R>);

impl<R: NamedRecord> Borrow<str> for ByName<R> {
    fn borrow(&self) -> &str {
        self.0.name().unwrap_or_default()
    }
}

impl<R: NamedRecord> Hash for ByName<R> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let name: &str = self.borrow();
        name.hash(state);
    }
}

impl<R: NamedRecord> PartialEq for ByName<R> {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl<R: NamedRecord> Eq for ByName<R> {}

impl<R: NamedRecord> Default for RecordTable<R> {
    fn default() -> Self {
        RecordTable {
            records: BTreeMap::new(),
            names: HashSet::new(),
            unusable: BTreeMap::new(),
            most: BTreeMap::new(),
            promised: 0,
        }
    }
}

impl<R: NamedRecord> RecordTable<R> {
    /// Inserts a record, and replaces an earlier one, or an unusable one, with the same ID.
    pub(super) fn put(&mut self, record: Arc<R>) {
        let id = record.id();
        self.remove(id);
        self.promised = self.promised.saturating_add(self.counted(&record));
        // Only outside changes make two records with one name; the first one inserted keeps it.
        if record.name().is_some_and(|name| !self.names.contains(name)) {
            self.names.insert(ByName(record.clone()));
        }
        self.records.insert(id, record);
    }

    /// Packs the tree: records that are put in the order of their IDs leave its nodes half empty.
    pub(super) fn pack(&mut self) {
        self.records = std::mem::take(&mut self.records).into_iter().collect();
    }

    /// Removes a record, or an unusable one.
    pub(super) fn take(&mut self, id: R::Id) -> Option<Arc<R>> {
        let record = self.remove(id);
        self.most.remove(&id);
        record
    }

    fn remove(&mut self, id: R::Id) -> Option<Arc<R>> {
        if let Some(unusable) = self.unusable.remove(&id) {
            self.promised = self.promised.saturating_sub(unusable.bytes);
        }
        let record = self.records.remove(&id)?;
        self.promised = self.promised.saturating_sub(self.counted(&record));
        if let Some(name) = record.name()
            && self.names.get(name).is_some_and(|named| named.0.id() == id)
        {
            self.names.remove(name);
        }
        Some(record)
    }

    /// Adds an entry with an unusable record.
    pub(super) fn put_unusable(&mut self, id: R::Id, unusable: UnusableEntry) {
        self.remove(id);
        self.promised = self.promised.saturating_add(unusable.bytes);
        self.unusable.insert(id, unusable);
    }

    /// True if the entry has an unusable record.
    pub(super) fn is_unusable(&self, id: R::Id) -> bool {
        self.unusable.contains_key(&id)
    }

    /// Fails if this entry's unusable record does not allow its deletion.
    pub(super) fn check_deletable(&self, id: R::Id) -> Result<(), Error> {
        self.unusable
            .get(&id)
            .map_or(Ok(()), UnusableEntry::check_deletable)
    }

    /// The IDs of all entries with an unusable record.
    pub(super) fn unusable_ids(&self) -> Vec<R::Id> {
        self.unusable.keys().copied().collect()
    }

    /// What counts of a record's promise, in bytes.
    fn counted(&self, record: &R) -> u64 {
        let most = self.most.get(&record.id());
        most.map_or(record.promised(), |most| record.promised().min(*most))
    }

    /// Counts no more than this of a record's promise, or all of it if `None`.
    pub(super) fn count_at_most(&mut self, id: R::Id, most: Option<u64>) {
        let Some(record) = self.remove(id) else {
            return;
        };
        match most {
            Some(most) => self.most.insert(id, most),
            None => self.most.remove(&id),
        };
        self.put(record);
    }

    /// Finds a record; `Ok(None)` if none exists, and an error if the record is unusable.
    pub(super) fn get(&self, id: R::Id) -> Result<Option<Arc<R>>, Error> {
        match (self.records.get(&id), self.unusable.get(&id)) {
            (Some(record), _) => Ok(Some(record.clone())),
            (None, Some(unusable)) => Err(unusable.error()),
            (None, None) => Ok(None),
        }
    }

    /// Finds the record with this name.
    pub(super) fn named(&self, name: &str) -> Option<Arc<R>> {
        self.names.get(name).map(|named| named.0.clone())
    }

    /// Fails if an entry has the name already, even if its record can't be used.
    pub(super) fn check_unused(&self, name: &str) -> Result<(), Error> {
        let mut unusable = self.unusable.values();
        if let Some(unusable) = unusable.find(|b| b.name.as_deref() == Some(name)) {
            return Err(unusable.error());
        }
        let Some(ByName(named)) = self.names.get(name) else {
            return Ok(());
        };
        let (kind, id) = (R::NOUN, named.id());
        Err(Error::Refused(format!(
            "{kind} {id} has the name {name:?} already"
        )))
    }

    /// All records, oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<R>> {
        self.records.values()
    }

    /// Bytes promised to all entries, unusable ones included.
    pub(super) fn promised(&self) -> u64 {
        self.promised
    }
}

/// The records of a pool.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) volumes: RecordTable<VolumeRecord>,
    pub(super) snapshots: RecordTable<SnapshotRecord>,
    pub(super) groups: RecordTable<GroupRecord>,
    /// Deleted snapshots that keep their images.
    bases: BTreeMap<SnapshotId, Arc<SnapshotRecord>>,
    /// What the snapshots share, and so do not promise. Those in `bases` are among them.
    pub(super) lineage: Lineage,
    inline: HashMap<Box<str>, VolumeId>,
    /// The volumes with a fault in their records.
    faulty: BTreeSet<VolumeId>,
    capabilities: Interned<[Capability]>,
    parameters: Interned<BTreeMap<String, String>>,
    mkfs_options: Interned<[String]>,
}

impl Index {
    /// Shares equal fields of a new record with other records: most volumes are of few classes.
    pub(super) fn share(&mut self, record: &mut VolumeRecord) {
        record.capabilities = self.capabilities.get(record.capabilities.clone());
        record.parameters = self.parameters.get(record.parameters.clone());
        record.mutable_parameters = self.parameters.get(record.mutable_parameters.clone());
        record.mkfs_options = self.mkfs_options.get(record.mkfs_options.clone());
    }

    /// Inserts a volume, and replaces its earlier record.
    pub(super) fn put_volume(&mut self, record: Arc<VolumeRecord>) {
        if let Some(handle) = &record.inline {
            self.inline.insert(handle.clone(), record.id);
        }
        if record.fault.is_some() {
            self.faulty.insert(record.id);
        } else {
            self.faulty.remove(&record.id);
        }
        self.volumes.put(record);
    }

    /// Removes a volume.
    pub(super) fn take_volume(&mut self, id: VolumeId) {
        self.faulty.remove(&id);
        if let Some(handle) = self.volumes.take(id).and_then(|r| r.inline.clone()) {
            self.inline.remove(&handle);
        }
    }

    /// Inserts a snapshot, which promises this much beside its base (see [`Lineage::put`]).
    pub(super) fn put_snapshot(&mut self, record: Arc<SnapshotRecord>, own: u64) {
        self.lineage
            .put(record.source, record.id, record.promised(), own);
        self.snapshots.put(record);
    }

    /// Bytes that the pool promised to a snapshot.
    pub(super) fn promised_to(&self, snapshot: &SnapshotRecord) -> u64 {
        let own = self.lineage.own(snapshot.source, snapshot.id);
        own.unwrap_or_else(|| snapshot.promised())
    }

    /// Removes a snapshot.
    pub(super) fn take_snapshot(&mut self, id: SnapshotId) {
        if let Some(record) = self.snapshots.take(id) {
            self.lineage.take(record.source, id);
        }
    }

    /// Makes a snapshot a deleted one that keeps its image. It promises the same as before.
    pub(super) fn keep_base(&mut self, id: SnapshotId) {
        if let Some(record) = self.snapshots.take(id) {
            self.bases.insert(id, record);
        }
    }

    /// Inserts a deleted snapshot that keeps its image.
    pub(super) fn put_base(&mut self, record: Arc<SnapshotRecord>) {
        let all = record.promised();
        self.lineage.put(record.source, record.id, all, all);
        self.bases.insert(record.id, record);
    }

    /// Removes a deleted snapshot that keeps its image.
    pub(super) fn take_base(&mut self, id: SnapshotId) {
        if let Some(record) = self.bases.remove(&id) {
            self.lineage.take(record.source, id);
        }
    }

    /// Finds a snapshot, also a deleted one that keeps its image.
    pub(super) fn snapshot_or_base(
        &self,
        id: SnapshotId,
    ) -> Result<Option<Arc<SnapshotRecord>>, Error> {
        match self.bases.get(&id) {
            Some(base) => Ok(Some(base.clone())),
            None => self.snapshots.get(id),
        }
    }

    /// Finds a deleted snapshot that keeps its image.
    pub(super) fn base(&self, id: SnapshotId) -> Option<&Arc<SnapshotRecord>> {
        self.bases.get(&id)
    }

    /// The deleted snapshots that keep their images, oldest first.
    pub(super) fn bases(&self) -> impl DoubleEndedIterator<Item = &Arc<SnapshotRecord>> {
        self.bases.values()
    }

    /// Bytes that would not be promised without the deleted snapshots that keep their images.
    pub(super) fn promised_to_bases(&self) -> u64 {
        if self.bases.is_empty() {
            return 0;
        }
        let without = self.lineage_without(|_| true);
        let without = without.promised(self.snapshots.promised());
        self.promised_to_snapshots().saturating_sub(without)
    }

    /// What the snapshots would share without the deleted ones of a namespace that keep their
    /// images.
    pub(super) fn lineage_without_bases_of(&self, namespace: &str) -> Lineage {
        self.lineage_without(|base| namespace_of(&base.parameters) == namespace)
    }

    fn lineage_without(&self, leaves_out: impl Fn(&SnapshotRecord) -> bool) -> Lineage {
        let mut without = self.lineage.clone();
        for base in self.bases.values() {
            if leaves_out(base) {
                without.take(base.source, base.id);
            }
        }
        without
    }

    /// Bytes promised to snapshots, with the deleted ones that keep their images.
    fn promised_to_snapshots(&self) -> u64 {
        let bases = self.bases.values().map(|base| base.promised());
        let all = bases.fold(self.snapshots.promised(), u64::saturating_add);
        self.lineage.promised(all)
    }

    /// Finds the volume with this kubelet handle.
    pub(super) fn inline(&self, handle: &str) -> Option<Arc<VolumeRecord>> {
        let id = self.inline.get(handle)?;
        self.volumes.get(*id).ok().flatten()
    }

    /// All inline volumes, which kubelet identifies by a handle.
    pub(super) fn inline_volumes(&self) -> Vec<Arc<VolumeRecord>> {
        let ids = self.inline.values();
        ids.filter_map(|id| self.volumes.get(*id).ok().flatten())
            .collect()
    }

    /// All volumes with a fault in their records, oldest first.
    pub(super) fn faulty_volumes(&self) -> Vec<Arc<VolumeRecord>> {
        let ids = self.faulty.iter();
        ids.filter_map(|id| self.volumes.get(*id).ok().flatten())
            .collect()
    }

    /// Bytes promised to volumes and snapshots.
    pub(super) fn promised(&self) -> u64 {
        self.volumes
            .promised()
            .saturating_add(self.promised_to_snapshots())
    }
}
