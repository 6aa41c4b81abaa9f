//! Failpoints, at which a test can fail or kill the driver.
//!
//! The driver calls [`effect`] just before every change to the disk or the kernel. In a
//! release that call does nothing. With the feature `failpoints`, the environment variable
//! `FAILPOINTS` selects a call. `FAILPOINTS="effect=16*off->return(kill)"` kills the driver before
//! the seventeenth effect. `"loop.attach=return(ENOSPC)"` makes every attach fail. So a crash test
//! covers all places between two effects without knowing their names.
//!
//! A program that runs the driver inside itself, such as the simulator of the tests, can choose for
//! itself (see [`watch`]). Only builds with debug assertions ask it.

use std::io;
use std::sync::OnceLock;

/// Decides for each effect, by its name, if there is one.
static WATCH: OnceLock<fn(&'static str) -> io::Result<()>> = OnceLock::new();

/// From now on, calls `decide` with the name of each effect of this process. An effect fails with
/// the error that it returns. Only the first call counts, and only in builds with debug assertions.
pub fn watch(decide: fn(&'static str) -> io::Result<()>) {
    let _ = WATCH.set(decide);
}

/// What the watch decides for an effect.
fn watched(name: &'static str) -> io::Result<()> {
    if cfg!(debug_assertions)
        && let Some(decide) = WATCH.get()
    {
        return decide(name);
    }
    Ok(())
}

/// Announces an effect. In a test, returns the error with which the effect must fail.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn effect(name: &'static str) -> io::Result<()> {
    watched(name)
}

/// Announces an effect. In a test, returns the error with which the effect must fail.
#[cfg(feature = "failpoints")]
#[expect(
    clippy::print_stderr,
    reason = "a test reads it, and it has no text of others"
)]
pub fn effect(name: &'static str) -> io::Result<()> {
    watched(name)?;
    for point in ["effect", name] {
        if let Some(action) = fail::eval(point, |action| action.unwrap_or_default()) {
            // The test reads the log to see that the driver reached the failpoint, and where.
            eprintln!("fail point at {name}: {action}");
            return act(&action);
        }
    }
    Ok(())
}

#[cfg(feature = "failpoints")]
fn act(action: &str) -> io::Result<()> {
    let errno = match action {
        "ENOSPC" => libc::ENOSPC,
        "EBUSY" => libc::EBUSY,
        "EIO" => libc::EIO,
        // SIGKILL, not abort: no handler and no destructor may run after it.
        _ => {
            let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::SIGKILL);
            loop {
                std::thread::park();
            }
        }
    };
    Err(io::Error::from_raw_os_error(errno))
}
