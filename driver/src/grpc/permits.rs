//! Permits for one kind of work. Namespaces get them in turns, so one with many requests does not
//! make another one wait for all of them.

use std::fmt;
use std::sync::Arc;

use hostloop_controllers::queue::Turns;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// A limited number of permits. The namespace is empty where the driver knows none.
#[derive(Debug)]
pub struct Permits {
    total: usize,
    /// The calls that need them, for people.
    calls: &'static str,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// The requests that wait.
    waiting: Turns<oneshot::Sender<Permit>>,
    /// The number of the next request.
    next: u64,
}

/// A permit. Dropping it gives it to the next one in turn.
#[derive(Debug)]
pub struct Permit(Arc<Permits>);

impl Permits {
    /// `calls` says what kind of calls need the permits.
    pub fn new(total: usize, calls: &'static str) -> Arc<Permits> {
        let state = Mutex::new(State {
            free: total,
            waiting: Turns::default(),
            next: 0,
        });
        Arc::new(Permits {
            total,
            calls,
            state,
        })
    }

    /// Waits for a permit. A request that is dropped loses its place.
    pub async fn acquire(self: &Arc<Self>, namespace: &str) -> Option<Permit> {
        let (_place, granted) = {
            let mut state = self.state.lock();
            if state.free > 0 {
                state.free -= 1;
                return Some(Permit(self.clone()));
            }
            let (grant, granted) = oneshot::channel();
            let number = state.next;
            state.next += 1;
            state.waiting.add(namespace, number, grant);
            (
                Waiting {
                    permits: self,
                    namespace,
                    number,
                },
                granted,
            )
        };
        granted.await.ok()
    }

    /// The calls that need the permits, for people.
    pub fn calls(&self) -> &'static str {
        self.calls
    }

    /// The number of permits in use.
    pub fn in_use(&self) -> usize {
        self.total - self.state.lock().free
    }

    /// The number of requests that wait for a permit.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }
}

impl Permit {
    /// The calls that need such permits, for people.
    pub fn calls(&self) -> &'static str {
        self.0.calls
    }
}

impl fmt::Display for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (running, waiting) = (self.in_use(), self.waiting());
        write!(
            f,
            "the {} in its pool ({running} run, {waiting} wait)",
            self.calls
        )
    }
}

/// A request that waits. Dropping it gives up its place.
struct Waiting<'a> {
    permits: &'a Permits,
    namespace: &'a str,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.permits
            .state
            .lock()
            .waiting
            .remove(self.namespace, self.number);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let next = {
            let mut state = self.0.state.lock();
            let next = state.waiting.next();
            if next.is_none() {
                state.free += 1;
            }
            next
        };
        if let Some(next) = next {
            // One that has stopped to wait meanwhile drops the permit, which passes it on.
            let _ = next.send(Permit(self.0.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
