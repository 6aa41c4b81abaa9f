//! A queue of keys for a controller that reconciles its objects key by key.
//!
//! - Only one worker at a time works on a key, however often it is added.
//! - A key that is added while it waits is not added twice. A key that is added during its work is
//!   worked on once more after that, because the worker may have read outdated objects.
//! - A key that failed comes back after `start × 2ⁿ`, at most `max`. Success resets its failures.
//!   Adding the key earlier brings it forward, because something has changed. Waking it also resets
//!   its failures, because what it waited for is there.
//! - Namespaces take turns ([`Turns`]), and none takes all workers ([`may_take`]). So a key of one
//!   namespace waits neither for all keys of another one, nor for its slow work.
//! - A namespace gets further workers only while the process has little else to do ([`CALM`]). So
//!   the work of one namespace does not share the CPU with all the work that another one may have.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hostloop_events::work::Next;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep_until};

mod backoff;
mod turns;

pub use backoff::Backoff;
pub use turns::Turns;

/// How many times the free workers a namespace may hold.
const SHARE: usize = 3;
/// A process has little else to do if its other tasks take no longer than this for a step each. The
/// CPU is then idle for part of the time, while work waits for answers, and more work does not delay
/// what is under way.
const CALM: Duration = Duration::from_micros(100);
/// How long a namespace waits for that before it gets one more worker: the process may be busy with
/// something else for long.
const PATIENCE: Duration = Duration::from_millis(5);
/// The number of steps of a long task without a pause.
const STEPS_BETWEEN_YIELDS: usize = 64;

/// A key of a queue.
pub trait QueueKey: Clone + Eq + Hash {
    /// The namespace that the work is for. All keys without one share the work as one namespace
    /// does.
    fn namespace(&self) -> &str {
        ""
    }
}

impl QueueKey for String {}

/// A namespace and a name.
impl QueueKey for (String, String) {
    fn namespace(&self) -> &str {
        &self.0
    }
}

/// The result of working on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success. Earlier failures are forgotten.
    Done,
    /// As `Done`, but the key is queued again after this time.
    RequeueAfter(Duration),
    /// Failure. The key is queued again after the backoff.
    Failed,
    /// Failure that will last. The key is queued again after this time, and the failure counts.
    RetryAfter(Duration),
}

impl Outcome {
    /// When the key comes back, if this is its failure of this number in a row.
    fn next(self, backoff: &Backoff, failures: u32) -> Next {
        match self {
            Outcome::Done => Next::Never,
            Outcome::RequeueAfter(delay) => Next::Again(delay),
            Outcome::Failed => Next::Retry(backoff.delay(failures)),
            Outcome::RetryAfter(delay) => Next::Retry(delay),
        }
    }
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyState {
    /// Ready for a worker since this instant.
    Ready(Instant),
    /// Waits until this instant. The number distinguishes entries with equal instants.
    Waiting(Instant, u64),
    /// A worker has the key. Holds whether it was added again, and the requested time of a delayed
    /// add.
    Running { again: bool, at: Option<Instant> },
}

/// A queue's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The number of keys that are ready for a worker.
    pub ready: usize,
    /// The number of keys that adding made ready since the queue was created. Delayed keys do not
    /// count.
    pub adds: u64,
}

struct QueueState<K> {
    adds: u64,
    places: HashMap<K, KeyState>,
    failures: HashMap<K, u32>,
    ready: Turns<K>,
    /// The numbers of workers that namespaces hold, without those that hold none.
    held: HashMap<Arc<str>, usize>,
    waiting: BTreeMap<(Instant, u64), K>,
    count: u64,
    closed: bool,
}

/// Whether a namespace may take more than one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerPace {
    Unknown,
    /// Other tasks have been busy since this instant.
    Busy(Instant),
    More,
}

impl WorkerPace {
    /// The pace after the other tasks have had a step each.
    async fn after_others(self) -> WorkerPace {
        let begun = Instant::now();
        yield_now().await;
        self.next(begun, begun.elapsed())
    }

    /// The pace after the other tasks took this long for a step each, from `begun` on.
    fn next(self, begun: Instant, took: Duration) -> WorkerPace {
        let since = if let WorkerPace::Busy(since) = self {
            since
        } else {
            begun
        };
        let waited = begun.saturating_duration_since(since) + took;
        if took <= CALM || waited >= PATIENCE {
            WorkerPace::More
        } else {
            WorkerPace::Busy(since)
        }
    }
}

/// The queue. Clones share it.
pub struct Queue<K> {
    state: Arc<Mutex<QueueState<K>>>,
    changed: Arc<Notify>,
    backoff: Backoff,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue {
            state: self.state.clone(),
            changed: self.changed.clone(),
            backoff: self.backoff,
        }
    }
}

/// A key that a worker holds. Dropping it without [`HeldKey::end`], as by a panic, counts as
/// failure.
pub struct HeldKey<K: QueueKey> {
    queue: Queue<K>,
    key: K,
    queued: Duration,
    ended: bool,
}

impl<K: QueueKey> Queue<K> {
    /// Creates an empty queue.
    pub fn new(backoff: Backoff) -> Self {
        let state = QueueState {
            adds: 0,
            places: HashMap::new(),
            failures: HashMap::new(),
            ready: Turns::default(),
            held: HashMap::new(),
            waiting: BTreeMap::new(),
            count: 0,
            closed: false,
        };
        Queue {
            state: Arc::new(Mutex::new(state)),
            changed: Arc::default(),
            backoff,
        }
    }

    /// Queues a key for the next free worker.
    pub fn add(&self, key: K) {
        self.state.lock().add(key);
        self.changed.notify_one();
    }

    /// Queues a key for the next free worker, and forgets its failures: what it waited for is there.
    pub fn wake(&self, key: K) {
        let mut state = self.state.lock();
        state.failures.remove(&key);
        state.add(key);
        drop(state);
        self.changed.notify_one();
    }

    pub fn add_all(&self, keys: impl IntoIterator<Item = K>) {
        keys.into_iter().for_each(|key| self.add(key));
    }

    /// As [`Queue::add_all`], for keys that take long to find: other tasks run in between.
    pub async fn add_each(&self, keys: impl IntoIterator<Item = K>) {
        for (number, key) in keys.into_iter().enumerate() {
            self.add(key);
            yield_sometimes(number).await;
        }
    }

    /// As [`Queue::add_each`], and forgets the failures of the keys.
    pub async fn wake_each(&self, keys: impl IntoIterator<Item = K>) {
        for (number, key) in keys.into_iter().enumerate() {
            self.wake(key);
            yield_sometimes(number).await;
        }
    }

    /// Queues a key after a delay, unless it becomes ready earlier.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.state.lock().add_at(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Returns the next key when one is ready and its namespace may take one of this many workers,
    /// or `None` when the queue is closed.
    async fn next(&self, workers: usize) -> Option<HeldKey<K>> {
        let mut pace = WorkerPace::Unknown;
        loop {
            let changed = self.changed.notified();
            let (wake, may_more) = {
                let mut state = self.state.lock();
                if state.closed {
                    // Wake the next worker, so that it sees the close too.
                    self.changed.notify_one();
                    return None;
                }
                let now = Instant::now();
                state.advance(now);
                if let Some((key, since)) = state.take(workers, pace == WorkerPace::More) {
                    // One wake-up may stand for several keys.
                    if !state.ready.is_empty() || !state.waiting.is_empty() {
                        self.changed.notify_one();
                    }
                    let queued = now.saturating_duration_since(since);
                    return Some(HeldKey {
                        queue: self.clone(),
                        key,
                        queued,
                        ended: false,
                    });
                }
                let wake = state.waiting.keys().next().map(|(at, _)| *at);
                (wake, pace != WorkerPace::More && !state.ready.is_empty())
            };
            if may_more {
                pace = pace.after_others().await;
                continue;
            }
            pace = WorkerPace::Unknown;
            match wake {
                None => changed.await,
                Some(at) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    /// Works on keys, at most `at_once` at a time, until the queue is closed and running work is
    /// done. `on` also gets the time for which the key was ready. The future of a key may be large,
    /// and exists only while the key is worked on.
    pub async fn work<F>(&self, at_once: usize, on: impl Fn(K, Duration) -> F)
    where
        K: Send + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut running = JoinSet::new();
        let mut next = pin!(self.next(at_once));
        loop {
            tokio::select! {
                Some(ended) = running.join_next() => {
                    // The process must not continue without the work that panicked.
                    if let Some(panic) = ended.err().and_then(|error| error.try_into_panic().ok()) {
                        resume_unwind(panic);
                    }
                }
                item = &mut next, if running.len() < at_once => {
                    let Some(item) = item else { break };
                    next.set(self.next(at_once));
                    let work = on(item.key().clone(), item.queued);
                    running.spawn(async move { item.end(work.await) });
                }
            }
        }
        running.join_all().await;
    }

    /// Closes the queue: it neither hands out nor accepts keys, and forgets those that wait. So the
    /// metrics of a process that no longer leads show no work.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.ready = Turns::default();
        state.waiting.clear();
        state
            .places
            .retain(|_, place| matches!(place, KeyState::Running { .. }));
        drop(state);
        self.changed.notify_one();
    }

    /// The number of keys that are ready for a worker.
    #[cfg(test)]
    pub(crate) fn depth(&self) -> usize {
        self.stats().ready
    }

    /// The keys that are ready for a worker, in the order in which they became ready.
    #[cfg(test)]
    pub(crate) fn ready_keys(&self) -> Vec<K> {
        std::mem::take(&mut self.state.lock().ready).in_order()
    }

    /// The queue's statistics.
    pub fn stats(&self) -> Stats {
        let mut state = self.state.lock();
        state.advance(Instant::now());
        Stats {
            ready: state.ready.len(),
            adds: state.adds,
        }
    }

    /// The number of failures in a row of a key.
    pub fn failures(&self, key: &K) -> u32 {
        self.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// The outcome of a running key, or a retry after `max` if it failed and would be retried later.
    pub(crate) fn retried_within(&self, key: &K, outcome: Outcome, max: Duration) -> Outcome {
        match (outcome, self.next_try(key, outcome)) {
            (Outcome::Failed, Next::Retry(delay)) if delay > max => Outcome::RetryAfter(max),
            _ => outcome,
        }
    }

    /// When a running key comes back after this outcome, unless it is added earlier.
    pub fn next_try(&self, key: &K, outcome: Outcome) -> Next {
        outcome.next(&self.backoff, self.failures(key).saturating_add(1))
    }
}

impl<K: QueueKey> HeldKey<K> {
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Returns the key to the queue with its outcome.
    pub fn end(mut self, outcome: Outcome) {
        self.give_back(outcome);
    }

    fn give_back(&mut self, outcome: Outcome) {
        self.ended = true;
        let backoff = self.queue.backoff;
        self.queue
            .state
            .lock()
            .end(&self.key, outcome, &backoff, Instant::now());
        self.queue.changed.notify_one();
    }
}

impl<K: QueueKey> Drop for HeldKey<K> {
    fn drop(&mut self) {
        if !self.ended {
            self.give_back(Outcome::Failed);
        }
    }
}

impl<K: QueueKey> QueueState<K> {
    fn add(&mut self, key: K) {
        if self.closed {
            return;
        }
        match self.places.get_mut(&key) {
            Some(KeyState::Ready(_)) => return,
            Some(KeyState::Running { again, .. }) => {
                *again = true;
                return;
            }
            Some(KeyState::Waiting(at, n)) => {
                self.waiting.remove(&(*at, *n));
            }
            None => {}
        }
        self.adds += 1;
        self.make_ready(key, Instant::now());
    }

    fn make_ready(&mut self, key: K, since: Instant) {
        self.count += 1;
        self.places.insert(key.clone(), KeyState::Ready(since));
        let number = self.count;
        self.ready.add(key.clone().namespace(), number, key);
    }

    fn add_at(&mut self, key: K, at: Instant) {
        if self.closed {
            return;
        }
        match self.places.get_mut(&key) {
            Some(KeyState::Ready(_)) => return,
            Some(KeyState::Running { at: asked, .. }) => {
                *asked = Some(asked.map_or(at, |earlier| earlier.min(at)));
                return;
            }
            Some(KeyState::Waiting(earlier, _)) if *earlier <= at => return,
            Some(KeyState::Waiting(later, n)) => {
                self.waiting.remove(&(*later, *n));
            }
            None => {}
        }
        self.count += 1;
        self.places
            .insert(key.clone(), KeyState::Waiting(at, self.count));
        self.waiting.insert((at, self.count), key);
    }

    /// Makes keys ready that have waited long enough.
    fn advance(&mut self, now: Instant) {
        while let Some(entry) = self.waiting.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let ((since, _), key) = entry.remove_entry();
            self.make_ready(key, since);
        }
    }

    /// The next key of a namespace that may take one of this many workers, and since when it is
    /// ready. `more`: a namespace may take more than one.
    fn take(&mut self, workers: usize, more: bool) -> Option<(K, Instant)> {
        let free = workers.saturating_sub(self.held.values().sum());
        let key = self.ready.take_if(|namespace: &str, _| {
            let held = self.held.get(namespace).copied().unwrap_or(0);
            (more || held == 0) && may_take(held, free)
        })?;
        *self.held.entry(key.namespace().into()).or_default() += 1;
        let running = KeyState::Running {
            again: false,
            at: None,
        };
        match self.places.insert(key.clone(), running) {
            Some(KeyState::Ready(since)) => Some((key, since)),
            _ => Some((key, Instant::now())),
        }
    }

    fn end(&mut self, key: &K, outcome: Outcome, backoff: &Backoff, now: Instant) {
        if let Some(held) = self.held.get_mut(key.namespace()) {
            *held -= 1;
        }
        self.held.retain(|_, held| *held > 0);
        let (again, asked) = match self.places.remove(key) {
            Some(KeyState::Running { again, at }) => (again, at),
            _ => (false, None),
        };
        let failures = match outcome {
            Outcome::Failed | Outcome::RetryAfter(_) => self.fail(key),
            Outcome::Done | Outcome::RequeueAfter(_) => {
                self.failures.remove(key);
                0
            }
        };
        let back = match outcome.next(backoff, failures) {
            Next::Never => None,
            Next::Again(delay) | Next::Retry(delay) => Some(delay),
        };
        if again {
            return self.add(key.clone());
        }
        for at in back.map(|delay| now + delay).into_iter().chain(asked) {
            self.add_at(key.clone(), at);
        }
    }

    fn fail(&mut self, key: &K) -> u32 {
        let failures = self.failures.entry(key.clone()).or_default();
        *failures = failures.saturating_add(1);
        *failures
    }
}

/// Yields to other tasks after each [`STEPS_BETWEEN_YIELDS`] steps of a long task; `step` counts
/// them from 0.
pub(crate) async fn yield_sometimes(step: usize) {
    if step % STEPS_BETWEEN_YIELDS == STEPS_BETWEEN_YIELDS - 1 {
        yield_now().await;
    }
}

/// True if a namespace that holds `held` workers may take one of the `free` ones. It leaves one
/// worker free for each [`SHARE`] that it holds. So, however slow the work of some namespaces is,
/// the next one finds a worker, and each gets the same number if it has enough work. The driver's
/// threads have the same rule.
pub fn may_take(held: usize, free: usize) -> bool {
    let left = free.saturating_sub(1);
    free > 0 && (held == 0 || held < left.saturating_mul(SHARE))
}

#[cfg(test)]
mod tests;
