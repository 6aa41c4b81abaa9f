//! The one place where errors become gRPC statuses.
//!
//! Callers act on the code alone. Kubelet and the sidecars assume that an RPC may still take effect
//! after ABORTED, DEADLINE_EXCEEDED or UNAVAILABLE. They assume the same after RESOURCE_EXHAUSTED,
//! except for CreateVolume and DeleteVolume. Any other code means to them that the RPC had no
//! effect. So no other code may answer an RPC that may be half done.
//!
//! A pool without room refuses before anything has changed. CSI wants RESOURCE_EXHAUSTED for that
//! even where it leaves a caller in doubt, as in CreateSnapshot. ControllerExpandVolume and
//! ControllerModifyVolume choose other codes ([`Error::of_expansion`], [`Error::of_modification`]),
//! which also refuse what no pool can do. So a detail of the status says that room was lacking, and
//! that the RPC had no effect.

use std::error::Error as StdError;

use hostloop_controllers::api::message::cut;
use hostloop_proto::status_details::no_room;
use hostloop_report::error_chain;
use tonic::{Code, Status};

use crate::csi::error::Error;
use crate::csi::validate::Invalid;
use crate::faults::FaultError;
use crate::{kernel, storage};

/// The maximum length of a message, in bytes. HTTP/2 headers carry it, and clients limit those.
const MAX_MESSAGE: usize = 4096;

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        let (code, message) = (of_call(&error), message(&error));
        if error.is_no_room() {
            no_room(code, message)
        } else {
            Status::new(code, message)
        }
    }
}

impl From<Invalid> for Status {
    fn from(error: Invalid) -> Status {
        Status::new(Code::InvalidArgument, message(&error))
    }
}

impl From<FaultError> for Status {
    fn from(error: FaultError) -> Status {
        match error {
            FaultError::Impossible(why) => Error::FailedPrecondition(why.to_string()).into(),
            FaultError::Later(why) => Error::FailedPrecondition(why.to_string()).into(),
            FaultError::Disk(ref why) => Status::new(Code::Unavailable, message(why)),
            FaultError::Kernel(error) => Error::from(error).into(),
            FaultError::Pool(error) => Error::from(error).into(),
        }
    }
}

fn of_call(error: &Error) -> Code {
    use Error::*;
    match error {
        Invalid(_) | NoRoomToModify(_) => Code::InvalidArgument,
        NotFound(_) => Code::NotFound,
        AlreadyExists(_) => Code::AlreadyExists,
        OutOfRange(_) | NoRoomToExpand(_) => Code::OutOfRange,
        ResourceExhausted(_) => Code::ResourceExhausted,
        FailedPrecondition(_) => Code::FailedPrecondition,
        BadToken(_) => Code::Aborted,
        Path { .. } => Code::Internal,
        DataLoss(_) => Code::DataLoss,
        NotYet(_) | Place(_) => Code::Unavailable,
        Off(_) => Code::Unimplemented,
        Pool(error) => of_pool(error),
        Kernel(error) => of_kernel(error),
    }
}

fn of_pool(error: &storage::Error) -> Code {
    use storage::Error::*;
    match error {
        // The name comes from a class parameter.
        UnknownPool(_) => Code::InvalidArgument,
        Unavailable { .. } | Locked { .. } | OtherNode { .. } => Code::Unavailable,
        ForeignPool(_) => Code::FailedPrecondition,
        NoVolume(_) | NoSnapshot(_) | NoGroup(_) => Code::NotFound,
        NoRoom { .. } | NoRoomBelow { .. } | SnapshotQuota { .. } => Code::ResourceExhausted,
        Attached { .. } => Code::FailedPrecondition,
        // "DeleteSnapshot Errors", snapshot is part of a group.
        InGroup(..) => Code::InvalidArgument,
        ImageMissing { .. } => Code::DataLoss,
        CannotFreeze(_) | Refused(_) => Code::FailedPrecondition,
        Corrupt { .. } | Unwritable { .. } => Code::Internal,
        Kernel(error) => of_kernel(error),
    }
}

fn of_kernel(error: &kernel::Error) -> Code {
    use kernel::Error::*;
    match error {
        NoSpace { .. } => Code::ResourceExhausted,
        // Another operation is under way: the caller must retry.
        Busy { .. } | Covered { .. } | Unwanted { .. } => Code::Aborted,
        // The operation did nothing. A retry can succeed once that filesystem responds again.
        Silent { .. } | UnknownMount { .. } => Code::Unavailable,
        // The kernel may still be executing an operation that timed out.
        TimedOut { .. } | Stopped { .. } | CloneStopped { .. } => Code::DeadlineExceeded,
        Unsupported { .. } => Code::FailedPrecondition,
        Io { .. } | NotFound { .. } | NotMountable { .. } | Tool { .. } | NotRun { .. } => {
            Code::Internal
        }
    }
}

/// An error with all its causes, in one line of limited length.
fn message(error: &dyn StdError) -> String {
    cut(&error_chain(error), MAX_MESSAGE)
}

#[cfg(test)]
mod tests;
