//! A directory with shared fsyncs. Threads rename many entries into it at the same time, and one
//! fsync covers all renames that happened before it started.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};

use super::Result;
use super::file::fsync;
use super::file_name::on_file;

#[cfg(test)]
mod tests;

/// An open directory with shared fsyncs.
#[derive(Debug)]
pub struct SharedDir {
    dir: File,
    fsync: SharedRun,
}

impl SharedDir {
    /// Takes a directory that is open for reading: fsync fails on an O_PATH handle.
    pub fn new(dir: File) -> SharedDir {
        SharedDir {
            dir,
            fsync: SharedRun::default(),
        }
    }

    /// Makes all changes before this call durable: calls fsync, or waits for the fsync of another
    /// thread that starts after this call.
    pub fn sync(&self) -> Result<()> {
        let synced = self.fsync.run(|| fsync(&self.dir));
        synced.map_err(on_file::<io::Error>("fsync", &self.dir))
    }
}

impl AsFd for SharedDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Runs work once for all callers that asked before it started.
#[derive(Debug, Default)]
struct SharedRun {
    state: Mutex<RunState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct RunState {
    running: bool,
    /// The next round. It serves the callers that come before it starts.
    next: Arc<RunResult>,
}

/// The result of one run; the error is an error number.
type RunResult = OnceLock<std::result::Result<(), i32>>;

impl SharedRun {
    fn run(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        let round = state.next.clone();
        while state.running && round.get().is_none() {
            self.ended.wait(&mut state);
        }
        if round.get().is_none() {
            // No round runs and this one has not: the first thread to get here runs it.
            state.running = true;
            state.next = Arc::default();
            drop(state);
            let result = work().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO));
            let mut state = self.state.lock();
            let _ = round.set(result);
            state.running = false;
            drop(state);
            self.ended.notify_all();
        }
        let result = round.get().copied().unwrap_or(Err(libc::EIO));
        result.map_err(io::Error::from_raw_os_error)
    }
}
