//! The last events of a process, in memory of a fixed size.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use uuid::Uuid;

use crate::event::Event;

/// The last events, oldest first. A new event replaces the oldest ones.
#[derive(Debug)]
pub struct Ring {
    boot: String,
    limit: usize,
    last_id: AtomicU64,
    state: Mutex<RingState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct RingState {
    /// The sequence number of the oldest event.
    first: u64,
    /// The size of all events.
    bytes: usize,
    events: VecDeque<Arc<Event>>,
}

/// Events that follow each other.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The sequence number of the first event. It is higher than requested if events were lost.
    pub first: u64,
    pub events: Vec<Arc<Event>>,
}

impl Batch {
    /// The number of the event after the last one.
    pub fn next(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}

impl Ring {
    /// Creates an empty ring for this many bytes.
    pub fn new(limit: usize) -> Ring {
        Ring {
            boot: Uuid::new_v4().simple().to_string(),
            limit,
            last_id: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// A name that no other ring has: sequence numbers and IDs are unique only with it.
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// A new ID for a call.
    pub fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds an event, and drops the oldest ones if the ring is full.
    pub fn push(&self, event: Event) {
        let size = event.size();
        let event = Arc::new(event);
        {
            let mut state = self.state.lock();
            state.bytes += size;
            state.events.push_back(event);
            while state.bytes > self.limit
                && let Some(oldest) = state.events.pop_front()
            {
                state.bytes -= oldest.size();
                state.first += 1;
            }
        }
        self.changed.notify_waiters();
    }

    /// The events from this number on, at most `most`.
    pub fn since(&self, from: u64, most: usize) -> Batch {
        let state = self.state.lock();
        let end = state.first + state.events.len() as u64;
        // A number of an earlier process may be higher than any of this one.
        let first = from.clamp(state.first, end);
        let skip = usize::try_from(first - state.first).unwrap_or(usize::MAX);
        let events = state.events.iter().skip(skip).take(most).cloned().collect();
        Batch { first, events }
    }

    /// Resolves at the next [`Ring::push`] after this call, once it is enabled or polled.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Kind;

    fn event(about: &str) -> Event {
        Event::new(Kind::Call, "Probe", "".into(), about.into())
    }

    fn abouts(batch: &Batch) -> Vec<&str> {
        batch.events.iter().map(|event| &*event.about).collect()
    }

    #[test]
    fn a_full_ring_drops_the_oldest_and_numbers_go_on() {
        let ring = Ring::new(3 * event("a").size());
        for about in ["a", "b", "c", "d", "e"] {
            ring.push(event(about));
        }
        for (from, most, first, expected) in [
            (0, 9, 2, &["c", "d", "e"][..]),
            (2, 9, 2, &["c", "d", "e"]),
            (3, 1, 3, &["d"]),
            (5, 9, 5, &[]),
            (99, 9, 5, &[]),
        ] {
            let batch = ring.since(from, most);
            assert_eq!(
                (batch.first, abouts(&batch)),
                (first, expected.to_vec()),
                "from {from}"
            );
            assert_eq!(batch.next(), first + expected.len() as u64);
        }
    }

    #[test]
    fn its_size_is_bounded_whatever_the_events_are() {
        let limit = 64 << 10;
        let ring = Ring::new(limit);
        let long = "x".repeat(5000);
        for round in 0..10_000 {
            ring.push(event(if round % 7 == 0 { &long } else { "short" }));
            assert!(ring.state.lock().bytes <= limit);
        }
        let held: usize = ring
            .since(0, usize::MAX)
            .events
            .iter()
            .map(|e| e.size())
            .sum();
        assert_eq!(held, ring.state.lock().bytes);
        assert!(held > limit - 2 * event(&long).size(), "{held}");
        // Larger than the whole ring: nothing stays, and the next event finds room.
        ring.push(event(&"x".repeat(limit)));
        assert!(ring.since(0, 9).events.is_empty());
        ring.push(event("next"));
        assert_eq!(abouts(&ring.since(0, 9)), ["next"]);
    }
}
