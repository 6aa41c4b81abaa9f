//! Faults of a node's pools, which administrators ask for.
//!
//! `hostloop pool-fault` writes what they ask for into a file of the state directory, which only root
//! on the node can write. [`PoolFaults`] looks at it again and again, and writes what became of it
//! into another file. [`decide`] is pure, and [`effects`] is a table of what each fault does. A fault
//! ends when it is cleared, after its time, and with the process: the next one begins without faults.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hostloop_controllers::api::pool_fault::{PoolFault, PoolFaultKind};
use hostloop_report::node_faults::{
    NodeFaults, OfferedFault, PoolFaultNow, PoolFaultState, PoolWithFaults,
};
use parking_lot::Mutex;

use crate::blocking::Blocking;
use crate::diagnose::NotedFault;
use crate::faults;
use crate::record::now_ns;
use crate::storage::Pools;

mod decide;
mod effects;
mod error;
mod files;
#[cfg(test)]
mod tests;

use decide::{KnownPoolFault, PoolFaultStep};
pub use error::{PoolFaultRefused, PoolObstacle};
pub(crate) use files::noted_faults;
pub use files::{FaultFiles, FaultFilesError, PoolFaultRequest};

/// How often one fault of a pool has come into one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFaultCount {
    pub pool: String,
    /// The word of the fault; empty if it is none.
    pub fault: &'static str,
    pub state: PoolFaultState,
    pub times: u64,
}

type CountKey = (String, &'static str, PoolFaultState);

/// The faults of the pools of this process.
pub struct PoolFaults {
    pools: Arc<Pools>,
    is_enabled: bool,
    files: FaultFiles,
    /// What was last done, by slot. Held while it is done.
    known: Vec<Mutex<Option<KnownPoolFault>>>,
    shown: Mutex<Shown>,
    counts: Mutex<BTreeMap<CountKey, u64>>,
    /// True once the process ends: no fault begins any more.
    is_stopping: AtomicBool,
}

/// What the file says of the pools.
struct Shown {
    said: NodeFaults,
    /// False if the file lacks some of it.
    is_written: bool,
}

impl PoolFaults {
    /// Forgets what was asked of an earlier process, and shows what can be asked for. `is_enabled` is
    /// `--enable-faults`. Without it there is nothing more to do.
    pub fn new(pools: Arc<Pools>, is_enabled: bool) -> PoolFaults {
        let files = FaultFiles::at(&pools.options().state_dir);
        let slots = pools.slots().into_iter();
        let said = NodeFaults {
            enabled: is_enabled,
            claims: if is_enabled {
                faults::offered(pools.kernel())
            } else {
                Vec::new()
            },
            fault_disks: Vec::new(),
            served_disks: None,
            pools: slots
                .map(|slot| PoolWithFaults {
                    pool: slot.spec.name,
                    ..PoolWithFaults::default()
                })
                .collect(),
        };
        let faults = PoolFaults {
            known: said.pools.iter().map(|_| Mutex::default()).collect(),
            shown: Mutex::new(Shown {
                said,
                is_written: false,
            }),
            counts: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            pools,
            is_enabled,
            files,
        };
        if let Err(error) = faults.files.forget_requests() {
            tracing::warn!(%error, "faults of pools that an earlier process was asked for stay requested");
        }
        for slot in faults.slots() {
            faults.look(slot);
        }
        faults.write(&mut faults.shown.lock());
        faults
    }

    /// Brings the pool of a slot to what is asked for. Blocks, for as long as the pool's disk does.
    pub fn tend(&self, slot: usize) {
        // Nothing is asked for by a file that can't be read.
        let requests = self.files.requests().unwrap_or_default();
        let requested = requests.get(&self.pool_name(slot));
        self.bring(slot, requested);
        self.show(slot);
    }

    /// The slots of the pools that can have faults: none without `--enable-faults`.
    pub fn slots(&self) -> Range<usize> {
        if self.is_enabled {
            0..self.known.len()
        } else {
            0..0
        }
    }

    /// Ends all faults, before the process ends. Each pool has a thread of its own, so one that hangs
    /// holds up no other.
    pub(crate) async fn end_all(self: &Arc<Self>, blocking: &Blocking) {
        self.is_stopping.store(true, Ordering::SeqCst);
        let ended = self.slots().map(|slot| {
            let faults = Arc::clone(self);
            blocking.run("faults of pools", move || {
                faults.bring(slot, None);
                faults.show(slot);
            })
        });
        futures::future::join_all(ended).await;
    }

    /// How often each fault has come into each state.
    pub fn counts(&self) -> Vec<PoolFaultCount> {
        let counts = self.counts.lock();
        let counts = counts.iter();
        counts
            .map(|((pool, fault, state), times)| PoolFaultCount {
                pool: pool.clone(),
                fault,
                state: *state,
                times: *times,
            })
            .collect()
    }

    fn pool_name(&self, slot: usize) -> String {
        self.pools.slots()[slot].spec.name.clone()
    }

    fn bring(&self, slot: usize, requested: Option<&PoolFaultRequest>) {
        let mut known = self.known[slot].lock();
        let requested = requested.filter(|_| !self.is_stopping.load(Ordering::SeqCst));
        let step = decide::decide(requested, known.as_ref(), Instant::now());
        let before = known.as_ref().map(|known| known.now.clone());
        match step {
            PoolFaultStep::Nothing => return,
            PoolFaultStep::Begin(request) => *known = Some(self.begin(slot, request)),
            PoolFaultStep::End => {
                if let Some(ending) = known.take() {
                    *known = self.end(slot, ending).err();
                }
            }
            PoolFaultStep::Expire => {
                if let Some(ending) = known.take() {
                    *known = Some(self.end(slot, ending).map_or_else(|failed| failed, expired));
                }
            }
        }
        self.say(slot, before.as_ref(), known.as_ref());
    }

    /// Begins a fault, or refuses it.
    fn begin(&self, slot: usize, request: PoolFaultRequest) -> KnownPoolFault {
        let (kind, ends, state, message) = match self.begun(slot, &request) {
            Ok(fault) => (
                Some(fault.kind),
                Instant::now().checked_add(fault.lasts),
                PoolFaultState::Active,
                format!(
                    "The pool has the fault {fault}. It ends in time, with the driver's process, or when \
                     it is cleared"
                ),
            ),
            Err(why) => {
                let state = if why.is_failure() {
                    PoolFaultState::Failed
                } else {
                    PoolFaultState::Refused
                };
                let message = format!("The pool can't have the fault {}: {why}", request.fault);
                (None, None, state, message)
            }
        };
        KnownPoolFault {
            kind,
            ends,
            now: PoolFaultNow {
                fault: request.fault,
                requested_ns: request.requested_ns,
                state,
                message,
            },
        }
    }

    fn begun(
        &self,
        slot: usize,
        request: &PoolFaultRequest,
    ) -> Result<PoolFault, PoolFaultRefused> {
        let fault = PoolFault::parse(&request.fault)?;
        if let Some(why) = effects::obstacle(&self.pools, slot, fault.kind) {
            return Err(why.into());
        }
        // Health knows the fault before it sees what follows from it.
        let noted = NotedFault {
            fault: fault.to_string(),
            total: fault.kind.is_total(),
            since_ns: now_ns(),
        };
        self.pools.note_fault(slot, Some(noted));
        let begun = (effects::of(fault.kind).begin)(&self.pools, slot, &fault);
        begun.inspect_err(|_| self.pools.note_fault(slot, None))?;
        Ok(fault)
    }

    /// Ends a fault that is in force. `Err` has one that can't end yet, which is tried again.
    fn end(&self, slot: usize, known: KnownPoolFault) -> Result<KnownPoolFault, KnownPoolFault> {
        let Some(kind) = known.kind.filter(|_| known.ends.is_some()) else {
            return Ok(known);
        };
        match (effects::of(kind).end)(&self.pools, slot) {
            Ok(()) => {
                self.pools.note_fault(slot, None);
                Ok(KnownPoolFault {
                    ends: None,
                    ..known
                })
            }
            Err(error) => Err(KnownPoolFault {
                ends: Some(Instant::now()),
                now: PoolFaultNow {
                    state: PoolFaultState::Failed,
                    message: format!("The fault can't end, and that is tried again: {error}"),
                    ..known.now
                },
                ..known
            }),
        }
    }

    /// Counts and logs what has changed.
    fn say(&self, slot: usize, before: Option<&PoolFaultNow>, known: Option<&KnownPoolFault>) {
        let pool = self.pool_name(slot);
        let Some(known) = known else {
            let fault = before.map_or("", |before| &before.fault);
            tracing::info!(pool, fault, "the fault of a pool is cleared");
            return;
        };
        let now = &known.now;
        if before == Some(now) {
            return;
        }
        let fault = known.kind.map_or("", PoolFaultKind::name);
        let state = now.state.word();
        tracing::warn!(pool, fault = %now.fault, state, "{}", now.message);
        let mut counts = self.counts.lock();
        *counts.entry((pool, fault, now.state)).or_default() += 1;
    }

    /// Writes what is known of a pool and what can be asked of it, if it has changed.
    fn show(&self, slot: usize) {
        self.look(slot);
        self.write(&mut self.shown.lock());
    }

    /// Notes what is known of a pool and what can be asked of it.
    fn look(&self, slot: usize) {
        // One that hangs holds up no other.
        let faults = self.offered(slot);
        let known = self.known[slot].lock();
        let now = known.as_ref().map(|known| known.now.clone());
        let mut shown = self.shown.lock();
        let pool = &mut shown.said.pools[slot];
        if pool.faults != faults || pool.now != now {
            (pool.faults, pool.now) = (faults, now);
            shown.is_written = false;
        }
    }

    fn write(&self, shown: &mut Shown) {
        if shown.is_written {
            return;
        }
        match self.files.show(&shown.said) {
            Ok(()) => shown.is_written = true,
            Err(error) => tracing::debug!(%error, "the faults of pools can't be shown"),
        }
    }

    fn offered(&self, slot: usize) -> Vec<OfferedFault> {
        PoolFaultKind::ALL
            .into_iter()
            .map(|kind| OfferedFault {
                fault: kind.name().to_owned(),
                obstacle: effects::obstacle(&self.pools, slot, kind).map(|why| why.to_string()),
            })
            .collect()
    }
}

/// A fault that has ended by its time.
fn expired(known: KnownPoolFault) -> KnownPoolFault {
    KnownPoolFault {
        now: PoolFaultNow {
            state: PoolFaultState::Over,
            message: "The time of the fault has passed, and the pool works again".to_owned(),
            ..known.now
        },
        ..known
    }
}
