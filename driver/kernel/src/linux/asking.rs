//! Queries of loop devices that may never return.
//!
//! LOOP_GET_STATUS64 asks the filesystem of the backing file for its inode. If that filesystem
//! hangs (NFS without its server, FUSE without its daemon), the ioctl does not return and can't be
//! interrupted. So another thread makes the call, and the caller gives up after a while. That
//! thread stays with the device. No other thread queries the device before it has answered.

use std::collections::{HashMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Total time for the devices of one query to answer. A healthy device needs microseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// Time without an answer after which more threads share the remaining devices.
const STALL: Duration = Duration::from_millis(20);

/// Maximum number of idle threads to keep.
const IDLE: usize = 4;

type DeviceQuery = Box<dyn FnOnce() + Send>;

/// Queries devices, with a timeout.
#[derive(Debug)]
pub(super) struct Asking {
    patience: Duration,
    turns: Arc<Turns>,
    /// Senders to idle threads, all of them in the process's mount namespace. A thread ends when
    /// its sender is dropped.
    idle: Mutex<Vec<Sender<DeviceQuery>>>,
}

/// The devices with a running query, and when it began.
#[derive(Debug, Default)]
struct Turns {
    under_way: Mutex<HashMap<u32, Instant>>,
    ended: Condvar,
}

/// Why a device has no answer.
#[derive(Clone, Copy, Debug)]
enum Unasked {
    /// Another call queries it.
    Busy,
    /// Another call has queried it for too long, or the query panicked.
    Lost,
}

/// A thread with a job.
struct Worker {
    /// Takes its next job. The thread ends when this is dropped.
    jobs: Sender<DeviceQuery>,
    /// The job holds it until it ends.
    running: Weak<()>,
}

type Asked<T> = Result<T, Unasked>;

/// The devices of one call that no thread has taken yet, each with its place in the answer.
struct DeviceRound<Q> {
    devices: Mutex<VecDeque<(usize, u32)>>,
    turns: Arc<Turns>,
    patience: Duration,
    question: Q,
}

/// The exclusive right to query a device, until it is dropped.
struct DeviceTurn<'a> {
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

    /// Queries these devices. They share the patience: however many are slow or hang, the call
    /// takes no longer. A device that does not answer in time gets `None`. Later calls do not wait
    /// for that device before it has answered.
    ///
    /// One thread queries the devices in order. Whenever no device answers for a moment, the number
    /// of threads that share the remaining devices doubles. A device that another call queries is
    /// queried once that call is done with it.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        minors: &[u32],
        question: impl Fn(u32) -> T + Send + Sync + 'static,
    ) -> Vec<(u32, Option<T>)> {
        let end = Instant::now() + self.patience;
        let reuse = in_namespace_of_process();
        let mut answers: Vec<_> = minors.iter().map(|minor| (*minor, None)).collect();
        let (send, receive) = channel();
        let round = DeviceRound {
            devices: Mutex::new(minors.iter().copied().enumerate().collect()),
            turns: self.turns.clone(),
            patience: self.patience,
            question,
        };
        let round = Arc::new(round);
        let mut workers: Vec<Worker> = Vec::new();
        let mut busy = Vec::new();
        let mut open = minors.len();
        workers.extend(self.run(round.job(&send), reuse));
        let mut stall = Instant::now() + STALL;
        while open > 0 {
            let now = Instant::now();
            if now >= end {
                break;
            }
            let until = if busy.is_empty() && round.devices.lock().is_empty() {
                end
            } else {
                stall.min(end)
            };
            match receive.recv_timeout(until.saturating_duration_since(now)) {
                Ok((at, Ok(answer))) => {
                    answers[at].1 = Some(answer);
                    open -= 1;
                    stall = Instant::now() + STALL;
                }
                Ok((_, Err(Unasked::Lost))) => open -= 1,
                Ok((at, Err(Unasked::Busy))) => busy.push(at),
                Err(_) => {}
            }
            if Instant::now() < stall {
                continue;
            }
            stall = Instant::now() + STALL;
            busy.retain(|at| match self.turns.look(minors[*at], self.patience) {
                Err(Unasked::Busy) => true,
                Err(Unasked::Lost) => {
                    open -= 1;
                    false
                }
                Ok(()) => {
                    round.devices.lock().push_back((*at, minors[*at]));
                    false
                }
            });
            let (running, ended) = workers.into_iter().partition(Worker::is_running);
            self.keep(ended, reuse);
            workers = running;
            let more = workers.len().max(1).min(round.devices.lock().len());
            workers.extend((0..more).filter_map(|_| self.run(round.job(&send), reuse)));
        }
        // Threads that still wait for a device must not query another device after it.
        round.devices.lock().clear();
        if open == 0 {
            self.keep(workers, reuse);
        }
        answers
    }

    /// Keeps some of the threads for later jobs, if they may be reused.
    fn keep(&self, workers: Vec<Worker>, reuse: bool) {
        if !reuse {
            return;
        }
        let mut idle = self.idle.lock();
        let room = IDLE.saturating_sub(idle.len());
        idle.extend(workers.into_iter().take(room).map(|worker| worker.jobs));
    }

    /// Runs the job on a thread, an idle one if `reuse`; `None` if no thread can be started.
    fn run(&self, job: DeviceQuery, reuse: bool) -> Option<Worker> {
        let idle = self.idle.lock().pop_if(|_| reuse);
        let jobs = match idle {
            Some(jobs) => jobs,
            None => {
                let (jobs, queue) = channel::<DeviceQuery>();
                let name = "ask-loop".to_owned();
                thread::Builder::new()
                    .name(name)
                    .spawn(move || queue.into_iter().for_each(|job| job()))
                    .ok()?;
                jobs
            }
        };
        let running = Arc::new(());
        let worker = Worker {
            jobs,
            running: Arc::downgrade(&running),
        };
        let job = Box::new(move || {
            job();
            drop(running);
        });
        worker.jobs.send(job).ok()?;
        Some(worker)
    }
}

/// True if this thread has the mount namespace of the process. A thread that entered another one
/// passes that on to the threads that it starts: they see other mounts at the same paths, and keep
/// the mounts of that namespace alive.
fn in_namespace_of_process() -> bool {
    let [process, thread] = ["/proc/self/ns/mnt", "/proc/thread-self/ns/mnt"]
        .map(|of| std::fs::metadata(of).map(|namespace| namespace.ino()));
    matches!((process, thread), (Ok(process), Ok(thread)) if process == thread)
}

impl Worker {
    fn is_running(&self) -> bool {
        self.running.strong_count() > 0
    }
}

impl<Q> DeviceRound<Q> {
    /// Queries devices until none remains.
    fn job<T: Send + 'static>(self: &Arc<Self>, send: &Sender<(usize, Asked<T>)>) -> DeviceQuery
    where
        Q: Fn(u32) -> T + Send + Sync + 'static,
    {
        let (round, send) = (self.clone(), send.clone());
        Box::new(move || {
            while let Some((at, minor)) = round.next() {
                if send.send((at, round.query(minor))).is_err() {
                    return;
                }
            }
        })
    }

    fn next(&self) -> Option<(usize, u32)> {
        self.devices.lock().pop_front()
    }

    fn query<T>(&self, minor: u32) -> Asked<T>
    where
        Q: Fn(u32) -> T,
    {
        let _turn = self.turns.take(minor, self.patience)?;
        catch_unwind(AssertUnwindSafe(|| (self.question)(minor))).map_err(|_| Unasked::Lost)
    }
}

impl Turns {
    /// Takes the right to query a device, unless another call keeps it for longer than a moment.
    fn take(&self, minor: u32, patience: Duration) -> Result<DeviceTurn<'_>, Unasked> {
        let mut under_way = self.free(minor, patience, Instant::now() + STALL)?;
        under_way.insert(minor, Instant::now());
        Ok(DeviceTurn { turns: self, minor })
    }

    /// An error if a call queries the device now.
    fn look(&self, minor: u32, patience: Duration) -> Result<(), Unasked> {
        self.free(minor, patience, Instant::now()).map(drop)
    }

    /// Waits until no call queries the device; an error if one does for too long.
    fn free(
        &self,
        minor: u32,
        patience: Duration,
        end: Instant,
    ) -> Result<MutexGuard<'_, HashMap<u32, Instant>>, Unasked> {
        let mut under_way = self.under_way.lock();
        while let Some(since) = under_way.get(&minor) {
            let (now, lost) = (Instant::now(), *since + patience);
            if now >= lost {
                return Err(Unasked::Lost);
            }
            if now >= end {
                return Err(Unasked::Busy);
            }
            self.ended.wait_until(&mut under_way, end.min(lost));
        }
        Ok(under_way)
    }
}

impl Drop for DeviceTurn<'_> {
    fn drop(&mut self) {
        self.turns.under_way.lock().remove(&self.minor);
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::Receiver;

    /// A query that device 2 does not answer until the sender is dropped, and a counter of its
    /// calls.
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
                let _ = wait.lock().recv();
            }
            minor * 10
        };
        (question, asked, go)
    }

    #[test]
    fn one_that_hangs_does_not_keep_the_others() {
        let asking = Asking::new(Duration::from_secs(15));
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
        let asked_again = (0..30_000).any(|_| again());
        assert!(asked_again, "it answers now");
    }

    /// Device 5 answers at once; all others take this long.
    fn slow(needed: Duration) -> impl Fn(u32) + Clone + Send + Sync + 'static {
        move |minor| {
            if minor != 5 {
                thread::sleep(needed);
            }
        }
    }

    /// Queries forty devices that take this long, and measures the total time.
    fn timed(asking: &Asking, needed: Duration) -> (Duration, Vec<(u32, Option<()>)>) {
        let minors: Vec<u32> = (0..40).collect();
        let started = Instant::now();
        let answers = asking.ask(&minors, slow(needed));
        (started.elapsed(), answers)
    }

    #[test]
    fn many_that_hang_cost_the_time_of_one() {
        // One after the other, they would cost 39 times as much.
        let patience = Duration::from_secs(15);
        let asking = Asking::new(patience);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let (took, answers) = timed(&asking, patience * 20);
                    assert!(took < patience * 3, "{took:?}");
                    for (minor, answer) in answers {
                        assert_eq!(answer.is_some(), minor == 5, "device {minor}");
                    }
                });
            }
        });
        let (took, _) = timed(&asking, Duration::ZERO);
        assert!(took < patience, "they are not waited for again: {took:?}");
    }

    #[test]
    fn many_that_are_slow_all_answer() {
        // One after the other, they would need four times the patience.
        let patience = Duration::from_secs(20);
        let asking = Asking::new(patience);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let (took, answers) = timed(&asking, patience / 10);
                    assert!(took < patience, "{took:?}");
                    assert!(answers.iter().all(|(_, answer)| answer.is_some()));
                });
            }
        });
    }

    #[test]
    fn concurrent_queries_of_a_device_take_turns() {
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

    /// Device 1 hangs in this call, while another call is done with device 2.
    #[test]
    fn a_busy_device_is_asked_beside_one_that_hangs() {
        let asking = Asking::new(PATIENCE * 60);
        let ((hang, hung), (hold, held)) = (channel::<()>(), channel::<()>());
        let (asked, was_asked) = channel();
        thread::scope(|scope| {
            let held = Mutex::new(held);
            let (begun, has_begun) = channel();
            scope.spawn(|| {
                asking.ask(&[2], move |_| {
                    let _ = begun.send(());
                    let _ = held.lock().recv();
                })
            });
            has_begun.recv().expect("device 2 is queried");
            let hung = Mutex::new(hung);
            scope.spawn(|| {
                let answers = asking.ask(&[1, 2], move |minor| {
                    let _ = asked.send(minor);
                    if minor == 1 {
                        let _ = hung.lock().recv();
                    }
                });
                assert_eq!(answers, [(1, Some(())), (2, Some(()))]);
            });
            assert_eq!(was_asked.recv(), Ok(1));
            thread::sleep(STALL * 5);
            drop(hold);
            assert_eq!(was_asked.recv_timeout(PATIENCE * 12), Ok(2));
            drop(hang);
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
