//! One filesystem, frozen and thawed by a thread of its own.
//!
//! A freeze can hang in the kernel (an inner XFS whose pool is full) and must not take its caller
//! along. So the thread that freezes is also the one that thaws, by the same open directory: when
//! it is told to, when the limit is over, or at once if the freeze succeeds after the caller gave
//! it up.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::kernel::{self, FileId, Freeze, Kernel};

/// What a freezer is told.
#[derive(Clone, Copy)]
enum Order {
    /// Write back what is dirty, then wait.
    Prepare,
    /// Freeze now, and thaw at this time at the latest.
    Freeze(Instant),
    /// Thaw, or don't freeze at all.
    Release,
}

/// How far a freezer is.
#[derive(Debug)]
pub(super) enum Phase {
    /// Writing back what is dirty.
    Preparing,
    /// Nothing left but to freeze.
    Ready,
    /// In FIFREEZE.
    Freezing,
    /// Frozen by us.
    Frozen,
    /// In FITHAW.
    Thawing,
    /// At the end.
    Done(Done),
}

/// How a freezer ended.
#[derive(Debug)]
pub(super) enum Done {
    /// Released before it froze anything.
    Untouched,
    /// Somebody else had frozen it. It was left alone.
    AlreadyFrozen,
    /// It could not be frozen.
    Failed(kernel::Error),
    /// Thawed; late if that was not by order but because the limit was over.
    Thawed {
        /// The limit was over.
        late: bool,
    },
    /// It is still frozen.
    ThawFailed(kernel::Error),
}

struct State {
    order: Order,
    phase: Phase,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `wait` says so, until a time (or for ever). The state then.
    fn wait(&self, until: Option<Instant>, wait: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while wait(&state) {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            state = match left {
                Some(left) if left.is_zero() => return state,
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
        state
    }

    fn set(&self, phase: Phase) {
        self.lock().phase = phase;
        self.changed.notify_all();
    }

    fn order(&self, order: Order) {
        self.lock().order = order;
        self.changed.notify_all();
    }
}

/// A handle to the thread. Dropping it releases.
pub(super) struct Freezer(Arc<Shared>);

impl Freezer {
    /// Starts the thread. `None` if an earlier one for this loop device has not come back from the
    /// kernel: another would only hang beside it.
    pub(super) fn start(
        kernel: Arc<dyn Kernel>,
        mount: Arc<File>,
        device: (FileId, u32),
    ) -> std::io::Result<Option<Freezer>> {
        let Some(under_way) = UnderWay::enter(device) else {
            return Ok(None);
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                order: Order::Prepare,
                phase: Phase::Preparing,
            }),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("freezer".to_owned())
            .spawn(move || {
                let done = run(&*kernel, &mount, &theirs);
                // In this order: who sees the end may start the next one, or unmount.
                drop((under_way, mount));
                theirs.set(Phase::Done(done));
            })?;
        Ok(Some(Freezer(shared)))
    }

    /// Waits until there is little left to write, at most until then. Looks at how far it is.
    pub(super) fn wait_ready<T>(&self, until: Instant, look: impl FnOnce(&Phase) -> T) -> T {
        let state = (self.0).wait(Some(until), |s| matches!(s.phase, Phase::Preparing));
        look(&state.phase)
    }

    /// Orders it to freeze now, and to thaw at this time at the latest.
    pub(super) fn freeze(&self, until: Instant) {
        self.0.order(Order::Freeze(until));
    }

    /// Waits until it is frozen or won't be, at most until then. Looks at how far it is.
    pub(super) fn wait_frozen<T>(&self, until: Instant, look: impl FnOnce(&Phase) -> T) -> T {
        let state = (self.0).wait(Some(until), |s| {
            matches!(s.phase, Phase::Preparing | Phase::Ready | Phase::Freezing)
        });
        look(&state.phase)
    }

    /// Orders it to thaw, now or as soon as it can.
    pub(super) fn release(&self) {
        self.0.order(Order::Release);
    }

    /// Waits for the end of a released freezer: until `limit` if it is still freezing, and a while
    /// for the thaw. `None` if it hangs.
    pub(super) fn wait_done(&self, limit: Instant, thaw: Duration) -> Option<Done> {
        drop((self.0).wait(Some(limit), |s| matches!(s.phase, Phase::Freezing)));
        let mut state = (self.0).wait(Some(Instant::now() + thaw), |s| {
            matches!(s.phase, Phase::Frozen | Phase::Thawing)
        });
        match &mut state.phase {
            Phase::Done(done) => Some(std::mem::replace(done, Done::Untouched)),
            // Released, so it ends without a freeze.
            Phase::Preparing | Phase::Ready => Some(Done::Untouched),
            Phase::Freezing | Phase::Frozen | Phase::Thawing => None,
        }
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.release();
    }
}

/// The life of the thread.
fn run(kernel: &dyn Kernel, mount: &File, shared: &Shared) -> Done {
    if let Err(e) = kernel.sync_fs(mount) {
        return Done::Failed(e);
    }
    shared.set(Phase::Ready);
    let until = {
        let mut state = shared.wait(None, |s| matches!(s.order, Order::Prepare));
        let Order::Freeze(until) = state.order else {
            return Done::Untouched;
        };
        // Under the same lock: who finds it ready and released knows that it won't freeze.
        state.phase = Phase::Freezing;
        until
    };
    match kernel.freeze(mount) {
        Err(e) => return Done::Failed(e),
        Ok(Freeze::AlreadyFrozen) => return Done::AlreadyFrozen,
        Ok(Freeze::Frozen) => shared.set(Phase::Frozen),
    }
    let released = |s: &State| matches!(s.order, Order::Release);
    let late = {
        let mut state = shared.wait(Some(until), |s| !released(s));
        state.phase = Phase::Thawing;
        !released(&state)
    };
    match kernel.thaw(mount) {
        Ok(()) => Done::Thawed { late },
        Err(e) => Done::ThawFailed(e),
    }
}

/// Loop devices (by image and minor) whose freezer is alive.
static UNDER_WAY: Mutex<BTreeSet<(FileId, u32)>> = Mutex::new(BTreeSet::new());

/// An entry there.
struct UnderWay((FileId, u32));

impl UnderWay {
    fn enter(device: (FileId, u32)) -> Option<UnderWay> {
        let mut devices = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
        devices.insert(device).then(|| UnderWay(device))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut devices = UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner);
        devices.remove(&self.0);
    }
}
