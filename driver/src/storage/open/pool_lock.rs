//! The locks that keep two drivers from one pool.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use super::pool_error::unavailable;
use crate::kernel;
use crate::storage::file_names::LOCK;
use crate::storage::layout::open_or_create;
use crate::storage::{Error, PoolSpec, Result};

/// Takes the lock of a pool in this directory.
pub(super) fn take_lock(spec: &PoolSpec, path: &Path, root: BorrowedFd<'_>) -> Result<File> {
    let file = open_or_create(root, LOCK)?;
    flock(spec, &file, &path.join(LOCK))?;
    Ok(file)
}

/// How long to wait for a lock. A killed process gives its lock up within that time, and udev
/// locks a device only briefly while it probes it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Takes a lock that lasts until the file is closed.
pub(super) fn flock(spec: &PoolSpec, file: &File, path: &Path) -> Result<()> {
    let began = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if began.elapsed() < PATIENCE => {
                std::thread::sleep(PATIENCE / 50);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(Error::Locked {
                    name: spec.name.clone(),
                    path: path.to_path_buf(),
                });
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) if has_no_locks(e) => {
                let why = format!(
                    "{} can't be locked ({}), so two drivers could write to this pool at once. \
                     Give the filesystem its locks (for NFS: NFSv4, or lockd on client and server), \
                     or keep the pool on another one",
                    path.display(),
                    std::io::Error::from(e)
                );
                return Err(unavailable(spec, why));
            }
            Err(e) => return Err(kernel::Error::io("flock", path, e.into()).into()),
        }
    }
}

/// True for the error of a filesystem without locks.
pub(super) fn has_no_locks(e: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(
        e,
        Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL
    )
}
