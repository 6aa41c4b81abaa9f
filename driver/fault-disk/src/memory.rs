//! The memory of a server.

use rustix::mm::{MlockAllFlags, mlockall};

use crate::{Error, Result};

/// Locks the memory of the process, that which it has and that which it will have, and takes it at
/// once.
///
/// A process that faults a page in may wait until dirty pages of its memory group are written back.
/// If these are of a volume that it serves, it waits for itself, and not even SIGKILL ends that.
pub fn lock() -> Result<()> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).map_err(|e| {
        Error::system(
            "to lock the memory of the server (it needs CAP_IPC_LOCK)",
            e,
        )
    })
}
