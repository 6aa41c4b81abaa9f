//! Detaches the loop devices of a volume.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Error, Result};
use crate::kernel::{Detached, Kernel, LoopInfo, loop_names};

/// How long a detach may take: udev opens devices that were just closed.
const DETACH_WAIT: Duration = Duration::from_secs(2);

/// Detaches a device and waits a moment; true once it is detached.
pub(crate) fn detach(kernel: &dyn Kernel, device: &LoopInfo) -> Result<bool> {
    if kernel.loop_release(device)? == Detached::Gone {
        return Ok(true);
    }
    let deadline = Instant::now() + DETACH_WAIT;
    loop {
        match kernel.loop_info(device.minor)? {
            Some(now) if now.is_same(device) => {}
            _ => return Ok(true),
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        sleep(Duration::from_millis(20));
    }
}

/// Fails if devices are still in use.
pub(crate) fn still_held(left: &[LoopInfo]) -> Result<()> {
    match left {
        [] => Ok(()),
        left => Err(Error::FailedPrecondition(format!(
            "{} is still held open",
            loop_names(left)
        ))),
    }
}
