//! The one place where a test can stop the world.
//!
//! Every change the driver makes to the disk or the kernel is announced here just before it is
//! made. In a normal build that is nothing at all. With the feature `failpoints`, the environment
//! variable `FAILPOINTS` chooses one (`FAILPOINTS="effect=16*off->return(kill)"` dies before the
//! seventeenth effect, `"loop.attach=return(ENOSPC)"` makes every attach fail), so that a crash
//! test walks through all the places between two effects without knowing their names.

use std::io;

/// Announces an effect. An error is what the effect is to fail with, in a test.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn effect(_name: &'static str) -> io::Result<()> {
    Ok(())
}

/// Announces an effect. An error is what the effect is to fail with, in a test.
#[cfg(feature = "failpoints")]
pub fn effect(name: &'static str) -> io::Result<()> {
    for point in ["effect", name] {
        if let Some(action) = fail::eval(point, |action| action.unwrap_or_default()) {
            // For the test that set it, which reads the log to see that it was reached and where.
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
        // SIGKILL, not abort: nothing may run after it, no handler and no destructor.
        _ => {
            let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::SIGKILL);
            loop {
                std::thread::park();
            }
        }
    };
    Err(io::Error::from_raw_os_error(errno))
}
