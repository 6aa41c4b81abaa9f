//! Threads for each pool, so that a hanging pool takes none from the others.
//!
//! A call about a pool's files or volumes runs in that pool's lane. A copy from one pool to another
//! runs in the lane of both, and all other calls in a lane without pools. A lane has a limited
//! number of threads for each kind of [`Work`]. Calls that hang hold no more than that, however
//! often a client retries. Copies of gigabytes hold up nothing but other copies, and thick volumes
//! that lack blocks hold up nothing but the mounts of other thick volumes. The calls of one
//! namespace never hold all threads of a kind ([`Permits`]): three of four, 24 of 32. Copies and
//! clones also give way to calls that change something in their pools, but not to deletions, and so
//! does the allocation of a thick volume's blocks: see [foreground].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::Status;

use super::operation_locks::shutting_down;
use super::permits::{Permit, Permits};
use crate::controller::parameters::{self, POOL};
use crate::kernel::foreground::{self, Foreground};
use crate::node::inline_attributes::choose_pool;
use crate::record::id;
use crate::storage::{Pools, VolumeHandle};

/// Changes in one lane at once. More would only wait for the same disk.
const CHANGES: usize = 32;
/// Calls in one lane at once that end the use of a volume.
const LEAVES: usize = 32;
/// Calls in one lane at once that write a volume's filesystem back before they end its use.
const UNSTAGES: usize = 32;
/// Deletions in one lane at once. Each one frees the blocks of its image.
pub(super) const DELETIONS: usize = 8;
/// Calls in one lane at once that allocate the whole of a volume: two of one namespace.
const ALLOCATIONS: usize = 3;
/// Calls in one lane at once that mount a thick volume: six of one namespace. Its user may have
/// discarded blocks all over it, and to allocate those again may take minutes. Most thick volumes
/// have lost none, so they do not wait for [`ALLOCATIONS`].
const THICK_STAGES: usize = 8;
/// Copies of bytes in one lane at once: two of one namespace. Two keep a disk busy, and more make
/// it seek, so the third is for a namespace that would wait for gigabytes of another one.
pub(super) const COPIES: usize = 3;
/// Copies in one lane at once that share the blocks of their sources. A clone of an image in
/// hundreds of thousands of extents keeps a core and the pool's journal busy for a minute. Three of
/// one namespace.
pub(super) const CLONES: usize = 4;
/// Streams in one lane at once.
const STREAMS: usize = 16;
/// Threads for each kind of question that touches no pool.
const POOLLESS: usize = 8;
/// How long a question waits for an earlier one.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pools that a call may touch, by their index in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Lane(Vec<usize>);

impl Lane {
    /// The lane for these IDs. An ID of an unknown pool touches no pool.
    pub(crate) fn of_ids<'a>(pools: &Pools, ids: impl IntoIterator<Item = &'a str>) -> Lane {
        Lane::of(ids.into_iter().filter_map(|id| slot_of_id(pools, id)))
    }

    /// The lane for a new volume of a class, copied from `source` if there is one.
    pub(crate) fn of_class(
        pools: &Pools,
        parameters: &BTreeMap<String, String>,
        source: Option<&str>,
    ) -> Lane {
        let target = slot_of_class(pools, parameters);
        let source = source.and_then(|id| slot_of_id(pools, id));
        Lane::of(target.into_iter().chain(source))
    }

    /// The lane for publishing a volume; an inline volume may still have to be created.
    pub(crate) fn of_publication(
        pools: &Pools,
        id: &str,
        context: &BTreeMap<String, String>,
    ) -> Lane {
        let slot = slot_of_id(pools, id).or_else(|| match id.parse() {
            Ok(VolumeHandle::Inline(_)) => slot_of_new_inline(pools, context),
            _ => None,
        });
        Lane::of(slot)
    }

    /// The lane for calls that touch all pools.
    pub(crate) fn of_all(pools: &Pools) -> Lane {
        Lane::of(0..pools.count())
    }

    /// True if a snapshot in this lane shares blocks with its volume, as far as its pools decide.
    pub(crate) fn shares_blocks(&self, pools: &Pools) -> bool {
        let slots = pools.slots();
        let mut states = self
            .0
            .iter()
            .filter_map(|slot| slots.get(*slot)?.state.as_ref().ok());
        states.all(|pool| pool.reflinks())
    }

    /// True for a copy from one pool to another.
    pub(crate) fn is_between_pools(&self) -> bool {
        self.0.len() > 1
    }

    fn of(slots: impl IntoIterator<Item = usize>) -> Lane {
        let mut slots: Vec<usize> = slots.into_iter().collect();
        slots.sort_unstable();
        slots.dedup();
        Lane(slots)
    }
}

/// The pool of a class. An unknown or invalid name leads to no pool, and its call is refused.
fn slot_of_class(pools: &Pools, parameters: &BTreeMap<String, String>) -> Option<usize> {
    pools.slot_named(parameters::pool(parameters).ok()?)
}

fn slot_of_new_inline(pools: &Pools, context: &BTreeMap<String, String>) -> Option<usize> {
    let allowed = pools.inline_pools();
    let chosen = choose_pool(&allowed, context.get(POOL).map(String::as_str)).ok()?;
    pools.slot_named(Some(chosen))
}

fn slot_of_id(pools: &Pools, text: &str) -> Option<usize> {
    let pool = match text.parse() {
        Ok(handle @ VolumeHandle::Inline(_)) => pools.volume(&handle).ok()?.id.pool(),
        _ => id::pool_of(text)?,
    };
    pools.slots().iter().position(|slot| slot.id == Some(pool))
}

/// What a call needs a thread for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// The RPC changes state.
    Change,
    /// The RPC ends a use of a volume. It never waits for the other kinds.
    Leave,
    /// The RPC ends the last use of a volume. It writes the filesystem back first, and so waits for
    /// the disk.
    Unstage,
    /// The RPC deletes a volume or snapshot.
    Delete,
    /// The RPC allocates all of a thick volume.
    Allocate,
    /// The RPC stages a thick volume or grows it on the node, and allocates the blocks that the
    /// volume has lost.
    StageThick,
    /// The RPC copies without bytes: the copy shares the blocks of its source. The number of its
    /// extents decides how long that takes.
    Clone,
    /// The RPC copies bytes.
    Copy,
    /// The RPC reads for a long time and answers with a stream.
    Stream,
    /// The RPC is a question, sent by this method.
    Question(&'static str),
}

impl Work {
    /// True if a call of this kind may hold a thread for minutes. It ends once no caller waits, and
    /// a retry begins it again.
    pub(crate) fn is_long(self) -> bool {
        matches!(
            self,
            Work::Allocate | Work::StageThick | Work::Clone | Work::Copy
        )
    }

    /// The calls of this kind, for people.
    pub(crate) fn calls(self) -> &'static str {
        match self {
            Work::Change => "changes",
            Work::Leave => "unpublishing calls",
            Work::Unstage => "unstaging calls",
            Work::Delete => "deletions",
            Work::Allocate => "allocations of thick volumes",
            Work::StageThick => "stagings of thick volumes",
            Work::Clone => "snapshots and clones",
            Work::Copy => "copies",
            Work::Stream => "streams",
            Work::Question(_) => "questions",
        }
    }
}

type LaneThreads = HashMap<(Lane, Work), Arc<Permits>>;

/// The threads of all lanes, and the calls that run on them. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolThreads {
    threads: Arc<Mutex<LaneThreads>>,
    /// By the pool's index in the configuration.
    foregrounds: Arc<Mutex<HashMap<usize, Arc<Foreground>>>>,
}

impl PoolThreads {
    /// The threads for this kind of work in a lane.
    pub(crate) fn of(&self, lane: &Lane, work: Work) -> Arc<Permits> {
        let mut all = self.threads.lock();
        let threads = match work {
            Work::Change => CHANGES,
            Work::Leave => LEAVES,
            Work::Unstage => UNSTAGES,
            Work::Delete => DELETIONS,
            Work::Allocate => ALLOCATIONS,
            Work::StageThick => THICK_STAGES,
            Work::Clone => CLONES,
            Work::Copy => COPIES,
            Work::Stream => STREAMS,
            Work::Question(_) if lane.0.is_empty() => POOLLESS,
            Work::Question(_) => 1,
        };
        let entry = all.entry((lane.clone(), work));
        entry
            .or_insert_with(|| Permits::new(threads, work.calls()))
            .clone()
    }

    /// Runs a call that has its thread. Long work gives way to calls that change something in its
    /// pools. The staging of a thick volume is such a call, and gives way only while it allocates
    /// blocks ([`foreground::step_back`]). Questions and streams write nothing, and no pod waits
    /// for a deletion: it may free the blocks of a huge image, and many of them would hold up other
    /// users' copies.
    pub(crate) fn run<T>(&self, lane: &Lane, work: Work, call: impl FnOnce() -> T) -> T {
        let pools = {
            let mut foregrounds = self.foregrounds.lock();
            let pools = lane
                .0
                .iter()
                .map(|slot| foregrounds.entry(*slot).or_default().clone());
            pools.collect::<Vec<_>>()
        };
        match work {
            Work::Allocate | Work::Clone | Work::Copy => foreground::behind(pools, call),
            Work::Change | Work::StageThick | Work::Leave | Work::Unstage => {
                foreground::in_front(&pools, call)
            }
            Work::Delete | Work::Stream | Work::Question(_) => call(),
        }
    }

    /// Waits for a thread for a question. UNAVAILABLE if earlier questions hold it for too long.
    pub(crate) async fn question(
        &self,
        lane: &Lane,
        method: &'static str,
    ) -> Result<Permit, Status> {
        let threads = self.of(lane, Work::Question(method));
        match tokio::time::timeout(PATIENCE, threads.acquire("")).await {
            Ok(Some(permit)) => Ok(permit),
            Ok(None) => Err(shutting_down()),
            Err(_) => Err(Status::unavailable(format!(
                "the pool has not answered an earlier {method} for {} s; it may hang",
                PATIENCE.as_secs()
            ))),
        }
    }
}

#[cfg(test)]
mod tests;
