//! Errors of kernel operations.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// Result of a kernel operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed kernel operation. `op` names it ("mount", "LOOP_CONFIGURE"), and `path` is its object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{op} {path}: {source}")]
    Io {
        op: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// No space left (ENOSPC, EDQUOT).
    #[error("{op} {path}: no space left")]
    NoSpace { op: &'static str, path: PathBuf },
    /// In use (EBUSY), or taken by another process.
    #[error("{op} {path}: busy")]
    Busy { op: &'static str, path: PathBuf },
    /// The object does not exist (ENOENT).
    #[error("{op} {path}: not found")]
    NotFound { op: &'static str, path: PathBuf },
    /// This kernel or filesystem does not support the operation (EOPNOTSUPP).
    #[error("{op} {path}: not supported here")]
    Unsupported { op: &'static str, path: PathBuf },
    /// The kernel can't use the filesystem on a device.
    #[error("mount {path}: {why}")]
    NotMountable {
        /// The device.
        path: PathBuf,
        /// The cause, from the kernel's log if that is readable.
        why: String,
    },
    /// A program failed.
    #[error("{tool} {path}: {message}")]
    Tool {
        /// The program's name ("mkfs.ext4").
        tool: String,
        path: PathBuf,
        /// Exit code; `None` if there is none: for example, a signal killed it.
        code: Option<i32>,
        /// Exit code or signal, and the last lines of output.
        message: String,
    },
    /// A program was not started, and so has changed nothing.
    #[error("{tool} {path}: {why}")]
    NotRun {
        /// The program's name.
        tool: &'static str,
        path: PathBuf,
        why: String,
    },
    /// The kernel does not report the backing file of a loop device, which may be the file in
    /// question.
    #[error("{}. Bring it back, or detach the device", silent_device(.device, .file.display()))]
    Silent {
        device: PathBuf,
        /// The path the kernel shows for the file.
        file: PathBuf,
    },
    /// A mounted btrfs does not say on which devices it is, and the device in question is in use.
    #[error(
        "{device} is in use, perhaps by the btrfs at {mount_point}, which does not answer now or is \
         mounted over: bring it back, or unmount what hides it"
    )]
    UnknownMount {
        device: PathBuf,
        mount_point: PathBuf,
    },
    /// The mount to unmount is not, or not on top, where it was seen: others changed the mounts.
    #[error("{op} {path}: other mounts came over this one; look again")]
    Covered { op: &'static str, path: PathBuf },
    /// The operation took longer than its limit.
    #[error("{op} {path}: not done after {seconds} s")]
    TimedOut {
        op: &'static str,
        path: PathBuf,
        /// The limit, in seconds.
        seconds: u64,
    },
    /// The caller stopped a copy.
    #[error("copy {path}: stopped after {copied} bytes")]
    Stopped {
        path: PathBuf,
        /// The number of copied bytes.
        copied: u64,
    },
    /// The caller stopped a clone.
    #[error("clone {path}: stopped after {extents} extents")]
    CloneStopped {
        path: PathBuf,
        /// The number of cloned extents.
        extents: u64,
    },
    /// No caller waited for the work any more, or the driver ends.
    #[error("{path}: stopped, since no caller waited for it: a retry begins again")]
    Unwanted { path: PathBuf },
}

impl Error {
    /// Maps an I/O error to the variants that callers distinguish.
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

    /// Like [`Error::io`], for an error number.
    pub fn errno(op: &'static str, path: impl AsRef<Path>, number: i32) -> Self {
        Error::io(op, path, io::Error::from_raw_os_error(number))
    }

    /// The error of a program.
    pub fn tool(
        tool: impl Into<String>,
        path: &Path,
        code: Option<i32>,
        message: impl Into<String>,
    ) -> Self {
        Error::Tool {
            tool: tool.into(),
            path: path.to_path_buf(),
            code,
            message: message.into(),
        }
    }

    /// True if the written filesystem, usually the pool, is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::NoSpace { .. })
    }
}

/// The sentence about a loop device that does not report its backing file, which may be `file`.
pub fn silent_device(device: &Path, file: impl Display) -> String {
    format!(
        "{} does not say which file it holds, which may be {file}: the filesystem of that file has \
         shut down or hangs",
        device.display()
    )
}
