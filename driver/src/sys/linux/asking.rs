//! Questions to loop devices that may never be answered.
//!
//! LOOP_GET_STATUS64 asks the filesystem of the backing file for its inode. Where that filesystem
//! hangs (NFS without its server, FUSE without its daemon), the call does not return and can't be
//! interrupted. So it is made on another thread, and given up on after a while. The thread stays
//! with the device, and is the only one: nobody asks that device again before it has answered.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a device may take to answer. A healthy one needs microseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

/// Asks devices with an end to its patience.
#[derive(Debug)]
pub(super) struct Asking {
    patience: Duration,
    turns: Arc<Turns>,
    /// Threads that wait for a job. They end when their sender is dropped.
    idle: Mutex<Vec<Sender<Job>>>,
}

/// Which devices are being asked, and since when.
#[derive(Debug, Default)]
struct Turns {
    under_way: Mutex<HashMap<u32, Instant>>,
    ended: Condvar,
}

/// The right to ask a device, until it is dropped.
struct Turn<'a> {
    turns: &'a Turns,
    minor: u32,
}

impl Default for Asking {
    fn default() -> Asking {
        Asking::new(PATIENCE)
    }
}

impl Asking {
    fn new(patience: Duration) -> Asking {
        Asking {
            patience,
            turns: Arc::default(),
            idle: Mutex::default(),
        }
    }

    /// Asks these devices one after the other. `None` for one that does not answer in time; while
    /// it still does not, it is not waited for again.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        minors: &[u32],
        question: impl Fn(u32) -> T + Send + Sync + 'static,
    ) -> Vec<(u32, Option<T>)> {
        let question = Arc::new(question);
        let mut answers = Vec::with_capacity(minors.len());
        let mut left = minors;
        while !left.is_empty() {
            let (send, receive) = channel();
            let (todo, question) = (left.to_vec(), question.clone());
            let (turns, patience) = (self.turns.clone(), self.patience);
            let worker = self.run(Box::new(move || {
                for minor in todo {
                    let answer = turns.take(minor, patience).map(|_turn| question(minor));
                    if send.send(answer).is_err() {
                        return;
                    }
                }
            }));
            let mut answered = true;
            while let (true, Some((minor, rest))) = (answered, left.split_first()) {
                left = rest;
                let answer = receive.recv_timeout(self.patience);
                answered = answer.is_ok();
                answers.push((*minor, answer.ok().flatten()));
            }
            if let (true, Some(worker)) = (answered, worker) {
                lock(&self.idle).push(worker);
            }
        }
        answers
    }

    /// Has a thread do this; what to give it its next job by, if there is a thread.
    fn run(&self, job: Job) -> Option<Sender<Job>> {
        let idle = lock(&self.idle).pop();
        let worker = match idle {
            Some(worker) => worker,
            None => {
                let (worker, jobs) = channel::<Job>();
                let name = "ask-loop".to_owned();
                let work = move || jobs.into_iter().for_each(|job| job());
                thread::Builder::new().name(name).spawn(work).ok()?;
                worker
            }
        };
        worker.send(job).ok()?;
        Some(worker)
    }
}

impl Turns {
    /// Waits until nobody else asks the device; `None` if somebody has for too long.
    fn take(&self, minor: u32, patience: Duration) -> Option<Turn<'_>> {
        let mut under_way = lock(&self.under_way);
        while let Some(since) = under_way.get(&minor) {
            let left = patience.checked_sub(since.elapsed())?;
            let waited = self.ended.wait_timeout(under_way, left);
            under_way = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        under_way.insert(minor, Instant::now());
        Some(Turn { turns: self, minor })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.turns.under_way).remove(&self.minor);
        self.turns.ended.notify_all();
    }
}

/// A question that panicked is no reason to ask no more.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::Receiver;

    /// A question that device 2 does not answer before it is let go, and how often that was asked.
    fn question() -> (
        impl Fn(u32) -> u32 + Clone + Send + Sync + 'static,
        Arc<AtomicUsize>,
        Sender<()>,
    ) {
        let (go, wait) = channel();
        let wait: Arc<Mutex<Receiver<()>>> = Arc::new(Mutex::new(wait));
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let question = move |minor: u32| {
            if minor == 2 {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = lock(&wait).recv();
            }
            minor * 10
        };
        (question, asked, go)
    }

    #[test]
    fn one_that_hangs_does_not_keep_the_others() {
        let asking = Asking::new(Duration::from_secs(2));
        let (question, asked, go) = question();
        let hung = [(1, Some(10)), (2, None), (3, Some(30)), (4, Some(40))];
        for _ in 0..3 {
            assert_eq!(asking.ask(&[1, 2, 3, 4], question.clone()), hung);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1, "one thread stays with it");
        drop(go);
        let well = [(2, Some(20)), (3, Some(30))];
        let again = || {
            thread::sleep(Duration::from_millis(10));
            asking.ask(&[2, 3], question.clone()) == well
        };
        assert!(
            (0..100).any(|_| again()),
            "it is asked again when it answers"
        );
    }

    #[test]
    fn nobody_asks_a_device_twice_at_a_time() {
        let asking = Asking::new(Duration::from_secs(60));
        let at_once = Arc::new(AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let at_once = at_once.clone();
                    let answers = asking.ask(&[7, 7, 7], move |_| {
                        let others = at_once.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                        at_once.fetch_sub(1, Ordering::SeqCst);
                        others
                    });
                    assert_eq!(answers, [(7, Some(0)); 3]);
                });
            }
        });
    }

    #[test]
    fn a_question_that_panics_is_not_answered() {
        let asking = Asking::new(Duration::from_secs(60));
        let question = |minor: u32| assert_ne!(minor, 1, "device 1 panics");
        let expected = [(0, Some(())), (1, None), (2, Some(()))];
        assert_eq!(asking.ask(&[0, 1, 2], question), expected);
        assert_eq!(asking.ask(&[1], question), [(1, None)]);
    }
}
