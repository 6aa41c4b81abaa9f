//! A thread that freezes and thaws one filesystem.
//!
//! A freeze can hang in the kernel (an inner XFS in a full pool) and must not block its caller. The
//! thread that freezes also thaws, through the same open directory. It thaws on request, at the
//! limit, or at once if the freeze succeeds after the caller gave up.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostloop_events::{Call, phase};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::kernel::under_way::{UnderWay, UnderWayGuard};
use crate::kernel::{self, FileId, Freeze, Kernel};

/// The latest request to the freeze thread.
#[derive(Clone, Copy)]
enum Order {
    /// Write back dirty data, then wait.
    Prepare,
    /// Freeze now; thaw at this time at the latest.
    Freeze(Instant),
    /// Thaw, or cancel the freeze if it has not begun.
    Release,
}

/// The current phase of the freeze thread.
#[derive(Debug)]
pub(super) enum Phase {
    /// Dirty data is being written back.
    Preparing,
    /// Write-back is complete, and the freeze can begin.
    Ready,
    /// The FIFREEZE ioctl is running.
    Freezing,
    /// The filesystem is frozen by this thread.
    Frozen,
    /// The FITHAW ioctl is running.
    Thawing,
    /// The thread has ended.
    Done(Done),
}

/// The outcome of a freeze thread.
#[derive(Debug)]
pub(super) enum Done {
    /// Released before the freeze.
    Untouched,
    /// Another process had frozen the filesystem, which stays frozen.
    AlreadyFrozen,
    /// The write-back or the freeze failed.
    Failed(kernel::Error),
    /// Thawed on request, or at the limit.
    Thawed {
        /// The limit passed before the request to thaw.
        late: bool,
    },
    /// The thaw failed, so the filesystem is still frozen.
    ThawFailed(kernel::Error),
}

struct FreezeState {
    order: Order,
    phase: Phase,
}

struct FreezeMonitor {
    state: Mutex<FreezeState>,
    changed: Condvar,
}

impl FreezeMonitor {
    /// Waits while `wait` returns true, without limit if `until` is `None`. Returns the state.
    fn wait(
        &self,
        until: Option<Instant>,
        wait: impl Fn(&FreezeState) -> bool,
    ) -> MutexGuard<'_, FreezeState> {
        let mut state = self.state.lock();
        match until {
            Some(until) => {
                self.changed
                    .wait_while_until(&mut state, |state| wait(state), until);
            }
            None => self.changed.wait_while(&mut state, |state| wait(state)),
        }
        state
    }

    fn set(&self, phase: Phase) {
        self.state.lock().phase = phase;
        self.changed.notify_all();
    }

    fn order(&self, order: Order) {
        self.state.lock().order = order;
        self.changed.notify_all();
    }
}

/// A handle to the freeze thread. Dropping it requests the thaw.
pub(super) struct FreezeThread(Arc<FreezeMonitor>);

impl FreezeThread {
    /// Starts the thread. Returns `None` if an earlier thread for this loop device is still in the
    /// kernel, because another one would hang too.
    pub(super) fn start(
        kernel: Arc<dyn Kernel>,
        mount: Arc<File>,
        device: (FileId, u32),
    ) -> std::io::Result<Option<FreezeThread>> {
        let Some(under_way) = UNDER_WAY.enter(device) else {
            return Ok(None);
        };
        let shared = Arc::new(FreezeMonitor {
            state: Mutex::new(FreezeState {
                order: Order::Prepare,
                phase: Phase::Preparing,
            }),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let call = Call::current();
        std::thread::Builder::new()
            .name("freezer".to_owned())
            .spawn(move || {
                let done = match call {
                    Some(call) => call.enter(|| run(&*kernel, &mount, &theirs)),
                    None => run(&*kernel, &mount, &theirs),
                };
                // In this order: a caller that sees the end may start the next thread, or unmount.
                drop((under_way, mount));
                theirs.set(Phase::Done(done));
            })?;
        Ok(Some(FreezeThread(shared)))
    }

    /// Waits for the end of the write-back, at most until `until`. Passes the phase to `look`.
    pub(super) fn wait_ready<T>(&self, until: Instant, look: impl FnOnce(&Phase) -> T) -> T {
        let state = (self.0).wait(Some(until), |s| matches!(s.phase, Phase::Preparing));
        look(&state.phase)
    }

    /// Requests the freeze now, and the thaw at `until` at the latest.
    pub(super) fn freeze(&self, until: Instant) {
        self.0.order(Order::Freeze(until));
    }

    /// Waits for the outcome of the freeze, at most until `until`. Passes the phase to `look`.
    pub(super) fn wait_frozen<T>(&self, until: Instant, look: impl FnOnce(&Phase) -> T) -> T {
        let state = (self.0).wait(Some(until), |s| {
            matches!(s.phase, Phase::Preparing | Phase::Ready | Phase::Freezing)
        });
        look(&state.phase)
    }

    /// Requests the thaw as soon as possible; a freeze that has not begun is cancelled.
    pub(super) fn release(&self) {
        self.0.order(Order::Release);
    }

    /// Waits for the end of a released thread: until `limit` if it is still freezing, then up to
    /// `thaw` for the thaw. Returns `None` if it hangs. A thread that has not begun to freeze ends
    /// at once; it is waited for, because a retry of the call starts the next one.
    pub(super) fn wait_done(&self, limit: Instant, thaw: Duration) -> Option<Done> {
        drop((self.0).wait(Some(limit), |s| matches!(s.phase, Phase::Freezing)));
        let mut state = (self.0).wait(Some(Instant::now() + thaw), |s| {
            matches!(s.phase, Phase::Ready | Phase::Frozen | Phase::Thawing)
        });
        match &mut state.phase {
            Phase::Done(done) => Some(std::mem::replace(done, Done::Untouched)),
            // The request to release cancels the freeze.
            Phase::Preparing | Phase::Ready => Some(Done::Untouched),
            Phase::Freezing | Phase::Frozen | Phase::Thawing => None,
        }
    }
}

impl Drop for FreezeThread {
    fn drop(&mut self) {
        self.release();
    }
}

/// Keeps freeze threads, and other callers of this, from this loop device until the guard is dropped.
/// `None` if one of them has it.
pub(crate) fn keep_off(device: (FileId, u32)) -> Option<UnderWayGuard<'static, (FileId, u32)>> {
    UNDER_WAY.enter(device)
}

/// The body of the freeze thread.
fn run(kernel: &dyn Kernel, mount: &File, shared: &FreezeMonitor) -> Done {
    if let Err(e) = phase("write back", || kernel.sync_fs(mount)) {
        return Done::Failed(e);
    }
    shared.set(Phase::Ready);
    let until = {
        let mut state = shared.wait(None, |s| matches!(s.order, Order::Prepare));
        let Order::Freeze(until) = state.order else {
            return Done::Untouched;
        };
        // Under the same lock: a caller that releases in phase Ready knows that no freeze follows.
        state.phase = Phase::Freezing;
        until
    };
    match kernel.freeze(mount) {
        Err(e) => return Done::Failed(e),
        Ok(Freeze::AlreadyFrozen) => return Done::AlreadyFrozen,
        Ok(Freeze::Frozen) => shared.set(Phase::Frozen),
    }
    let late = {
        let mut state = shared.wait(Some(until), |s| !matches!(s.order, Order::Release));
        state.phase = Phase::Thawing;
        !matches!(state.order, Order::Release)
    };
    match kernel.thaw(mount) {
        Ok(()) => Done::Thawed { late },
        Err(e) => Done::ThawFailed(e),
    }
}

/// Loop devices (by image and minor) that have a running freeze thread.
static UNDER_WAY: UnderWay<(FileId, u32)> = UnderWay::new();
