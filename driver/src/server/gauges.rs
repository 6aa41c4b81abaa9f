//! Reads the pools for `/metrics`, as they are when somebody looks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::desk::{Desk, Fingerprint, Key};
use super::metrics::PoolGauges;
use crate::pool::{Pool, PoolId, Pools, Provisioning};

/// How long the pools may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Reads them, once at a time: a pool that hangs holds one thread, however often it is scraped.
#[derive(Clone)]
pub(crate) struct Gauges {
    pools: Arc<Pools>,
    desk: Desk,
}

impl Gauges {
    pub(crate) fn of(pools: Arc<Pools>) -> Self {
        Gauges {
            pools,
            desk: Desk::new(),
        }
    }

    /// All pools; those that don't answer in time are down.
    pub(crate) async fn read(&self) -> Vec<PoolGauges> {
        let pools = self.pools.clone();
        let keys = vec![Key::Own("the gauges of the pools")];
        let read = self
            .desk
            .run("Gauges", keys, Fingerprint::of(b""), move || {
                Ok::<_, Status>(read(&pools))
            });
        match tokio::time::timeout(LIMIT, read).await {
            Ok(Ok(gauges)) => gauges,
            _ => self
                .pools
                .slots()
                .iter()
                .map(|slot| down(&slot.spec.name))
                .collect(),
        }
    }
}

fn down(name: &str) -> PoolGauges {
    PoolGauges {
        name: name.to_owned(),
        ..PoolGauges::default()
    }
}

fn read(pools: &Pools) -> Vec<PoolGauges> {
    let count = |ids: Option<Vec<PoolId>>| {
        ids.map(|ids| {
            let mut counts = HashMap::<PoolId, u64>::new();
            ids.into_iter()
                .for_each(|id| *counts.entry(id).or_default() += 1);
            counts
        })
    };
    // Lists are refused while a pool is missing: then nobody knows how many there are.
    let volumes = pools.volumes().ok();
    let volumes = count(volumes.map(|all| all.iter().map(|v| v.id.pool()).collect()));
    let snapshots = pools.snapshots().ok();
    let snapshots = count(snapshots.map(|all| all.iter().map(|s| s.id.pool()).collect()));
    let of = |counts: &Option<HashMap<PoolId, u64>>, id| {
        counts
            .as_ref()
            .map(|counts| counts.get(&id).copied().unwrap_or_default())
    };
    let gauges = |pool: &Pool| {
        pool.alive().ok()?;
        let usage = pool.usage().ok()?;
        Some(PoolGauges {
            name: pool.name().to_owned(),
            up: true,
            size_bytes: usage.total_bytes,
            free_bytes: usage.free_bytes,
            available_bytes: pool.capacity(Provisioning::Thin).ok()?.available,
            volumes: of(&volumes, pool.id()),
            snapshots: of(&snapshots, pool.id()),
        })
    };
    let slots = pools.slots();
    slots
        .iter()
        .map(|slot| {
            let open = slot.state.as_ref().ok().and_then(|pool| gauges(pool));
            open.unwrap_or_else(|| down(&slot.spec.name))
        })
        .collect()
}
