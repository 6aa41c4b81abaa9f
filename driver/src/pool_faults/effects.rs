//! The table of faults: what each does to a pool, and what undoes it.

use hostloop_controllers::api::pool_fault::{PoolFault, PoolFaultKind};

use super::error::Obstacle;
use super::{full, hanging, missing};
use crate::storage::{Pools, Result};

/// What a fault does to the pool of a slot.
pub(super) struct PoolEffect {
    /// Why an open pool can't have it; `None` if it can.
    pub(super) obstacle: fn(&Pools, usize) -> Option<Obstacle>,
    pub(super) begin: fn(&Pools, usize, &PoolFault) -> Result<()>,
    /// Takes back what is there.
    pub(super) end: fn(&Pools, usize) -> Result<()>,
}

static FULL: PoolEffect = PoolEffect {
    obstacle: full::obstacle,
    begin: |pools, slot, _| pools.fill(slot),
    end: Pools::empty,
};

static MISSING: PoolEffect = PoolEffect {
    obstacle: missing::obstacle,
    begin: missing::begin,
    end: |pools, slot| {
        pools.bring_back(slot);
        Ok(())
    },
};

static HANGING: PoolEffect = PoolEffect {
    obstacle: hanging::obstacle,
    begin: hanging::begin,
    end: |pools, slot| {
        pools.release(slot);
        Ok(())
    },
};

/// The effect of a fault.
pub(super) fn of(kind: PoolFaultKind) -> &'static PoolEffect {
    match kind {
        PoolFaultKind::Full => &FULL,
        PoolFaultKind::Missing => &MISSING,
        PoolFaultKind::Hanging => &HANGING,
    }
}

/// Why the pool of a slot can't have a fault.
pub(super) fn obstacle(pools: &Pools, slot: usize, kind: PoolFaultKind) -> Option<Obstacle> {
    match &pools.slots()[slot].state {
        Ok(_) => (of(kind).obstacle)(pools, slot),
        Err(why) => Some(Obstacle::NotOpen(why.clone())),
    }
}
