//! A read that may hang: one thread runs it for all callers.
//!
//! A read of a hanging filesystem (a dead disk, NFS without a server) never returns. Callers join
//! the running read, wait for a limited time, and return; the thread stays.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A kind of read with the result `T`.
#[derive(Debug)]
pub(super) struct JoinedRead<T> {
    state: Mutex<ReadState<T>>,
    done: Condvar,
}

impl<T> Default for JoinedRead<T> {
    fn default() -> Self {
        let state = ReadState {
            began: None,
            rounds: 0,
            last: None,
        };
        JoinedRead {
            state: Mutex::new(state),
            done: Condvar::default(),
        }
    }
}

#[derive(Debug)]
struct ReadState<T> {
    /// Start of the running read; `None` if no read is running.
    began: Option<Instant>,
    /// Number of reads that have ended.
    rounds: u64,
    /// Result of the last read; `None` if it panicked.
    last: Option<T>,
}

impl<T: Clone + Send + 'static> JoinedRead<T> {
    /// Starts a read on its own thread, unless one is running.
    pub(super) fn begin(self: &Arc<Self>, read: impl FnOnce() -> T + Send + 'static) {
        let mut state = self.state.lock();
        if state.began.is_some() {
            return;
        }
        state.began = Some(Instant::now());
        drop(state);
        let joined = self.clone();
        let thread = std::thread::Builder::new().name("hostloop-read".to_owned());
        let spawned = thread.spawn(move || {
            let answer = catch_unwind(AssertUnwindSafe(read)).ok();
            joined.end(answer);
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "can't start a thread to read a pool");
            self.end(None);
        }
    }

    fn end(&self, answer: Option<T>) {
        let mut state = self.state.lock();
        state.began = None;
        state.rounds += 1;
        state.last = answer;
        drop(state);
        self.done.notify_all();
    }

    /// The result of the running read, or of the last read if none is running. `None` if the read
    /// has been running for longer than `limit`, or panicked.
    pub(super) fn answer(&self, limit: Duration) -> Option<T> {
        let mut state = self.state.lock();
        let Some(began) = state.began else {
            return state.last.clone();
        };
        let round = state.rounds;
        let left = limit.saturating_sub(began.elapsed());
        self.done
            .wait_while_for(&mut state, |state| state.rounds == round, left);
        if state.rounds == round {
            None
        } else {
            state.last.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{TryRecvError, channel};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_hanging_read_holds_one_thread_and_no_caller() {
        let joined = Arc::new(JoinedRead::<u32>::default());
        let (begin, begun) = channel();
        let (end, ended) = channel::<()>();
        let mut ended = Some(ended);
        for _ in 0..5 {
            let (begin, ended) = (begin.clone(), ended.take());
            joined.begin(move || {
                begin.send(()).unwrap();
                let _ = ended.map(|ended| ended.recv());
                7
            });
            assert_eq!(joined.answer(SHORT), None);
        }
        // A thread may begin late.
        begun.recv_timeout(LONG).unwrap();
        assert_eq!(begun.try_recv(), Err(TryRecvError::Empty));
        drop(end);
        assert_eq!(joined.answer(LONG), Some(7));
        joined.begin(|| 8);
        assert_eq!(joined.answer(LONG), Some(8));
    }

    #[test]
    fn a_read_that_panics_has_no_result_and_the_next_one_runs() {
        let joined = Arc::new(JoinedRead::<u32>::default());
        joined.begin(|| panic!("a bug"));
        assert_eq!(joined.answer(LONG), None);
        joined.begin(|| 1);
        assert_eq!(joined.answer(LONG), Some(1));
    }
}
