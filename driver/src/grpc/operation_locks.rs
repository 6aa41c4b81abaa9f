//! The locks of RPCs, and the joining of retried RPCs.
//!
//! The services under the server take no locks. An RPC names every object it uses as a [`Hold`]. It
//! joins one queue for each object, all at once, and starts when no earlier RPC in these queues is
//! in its way. So an RPC only ever waits for earlier ones: there is no deadlock, and no RPC is
//! overtaken indefinitely. An RPC that finds an object in use
//!
//! - **joins** the work for an equal request and gets the same answer (callers retry when their
//!   deadline passes);
//! - is **ABORTED** if both RPCs change the object ("Operation pending for volume" in the
//!   specification);
//! - runs **beside** the other if both copy the object and it never changes (a snapshot), or if one
//!   copies it and the other changes its record alone;
//! - goes **ahead** of long work that has not begun, if it mounts or unmounts it: a copy or an
//!   allocation may wait for a thread, and a pod does not wait with it;
//! - **waits** otherwise. A caller that waits too long is ABORTED. Its request keeps its place in
//!   the queue as long as a retry may still come, which joins it.
//!
//! Work runs on a blocking thread. It continues when the caller hangs up; long work only as long as
//! a retry may still come ([`Operation::grace`]). The objects are released when the work returns or
//! panics, and the sources of a copy already when they are copied. An RPC that waits holds no
//! thread.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::{Code, Status};

use self::hold::{Precedence, goes_ahead, precedence};
use super::permits::{Permit, Permits};
use crate::blocking::Blocking;
use crate::kernel::wanted::Wanted;

mod hold;

pub use hold::{Hold, Key, Usage};

/// How long a request waits, and long work goes on, without a caller. Kubelet, Kubernetes'
/// controllers and upstream's sidecars retry at least every five minutes. A deletion that comes
/// later may take what someone wants again.
pub(super) const GRACE: Duration = Duration::from_secs(360);

/// A digest of all fields that affect the answer. Equal digests mean equal requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Digests a request's bytes, without secrets and volume context: tokens in them change between
    /// retries.
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest;
        Fingerprint(sha2::Sha256::digest(bytes).into())
    }
}

/// A request that uses objects. Two equal requests have equal holds.
pub struct Operation {
    /// The full method name.
    pub method: &'static str,
    /// The objects.
    pub holds: Vec<Hold>,
    /// The digest of the request.
    pub fingerprint: Fingerprint,
    /// How long the caller waits for earlier requests, and for a thread.
    pub wait_limit: Duration,
    /// The namespace of the RPC's object. Namespaces take turns for threads: see [`Permits`].
    pub namespace: String,
    /// True if others may hold its threads for long.
    pub long: bool,
    /// How long begun work goes on without a caller that waits for it; `None` is to its end.
    pub grace: Option<Duration>,
    /// Called after a success, once the objects are released and before the answer.
    pub then: Option<AfterSuccess>,
}

/// What follows a success. It must not block.
pub type AfterSuccess = Box<dyn FnOnce() + Send>;

/// The answer of the work, shared by all callers that joined it.
type Answer = Result<Arc<dyn Any + Send + Sync>, Status>;

/// The work for a request, waiting or under way.
struct Job {
    method: &'static str,
    fingerprint: Fingerprint,
    holds: Vec<Hold>,
    answer: watch::Sender<Option<Answer>>,
    /// Notified when an earlier job ends.
    wake: Notify,
    long: bool,
    grace: Option<Duration>,
    /// True once it has a thread and nothing in its way. Changes under the table's lock.
    begun: AtomicBool,
    /// The number of callers so far.
    callers: AtomicUsize,
    /// The threads for one of which the job waits.
    waits_for: Mutex<Option<Arc<Permits>>>,
    wanted: Arc<Wanted>,
}

impl Job {
    fn is_for(&self, operation: &Operation) -> bool {
        self.method == operation.method && self.fingerprint == operation.fingerprint
    }

    /// True if a later job, which uses an object of this one, goes ahead of it.
    fn lets_ahead(&self, usage: Usage, later: Usage) -> bool {
        !self.begun.load(Ordering::Relaxed) && goes_ahead(usage, self.long, later)
    }

    /// Adds a caller, under the table's lock.
    fn join(self: &Arc<Self>) -> Joined {
        self.callers.fetch_add(1, Ordering::Relaxed);
        // The job's end must end its channel, so a caller can't keep the job.
        Joined {
            job: Arc::downgrade(self),
            answer: self.answer.subscribe(),
        }
    }

    /// Returns once no caller has waited for the answer for the time of grace.
    async fn is_unwanted(&self, table: &Mutex<OperationTable>) {
        let grace = self.grace.unwrap_or(GRACE);
        loop {
            let before = self.callers.load(Ordering::Relaxed);
            self.answer.closed().await;
            tokio::time::sleep(grace).await;
            // Under the lock, so that a caller joins before this, or not at all.
            let _table = table.lock();
            if self.answer.is_closed() && self.callers.load(Ordering::Relaxed) == before {
                self.wanted.end();
                return;
            }
        }
    }
}

/// A caller's view of a job.
struct Joined {
    job: Weak<Job>,
    answer: watch::Receiver<Option<Answer>>,
}

/// The jobs that use one object, in the order of their arrival.
type Queue = Vec<(Usage, Arc<Job>)>;

/// Makes a job hurry if a pod waits for it: its long work pauses no more.
fn hurry(job: &Job, waits: Usage) {
    if waits == Usage::Mount {
        job.wanted.hurry();
    }
}

/// The place of a new job in a queue: the last one, or before the first job that lets it go ahead.
/// A job that has not begun never delays one that has.
fn place(queue: &Queue, usage: Usage) -> usize {
    let first = queue
        .iter()
        .position(|(earlier, job)| job.lets_ahead(*earlier, usage));
    first.unwrap_or(queue.len())
}

/// A job ends in all its queues at once. It runs if no earlier job in them is in its way.
#[derive(Default)]
struct OperationTable {
    queues: HashMap<Key, Queue>,
    closed: bool,
}

/// The decision about a new request.
enum Admission {
    /// Work for an equal request waits or runs.
    Join(Arc<Job>),
    /// Another request changes the same object.
    Abort(Status),
    /// The request joins the queues of its objects.
    Enter,
}

impl OperationTable {
    fn admit(&self, operation: &Operation) -> Admission {
        for hold in &operation.holds {
            let queue = self.queues.get(&hold.key).map_or(&[][..], Vec::as_slice);
            // Equal requests have equal holds, so an equal one is in the first queue already.
            if let Some((_, equal)) = queue.iter().find(|(_, job)| job.is_for(operation)) {
                return if equal.wanted.has_ended() {
                    Admission::Abort(Status::aborted(UNWANTED))
                } else {
                    Admission::Join(equal.clone())
                };
            }
            let in_the_way = queue.iter().find(|(usage, job)| {
                precedence(&hold.key, *usage, hold.usage) == Precedence::Abort
                    && !job.lets_ahead(*usage, hold.usage)
            });
            if let Some((_, other)) = in_the_way {
                hurry(other, hold.usage);
                return Admission::Abort(Status::aborted(in_progress(&hold.key, other)));
            }
        }
        Admission::Enter
    }

    /// The first object for which this job waits, and the job that uses it. A job that has ended
    /// waits for none.
    fn obstacle<'a>(&'a self, job: &'a Job) -> Option<(&'a Key, &'a Job)> {
        job.holds.iter().find_map(|hold| {
            let queue = self.queues.get(&hold.key)?;
            let place = queue
                .iter()
                .position(|(_, other)| std::ptr::eq(&**other, job))?;
            let mut obstacles = queue[..place].iter().filter(|(usage, _)| {
                precedence(&hold.key, *usage, hold.usage) != Precedence::Beside
            });
            obstacles.next().map(|(_, other)| (&hold.key, &**other))
        })
    }

    /// Removes a job from its queues, and wakes those that may start now.
    fn remove(&mut self, job: &Arc<Job>) {
        self.release(job, |_| true);
    }

    /// Removes a job from the queues of the objects that it uses like this, and wakes those that
    /// may start now.
    fn release(&mut self, job: &Arc<Job>, used: fn(Usage) -> bool) {
        for Hold { key, .. } in job.holds.iter().filter(|hold| used(hold.usage)) {
            let Some(queue) = self.queues.get_mut(key) else {
                continue;
            };
            queue.retain(|(_, other)| !Arc::ptr_eq(other, job));
            let Some((first, _)) = queue.first() else {
                self.queues.remove(key);
                continue;
            };
            let may_start = queue.iter().enumerate().take_while(|(i, (usage, _))| {
                *i == 0 || precedence(key, *first, *usage) == Precedence::Beside
            });
            may_start.for_each(|(_, (_, other))| other.wake.notify_one());
        }
    }
}

/// The locks of all RPCs under way, and their work. Clones share them. Work that has not begun ends
/// when the last one is dropped.
#[derive(Clone)]
pub struct OperationLocks {
    table: Arc<Mutex<OperationTable>>,
    work: TaskTracker,
    blocking: Blocking,
    ended: CancellationToken,
    _ending: Arc<DropGuard>,
}

/// The result of asking for objects.
enum Ticket {
    /// The request is in the queues of its objects.
    Entered(Turn, Joined),
    /// Work for an equal request waits or runs.
    Joined(Joined),
}

/// A job's places in its queues. Dropping this ends the job.
struct Turn {
    table: Arc<Mutex<OperationTable>>,
    job: Arc<Job>,
}

impl Turn {
    /// Waits until no earlier job is in the way. False if the driver shuts down before that.
    async fn comes(&self) -> bool {
        loop {
            {
                let table = self.table.lock();
                let Some((_, other)) = table.obstacle(&self.job) else {
                    return true;
                };
                self.job
                    .holds
                    .iter()
                    .for_each(|hold| hurry(other, hold.usage));
                if table.closed {
                    return false;
                }
            }
            self.job.wake.notified().await;
        }
    }

    /// Waits until no earlier job is in the way and there is a thread. `None` if the driver shuts
    /// down before that.
    async fn begins(&self, threads: &Arc<Permits>, namespace: &str) -> Option<Permit> {
        while self.comes().await {
            *self.job.waits_for.lock() = Some(threads.clone());
            let thread = threads.acquire(namespace).await;
            *self.job.waits_for.lock() = None;
            let table = self.table.lock();
            // The process is ending: a copy that begins now would freeze its source and then be
            // stopped.
            if self.job.wanted.has_ended() {
                return None;
            }
            // A job that goes ahead may have come meanwhile. Others get the thread then.
            if table.obstacle(&self.job).is_none() {
                self.job.begun.store(true, Ordering::Relaxed);
                return thread;
            }
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.table.lock().remove(&self.job);
    }
}

impl Default for OperationLocks {
    fn default() -> Self {
        OperationLocks::new()
    }
}

impl OperationLocks {
    /// Creates a table without any work under way. Work runs on threads of the runtime.
    pub fn new() -> Self {
        OperationLocks::running_on(Blocking::default())
    }

    /// Creates a table without any work under way. This runs its work.
    pub fn running_on(blocking: Blocking) -> Self {
        let ended = CancellationToken::new();
        OperationLocks {
            table: Arc::default(),
            work: TaskTracker::new(),
            blocking,
            _ending: Arc::new(ended.clone().drop_guard()),
            ended,
        }
    }

    /// Runs `work` on one of `threads` when its turn comes, or joins an equal request. Answers
    /// ABORTED if another request is in the way (see the top of this file). Dropping the future
    /// drops the answer, not the work.
    pub async fn run<R, E>(
        &self,
        threads: Arc<Permits>,
        mut operation: Operation,
        work: impl FnOnce() -> Result<R, E> + Send + 'static,
    ) -> Result<R, Status>
    where
        R: Clone + Send + Sync + 'static,
        E: Into<Status> + 'static,
    {
        let (method, wait_limit) = (operation.method, operation.wait_limit);
        let then = operation.then.take();
        let namespace = std::mem::take(&mut operation.namespace);
        let Joined { job, mut answer } = match self.take(operation)? {
            Ticket::Joined(joined) => joined,
            Ticket::Entered(turn, joined) => {
                let blocking = self.blocking.clone();
                let work = end_to_end(turn, blocking, threads, namespace, work, then);
                self.work
                    .spawn(self.ended.clone().run_until_cancelled_owned(work));
                joined
            }
        };
        let until = Instant::now() + wait_limit;
        if timeout_at(until, answer.wait_for(Option::is_some))
            .await
            .is_err()
            && let Some(why) = job.upgrade().and_then(|job| self.waits_for(&job))
        {
            return Err(Status::aborted(format!(
                "{why} within {} s",
                wait_limit.as_secs_f32()
            )));
        }
        let answer = match answer.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone(),
            // The driver shuts down, and dropped the work before it started.
            Err(_) => None,
        };
        let answer = answer.unwrap_or_else(|| Err(shutting_down()))?;
        match answer.downcast_ref::<R>() {
            Some(answer) => Ok(answer.clone()),
            None => Err(Status::internal(format!("{method}: two types of answers"))),
        }
    }

    /// What a job waits for, for people; `None` if it runs.
    fn waits_for(&self, job: &Job) -> Option<String> {
        if let Some((key, other)) = self.table.lock().obstacle(job) {
            return Some(format!("{}, and has not ended", in_progress(key, other)));
        }
        let threads = job.waits_for.lock().clone()?;
        Some(format!("the call waits for {threads}, and has not begun"))
    }

    /// Runs work without keys on a blocking thread. The permit is released when the work ends, even
    /// if the caller hangs up earlier.
    pub async fn read<R, E>(
        &self,
        thread: Permit,
        work: impl FnOnce() -> Result<R, E> + Send + 'static,
    ) -> Result<R, Status>
    where
        R: Send + 'static,
        E: Into<Status> + 'static,
    {
        let kind = thread.calls();
        self.blocking
            .run(kind, move || {
                let _thread = thread;
                guarded(work)
            })
            .await
            .unwrap_or_else(|| Err(shutting_down()))
    }

    /// Refuses all further requests, and those that wait for earlier ones. Ends long work under
    /// way.
    pub fn close(&self) {
        let mut table = self.table.lock();
        table.closed = true;
        for (_, job) in table.queues.values().flatten() {
            job.wake.notify_one();
            if job.grace.is_some() {
                job.wanted.end();
            }
        }
        self.work.close();
    }

    /// Waits until all work is done. Call [`OperationLocks::close`] first.
    pub async fn drained(&self) {
        self.work.wait().await;
    }

    /// The number of jobs under way.
    pub fn in_flight(&self) -> usize {
        self.work.len()
    }

    fn take(&self, operation: Operation) -> Result<Ticket, Status> {
        let mut table = self.table.lock();
        if table.closed {
            return Err(shutting_down());
        }
        match table.admit(&operation) {
            Admission::Join(job) => return Ok(Ticket::Joined(job.join())),
            Admission::Abort(status) => return Err(status),
            Admission::Enter => {}
        }
        let job = Arc::new(Job {
            method: operation.method,
            fingerprint: operation.fingerprint,
            holds: operation.holds,
            answer: watch::Sender::new(None),
            wake: Notify::new(),
            long: operation.long,
            grace: operation.grace,
            begun: AtomicBool::new(false),
            callers: AtomicUsize::new(0),
            waits_for: Mutex::default(),
            wanted: Arc::default(),
        });
        let (held, table_of) = (Arc::downgrade(&job), self.table.clone());
        job.wanted.once_copied(move || {
            if let Some(job) = held.upgrade() {
                table_of.lock().release(&job, |usage| usage == Usage::Copy);
            }
        });
        for hold in &job.holds {
            let queue = table.queues.entry(hold.key.clone()).or_default();
            // The request may name a key twice.
            if !queue
                .last()
                .is_some_and(|(_, last)| Arc::ptr_eq(last, &job))
            {
                queue.insert(place(queue, hold.usage), (hold.usage, job.clone()));
            }
        }
        let joined = job.join();
        Ok(Ticket::Entered(
            Turn {
                table: self.table.clone(),
                job,
            },
            joined,
        ))
    }
}

/// Waits for the job's turn and for a thread, and does its work, while it is wanted.
async fn end_to_end<R, E>(
    turn: Turn,
    blocking: Blocking,
    threads: Arc<Permits>,
    namespace: String,
    work: impl FnOnce() -> Result<R, E> + Send + 'static,
    then: Option<AfterSuccess>,
) where
    R: Send + Sync + 'static,
    E: Into<Status> + 'static,
{
    let (job, table) = (turn.job.clone(), turn.table.clone());
    let unwanted = job.is_unwanted(&table);
    tokio::pin!(unwanted);
    let thread = tokio::select! {
        thread = turn.begins(&threads, &namespace) => thread,
        () = &mut unwanted => None,
    };
    let Some(_thread) = thread else {
        return;
    };
    let done = blocking.run(threads.calls(), move || perform(turn, work, then));
    tokio::pin!(done);
    // `perform` has already answered after a panic.
    tokio::select! {
        _ = &mut done => {}
        () = unwanted, if job.grace.is_some() => drop(done.await),
    }
}

/// Runs the work, ends the job, then answers. In this order, a caller's next RPC on the same volume
/// is not aborted because of the RPC that was just answered.
fn perform<R, E>(turn: Turn, work: impl FnOnce() -> Result<R, E>, then: Option<AfterSuccess>)
where
    R: Send + Sync + 'static,
    E: Into<Status>,
{
    let started = std::time::Instant::now();
    let answer = turn
        .job
        .wanted
        .run(|| guarded(work))
        .map(|answer| Arc::new(answer) as Arc<dyn Any + Send + Sync>);
    let code = answer.as_ref().map_or_else(|s| s.code(), |_| Code::Ok);
    let job = turn.job.clone();
    drop(turn);
    if let Some(then) = then.filter(|_| answer.is_ok()) {
        then();
    }
    if job.answer.send(Some(answer)).is_err()
        && let Some(subject) = job.holds.first()
    {
        tracing::info!(
            method = job.method,
            subject = %subject.key,
            code = hostloop_proto::calls::code_name(code),
            ms = started.elapsed().as_millis() as u64,
            "the call finished after its caller had hung up"
        );
    }
}

/// Turns a panic into a failure of this RPC, so that the process survives.
pub(crate) fn guarded<R, E: Into<Status>>(
    work: impl FnOnce() -> Result<R, E>,
) -> Result<R, Status> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(answer) => answer.map_err(Into::into),
        // The panic hook has already logged where and why.
        Err(_) => Err(Status::internal(
            "the driver met a bug in this call; its log says where",
        )),
    }
}

/// Names an object and the job that uses it.
fn in_progress(key: &Key, job: &Job) -> String {
    format!("an operation on {key} is in progress ({})", job.method)
}

/// The answer to a retry that comes while its earlier work ends, because it came too late.
const UNWANTED: &str =
    "the driver ends the work of this call, which no caller waited for: try again";

/// The answer to an RPC that the driver no longer begins.
pub(super) fn shutting_down() -> Status {
    Status::unavailable("the driver is shutting down")
}

#[cfg(test)]
mod tests;
