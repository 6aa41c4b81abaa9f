//! Opens the configured pools in parallel, and maintains them.
//!
//! Each pool opens and recovers on its own thread, so a pool that hangs or recovers slowly delays
//! no other. Until a pool is open, its slot says why it is missing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use tokio::sync::Semaphore;

use super::freed::Announcements;
use super::opening::Opening;
use super::snapshot_quota::SnapshotQuota;
use super::{PoolSlot, Pools};
use crate::kernel::{self, Kernel};
use crate::storage::copy_rate::CopyRates;
use crate::storage::growths::Growths;
use crate::storage::open::pool_registry::PoolRegistry;
use crate::storage::{Error, Pool, PoolId, PoolOptions, PoolSpec, Result, recovery};

/// Why a pool is missing while its first opening is under way.
const OPENING: &str = "it is being opened";

/// The most volumes that the fault `frozen` freezes at one time. Each holds a thread and a worker of the
/// controller until the writes under way are done, and pods decide how long these take.
const MOST_FAULT_FREEZES: usize = 4;

impl Pools {
    /// Opens the configured pools and recovers each. A missing pool is not an error here: its slot
    /// has the reason, and calls for it fail with [`Error::Unavailable`]. A pool of another node is
    /// an error ([`Error::OtherNode`]). For a pool that this node does not know, there are two
    /// more: another process has it open ([`Error::Locked`]), or the path holds something else
    /// ([`Error::Refused`]).
    pub fn open(
        specs: &[PoolSpec],
        options: PoolOptions,
        kernel: Arc<dyn Kernel>,
    ) -> Result<Arc<Pools>> {
        Pools::open_within(specs, options, kernel, Duration::MAX)
    }

    /// Like [`Pools::open`], but waits no longer than `limit`. Slower pools count as missing until
    /// they are open.
    pub fn open_within(
        specs: &[PoolSpec],
        options: PoolOptions,
        kernel: Arc<dyn Kernel>,
        limit: Duration,
    ) -> Result<Arc<Pools>> {
        if let Some(twice) = twice(specs.iter().map(|s| s.name.as_str())) {
            return Err(Error::Refused(format!("pool {twice} is configured twice")));
        }
        // Image pools have separate files in one directory, so only other pools need separate
        // paths.
        let whole = specs.iter().filter(|s| s.image_bytes.is_none());
        if let Some(twice) = twice(whole.map(|s| &s.path)) {
            let twice = twice.display();
            return Err(Error::Refused(format!(
                "{twice} is configured as two pools"
            )));
        }
        let registry = PoolRegistry::at(&options.state_dir)?;
        let pools = Arc::new(Pools {
            slots: RwLock::new(
                specs
                    .iter()
                    .map(|spec| PoolSlot {
                        spec: spec.clone(),
                        state: Err(OPENING.to_owned()),
                        // An unreadable registry is reported when the pool is opened.
                        id: registry.entry(&spec.name).ok().and_then(|entry| entry.id),
                        fault: None,
                        set_aside: None,
                    })
                    .collect(),
            ),
            opening: Opening::of(specs.len()),
            filesystems: Arc::default(),
            copy_rates: CopyRates::default(),
            growths: Growths::default(),
            quota: SnapshotQuota::default(),
            freed: Announcements::default(),
            fault_freezes: Semaphore::new(MOST_FAULT_FREEZES),
            kernel,
            options,
        });
        pools.open_all(limit)?;
        Ok(pools)
    }

    fn open_all(self: &Arc<Self>, limit: Duration) -> Result<()> {
        let began = Instant::now();
        let (ended, openings) = channel();
        let count = self.slots.read().len();
        for i in 0..count {
            let (pools, ended) = (self.clone(), ended.clone());
            let thread = std::thread::Builder::new().name("hostloop-open".to_owned());
            thread
                .spawn(move || {
                    let opened = pools.open_slot(i, true);
                    // Dropped first: the receiver of the result may need to be the last owner of
                    // the pools.
                    drop(pools);
                    // After the limit there is no receiver.
                    let _ = ended.send(opened);
                })
                .map_err(|e| kernel::Error::io("start a thread for", "a pool", e))?;
        }
        drop(ended);
        let mut first_error = Ok(());
        for _ in 0..count {
            match openings.recv_timeout(limit.saturating_sub(began.elapsed())) {
                Ok(opened) => first_error = first_error.and(opened),
                // A thread panicked, so it sends no result; its slot says that it is not open.
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.report_slow(began.elapsed());
                    break;
                }
            }
        }
        first_error
    }

    /// Writes into each slot that is still opening how long its opening has taken so far.
    fn report_slow(&self, waited: Duration) {
        for (i, slot) in self.slots().into_iter().enumerate() {
            if slot.state.is_err_and(|why| why == OPENING) {
                let seconds = waited.as_secs_f64();
                let why = format!("{OPENING}, which has taken more than {seconds:.0} s so far");
                self.settle_slot(i, Err(why), slot.id);
            }
        }
    }

    /// Number of configured pools.
    pub fn count(&self) -> usize {
        self.slots.read().len()
    }

    /// Maintains one pool; called periodically. Opens and recovers a missing pool once it is
    /// available. In an open pool, it retries failed syncs and removals, and drops noted problems
    /// that are over. It works in no other pool, which may hang.
    pub fn tend(&self, slot: usize) {
        let state = self.slots.read()[slot].state.clone();
        match state {
            Ok(pool) => {
                pool.sync_again();
                pool.sync_records_again();
                pool.layout.remove_left();
                pool.tend_bases();
                pool.tend_overhead();
                recovery::recheck(&pool, &*self.kernel);
                if self.options.max_snapshot_bytes_per_namespace.is_some() {
                    pool.measure_snapshots();
                }
            }
            Err(_) => {
                if let Err(error) = self.open_slot(slot, false) {
                    tracing::warn!(%error, "can't look for a missing pool");
                }
            }
        }
    }

    /// Opens the pool of a slot, if it is missing. A clear configuration mistake is an error only
    /// at the `first` attempt; later it is just the reason for a missing pool.
    fn open_slot(&self, i: usize, first: bool) -> Result<()> {
        let Some(_turn) = self.opening.turn(i) else {
            return Ok(());
        };
        let slot = self.slots.read()[i].clone();
        if slot.state.is_ok() || slot.set_aside.is_some() {
            return Ok(());
        }
        let registry = PoolRegistry::at(&self.options.state_dir)?;
        let entry = match registry.entry(&slot.spec.name) {
            Ok(entry) => entry,
            // The driver starts all the same: pods must be able to leave.
            Err(e) => {
                self.settle_slot(i, Err(e.to_string()), slot.id);
                return Ok(());
            }
        };
        let opened = self.open_one(i, &slot.spec, &registry, &entry);
        let id = opened.as_ref().map_or(entry.id, |pool| Some(pool.id));
        let configured_wrong = match &opened {
            Err(Error::OtherNode { .. }) => true,
            // A killed driver that cannot end while a disk hangs keeps its locks on all pools.
            Err(Error::Refused(_) | Error::Locked { .. }) => entry.id.is_none(),
            _ => false,
        };
        if first && configured_wrong {
            return opened.map(drop);
        }
        let state = match opened {
            Ok(pool) => Ok(pool),
            Err(Error::Unavailable { why, .. }) => Err(why),
            Err(e) => Err(e.to_string()),
        };
        let found = state.is_ok();
        self.settle_slot(i, state, id);
        if found {
            self.opening.has_opened.store(true, Ordering::SeqCst);
        }
        if found && first {
            self.settle_groups();
        }
        Ok(())
    }

    /// True if [`Pools::settle_groups`] may have something to do.
    pub fn has_unsettled_groups(&self) -> bool {
        let mut pools = self.pools().into_iter();
        self.opening.has_opened.load(Ordering::SeqCst)
            || pools.any(|pool| !pool.unfinished.lock().is_empty())
    }

    /// Frees the members of groups that were never finished or are partly deleted, then the records
    /// of the groups; called periodically. Notes the members of groups that can't be found. A group
    /// may have members in any pool, so one that hangs holds this up.
    pub fn settle_groups(&self) {
        let _one_at_a_time = self.opening.settling.lock();
        let has_opened = self.opening.has_opened.swap(false, Ordering::SeqCst);
        recovery::finish_groups(self);
        if has_opened {
            recovery::note_groups(self);
        }
    }

    fn settle_slot(
        &self,
        i: usize,
        state: std::result::Result<Arc<Pool>, String>,
        id: Option<PoolId>,
    ) {
        let mut slots = self.slots.write();
        let name = slots[i].spec.name.clone();
        match &state {
            Ok(pool) => {
                tracing::info!(pool = %name, id = %pool.id, path = %pool.root().display(), reflinks = pool.reflinks, "pool open")
            }
            // The pool opened while its slow opening was being reported.
            Err(_) if slots[i].state.is_ok() => return,
            // Logged once, not at every retry.
            Err(why) if slots[i].state.as_ref().err() == Some(why) => {}
            Err(why) => tracing::warn!(pool = %name, %why, "pool missing"),
        }
        slots[i].id = id;
        slots[i].state = state;
    }
}

fn twice<T: Ord + Copy>(all: impl IntoIterator<Item = T>) -> Option<T> {
    let mut seen = std::collections::BTreeSet::new();
    all.into_iter().find(|one| !seen.insert(*one))
}

#[cfg(test)]
mod tests;
