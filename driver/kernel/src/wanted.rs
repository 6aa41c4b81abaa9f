//! Whether the work of a thread is still wanted.
//!
//! Work goes on after its caller hangs up, because a retry joins it. A copy or an allocation of
//! gigabytes that no retry asks for would only keep the disk from others, so it ends at its next
//! step.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::file_name::name_of;
use super::{Error, Result};

thread_local! {
    static CURRENT: RefCell<Option<Arc<Wanted>>> = const { RefCell::new(None) };
}

/// What follows the end of a copy.
type AfterCopy = Box<dyn FnOnce() + Send>;

/// Work that is wanted until [`Wanted::end`].
#[derive(Default)]
pub struct Wanted {
    ended: AtomicBool,
    awaited: AtomicBool,
    copied: Mutex<Option<AfterCopy>>,
    step: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Wanted {
    /// Calls `then` once the work has copied its sources.
    pub fn once_copied(&self, then: impl FnOnce() + Send + 'static) {
        *self.copied.lock() = Some(Box::new(then));
    }

    /// Work that calls `step` before each of its steps.
    pub fn with_step(step: impl Fn() + Send + Sync + 'static) -> Wanted {
        Wanted {
            step: Some(Box::new(step)),
            ..Wanted::default()
        }
    }

    /// From now on, the work is not wanted.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// True if the work is not wanted any more.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// From now on, a pod waits for the work.
    pub fn hurry(&self) {
        self.awaited.store(true, Ordering::Relaxed);
    }

    /// Does the work on this thread.
    pub fn run<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let before = CURRENT.replace(Some(self.clone()));
        let _restored = EarlierWork(before);
        work()
    }
}

/// Restores the thread's earlier work when it is dropped, also after a panic.
struct EarlierWork(Option<Arc<Wanted>>);

impl Drop for EarlierWork {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wanted")
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

fn current() -> Option<Arc<Wanted>> {
    CURRENT.with_borrow(Clone::clone)
}

/// True if a pod waits for the work of this thread.
pub fn is_awaited() -> bool {
    current().is_some_and(|current| current.awaited.load(Ordering::Relaxed))
}

/// Fails with [`Error::Unwanted`] if the work of this thread, which makes `file`, is not wanted.
pub fn check(file: &std::fs::File) -> Result<()> {
    let Some(current) = current() else {
        return Ok(());
    };
    if let Some(step) = &current.step {
        step();
    }
    if current.has_ended() {
        Err(Error::Unwanted {
            path: name_of(file),
        })
    } else {
        Ok(())
    }
}

/// Says that the work of this thread needs its sources no more.
pub fn copied() {
    let then = current().and_then(|current| current.copied.lock().take());
    if let Some(then) = then {
        then();
    }
}
