//! Time and randomness of the whole process, from one seed.
//!
//! The product reads clocks and randomness from the C library. These five functions stand in its
//! place, so product code needs no change. Before [`arm`] they ask the kernel. Afterwards, clocks
//! follow tokio's paused clock, a sleep moves them forward at once, and randomness comes from the
//! seed, a stream for each thread.
#![allow(unsafe_code, unreachable_pub, reason = "functions of the C library")]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use libc::{c_int, c_uint, c_void, clockid_t, pid_t, size_t, ssize_t, timespec};
use tokio::time::Instant;

/// A hundred years after the boot. A timed wait of std ends at a real time, and so never while the
/// simulator runs.
const UPTIME: u64 = 100 * 365 * 86_400 * NANOS;
/// 2026-01-01T00:00:00Z.
const DATE: u64 = 1_767_225_600 * NANOS;
const NANOS: u64 = 1_000_000_000;
/// The ID that a process finds itself to have.
const PROCESS: pid_t = 4242;

static ARMED: AtomicBool = AtomicBool::new(false);
static SEED: AtomicU64 = AtomicU64::new(0);
static THREADS: AtomicU64 = AtomicU64::new(0);
/// What sleeps added to the clocks, in nanoseconds.
static SLEPT: AtomicU64 = AtomicU64::new(0);
/// The virtual time at the last look, in nanoseconds since the start.
static NOW: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// When the paused clock started, on the thread of its runtime.
    static START: Cell<Option<Instant>> = const { Cell::new(None) };
    static LOOKING: Cell<bool> = const { Cell::new(false) };
    static STREAM: Cell<u64> = const { Cell::new(0) };
    static IS_APART: Cell<bool> = const { Cell::new(false) };
}

/// Replaces clocks and randomness of this process, before its runtime exists.
pub(crate) fn arm(seed: u64) {
    SEED.store(seed, Relaxed);
    ARMED.store(true, Relaxed);
}

/// Makes the clocks follow the paused clock of the runtime that runs on this thread.
pub(crate) fn follow() {
    START.set(Some(Instant::now()));
}

/// The virtual time since the start.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(virtual_nanos())
}

/// The time on the clocks since the start: the virtual time, and what sleeps added. Looking at it
/// changes nothing, not even for other threads.
pub(crate) fn clock() -> Duration {
    let nanos = paused_nanos().unwrap_or_else(|| NOW.load(Relaxed));
    Duration::from_nanos(nanos + SLEPT.load(Relaxed))
}

/// Puts all clocks to a time since the start. The runtime has ended.
pub(crate) fn set_clock(time: Duration) {
    NOW.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    SLEPT.store(0, Relaxed);
}

/// Does something in a thread of its own, and changes no randomness of the others. None if it
/// panics.
pub(crate) fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            STREAM.set(1);
            IS_APART.set(true);
            work()
        });
        done.join().ok()
    })
}

/// True within [`apart`].
pub(crate) fn is_apart() -> bool {
    IS_APART.get()
}

/// Sleeps in real time.
pub(crate) fn sleep_really(time: Duration) {
    let time = timespec {
        tv_sec: time.as_secs().cast_signed(),
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: the pointer is valid during the call, and the remaining time is not asked for.
    unsafe {
        libc::syscall(
            libc::SYS_nanosleep,
            &raw const time,
            std::ptr::null_mut::<timespec>(),
        );
    }
}

fn virtual_nanos() -> u64 {
    if let Some(nanos) = paused_nanos() {
        NOW.store(nanos, Relaxed);
    }
    NOW.load(Relaxed)
}

/// The time of the paused clock since the start, on the thread of its runtime. `None` on other
/// threads, and while the paused clock itself asks.
fn paused_nanos() -> Option<u64> {
    let start = START.try_with(Cell::get).ok().flatten()?;
    if LOOKING.replace(true) {
        return None;
    }
    let is_running = tokio::runtime::Handle::try_current().is_ok();
    let passed = is_running.then(|| Instant::now().saturating_duration_since(start));
    LOOKING.set(false);
    passed.map(|passed| u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
}

fn next_random() -> u64 {
    STREAM
        .try_with(|stream| {
            if stream.get() == 0 {
                let thread = THREADS.fetch_add(1, Relaxed) + 1;
                stream.set((SEED.load(Relaxed) ^ thread.wrapping_mul(0xa076_1d64_78bd_642f)) | 1);
            }
            let state = stream.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
            stream.set(state);
            crate::dice::mix(state)
        })
        .unwrap_or_default()
}

/// # Safety
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    if !ARMED.load(Relaxed) {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) } as ssize_t;
    }
    // SAFETY: the caller gives a buffer of this length.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&next_random().to_le_bytes()[..chunk.len()]);
    }
    length.cast_signed()
}

/// # Safety
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let base = match clock {
        _ if !ARMED.load(Relaxed) => None,
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => Some(DATE),
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_BOOTTIME => Some(UPTIME),
        _ => None,
    };
    let Some(base) = base else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as c_int;
    };
    let nanos = base + virtual_nanos() + SLEPT.load(Relaxed);
    let now = timespec {
        tv_sec: (nanos / NANOS).cast_signed(),
        tv_nsec: (nanos % NANOS).cast_signed(),
    };
    // SAFETY: the caller gives a valid place for the time.
    unsafe { time.write(now) };
    0
}

/// # Safety
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    if !ARMED.load(Relaxed) {
        // SAFETY: the caller's arguments, passed on.
        let slept = unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, time, left) };
        // SAFETY: errno of this thread.
        return if slept == 0 {
            0
        } else {
            unsafe { *libc::__errno_location() }
        };
    }
    // SAFETY: the caller gives a valid time.
    let mut nanos = nanos_of(unsafe { &*time });
    if flags & libc::TIMER_ABSTIME != 0 {
        let base = if clock == libc::CLOCK_REALTIME {
            DATE
        } else {
            UPTIME
        };
        nanos = nanos.saturating_sub(base + virtual_nanos() + SLEPT.load(Relaxed));
    }
    SLEPT.fetch_add(nanos, Relaxed);
    0
}

/// # Safety
/// As that of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    if !ARMED.load(Relaxed) {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { libc::syscall(libc::SYS_nanosleep, time, left) } as c_int;
    }
    // SAFETY: the caller gives a valid time.
    SLEPT.fetch_add(nanos_of(unsafe { &*time }), Relaxed);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn getpid() -> pid_t {
    if ARMED.load(Relaxed) {
        return PROCESS;
    }
    // SAFETY: without arguments.
    (unsafe { libc::syscall(libc::SYS_getpid) }) as pid_t
}

fn nanos_of(time: &timespec) -> u64 {
    time.tv_sec.cast_unsigned() * NANOS + time.tv_nsec.cast_unsigned()
}
