//! The work of controllers on objects, and leases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::call::micros;
use crate::event::{Event, Kind, State, now, shorten};
use crate::{RING, trace_of};

/// Shorter work that succeeds at once makes no event: most passes find nothing to do.
const BRIEF: Duration = Duration::from_micros(500);
/// A shorter wait for a worker makes no event.
const WAIT: Duration = Duration::from_millis(5);

/// When a key comes back after the work on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It does not.
    Never,
    /// After this time, though the work succeeded.
    Again(Duration),
    /// After this time, because the work failed.
    Retry(Duration),
}

/// A controller's work on one object.
#[derive(Debug)]
pub struct Work {
    controller: &'static str,
    trace: Arc<str>,
    about: Arc<str>,
    id: u64,
    t: u64,
    started: Instant,
    /// True if its beginning is an event.
    shown: bool,
}

impl Work {
    /// Begins the work on the object that a key names, after a wait in the queue.
    pub fn begin(controller: &'static str, key: &str, queued: Duration) -> Work {
        let about: Arc<str> = (*shorten(key)).into();
        let trace = trace_of(&about).map_or_else(|| about.clone(), Arc::from);
        let (id, t, started) = (RING.next_id(), now(), Instant::now());
        let work = Work {
            controller,
            trace,
            about,
            id,
            t,
            started,
            shown: false,
        };
        if queued >= WAIT {
            let mut event = work.event(Kind::Queue, State::Queued);
            event.t = work.t.saturating_sub(micros(queued));
            event.us = Some(micros(queued));
            RING.push(event);
        }
        work
    }

    /// Shows that the work is under way. Call it for work that takes long.
    pub fn takes_long(&mut self) {
        self.shown = true;
        RING.push(self.event(Kind::Work, State::Working));
    }

    /// Ends the work.
    pub fn end(self, next: Next) {
        let took = self.started.elapsed();
        if took < BRIEF && next == Next::Never && !self.shown {
            return;
        }
        let (state, returns) = match next {
            Next::Never => (State::Done, None),
            Next::Again(delay) => (State::Done, Some((State::Waiting, delay))),
            Next::Retry(delay) => (State::Failed, Some((State::BackingOff, delay))),
        };
        let mut event = self.event(Kind::Work, state);
        event.us = Some(micros(took));
        RING.push(event);
        if let Some((state, delay)) = returns {
            let mut event = self.event(Kind::Queue, state);
            event.t = now();
            event.next = Some(micros(delay));
            RING.push(event);
        }
    }

    fn event(&self, kind: Kind, state: State) -> Event {
        let (trace, about) = (self.trace.clone(), self.about.clone());
        let mut event = Event::new(kind, self.controller, trace, about);
        event.t = self.t;
        event.id = Some(self.id);
        event.state = Some(state);
        event
    }
}

/// Records that this process acquired or lost a lease.
pub fn lease(lease: &str, acquired: bool) {
    let name = if acquired { "acquired" } else { "lost" };
    let about: Arc<str> = (*shorten(lease)).into();
    RING.push(Event::new(Kind::Lease, name, about.clone(), about));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The states and delays of the events about one object; other tests use the same ring.
    fn states(about: &str) -> Vec<(Kind, Option<State>, Option<u64>)> {
        let events = RING.since(0, usize::MAX).events;
        let about = events.iter().filter(|event| &*event.about == about);
        about
            .map(|event| (event.kind, event.state, event.next))
            .collect()
    }

    #[test]
    fn what_became_of_a_key() {
        let second = Duration::from_secs(1);
        let ms = Duration::from_millis(1);
        let work = |state| (Kind::Work, Some(state), None);
        let queue = |state, next| (Kind::Queue, Some(state), next);
        for (key, queued, takes_long, next, expected) in [
            ("brief", ms, false, Next::Never, vec![]),
            (
                "long",
                ms,
                true,
                Next::Never,
                vec![work(State::Working), work(State::Done)],
            ),
            (
                "again",
                ms,
                false,
                Next::Again(second),
                vec![work(State::Done), queue(State::Waiting, Some(1_000_000))],
            ),
            (
                "failed",
                second,
                false,
                Next::Retry(second),
                vec![
                    queue(State::Queued, None),
                    work(State::Failed),
                    queue(State::BackingOff, Some(1_000_000)),
                ],
            ),
        ] {
            let mut begun = Work::begin("provisioner", key, queued);
            if takes_long {
                begun.takes_long();
            }
            begun.end(next);
            assert_eq!(states(key), expected, "{key}");
        }
    }

    #[test]
    fn the_trace_is_the_uid_in_a_key() {
        const UID: &str = "00000000-0000-4000-8000-00000000f00d";
        Work::begin("provisioner", &format!("pvc-{UID}"), Duration::ZERO)
            .end(Next::Retry(Duration::ZERO));
        let events = RING.since(0, usize::MAX).events;
        assert!(
            events
                .iter()
                .any(|event| &*event.trace == UID && event.name == "provisioner")
        );
    }

    #[test]
    fn leases() {
        lease("hostloop-test", true);
        lease("hostloop-test", false);
        let events = RING.since(0, usize::MAX).events;
        let names = events
            .iter()
            .filter(|event| &*event.about == "hostloop-test");
        assert_eq!(
            names.map(|event| event.name).collect::<Vec<_>>(),
            ["acquired", "lost"]
        );
    }
}
