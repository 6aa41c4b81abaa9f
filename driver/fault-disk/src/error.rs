//! What a fault disk can't do.

use std::io;
use std::time::Duration;

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What a fault disk can't do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{what} failed: {error}")]
    System {
        /// What was done, and to what.
        what: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// A value that can't be.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field of the request.
        field: &'static str,
        /// Why.
        reason: String,
    },
    /// There is no disk of this name.
    #[error("there is no fault disk {0:?}: its server may have restarted, which is a power cut")]
    NotFound(String),
    /// There is a disk of this name.
    #[error("the fault disk {0:?} exists, and its loop device is attached")]
    Exists(String),
    /// A disk that is to be held has had a power cut.
    #[error("the power of the fault disk {0:?} was cut: delete the pods that use it")]
    Cut(String),
    /// A disk that is to be held or to lose power has operations that do not end.
    #[error(
        "the fault disk {0:?} did not end its operations in time: try again when it is less busy"
    )]
    Busy(String),
    /// Disks were held for this time, and no longer.
    #[error("the disks were held for {0:?}, and then no longer")]
    HeldTooLong(Duration),
    /// Something still uses the disk.
    #[error("the fault disk {0:?} is still in use: detach its loop device")]
    InUse(String),
    /// The server has no memory for one more disk.
    #[error(
        "a fault disk needs {needed} bytes of locked memory, and the server has {left} of its \
         limit left: end another one, or choose a smaller write cache"
    )]
    NoMemory {
        /// What the disk needs.
        needed: u64,
        /// What is left.
        left: u64,
    },
    /// The namespace has its share of the server's memory.
    #[error(
        "a fault disk needs {needed} bytes of locked memory, and namespace {namespace} has {left} \
         left of its half of what this node's fault disks may have: end another one of it, or \
         choose a smaller write cache"
    )]
    NoShare {
        /// The namespace of the disk's claim.
        namespace: String,
        /// What the disk needs.
        needed: u64,
        /// What is left of the share.
        left: u64,
    },
    /// The server's message can't be understood.
    #[error("the message of the other side can't be understood: {0}")]
    Message(String),
    /// The server refused a request.
    #[error("the server of fault disks: {0}")]
    Refused(String),
}

impl Error {
    pub(crate) fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Error {
        Error::System {
            what: what.into(),
            error: error.into(),
        }
    }

    pub(crate) fn invalid(field: &'static str, reason: impl Into<String>) -> Error {
        Error::Invalid {
            field,
            reason: reason.into(),
        }
    }
}
