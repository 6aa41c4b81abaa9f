//! What a node call can answer besides success, in the words of the specification's tables.

use std::path::PathBuf;

use crate::csi::topology;
use crate::csi::validate::Invalid;
use crate::kernel;
use crate::storage;

/// Result of a node call.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused or failed node call. `server::status` gives each its gRPC code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// INVALID_ARGUMENT.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// NOT_FOUND: the volume, or nothing of it at the path.
    #[error("{0} not found")]
    NotFound(String),
    /// ALREADY_EXISTS: there already, for another use.
    #[error("{0}")]
    AlreadyExists(String),
    /// OUT_OF_RANGE.
    #[error("{0}")]
    OutOfRange(String),
    /// RESOURCE_EXHAUSTED: no room for an inline volume.
    #[error("{0}")]
    ResourceExhausted(String),
    /// FAILED_PRECONDITION: not staged, staged elsewhere, published elsewhere…
    #[error("{0}")]
    FailedPrecondition(String),
    /// UNIMPLEMENTED: switched off on the command line.
    #[error("{0} is switched off")]
    Off(&'static str),
    /// INTERNAL: a path that is not what it must be (a symlink, somebody else's mount).
    #[error("{path}: {why}")]
    Path {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// INTERNAL, data lost: the record says formatted, the device is blank; it is left as it is.
    #[error("{0}")]
    DataLoss(String),
    /// UNAVAILABLE: where this node is is not known yet.
    #[error(transparent)]
    Place(#[from] topology::Unknown),
    /// The pool's answer.
    #[error(transparent)]
    Pool(#[from] storage::Error),
    /// The kernel's answer.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
}
