//! The errors of node calls, in the words of the specification's tables.

use std::path::PathBuf;

use crate::csi::topology;
use crate::csi::validate::Invalid;
use crate::kernel;
use crate::storage;

/// Result of a node call.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused or failed node call. [`crate::grpc::grpc_status`] maps each error to a gRPC code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// INVALID_ARGUMENT.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// NOT_FOUND: the volume does not exist, or is not at the path.
    #[error("{0} not found")]
    NotFound(String),
    /// ALREADY_EXISTS: the volume is there already, for another use.
    #[error("{0}")]
    AlreadyExists(String),
    /// OUT_OF_RANGE.
    #[error("{0}")]
    OutOfRange(String),
    /// RESOURCE_EXHAUSTED: the pool has too little space for an inline volume.
    #[error("{0}")]
    ResourceExhausted(String),
    /// FAILED_PRECONDITION: not staged, staged elsewhere, published elsewhere…
    #[error("{0}")]
    FailedPrecondition(String),
    /// UNIMPLEMENTED: switched off on the command line.
    #[error("{0} is switched off")]
    Off(&'static str),
    /// INTERNAL: a path is unusable, for example a symlink or the mount of another program.
    #[error("{path}: {why}")]
    Path {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// INTERNAL, data lost: the record says formatted, but the device is blank. The driver leaves
    /// it as it is.
    #[error("{0}")]
    DataLoss(String),
    /// UNAVAILABLE: the topology of this node is not known yet.
    #[error(transparent)]
    Place(#[from] topology::Unknown),
    /// An error of the storage layer.
    #[error(transparent)]
    Pool(#[from] storage::Error),
    /// An error of the kernel.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
}
