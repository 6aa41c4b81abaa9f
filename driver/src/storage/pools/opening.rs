//! Lets each pool be opened by one thread, and into one slot.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use parking_lot::{Mutex, MutexGuard};

use crate::storage::PoolId;

/// Coordinates the threads that open pools.
#[derive(Debug)]
pub(in crate::storage) struct Opening {
    /// One lock for each slot, held while its pool is opened.
    turns: Vec<Mutex<()>>,
    /// The pools that are open or being opened, with their slots.
    claimed: Mutex<BTreeMap<PoolId, usize>>,
    /// Held while groups are settled, because a group may have members in several pools.
    pub(super) settling: Mutex<()>,
    /// A pool has opened since groups were settled.
    pub(super) has_opened: AtomicBool,
}

/// A pool ID claimed by one slot. Dropping it without [`Claim::keep`] frees the ID.
pub(in crate::storage) struct Claim<'a> {
    opening: &'a Opening,
    id: PoolId,
    kept: bool,
}

impl Claim<'_> {
    pub(in crate::storage) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.opening.claimed.lock().remove(&self.id);
        }
    }
}

impl Opening {
    pub(super) fn of(slots: usize) -> Self {
        Opening {
            turns: (0..slots).map(|_| Mutex::default()).collect(),
            claimed: Mutex::default(),
            settling: Mutex::default(),
            has_opened: AtomicBool::new(false),
        }
    }

    /// Claims a pool ID for a slot; `None` if another slot has it.
    pub(in crate::storage) fn claim(&self, id: PoolId, slot: usize) -> Option<Claim<'_>> {
        let mut claimed = self.claimed.lock();
        if *claimed.entry(id).or_insert(slot) != slot {
            return None;
        }
        Some(Claim {
            opening: self,
            id,
            kept: false,
        })
    }

    /// Takes the lock to open a slot's pool; `None` while another thread holds it.
    pub(super) fn turn(&self, slot: usize) -> Option<MutexGuard<'_, ()>> {
        self.turns[slot].try_lock()
    }
}
