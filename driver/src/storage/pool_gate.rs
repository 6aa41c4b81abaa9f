//! Lets the users of a pool's directories wait, for a fault on request.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A gate that is open unless a fault closes it.
#[derive(Debug, Default)]
pub(super) struct PoolGate {
    is_closed: AtomicBool,
    /// Until when it is closed; `None` while it is open.
    closed_until: Mutex<Option<Instant>>,
    opened: Condvar,
}

impl PoolGate {
    /// A directory behind the gate. Waits while the gate is closed; an open one takes one look at
    /// memory.
    pub(super) fn pass<'d>(&self, dir: &'d impl AsFd) -> BorrowedFd<'d> {
        if self.is_closed.load(Ordering::Relaxed) {
            self.wait();
        }
        dir.as_fd()
    }

    fn wait(&self) {
        let mut closed_until = self.closed_until.lock();
        while let Some(end) = *closed_until {
            if Instant::now() >= end {
                return;
            }
            self.opened.wait_until(&mut closed_until, end);
        }
    }

    /// True while users wait.
    pub(super) fn is_closed(&self) -> bool {
        let closed_until = *self.closed_until.lock();
        closed_until.is_some_and(|end| Instant::now() < end)
    }

    /// Closes the gate for this time at most.
    pub(super) fn close(&self, time: Duration) {
        *self.closed_until.lock() = Some(Instant::now() + time);
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn open(&self) {
        *self.closed_until.lock() = None;
        self.is_closed.store(false, Ordering::Relaxed);
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_closed_gate_holds_up_until_it_opens() {
        let gate = Arc::new(PoolGate::default());
        gate.pass(&std::io::stdin());
        assert!(!gate.is_closed());
        gate.close(LONG);
        assert!(gate.is_closed());
        let (passed, passes) = channel();
        let user = gate.clone();
        let thread = std::thread::spawn(move || {
            user.pass(&std::io::stdin());
            passed.send(()).unwrap();
        });
        let short = Duration::from_millis(50);
        assert_eq!(passes.recv_timeout(short), Err(RecvTimeoutError::Timeout));
        gate.open();
        passes.recv_timeout(LONG).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn a_gate_that_is_left_closed_holds_up_for_its_time_alone() {
        let gate = PoolGate::default();
        let time = Duration::from_millis(20);
        let began = Instant::now();
        gate.close(time);
        gate.pass(&std::io::stdin());
        assert!(began.elapsed() >= time);
        assert!(!gate.is_closed());
    }
}
