//! What can end the demo.

use std::io;
use std::path::{Path, PathBuf};

use crate::{pool, sys};

/// Result of a part of the demo.
pub(super) type Result<T> = std::result::Result<T, Error>;

/// Why the demo ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It mounts and attaches loop devices.
    #[error("needs root: it mounts filesystems and attaches loop devices")]
    NotRoot,
    /// The filesystem needs more.
    #[error("--size: {fs} needs at least {least}")]
    Size {
        /// Which.
        fs: sys::FsType,
        /// How much.
        least: String,
    },
    /// The scratch root can't be used.
    #[error("{path}: {why}")]
    Root {
        /// The root.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A file operation failed.
    #[error("{op} {path}: {source}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The driver answered a call with an error.
    #[error("{call}: {code:?}: {message}")]
    Call {
        /// The call.
        call: &'static str,
        /// The gRPC code by name.
        code: tonic::Code,
        /// What the driver said.
        message: String,
    },
    /// The driver's answer lacks something.
    #[error("{call} answered without {what}")]
    Answer {
        /// The call.
        call: &'static str,
        /// What is missing.
        what: &'static str,
    },
    /// A step needs what no earlier step has made.
    #[error("{0} was never made")]
    NeverMade(&'static str),
    /// The driver did not start, or ended.
    #[error("the driver {0}")]
    Driver(String),
    /// A signal.
    #[error("interrupted")]
    Interrupted,
    /// Something did not come to be in time.
    #[error("waited {seconds} s in vain: {what}")]
    Waited {
        /// For what.
        what: String,
        /// How long.
        seconds: u64,
    },
    /// The kernel failed.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
    /// A pool could not be looked at.
    #[error(transparent)]
    Pool(#[from] pool::Error),
}

impl Error {
    /// A failed file operation.
    pub(super) fn io(op: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::Io { op, path, source }
    }

    /// An answer that lacks something.
    pub(super) fn lacks(call: &'static str, what: &'static str) -> impl FnOnce() -> Error {
        move || Error::Answer { call, what }
    }
}
