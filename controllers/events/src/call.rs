//! CSI calls, and the steps inside them.
//!
//! A call may run on several threads. [`Call::run`] makes it the current one of a thread, where
//! [`phase`] finds it.

use std::cell::RefCell;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::event::{Event, Fields, Kind, now, shorten};
use crate::{RING, trace_of};

/// A shorter wait for locks and threads makes no event.
const WAIT: Duration = Duration::from_millis(1);

thread_local! {
    static CURRENT: RefCell<Option<Call>> = const { RefCell::new(None) };
}

/// A call under way. Clones are the same call.
#[derive(Clone, Debug)]
pub struct Call {
    id: u64,
    name: &'static str,
    trace: Arc<str>,
    about: Arc<str>,
    request: Fields,
    t: u64,
    started: Instant,
}

impl Call {
    /// Begins a call. `about` is its subject as the log shows it. `object` is the name that the
    /// subject was created with, if it is known: it may have the UID of the claim.
    pub fn begin(name: &'static str, about: &str, object: Option<&str>, request: Fields) -> Call {
        let named = object.and_then(trace_of).or_else(|| trace_of(about));
        let call = Call {
            id: RING.next_id(),
            name,
            trace: named.unwrap_or(about).into(),
            about: about.into(),
            request,
            t: now(),
            started: Instant::now(),
        };
        RING.push(call.event());
        call
    }

    /// Runs the work of the call on this thread. A wait since its beginning becomes a step.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let waited = self.started.elapsed();
        if waited >= WAIT {
            let step = Step {
                call: self,
                name: "wait",
                t: self.t,
            };
            step.push(waited, None);
        }
        self.enter(work)
    }

    /// Runs a part of the call on a further thread.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let _previous = Previous(CURRENT.replace(Some(self.clone())));
        work()
    }

    /// The current call of this thread.
    pub fn current() -> Option<Call> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Ends the call.
    pub fn end(self, code: &'static str, error: &str, took: Duration, answer: Fields) {
        let mut event = self.event();
        event.us = Some(micros(took));
        event.code = Some(code);
        event.error = (!error.is_empty()).then(|| shorten(error));
        event.answer = answer;
        RING.push(event);
    }

    fn event(&self) -> Event {
        let (trace, about) = (self.trace.clone(), self.about.clone());
        let mut event = Event::new(Kind::Call, self.name, trace, about);
        event.t = self.t;
        event.id = Some(self.id);
        event.request = self.request.clone();
        event
    }
}

/// Restores the earlier call of a thread, also after a panic.
struct Previous(Option<Call>);

impl Drop for Previous {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Does a step of the current call. Without a call, as in recovery, the step makes no event.
pub fn phase<T, E: Display>(
    name: &'static str,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let Some(call) = Call::current() else {
        return work();
    };
    let step = Step {
        call: &call,
        name,
        t: now(),
    };
    let started = Instant::now();
    let done = work();
    step.push(
        started.elapsed(),
        done.as_ref().err().map(|error| error as &dyn Display),
    );
    done
}

struct Step<'c> {
    call: &'c Call,
    name: &'static str,
    t: u64,
}

impl Step<'_> {
    fn push(&self, took: Duration, error: Option<&dyn Display>) {
        let mut event = Event::new(Kind::Phase, self.name, self.call.trace.clone(), "".into());
        event.t = self.t;
        event.us = Some(micros(took));
        event.id = Some(RING.next_id());
        event.parent = Some(self.call.id);
        event.error = error.map(|error| shorten(&error.to_string()));
        RING.push(event);
    }
}

/// Whole microseconds.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Field;

    /// The events about one subject; other tests use the same ring.
    fn events(trace: &str) -> Vec<Arc<Event>> {
        let mut events = RING.since(0, usize::MAX).events;
        events.retain(|event| &*event.trace == trace);
        events
    }

    #[test]
    fn steps_belong_to_the_call_of_their_thread() {
        const UID: &str = "00000000-0000-4000-8000-00000000ca11";
        let request = Fields::of([("volume_id", Field::from("vol-1"))]);
        let call = Call::begin(
            "NodeStageVolume",
            "vol-1",
            Some(&format!("pvc-{UID}")),
            request,
        );
        // Unlike `run`, this makes no step of a wait, which a busy machine can cause.
        call.enter(|| {
            phase("mkfs", || Ok::<_, String>(())).unwrap();
            let call = Call::current().unwrap();
            let other = std::thread::spawn(move || {
                call.enter(|| phase("freeze", || Err::<(), _>("busy\n")))
            });
            assert!(other.join().unwrap().is_err());
        });
        assert!(Call::current().is_none());
        phase("thaw", || Ok::<_, String>(())).unwrap();
        call.end("OK", "", Duration::from_millis(3), Fields::default());

        let events = events(UID);
        let names: Vec<_> = events.iter().map(|event| event.name).collect();
        assert_eq!(
            names,
            ["NodeStageVolume", "mkfs", "freeze", "NodeStageVolume"]
        );
        let [begin, mkfs, freeze, end] = &events[..] else {
            unreachable!()
        };
        assert_eq!((begin.us, end.us), (None, Some(3000)));
        assert_eq!((begin.id, begin.t), (end.id, end.t));
        assert_eq!((mkfs.parent, freeze.parent), (end.id, end.id));
        assert_eq!(
            (mkfs.error.as_deref(), freeze.error.as_deref()),
            (None, Some("busy\\n"))
        );
        assert_eq!((end.code, &*end.about), (Some("OK"), "vol-1"));
    }

    #[test]
    fn a_wait_for_a_thread_is_a_step() {
        let call = Call::begin("DeleteVolume", "vol-waits", None, Fields::default());
        std::thread::sleep(WAIT);
        call.run(|| ());
        let events = events("vol-waits");
        let wait = events.last().unwrap();
        assert_eq!((wait.name, wait.t), ("wait", events[0].t));
        assert!(wait.us.unwrap() >= 1000, "{wait:?}");
    }

    #[test]
    fn a_panic_leaves_no_call_behind() {
        let call = Call::begin("DeleteVolume", "vol-panics", None, Fields::default());
        let panicked = std::panic::catch_unwind(|| call.run(|| panic!("a test")));
        assert!(panicked.is_err());
        assert!(Call::current().is_none());
    }
}
