//! Reads the current state of the pools for `/metrics`.

use std::collections::HashMap;
use std::sync::Arc;

use super::metrics::PoolGauges;
use crate::blocking::Blocking;
use crate::storage::{PoolId, Pools};

/// The metrics of all pools. A hanging pool counts as down, and blocks one thread for any number of
/// scrapes.
pub(crate) async fn gauges(pools: Arc<Pools>, blocking: &Blocking) -> Vec<PoolGauges> {
    let read = blocking.run("metrics", move || read(&pools));
    // The runtime is shutting down, so there is nothing to report.
    read.await.unwrap_or_default()
}

fn read(pools: &Pools) -> Vec<PoolGauges> {
    let volumes = count(pools.volumes().iter().map(|v| v.id.pool()));
    let snapshots = count(pools.snapshots().iter().map(|s| s.id.pool()));
    let cuts = count(pools.cuts().iter().map(|(_, cut)| cut.id.pool()));
    let bases = count(pools.kept_bases().iter().map(|s| s.id.pool()));
    let looks = pools.look().into_iter();
    let gauges = looks.map(|(slot, look)| {
        let name = slot.spec.name.clone();
        let (Ok(pool), Some(Ok(reading))) = (&slot.state, look) else {
            return PoolGauges {
                name,
                ..PoolGauges::default()
            };
        };
        PoolGauges {
            name,
            up: true,
            size_bytes: reading.usage.total_bytes,
            free_bytes: reading.free_bytes(),
            available_bytes: reading.capacity.available,
            volumes: Some(volumes.get(&pool.id()).copied().unwrap_or_default()),
            snapshots: Some(snapshots.get(&pool.id()).copied().unwrap_or_default()),
            cuts: Some(cuts.get(&pool.id()).copied().unwrap_or_default()),
            deleted_bases: Some(bases.get(&pool.id()).copied().unwrap_or_default()),
            deleted_base_bytes: Some(pool.promised_to_bases()),
        }
    });
    gauges.collect()
}

fn count(ids: impl Iterator<Item = PoolId>) -> HashMap<PoolId, u64> {
    let mut counts = HashMap::new();
    ids.for_each(|id| *counts.entry(id).or_default() += 1);
    counts
}
