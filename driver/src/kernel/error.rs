//! What a kernel operation can answer besides success.

use std::io;
use std::path::{Path, PathBuf};

use super::{LoopInfo, loop_path};

/// Result of a kernel operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed kernel operation: what was tried, on what, and why it failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{op} {path}: {source}")]
    Io {
        /// The operation, by its own name ("mount", "LOOP_CONFIGURE").
        op: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No room (ENOSPC, EDQUOT).
    #[error("{op} {path}: no space left")]
    NoSpace {
        /// The operation.
        op: &'static str,
        /// What it was done to.
        path: PathBuf,
    },
    /// In use (EBUSY), or taken by somebody else.
    #[error("{op} {path}: busy")]
    Busy {
        /// The operation.
        op: &'static str,
        /// What it was done to.
        path: PathBuf,
    },
    /// Not there (any more).
    #[error("{op} {path}: not found")]
    NotFound {
        /// The operation.
        op: &'static str,
        /// What it was done to.
        path: PathBuf,
    },
    /// This kernel or filesystem can't do it.
    #[error("{op} {path}: not supported here")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// What it was done to.
        path: PathBuf,
    },
    /// A tool ended with an error.
    #[error("{tool} {path}: {message}")]
    Tool {
        /// Its name ("mkfs.ext4").
        tool: String,
        /// What it was run on.
        path: PathBuf,
        /// Exit code or signal, and the last lines it printed.
        message: String,
    },
    /// A loop device does not say which file it holds, and it may be the file in question.
    #[error(
        "{device} does not say which file it holds, which may be {file}: the filesystem of that \
         file has shut down or hangs. Bring it back, or detach the device"
    )]
    Silent {
        /// The device.
        device: PathBuf,
        /// The path the kernel shows for the file.
        file: PathBuf,
    },
    /// It took longer than its limit.
    #[error("{op} {path}: not done after {seconds} s")]
    TimedOut {
        /// The operation.
        op: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// The limit, in seconds.
        seconds: u64,
    },
}

impl Error {
    /// Sorts an I/O error into the variants callers tell apart.
    pub fn io(op: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Error::NoSpace { op, path },
            Some(libc::EBUSY) => Error::Busy { op, path },
            Some(libc::ENOENT) => Error::NotFound { op, path },
            Some(libc::EOPNOTSUPP) => Error::Unsupported { op, path },
            _ => Error::Io { op, path, source },
        }
    }

    /// The error for a device without a reported backing file.
    pub fn silent(device: &LoopInfo) -> Self {
        Error::Silent {
            device: loop_path(device.minor),
            file: PathBuf::from(&device.backing_path),
        }
    }

    /// Whether the pool (or whatever was written to) is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::NoSpace { .. })
    }
}
