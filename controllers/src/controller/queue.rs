//! A queue of keys to work on, for a loop that brings the world in line key by key.
//!
//! - A key is worked on by one worker at a time, however often it is added.
//! - Added while it waits, it is not added twice. Added while it is worked on, it is worked on
//!   once more after that, since what the worker read may be outdated.
//! - A key whose work failed comes back after `start × 2ⁿ`, at most `max`; success forgets the
//!   failures. Adding it meanwhile brings it forward: something has changed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::runtime::tasks::{finish, unless_panicked};

/// How long a failed key waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub start: Duration,
    /// At most.
    pub max: Duration,
}

impl Backoff {
    /// The wait after this many failures in a row, of which there is at least one.
    pub fn delay(&self, failures: u32) -> Duration {
        let doubled = 2_u32
            .checked_pow(failures.saturating_sub(1))
            .and_then(|factor| self.start.checked_mul(factor));
        doubled.map_or(self.max, |delay| delay.min(self.max))
    }
}

/// What came of working on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is as it should be; earlier failures are forgotten.
    Done,
    /// Likewise, and it is to be looked at again after this time.
    RequeueAfter(Duration),
    /// It failed: once more after the backoff.
    Failed,
    /// It failed, and will for long: once more after this time, and the failure counts.
    RetryAfter(Duration),
}

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In line.
    Ready,
    /// Not before this instant; the number tells entries of one instant apart.
    Waiting(Instant, u64),
    /// In a worker's hands, added again since or not, and when it was asked back for.
    Running { again: bool, at: Option<Instant> },
}

/// What can be seen of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Keys that could be worked on now.
    pub ready: usize,
    /// Keys that were put in line, since the queue was made.
    pub adds: u64,
}

struct State<K> {
    adds: u64,
    places: HashMap<K, Place>,
    failures: HashMap<K, u32>,
    ready: VecDeque<K>,
    waiting: BTreeMap<(Instant, u64), K>,
    count: u64,
    closed: bool,
}

/// The queue. Clones share it.
pub struct Queue<K> {
    state: Arc<Mutex<State<K>>>,
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

/// A key in a worker's hands. Dropped without [`Item::end`], as by a panic, it has failed.
pub struct Item<K: Clone + Eq + Hash> {
    queue: Queue<K>,
    key: K,
    ended: bool,
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// An empty one.
    pub fn new(backoff: Backoff) -> Self {
        let state = State {
            adds: 0,
            places: HashMap::new(),
            failures: HashMap::new(),
            ready: VecDeque::new(),
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

    /// Has a key worked on, as soon as a worker is free.
    pub fn add(&self, key: K) {
        self.lock().add(key);
        self.changed.notify_one();
    }

    /// Has a key worked on after some time, unless it is before.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.lock().add_at(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// The next key, once there is one; `None` once the queue is closed.
    pub async fn next(&self) -> Option<Item<K>> {
        loop {
            let changed = self.changed.notified();
            let wake = {
                let mut state = self.lock();
                if state.closed {
                    // The next worker is to see it, too.
                    self.changed.notify_one();
                    return None;
                }
                state.advance(Instant::now());
                if let Some(key) = state.take() {
                    // One wake-up may have stood for several keys.
                    if !state.ready.is_empty() || !state.waiting.is_empty() {
                        self.changed.notify_one();
                    }
                    return Some(Item {
                        queue: self.clone(),
                        key,
                        ended: false,
                    });
                }
                state.waiting.keys().next().map(|(at, _)| *at)
            };
            match wake {
                None => changed.await,
                Some(at) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(at) => {}
                },
            }
        }
    }

    /// Works on keys, so many at once at most, until the queue is closed and what is under way is
    /// done. What is needed to work on a key may be large, and is there only while one is worked on.
    pub async fn work<F>(&self, at_once: usize, on: impl Fn(K) -> F)
    where
        K: Send + 'static,
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                Some(ended) = running.join_next() => unless_panicked(ended),
                item = self.next(), if running.len() < at_once => {
                    let Some(item) = item else { break };
                    let work = on(item.key().clone());
                    running.spawn(async move { item.end(work.await) });
                }
            }
        }
        finish(running).await;
    }

    /// Gives no key out any more, and takes none.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Keys that could be worked on now.
    pub fn depth(&self) -> usize {
        self.stats().ready
    }

    /// What can be seen of it.
    pub fn stats(&self) -> Stats {
        let mut state = self.lock();
        state.advance(Instant::now());
        Stats {
            ready: state.ready.len(),
            adds: state.adds,
        }
    }

    /// Failures in a row of a key.
    pub fn failures(&self, key: &K) -> u32 {
        self.lock().failures.get(key).copied().unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> Item<K> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Gives it back.
    pub fn end(mut self, outcome: Outcome) {
        self.give_back(outcome);
    }

    fn give_back(&mut self, outcome: Outcome) {
        self.ended = true;
        let backoff = self.queue.backoff;
        self.queue
            .lock()
            .end(&self.key, outcome, &backoff, Instant::now());
        self.queue.changed.notify_one();
    }
}

impl<K: Clone + Eq + Hash> Drop for Item<K> {
    fn drop(&mut self) {
        if !self.ended {
            self.give_back(Outcome::Failed);
        }
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        if self.closed {
            return;
        }
        match self.places.get_mut(&key) {
            Some(Place::Ready) => return,
            Some(Place::Running { again, .. }) => {
                *again = true;
                return;
            }
            Some(Place::Waiting(at, n)) => {
                self.waiting.remove(&(*at, *n));
            }
            None => {}
        }
        self.adds += 1;
        self.places.insert(key.clone(), Place::Ready);
        self.ready.push_back(key);
    }

    fn add_at(&mut self, key: K, at: Instant) {
        if self.closed {
            return;
        }
        match self.places.get_mut(&key) {
            Some(Place::Ready) => return,
            Some(Place::Running { at: asked, .. }) => {
                *asked = Some(asked.map_or(at, |earlier| earlier.min(at)));
                return;
            }
            Some(Place::Waiting(earlier, _)) if *earlier <= at => return,
            Some(Place::Waiting(later, n)) => {
                self.waiting.remove(&(*later, *n));
            }
            None => {}
        }
        self.count += 1;
        self.places
            .insert(key.clone(), Place::Waiting(at, self.count));
        self.waiting.insert((at, self.count), key);
    }

    /// Puts in line what has waited long enough.
    fn advance(&mut self, now: Instant) {
        while let Some(entry) = self.waiting.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.places.insert(key.clone(), Place::Ready);
            self.ready.push_back(key);
        }
    }

    fn take(&mut self) -> Option<K> {
        let key = self.ready.pop_front()?;
        let running = Place::Running {
            again: false,
            at: None,
        };
        self.places.insert(key.clone(), running);
        Some(key)
    }

    fn end(&mut self, key: &K, outcome: Outcome, backoff: &Backoff, now: Instant) {
        let (again, asked) = match self.places.remove(key) {
            Some(Place::Running { again, at }) => (again, at),
            _ => (false, None),
        };
        let back = match outcome {
            Outcome::Done => {
                self.failures.remove(key);
                None
            }
            Outcome::RequeueAfter(delay) => {
                self.failures.remove(key);
                Some(delay)
            }
            Outcome::Failed => Some(backoff.delay(self.fail(key))),
            Outcome::RetryAfter(delay) => {
                self.fail(key);
                Some(delay)
            }
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

#[cfg(test)]
mod tests;
