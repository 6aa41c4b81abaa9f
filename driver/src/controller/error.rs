//! What a controller call can answer besides success, in the words of the specification's tables.

use crate::csi::topology;
use crate::csi::validate::Invalid;
use crate::kernel;
use crate::storage;

/// Result of a controller call.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused or failed controller call. `server::status` gives each its gRPC code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// INVALID_ARGUMENT.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// NOT_FOUND: what the request names (volume, snapshot, group, node, source).
    #[error("{0} not found")]
    NotFound(String),
    /// ALREADY_EXISTS: the name is taken, or the volume published, by something incompatible.
    #[error("{0}")]
    AlreadyExists(String),
    /// OUT_OF_RANGE.
    #[error("{0}")]
    OutOfRange(String),
    /// RESOURCE_EXHAUSTED: no room, no attach slot, or no topology that would do.
    #[error("{0}")]
    ResourceExhausted(String),
    /// FAILED_PRECONDITION: it can't be now; the message says what to do.
    #[error("{0}")]
    FailedPrecondition(String),
    /// ABORTED: a starting token that leads nowhere.
    #[error("starting_token: {0}")]
    BadToken(String),
    /// UNIMPLEMENTED: switched off on the command line.
    #[error("{0} is switched off")]
    Off(&'static str),
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
