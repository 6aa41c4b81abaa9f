//! Permits for one kind of work. Namespaces get them in turns, so one with many requests does not
//! make another one wait for all of them. And none has all permits: it leaves one free for each
//! three that it holds ([`may_begin`]). So a request of a namespace without a permit begins at once
//! while one other namespace has all the permits that it may have, however long these take.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use hostloop_controllers::queue::{Turns, may_take};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// A limited number of permits. The namespace is empty where the driver knows none.
#[derive(Debug)]
pub struct Permits {
    total: usize,
    /// The calls that need them, for people.
    calls: &'static str,
    state: Mutex<PermitQueue>,
}

#[derive(Debug)]
struct PermitQueue {
    free: usize,
    /// The number of permits of each namespace that has one.
    held: HashMap<Arc<str>, usize>,
    /// The requests that wait.
    waiting: Turns<PermitRequest>,
    /// The number of the next request.
    next: u64,
}

#[derive(Debug)]
struct PermitRequest {
    namespace: Arc<str>,
    grant: oneshot::Sender<Permit>,
}

/// A permit. Dropping it gives it to the next one in turn.
#[derive(Debug)]
pub struct Permit {
    permits: Arc<Permits>,
    namespace: Arc<str>,
}

/// Whether a namespace that has `held` permits may take one of the `free` ones. Requests of unknown
/// namespaces may take all: one user's and another's look the same.
fn may_begin(namespace: &str, held: usize, free: usize) -> bool {
    free > 0 && (namespace.is_empty() || may_take(held, free))
}

impl PermitQueue {
    fn take(&mut self, namespace: &Arc<str>) {
        self.free -= 1;
        *self.held.entry(namespace.clone()).or_default() += 1;
    }

    fn give_back(&mut self, namespace: &str) {
        self.free += 1;
        if let Some(held) = self.held.get_mut(namespace) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(namespace);
            }
        }
    }

    /// Takes a permit for the next request in turn that may begin.
    fn begin_next(&mut self) -> Option<PermitRequest> {
        let (free, held) = (self.free, &self.held);
        let next = self.waiting.take_if(|namespace, _| {
            may_begin(namespace, held.get(namespace).copied().unwrap_or(0), free)
        })?;
        self.take(&next.namespace);
        Some(next)
    }
}

impl Permits {
    /// `calls` says what kind of calls need the permits.
    pub fn new(total: usize, calls: &'static str) -> Arc<Permits> {
        let state = Mutex::new(PermitQueue {
            free: total,
            held: HashMap::new(),
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
            let held = state.held.get(namespace).copied().unwrap_or(0);
            let of_request: Arc<str> = namespace.into();
            if may_begin(namespace, held, state.free) {
                state.take(&of_request);
                return Some(Permit {
                    permits: self.clone(),
                    namespace: of_request,
                });
            }
            let (grant, granted) = oneshot::channel();
            let number = state.next;
            state.next += 1;
            let request = PermitRequest {
                namespace: of_request,
                grant,
            };
            state.waiting.add(namespace, number, request);
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
        self.permits.calls
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
        self.permits.state.lock().give_back(&self.namespace);
        loop {
            let next = self.permits.state.lock().begin_next();
            let Some(PermitRequest { namespace, grant }) = next else {
                return;
            };
            // One that has stopped to wait meanwhile drops the permit, which passes it on.
            let _ = grant.send(Permit {
                permits: self.permits.clone(),
                namespace,
            });
        }
    }
}

#[cfg(test)]
mod tests;
