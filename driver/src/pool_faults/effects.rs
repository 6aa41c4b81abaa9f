//! The table of faults: what each does to a pool, and what undoes it.

use hostloop_controllers::api::pool_fault::{PoolFault, PoolFaultKind};

use super::error::{PoolFaultRefused, PoolObstacle};
use crate::storage::{self, Pools};

/// What a fault does to the pool of a slot.
pub(super) struct PoolEffect {
    /// Why an open pool can't have it; `None` if it can.
    pub(super) obstacle: fn(&Pools, usize) -> Option<PoolObstacle>,
    pub(super) begin: fn(&Pools, usize, &PoolFault) -> Result<(), PoolFaultRefused>,
    /// Takes back what is there.
    pub(super) end: fn(&Pools, usize) -> storage::Result<()>,
}

/// A file takes all free room of the pool's filesystem, so what is written to its thin volumes finds
/// none. The file's name says what it is, and the pool promises no room that the file has.
static FULL: PoolEffect = PoolEffect {
    obstacle: shared,
    begin: |pools, slot, _| {
        // Files that have come since the pool was opened show only in its directory, which may hang.
        if pools.fill(slot)? {
            Ok(())
        } else {
            Err(PoolObstacle::Shared.into())
        }
    },
    end: Pools::empty,
};

/// The pool is treated as one with a disk that went. Calls for its volumes fail, and pods that have
/// one keep it.
static MISSING: PoolEffect = PoolEffect {
    obstacle: frozen,
    begin: |pools, slot, fault| {
        let why = format!("it has the fault {fault}, which an administrator has asked for");
        Ok(pools.set_aside(slot, why)?)
    },
    end: |pools, slot| {
        pools.bring_back(slot);
        Ok(())
    },
};

/// What needs the pool's files waits, for as long as the fault lasts at most. Pods that have a volume
/// keep it, and go on.
static HANGING: PoolEffect = PoolEffect {
    obstacle: frozen,
    begin: |pools, slot, fault| Ok(pools.hold_up(slot, fault.lasts)?),
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
pub(super) fn obstacle(pools: &Pools, slot: usize, kind: PoolFaultKind) -> Option<PoolObstacle> {
    match &pools.slots()[slot].state {
        Ok(_) => (of(kind).obstacle)(pools, slot),
        Err(why) => Some(PoolObstacle::NotOpen(why.clone())),
    }
}

/// Other files on the filesystem would have no room either, such as those of the node.
fn shared(pools: &Pools, slot: usize) -> Option<PoolObstacle> {
    let pool = pools.slots()[slot].state.clone().ok()?;
    (!pool.is_alone()).then_some(PoolObstacle::Shared)
}

/// A frozen filesystem blocks sync(2) of the node, and could not be thawed meanwhile.
fn frozen(pools: &Pools, slot: usize) -> Option<PoolObstacle> {
    pools.frozen_volume(slot).map(PoolObstacle::Frozen)
}
