//! What a failed call means: whether it may yet have an effect, and what to do next.
//!
//! A caller that forgets a call which may still succeed leaks the result. A caller that waits for a
//! call which has failed makes no progress. These rules match the CSI sidecars and kubelet.

use tonic::Code;

use super::Failure;

/// The RPCs, grouped by how their failures are handled. The others are repeated after every error
/// until they succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    CreateVolume {
        /// True if the volume could be created on another node: the driver has topology, and the
        /// scheduler selected a node.
        movable: bool,
    },
    /// ControllerExpandVolume.
    Expand,
    /// ControllerModifyVolume.
    Modify,
    /// CreateSnapshot and CreateVolumeGroupSnapshot.
    Snapshot,
}

/// What a failure means for the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The operation may still run: repeat the same request until the driver reports a different
    /// result.
    InBackground,
    /// The call had no effect and will have none. The caller may give up, change or repeat it.
    Final,
    /// Final, because this node lacks capacity: the scheduler must select another node.
    Reschedule,
    /// Final, and the request cannot succeed unchanged: repeat it, but rarely.
    Infeasible,
    /// Final, because the volume is in use: repeat the request when it is not.
    InUse,
}

/// Classifies a failure by RPC and code. UNAVAILABLE also stands for a missing answer.
///
/// RESOURCE_EXHAUSTED leaves open whether the operation may still run, unless the driver adds the
/// detail that the call was refused for lack of room.
pub fn class(call: CallKind, failure: &Failure) -> ErrorClass {
    match (call, failure.code()) {
        (_, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted) => {
            ErrorClass::InBackground
        }
        (CallKind::CreateVolume { movable: true }, Code::ResourceExhausted) => {
            ErrorClass::Reschedule
        }
        (CallKind::CreateVolume { movable: false }, Code::ResourceExhausted) => ErrorClass::Final,
        (_, Code::ResourceExhausted) if failure.lacks_room() => ErrorClass::Final,
        (_, Code::ResourceExhausted) => ErrorClass::InBackground,
        (CallKind::CreateVolume { .. } | CallKind::Modify, Code::InvalidArgument) => {
            ErrorClass::Infeasible
        }
        (CallKind::Expand, Code::InvalidArgument | Code::OutOfRange | Code::NotFound) => {
            ErrorClass::Infeasible
        }
        (CallKind::Expand, Code::FailedPrecondition) => ErrorClass::InUse,
        _ => ErrorClass::Final,
    }
}

/// True if a driver may fail like this because the call lacks its secret. The failure then says
/// nothing about what an earlier call has made.
pub fn may_lack_secret(failure: &Failure) -> bool {
    matches!(
        failure.code(),
        Code::InvalidArgument
            | Code::Unauthenticated
            | Code::PermissionDenied
            | Code::Internal
            | Code::Unknown
    )
}

#[cfg(test)]
mod tests {
    use hostloop_proto::status_details::no_room;
    use tonic::Status;

    use super::*;

    const CALLS: [CallKind; 5] = [
        CallKind::CreateVolume { movable: true },
        CallKind::CreateVolume { movable: false },
        CallKind::Expand,
        CallKind::Modify,
        CallKind::Snapshot,
    ];

    fn failed(status: Status) -> Failure {
        Failure {
            call: "Call",
            status,
        }
    }

    #[test]
    fn every_code_of_every_call() {
        use ErrorClass::*;
        // One row per code, one column per RPC.
        let background = [InBackground; 5];
        let done = [Final; 5];
        for (code, expected) in [
            (Code::Cancelled, background),
            (Code::Unknown, done),
            (
                Code::InvalidArgument,
                [Infeasible, Infeasible, Infeasible, Infeasible, Final],
            ),
            (Code::DeadlineExceeded, background),
            (Code::NotFound, [Final, Final, Infeasible, Final, Final]),
            (Code::AlreadyExists, done),
            (Code::PermissionDenied, done),
            (
                Code::ResourceExhausted,
                [Reschedule, Final, InBackground, InBackground, InBackground],
            ),
            (
                Code::FailedPrecondition,
                [Final, Final, InUse, Final, Final],
            ),
            (Code::Aborted, background),
            (Code::OutOfRange, [Final, Final, Infeasible, Final, Final]),
            (Code::Unimplemented, done),
            (Code::Internal, done),
            (Code::Unavailable, background),
            (Code::DataLoss, done),
            (Code::Unauthenticated, done),
        ] {
            let failure = failed(Status::new(code, "x"));
            for (call, expected) in CALLS.into_iter().zip(expected) {
                assert_eq!(class(call, &failure), expected, "{call:?} {code:?}");
            }
        }
    }

    #[test]
    fn what_a_missing_secret_may_cause() {
        for (code, expected) in [
            (Code::Cancelled, false),
            (Code::Unknown, true),
            (Code::InvalidArgument, true),
            (Code::DeadlineExceeded, false),
            (Code::NotFound, false),
            (Code::AlreadyExists, false),
            (Code::PermissionDenied, true),
            (Code::ResourceExhausted, false),
            (Code::FailedPrecondition, false),
            (Code::Aborted, false),
            (Code::OutOfRange, false),
            (Code::Unimplemented, false),
            (Code::Internal, true),
            (Code::Unavailable, false),
            (Code::DataLoss, false),
            (Code::Unauthenticated, true),
        ] {
            let failure = failed(Status::new(code, "x"));
            assert_eq!(may_lack_secret(&failure), expected, "{code:?}");
        }
    }

    #[test]
    fn a_refusal_for_lack_of_room_is_final() {
        use ErrorClass::*;
        let failure = failed(no_room(Code::ResourceExhausted, "full".to_owned()));
        let expected = [Reschedule, Final, Final, Final, Final];
        for (call, expected) in CALLS.into_iter().zip(expected) {
            assert_eq!(class(call, &failure), expected, "{call:?}");
        }
        // What goes on in the background is not ended by a detail.
        let failure = failed(no_room(Code::Aborted, "busy".to_owned()));
        assert!(
            CALLS
                .iter()
                .all(|call| class(*call, &failure) == InBackground)
        );
    }
}
