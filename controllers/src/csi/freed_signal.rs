//! Signals that something became free that others wait for. A driver in this process announces it.
//! For a driver in another process, the controllers announce what their own calls freed. Without an
//! announcement, whatever waits is tried again after its backoff.
//!
//! A key begins to wait before its attempt. So an announcement during the attempt counts, and
//! nothing is lost between the driver's answer and the wait.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::queue::{Queue, QueueKey, Turns};

/// The time between two wakes of keys that wait for room.
const PACE: Duration = Duration::from_millis(50);

/// What became free.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Freed {
    /// The volume with this handle has one user less.
    Volume(String),
    /// A pool has more room.
    Room,
    /// One volume less is published to the node.
    Slot,
}

type Wake = Arc<dyn Fn() + Send + Sync>;

/// Those who wait, by number. The numbers grow, so the first one of a namespace has waited longest.
#[derive(Default)]
struct Waiting {
    count: u64,
    by_freed: HashMap<Freed, Turns<Wake>>,
}

#[derive(Default)]
struct FreedState {
    waiting: Mutex<Waiting>,
    more_room: Notify,
    driver_announces: bool,
}

/// Connects those who free something with those who wait for it. Clones share it.
#[derive(Clone, Default)]
pub struct FreedSignal(Arc<FreedState>);

impl FreedSignal {
    /// A signal that the driver announces to, too: it is in this process.
    pub fn with_driver() -> Self {
        FreedSignal(Arc::new(FreedState {
            driver_announces: true,
            ..FreedState::default()
        }))
    }

    /// Announces what a call to the driver freed, unless the driver does so itself: each
    /// announcement of room is one more try for all who wait.
    pub(crate) fn announce_by_call(&self, freed: &Freed) {
        if !self.0.driver_announces {
            self.announce(freed);
        }
    }

    /// Announces that something became free. Never blocks, and may be called from any thread.
    pub fn announce(&self, freed: &Freed) {
        match freed {
            Freed::Room => self.0.more_room.notify_one(),
            Freed::Volume(_) | Freed::Slot => {
                let woken = self.0.waiting.lock().by_freed.remove(freed);
                woken.into_iter().flatten().for_each(|wake| wake());
            }
        }
    }

    /// Wakes those who wait for room, one after another, until `stop`. Namespaces take turns, and the
    /// keys of each are woken in the order in which they began to wait. The first may need more than
    /// was freed, so each gets its try. After a try without success, a key waits behind the others
    /// for the next announcement.
    pub(crate) async fn pace(self, stop: CancellationToken) {
        let paced = async {
            loop {
                self.0.more_room.notified().await;
                let last = self.0.waiting.lock().count;
                while let Some(wake) = self.next_for_room(last) {
                    wake();
                    tokio::time::sleep(PACE).await;
                }
            }
        };
        stop.run_until_cancelled(paced).await;
    }

    /// Takes the next one who waits for room, up to this number.
    fn next_for_room(&self, last: u64) -> Option<Wake> {
        let mut waiting = self.0.waiting.lock();
        let for_room = waiting.by_freed.get_mut(&Freed::Room)?;
        for_room.take_if(|_, number| number <= last)
    }

    fn wait(&self, freed: Freed, namespace: &str, wake: Wake) -> Wait {
        let mut waiting = self.0.waiting.lock();
        waiting.count += 1;
        let number = waiting.count;
        waiting
            .by_freed
            .entry(freed.clone())
            .or_default()
            .add(namespace, number, wake);
        Wait {
            signal: self.clone(),
            freed,
            namespace: namespace.to_owned(),
            number,
        }
    }
}

/// A place among those who wait. Dropping it ends the wait.
struct Wait {
    signal: FreedSignal,
    freed: Freed,
    namespace: String,
    number: u64,
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut waiting = self.signal.0.waiting.lock();
        let Some(others) = waiting.by_freed.get_mut(&self.freed) else {
            return;
        };
        others.remove(&self.namespace, self.number);
        if others.is_empty() {
            waiting.by_freed.remove(&self.freed);
        }
    }
}

/// The keys of one controller that wait.
pub(crate) struct Waiters<K> {
    signal: FreedSignal,
    wake: Arc<dyn Fn(&K) + Send + Sync>,
    waiting: Arc<Mutex<HashMap<K, Wait>>>,
}

impl<K: QueueKey + Send + Sync + 'static> Waiters<K> {
    /// Creates an empty set. At the end of a key's wait, `wake` queues it. It must not block.
    pub(crate) fn new(signal: &FreedSignal, wake: impl Fn(&K) + Send + Sync + 'static) -> Self {
        Waiters {
            signal: signal.clone(),
            wake: Arc::new(wake),
            waiting: Arc::default(),
        }
    }

    /// Creates an empty set. At the end of its wait, a key is queued without its backoff.
    pub(crate) fn of(signal: &FreedSignal, queue: &Queue<K>) -> Self {
        let queue = queue.clone();
        Waiters::new(signal, move |key: &K| queue.wake(key.clone()))
    }

    /// Creates an empty set that queues its keys. A key keeps its failures, because others may
    /// take what is free first, and after a vain attempt the backoff goes on.
    pub(crate) fn queued(signal: &FreedSignal, queue: &Queue<K>) -> Self {
        let queue = queue.clone();
        Waiters::new(signal, move |key: &K| queue.add(key.clone()))
    }

    /// The key waits from now on. It keeps its place if it waits for this already.
    pub(crate) fn enter(&self, key: &K, freed: Freed) {
        let mut waiting = self.waiting.lock();
        if waiting.get(key).is_some_and(|wait| wait.freed == freed) {
            return;
        }
        let (of, wake, entries) = (key.clone(), self.wake.clone(), self.waiting.clone());
        let woken = Arc::new(move || {
            entries.lock().remove(&of);
            wake(&of);
        });
        let wait = self.signal.wait(freed, key.namespace(), woken);
        waiting.insert(key.clone(), wait);
    }

    /// Ends the wait of a key.
    pub(crate) fn leave<Q: Hash + Eq + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.waiting.lock().remove(key);
    }

    /// The number of keys that wait.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.lock().len()
    }
}

#[cfg(test)]
mod tests;
