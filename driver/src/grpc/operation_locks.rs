//! The locks of RPCs, and the joining of retried RPCs.
//!
//! The services under the server take no locks. An RPC names everything it changes as [`Key`]s. The
//! driver grants all keys at once or none, so there is no lock order and no deadlock. An RPC that
//! finds a key taken
//!
//! - **joins** the work that holds the key and gets the same answer, if both requests are equal
//!   (callers retry when their deadline passes);
//! - is **ABORTED** otherwise ("Operation pending for volume" in the specification).
//!
//! Work runs on a blocking thread, which owns the keys. It continues when the caller hangs up. The
//! keys are released when the work returns or panics.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::task::TaskTracker;
use tonic::{Code, Status};

use super::escape::Shown;

/// An object that only one RPC at a time may change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A volume's name; CreateVolume locks it before the volume has an ID.
    VolumeName(String),
    /// A volume, by the ID in the request, valid or not.
    Volume(String),
    /// A snapshot's name.
    SnapshotName(String),
    /// A snapshot, by its ID.
    Snapshot(String),
    /// A group snapshot's name.
    GroupName(String),
    /// A group snapshot, by its ID.
    Group(String),
}

impl Key {
    /// The only key of an RPC on this volume.
    pub(super) fn volume(id: &str) -> Vec<Key> {
        vec![Key::Volume(id.to_owned())]
    }

    /// The ID or name.
    pub(super) fn text(&self) -> &str {
        match self {
            Key::VolumeName(text)
            | Key::Volume(text)
            | Key::SnapshotName(text)
            | Key::Snapshot(text)
            | Key::GroupName(text)
            | Key::Group(text) => text,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::VolumeName(name) => write!(f, "volume \"{}\"", Shown(name)),
            Key::Volume(id) => write!(f, "volume {}", Shown(id)),
            Key::SnapshotName(name) => write!(f, "snapshot \"{}\"", Shown(name)),
            Key::Snapshot(id) => write!(f, "snapshot {}", Shown(id)),
            Key::GroupName(name) => write!(f, "group snapshot \"{}\"", Shown(name)),
            Key::Group(id) => write!(f, "group snapshot {}", Shown(id)),
        }
    }
}

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

/// The answer of the work, shared by all callers that joined it.
type Answer = Result<Arc<dyn Any + Send + Sync>, Status>;

/// Work under way.
struct Job {
    method: &'static str,
    fingerprint: Fingerprint,
    answer: watch::Sender<Option<Answer>>,
}

#[derive(Default)]
struct Table {
    held: HashMap<Key, Arc<Job>>,
    closed: bool,
}

/// The locks of all RPCs under way, and their work. Clones share them.
#[derive(Clone, Default)]
pub struct OperationLocks {
    table: Arc<Mutex<Table>>,
    work: TaskTracker,
}

/// The result of asking for keys.
enum Ticket {
    /// The request holds its keys now.
    Granted(Granted),
    /// Work for an equal request is under way.
    Joined(watch::Receiver<Option<Answer>>),
}

/// Keys that are held. Dropping this releases them.
struct Granted {
    table: Arc<Mutex<Table>>,
    keys: Vec<Key>,
    job: Arc<Job>,
}

impl Drop for Granted {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        for key in &self.keys {
            table.held.remove(key);
        }
    }
}

/// Every statement leaves the table consistent, so a panic elsewhere can't have broken it.
fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OperationLocks {
    /// Creates a table without any work under way.
    pub fn new() -> Self {
        OperationLocks::default()
    }

    /// Runs `work` under `keys` on one of `threads`, joins an equal request, or answers ABORTED.
    /// Dropping the future drops the answer, not the work.
    pub async fn run<R, E>(
        &self,
        threads: Arc<Semaphore>,
        method: &'static str,
        keys: Vec<Key>,
        fingerprint: Fingerprint,
        work: impl FnOnce() -> Result<R, E> + Send + 'static,
    ) -> Result<R, Status>
    where
        R: Clone + Send + Sync + 'static,
        E: Into<Status> + 'static,
    {
        let mut answer = match self.take(method, keys, fingerprint)? {
            Ticket::Joined(answer) => answer,
            Ticket::Granted(granted) => {
                let answer = granted.job.answer.subscribe();
                self.work.spawn(async move {
                    // The semaphore is never closed.
                    let _thread = threads.acquire_owned().await;
                    let done = tokio::task::spawn_blocking(move || perform(granted, work));
                    // `perform` has already answered after a panic.
                    let _ = done.await;
                });
                answer
            }
        };
        let answer = match answer.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone(),
            // The runtime is shutting down and dropped the work before it started.
            Err(_) => None,
        };
        let answer = answer.unwrap_or_else(|| Err(shutting_down()))?;
        match answer.downcast_ref::<R>() {
            Some(answer) => Ok(answer.clone()),
            None => Err(Status::internal(format!("{method}: two types of answers"))),
        }
    }

    /// Runs work without keys on a blocking thread. The permit is released when the work ends, even
    /// if the caller hangs up earlier.
    pub async fn read<R, E>(
        &self,
        thread: OwnedSemaphorePermit,
        work: impl FnOnce() -> Result<R, E> + Send + 'static,
    ) -> Result<R, Status>
    where
        R: Send + 'static,
        E: Into<Status> + 'static,
    {
        let work = move || {
            let _thread = thread;
            guarded(work)
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(shutting_down()))
    }

    /// Refuses all further requests.
    pub fn close(&self) {
        lock(&self.table).closed = true;
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

    fn take(
        &self,
        method: &'static str,
        mut keys: Vec<Key>,
        fingerprint: Fingerprint,
    ) -> Result<Ticket, Status> {
        let mut table = lock(&self.table);
        if table.closed {
            return Err(shutting_down());
        }
        for key in &keys {
            let Some(job) = table.held.get(key) else {
                continue;
            };
            // Equal requests have equal keys, so the holder of one key holds them all.
            if job.method == method && job.fingerprint == fingerprint {
                return Ok(Ticket::Joined(job.answer.subscribe()));
            }
            return Err(Status::aborted(format!(
                "an operation on {key} is in progress ({})",
                job.method
            )));
        }
        let job = Arc::new(Job { method, fingerprint, answer: watch::Sender::new(None) });
        keys.retain(|key| match table.held.entry(key.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(job.clone());
                true
            }
            // The request names this key twice.
            Entry::Occupied(_) => false,
        });
        Ok(Ticket::Granted(Granted { table: self.table.clone(), keys, job }))
    }
}

/// Runs the work, releases the keys, then answers. In this order, a caller's next RPC on the same
/// volume is not aborted because of the RPC that was just answered.
fn perform<R, E>(granted: Granted, work: impl FnOnce() -> Result<R, E>)
where
    R: Send + Sync + 'static,
    E: Into<Status>,
{
    let started = std::time::Instant::now();
    let answer = guarded(work).map(|answer| Arc::new(answer) as Arc<dyn Any + Send + Sync>);
    let code = answer.as_ref().map_or_else(|s| s.code(), |_| Code::Ok);
    let subject = granted.keys.first().cloned();
    let job = granted.job.clone();
    drop(granted);
    if job.answer.send(Some(answer)).is_err()
        && let Some(subject) = subject
    {
        tracing::info!(
            method = job.method,
            subject = %subject,
            code = hostloop_proto::calls::code_name(code),
            ms = started.elapsed().as_millis() as u64,
            "done, after its caller had hung up"
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
        Err(_) => Err(Status::internal("the driver met a bug in this call; its log says where")),
    }
}

fn shutting_down() -> Status {
    Status::unavailable("the driver is shutting down")
}

#[cfg(test)]
mod tests;
