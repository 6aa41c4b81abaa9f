//! The errors of calls, in the words of the specification's tables.

use std::path::PathBuf;

use super::topology;
use super::validate::{Invalid, invalid};
use crate::kernel;
use crate::reach::context::InvalidContext;
use crate::reach::decide::Refusal;
use crate::storage;

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused or failed call. [`crate::grpc::grpc_status`] maps each error to a gRPC code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// INVALID_ARGUMENT.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// NOT_FOUND: the named object does not exist (volume, snapshot, group, node, source), or it is
    /// not at the path.
    #[error("{0} not found")]
    NotFound(String),
    /// ALREADY_EXISTS: an incompatible object has the name, or the volume is published or staged
    /// for another use.
    #[error("{0}")]
    AlreadyExists(String),
    #[error("{0}")]
    OutOfRange(String),
    /// OUT_OF_RANGE: a pool has no room for an expansion.
    #[error(
        "capacity_range: {0}; the volume keeps its size: request less, or free some space in the \
         pool"
    )]
    NoRoomToExpand(storage::Error),
    /// INVALID_ARGUMENT: a pool has no room for a modification.
    #[error(
        "mutable_parameters: {0}; the volume keeps its parameters: choose others, or free some \
         space in the pool"
    )]
    NoRoomToModify(storage::Error),
    /// RESOURCE_EXHAUSTED: no space, no attach slot, or no suitable topology.
    #[error("{0}")]
    ResourceExhausted(String),
    /// FAILED_PRECONDITION: impossible at present, for example not staged; the message says what to
    /// do.
    #[error("{0}")]
    FailedPrecondition(String),
    /// UNAVAILABLE: something else has to happen first, and then a retry succeeds; the message says
    /// what.
    #[error("{0}")]
    NotYet(String),
    /// ABORTED: an invalid starting token.
    #[error("starting_token: {0}")]
    BadToken(String),
    /// UNIMPLEMENTED: switched off on the command line.
    #[error("{0} is switched off")]
    Off(&'static str),
    /// INTERNAL: a path is unusable, for example a symlink or the mount of another program.
    #[error("{path}: {why}")]
    Path {
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
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::FailedPrecondition(refusal.to_string())
    }
}

impl From<InvalidContext> for Error {
    fn from(InvalidContext { key, why }: InvalidContext) -> Error {
        invalid(format!("publish_context[{key:?}]"), why).into()
    }
}

impl Error {
    /// The error of an expansion. Without room the volume stays as it is, and orchestrators must
    /// know that: after RESOURCE_EXHAUSTED they would repeat the call for this size until it
    /// succeeds, and a user could not ask for less.
    pub(crate) fn of_expansion(error: storage::Error) -> Error {
        if error.is_no_room() {
            Error::NoRoomToExpand(error)
        } else {
            error.into()
        }
    }

    /// The error of a modification, as [`Error::of_expansion`]. Orchestrators take only
    /// INVALID_ARGUMENT for final.
    pub(crate) fn of_modification(error: storage::Error) -> Error {
        if error.is_no_room() {
            Error::NoRoomToModify(error)
        } else {
            error.into()
        }
    }

    /// True if a pool has no room for the request. Nothing has changed then.
    pub(crate) fn is_no_room(&self) -> bool {
        match self {
            Error::NoRoomToExpand(_) | Error::NoRoomToModify(_) => true,
            Error::Pool(error) => error.is_no_room(),
            _ => false,
        }
    }
}
