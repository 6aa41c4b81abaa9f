//! `missing`: the pool is treated as one with a disk that went. Calls for its volumes fail, and pods
//! that have one keep it.

use hostloop_controllers::api::pool_fault::PoolFault;

use super::error::Obstacle;
use crate::storage::{Pools, Result};

/// A frozen filesystem blocks sync(2) of the node, and could not be thawed meanwhile.
pub(super) fn obstacle(pools: &Pools, slot: usize) -> Option<Obstacle> {
    pools.frozen_volume(slot).map(Obstacle::Frozen)
}

pub(super) fn begin(pools: &Pools, slot: usize, fault: &PoolFault) -> Result<()> {
    let why = format!("it has the fault {fault}, which an administrator has asked for");
    pools.set_aside(slot, why)
}
