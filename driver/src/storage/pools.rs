//! All pools of a node, open or missing.
//!
//! What is done with pools stands elsewhere, in files named by the subject.

use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::Semaphore;

use super::copy_rate::CopyRates;
use super::growths::Growths;
use super::pool::space::PoolFilesystems;
use super::{Error, Look, NotedProblem, Pool, PoolId, PoolOptions, PoolSpec, Result};
use crate::diagnose::NotedFault;
use crate::kernel::Kernel;

mod faults;
mod find;
mod freed;
mod opening;
mod slots;
pub(super) mod snapshot_quota;

pub use freed::{Announcements, Freed};

use self::opening::Opening;
use self::snapshot_quota::SnapshotQuota;

/// A configured pool, open or not.
#[derive(Clone, Debug)]
pub struct PoolSlot {
    pub spec: PoolSpec,
    /// The open pool, or the reason why it is missing.
    pub state: std::result::Result<Arc<Pool>, String>,
    /// The pool's current or last known identity.
    pub id: Option<PoolId>,
    /// The fault that the pool has by request.
    pub fault: Option<NotedFault>,
    /// The open pool while a fault lets it be missing.
    set_aside: Option<Arc<Pool>>,
}

impl PoolSlot {
    /// The open pool, or [`Error::Unavailable`] if it is missing.
    fn pool(&self) -> Result<Arc<Pool>> {
        self.state.clone().map_err(|why| Error::Unavailable {
            name: self.spec.name.clone(),
            why,
        })
    }
}

/// All pools of this node.
pub struct Pools {
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) options: PoolOptions,
    pub(super) slots: RwLock<Vec<PoolSlot>>,
    pub(super) opening: Opening,
    pub(super) filesystems: Arc<PoolFilesystems>,
    pub(super) copy_rates: CopyRates,
    pub(super) growths: Growths,
    pub(super) quota: SnapshotQuota,
    pub(super) freed: Announcements,
    fault_freezes: Semaphore,
}

impl Pools {
    /// The kernel the pools act on.
    pub fn kernel(&self) -> &dyn Kernel {
        &*self.kernel
    }

    /// The growths of filesystems.
    pub(crate) fn growths(&self) -> &Growths {
        &self.growths
    }

    /// The places for volumes that the fault `frozen` is freezing.
    pub(crate) fn fault_freezes(&self) -> &Semaphore {
        &self.fault_freezes
    }

    /// The options that apply to all pools.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    /// The configured pools in order, open or missing.
    pub fn slots(&self) -> Vec<PoolSlot> {
        self.slots.read().clone()
    }

    /// Checks all pools in parallel: all hanging pools together take only as long as one.
    pub fn look(&self) -> Vec<(PoolSlot, Option<Look>)> {
        let slots = self.slots();
        for pool in slots.iter().filter_map(|slot| slot.state.as_ref().ok()) {
            pool.begin_look(&self.kernel);
        }
        slots
            .into_iter()
            .map(|slot| {
                let look = slot.state.as_ref().ok().map(|pool| pool.wait_for_look());
                (slot, look)
            })
            .collect()
    }

    /// The problems that recovery noted in the open pools.
    pub fn noted_problems(&self) -> Vec<NotedProblem> {
        self.pools()
            .iter()
            .flat_map(|pool| pool.noted_problems())
            .collect()
    }
}
