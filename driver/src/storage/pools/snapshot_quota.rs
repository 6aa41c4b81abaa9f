//! The limit of what the snapshots of one namespace promise in all pools of a node.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::Pools;
use crate::record::{Parameters, namespace_of};
use crate::storage::lineage::Lineage;
use crate::storage::{Error, Pool, Result};

#[cfg(test)]
mod tests;

/// Bytes that namespaces get for snapshots that are being taken.
#[derive(Debug, Default)]
pub(in crate::storage) struct SnapshotQuota(Mutex<HashMap<String, u64>>);

/// Bytes for a snapshot that is being taken. Dropping it returns them.
pub(in crate::storage) struct Allowance<'a> {
    quota: &'a SnapshotQuota,
    namespace: String,
    bytes: u64,
}

impl Allowance<'_> {
    /// True if this is enough for a snapshot that promises so much.
    pub(in crate::storage) fn covers(&self, bytes: u64) -> bool {
        bytes <= self.bytes
    }
}

impl Drop for Allowance<'_> {
    fn drop(&mut self) {
        let mut taking = self.quota.0.lock();
        if let Some(bytes) = taking.get_mut(&self.namespace) {
            *bytes -= self.bytes;
            if *bytes == 0 {
                taking.remove(&self.namespace);
            }
        }
    }
}

impl Pools {
    /// Lets a snapshot in this pool with these parameters make its promise, until it is in the
    /// index. Fails with [`Error::SnapshotQuota`] beyond the limit of its namespace. The deleted
    /// snapshots of that which keep their images go first, if that may help. `promise` is asked
    /// again then: the snapshot inherits what only these had promised.
    pub(in crate::storage) fn allow_snapshot(
        &self,
        pool: &Pool,
        parameters: &Parameters,
        promise: impl Fn(&Lineage) -> u64,
    ) -> Result<Option<Allowance<'_>>> {
        let Some(limit) = self.options.max_snapshot_bytes_per_namespace else {
            return Ok(None);
        };
        let namespace = namespace_of(parameters);
        // What snapshots of an earlier process share must not count twice. Other pools may hang, so
        // [`Pools::tend`] measures them.
        pool.measure_snapshots();
        loop {
            let bytes = promise(&pool.index.read().lineage);
            let allowed = self.allow_within(namespace, bytes, limit);
            if allowed.is_ok()
                || self.least_used_by(namespace, pool, &promise) > limit
                || !self.drop_oldest_base_of(namespace, pool)
            {
                return allowed.map(Some);
            }
        }
    }

    /// What the snapshots of a namespace would promise without its deleted ones that keep their
    /// images, with one more in this pool.
    fn least_used_by(
        &self,
        namespace: &str,
        pool: &Pool,
        promise: impl Fn(&Lineage) -> u64,
    ) -> u64 {
        let taking = self.quota.0.lock().get(namespace).copied();
        let mut used = taking.unwrap_or_default();
        for other in self.pools() {
            let index = other.index.read();
            let lineage = index.lineage_without_bases_of(namespace);
            for snapshot in index.snapshots.all() {
                if namespace_of(&snapshot.parameters) == namespace {
                    let own = lineage.own(snapshot.source, snapshot.id);
                    used = used.saturating_add(own.unwrap_or_default());
                }
            }
            if other.id == pool.id {
                used = used.saturating_add(promise(&lineage));
            }
        }
        used
    }

    fn allow_within(&self, namespace: &str, bytes: u64, limit: u64) -> Result<Allowance<'_>> {
        let mut taking = self.quota.0.lock();
        let used: u64 =
            taking.get(namespace).copied().unwrap_or_default() + self.used_by(namespace);
        if used.saturating_add(bytes) > limit {
            let namespace = namespace.to_owned();
            return Err(Error::SnapshotQuota {
                namespace,
                requested: bytes,
                used,
                limit,
            });
        }
        *taking.entry(namespace.to_owned()).or_default() += bytes;
        Ok(Allowance {
            quota: &self.quota,
            namespace: namespace.to_owned(),
            bytes,
        })
    }

    /// What the snapshots of a namespace promise, with deleted ones that keep their images.
    fn used_by(&self, namespace: &str) -> u64 {
        let pools = self.pools();
        let used = pools.iter().map(|pool| {
            let index = pool.index.read();
            let its = index
                .snapshots
                .all()
                .chain(index.bases())
                .filter(|s| namespace_of(&s.parameters) == namespace);
            its.map(|snapshot| index.promised_to(snapshot)).sum::<u64>()
        });
        used.sum()
    }
}
