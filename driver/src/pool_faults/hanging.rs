//! `hanging`: whatever needs the pool's files waits, for as long as the fault lasts at most. Pods that
//! have a volume keep it, and go on.

use hostloop_controllers::api::pool_fault::PoolFault;

use super::error::Obstacle;
use super::missing;
use crate::storage::{Pools, Result};

pub(super) fn obstacle(pools: &Pools, slot: usize) -> Option<Obstacle> {
    missing::obstacle(pools, slot)
}

pub(super) fn begin(pools: &Pools, slot: usize, fault: &PoolFault) -> Result<()> {
    pools.hold_up(slot, fault.lasts)
}
