//! Permits for one kind of work, which callers get in turns.
//!
//! Each caller has a queue of its own. A permit that is free again goes to the caller with the
//! oldest last turn, so one with many requests does not make another one wait for all of them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// A limited number of permits. A caller is a namespace, or empty where the driver knows none.
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
    /// The callers that wait, in the order of their turns.
    callers: VecDeque<(String, VecDeque<oneshot::Sender<Permit>>)>,
}

/// A permit. Dropping it gives it to the next one in turn.
#[derive(Debug)]
pub struct Permit(Arc<Permits>);

impl Permits {
    /// `calls` says what kind of calls need the permits.
    pub fn new(total: usize, calls: &'static str) -> Arc<Permits> {
        let state = Mutex::new(State { free: total, callers: VecDeque::new() });
        Arc::new(Permits { total, calls, state })
    }

    /// Waits for a permit. A caller that stops to wait loses its place.
    pub async fn acquire(self: &Arc<Self>, caller: &str) -> Option<Permit> {
        let granted = {
            let mut state = self.state.lock();
            if state.free > 0 {
                state.free -= 1;
                return Some(Permit(self.clone()));
            }
            let (grant, granted) = oneshot::channel();
            state.enqueue(caller, grant);
            granted
        };
        granted.await.ok()
    }

    /// The number of permits in use.
    pub fn in_use(&self) -> usize {
        self.total - self.state.lock().free
    }

    /// The number of requests that wait for a permit.
    pub fn waiting(&self) -> usize {
        let state = self.state.lock();
        let waiting = state.callers.iter().flat_map(|(_, queue)| queue);
        waiting.filter(|grant| !grant.is_closed()).count()
    }
}

impl fmt::Display for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = self.waiting().saturating_sub(1);
        write!(f, "{} {} in its pool, as do {others} others", self.in_use(), self.calls)
    }
}

impl State {
    fn enqueue(&mut self, caller: &str, grant: oneshot::Sender<Permit>) {
        match self.callers.iter_mut().find(|(name, _)| name == caller) {
            Some((_, queue)) => queue.push_back(grant),
            None => self.callers.push_back((caller.to_owned(), VecDeque::from([grant]))),
        }
    }

    /// The next request in turn that still waits. Its caller's next turn comes after all others.
    fn next(&mut self) -> Option<oneshot::Sender<Permit>> {
        while let Some((caller, mut queue)) = self.callers.pop_front() {
            queue.retain(|grant| !grant.is_closed());
            let grant = queue.pop_front();
            if !queue.is_empty() {
                self.callers.push_back((caller, queue));
            }
            if grant.is_some() {
                return grant;
            }
        }
        None
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let next = {
            let mut state = self.0.state.lock();
            let next = state.next();
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
