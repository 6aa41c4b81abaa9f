//! Calls of pods and users go before long work on the same pools.
//!
//! Long work copies in steps, or makes a file's blocks its own. Between two of them it pauses while
//! calls run in the foreground of its pools, and for a moment after them, because they come in
//! series. It always gets a share of the time ([`TimeShare`]), so calls that never end hold it up,
//! but do not stop it. While calls come, its steps are short.
//!
//! A call in the foreground may have a long part of its own: the allocation of a thick volume's
//! lost blocks. It steps back for that ([`step_back`]).

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::wanted;

/// How long the foreground is quiet before long work goes on.
const QUIET_BEFORE_STEP: Duration = Duration::from_millis(10);
/// How long the foreground is quiet before steps are long again.
const CALM: Duration = Duration::from_millis(250);
/// The longest pause, however long the last step took.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// How often a pause checks whether it may end.
const POLL: Duration = Duration::from_millis(2);

/// The calls in the foreground of one pool.
#[derive(Debug, Default)]
pub struct Foreground(Mutex<CallCount>);

#[derive(Debug, Default)]
struct CallCount {
    running: usize,
    ended: Option<Instant>,
}

/// A call in the foreground. Dropping it ends the call.
#[derive(Debug)]
pub struct ForegroundCall(Arc<Foreground>);

impl Foreground {
    /// Begins a call.
    pub fn enter(self: &Arc<Self>) -> ForegroundCall {
        self.0.lock().running += 1;
        ForegroundCall(self.clone())
    }

    fn quiet(&self) -> Quiet {
        match *self.0.lock() {
            CallCount { running: 1.., .. } => Quiet::Not,
            CallCount {
                ended: Some(ended), ..
            } => Quiet::For(ended.elapsed()),
            CallCount { ended: None, .. } => Quiet::For(Duration::MAX),
        }
    }
}

impl Drop for ForegroundCall {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.running -= 1;
        state.ended = Some(Instant::now());
    }
}

/// Since when no call has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Quiet {
    /// A call runs.
    Not,
    /// The last call ended this long ago.
    For(Duration),
}

thread_local! {
    /// The call in the foreground on this thread, in each of its pools.
    static CALL: RefCell<Vec<ForegroundCall>> = const { RefCell::new(Vec::new()) };
    /// The pools of the long work on this thread.
    static POOLS: RefCell<Vec<Arc<Foreground>>> = const { RefCell::new(Vec::new()) };
    /// The time that long work on this thread has paused.
    static PAUSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Runs a call in the foreground of these pools.
pub fn in_front<T>(pools: &[Arc<Foreground>], call: impl FnOnce() -> T) -> T {
    let running = pools.iter().map(Foreground::enter).collect();
    let _restored = RestoredCall(CALL.replace(running));
    call()
}

/// Restores the thread's earlier call when it is dropped, also after a panic.
struct RestoredCall(Vec<ForegroundCall>);

impl Drop for RestoredCall {
    fn drop(&mut self) {
        CALL.set(std::mem::take(&mut self.0));
    }
}

/// Does long work within a call. A call in the foreground leaves it meanwhile, and its work gives
/// way to others. Other long work already does.
pub fn step_back<T>(work: impl FnOnce() -> T) -> T {
    let running = CALL.take();
    if running.is_empty() {
        return work();
    }
    let pools = running
        .iter()
        .map(|ForegroundCall(pool)| pool.clone())
        .collect();
    let _back = SteppedBack::of(running);
    behind(pools, work)
}

/// A call that is not in the foreground for a while. Dropping this brings it back, also after a
/// panic. Leaving does not count as an end: the call would give way to itself.
struct SteppedBack(Vec<ForegroundCall>);

impl SteppedBack {
    fn of(call: Vec<ForegroundCall>) -> SteppedBack {
        for ForegroundCall(pool) in &call {
            pool.0.lock().running -= 1;
        }
        SteppedBack(call)
    }
}

impl Drop for SteppedBack {
    fn drop(&mut self) {
        for ForegroundCall(pool) in &self.0 {
            pool.0.lock().running += 1;
        }
        CALL.set(std::mem::take(&mut self.0));
    }
}

/// Does long work, which gives way to calls of these pools.
pub fn behind<T>(pools: Vec<Arc<Foreground>>, work: impl FnOnce() -> T) -> T {
    let _restored = EarlierPools(POOLS.replace(pools));
    work()
}

/// Restores the thread's earlier pools when it is dropped, also after a panic.
struct EarlierPools(Vec<Arc<Foreground>>);

impl Drop for EarlierPools {
    fn drop(&mut self) {
        POOLS.set(std::mem::take(&mut self.0));
    }
}

/// The time that long work on this thread has paused so far. Only tests read it, to see
/// which work gives way.
pub fn paused() -> Duration {
    PAUSED.get()
}

/// True while calls come in the foreground of this thread's work: its steps are short then.
pub fn is_busy() -> bool {
    quiet() < Quiet::For(CALM)
}

fn quiet() -> Quiet {
    let longest = Quiet::For(Duration::MAX);
    POOLS.with_borrow(|pools| {
        pools
            .iter()
            .map(|pool| pool.quiet())
            .min()
            .unwrap_or(longest)
    })
}

/// The share of the time that long work has if it never finds the foreground quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeShare {
    /// For steps that write data: calls wait for the disk meanwhile.
    Tenth,
    /// For steps that only change the filesystem's own blocks.
    Half,
}

impl TimeShare {
    /// A pause lasts at most this many times the last step.
    fn pause_factor(self) -> u32 {
        match self {
            TimeShare::Tenth => 9,
            TimeShare::Half => 1,
        }
    }
}

/// The steps of long work.
pub struct Steps {
    began: Instant,
    share: TimeShare,
}

impl Steps {
    /// Begins the first step.
    pub fn begin(share: TimeShare) -> Steps {
        Steps {
            began: Instant::now(),
            share,
        }
    }

    /// Ends a step and begins the next one, after a pause if calls come first.
    pub fn give_way(&mut self) {
        let ended = Instant::now();
        let step = ended - self.began;
        if step < POLL / self.share.pause_factor() {
            // A pause would be longer than its share: short steps add up.
            return;
        }
        let longest = longest_pause(step, self.share);
        // One reading of the clock ends the pause and begins the step: the thread may wait between two.
        self.began = ended;
        while pauses(quiet(), longest, self.began - ended, wanted::is_awaited()) {
            std::thread::sleep(POLL);
            self.began = Instant::now();
        }
        PAUSED.set(PAUSED.get() + (self.began - ended));
    }
}

/// The longest pause after a step that took this long.
fn longest_pause(step: Duration, share: TimeShare) -> Duration {
    step.saturating_mul(share.pause_factor()).min(MAX_PAUSE)
}

/// True if long work pauses on. `paused` is the time since its last step.
fn pauses(quiet: Quiet, longest: Duration, paused: Duration, awaited: bool) -> bool {
    !awaited && quiet < Quiet::For(QUIET_BEFORE_STEP) && paused < longest
}

#[cfg(test)]
mod tests;
