//! What a failed call means: whether it may yet have an effect, and what to do next.
//!
//! A caller that forgets a call which may still succeed leaks what it makes; one that waits for a
//! call which has failed never gets on. These are the rules the CSI sidecars and kubelet follow.

use tonic::Code;

/// A call, as far as its failures differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// CreateVolume.
    CreateVolume {
        /// The volume could be made on another node: the driver has topology, and a node was
        /// selected by the scheduler.
        movable: bool,
    },
    /// ControllerExpandVolume.
    Expand,
    /// ControllerModifyVolume.
    Modify,
    /// CreateSnapshot and CreateVolumeGroupSnapshot.
    Snapshot,
    /// NodeStageVolume, NodePublishVolume and NodeExpandVolume.
    Node,
    /// Calls that are made again until they succeed, whatever they answer: DeleteVolume,
    /// ControllerPublishVolume, ControllerUnpublishVolume, DeleteSnapshot…
    UntilDone,
}

/// What its failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Make it again, as it was.
    Retry,
    /// It may be going on: make it again, as it was, until it says otherwise.
    InBackground,
    /// It had no effect, and will have none. It may be given up, changed or made again.
    Final,
    /// Likewise, for want of room on this node: the scheduler is to choose another.
    Reschedule,
    /// Likewise, and it can't succeed as it is: make it again, but rarely.
    Infeasible,
    /// Likewise, because the volume is in use: make it again when it is not.
    InUse,
}

/// What a call's failure with this code means; UNAVAILABLE also where no answer came.
pub fn class(call: Call, code: Code) -> Class {
    match (call, code) {
        (Call::UntilDone, _) => Class::Retry,
        (_, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted) => {
            Class::InBackground
        }
        (Call::CreateVolume { movable: true }, Code::ResourceExhausted) => Class::Reschedule,
        (Call::CreateVolume { movable: false }, Code::ResourceExhausted) => Class::Final,
        (_, Code::ResourceExhausted) => Class::InBackground,
        (Call::CreateVolume { .. } | Call::Modify, Code::InvalidArgument) => Class::Infeasible,
        (Call::Expand, Code::InvalidArgument | Code::OutOfRange | Code::NotFound) => {
            Class::Infeasible
        }
        (Call::Expand, Code::FailedPrecondition) => Class::InUse,
        _ => Class::Final,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_every_call() {
        use Class::*;
        let calls = [
            Call::CreateVolume { movable: true },
            Call::CreateVolume { movable: false },
            Call::Expand,
            Call::Modify,
            Call::Snapshot,
            Call::Node,
        ];
        // One row a code, one column a call.
        let background = [InBackground; 6];
        let done = [Final; 6];
        for (code, expected) in [
            (Code::Cancelled, background),
            (Code::Unknown, done),
            (
                Code::InvalidArgument,
                [Infeasible, Infeasible, Infeasible, Infeasible, Final, Final],
            ),
            (Code::DeadlineExceeded, background),
            (
                Code::NotFound,
                [Final, Final, Infeasible, Final, Final, Final],
            ),
            (Code::AlreadyExists, done),
            (Code::PermissionDenied, done),
            (
                Code::ResourceExhausted,
                [
                    Reschedule,
                    Final,
                    InBackground,
                    InBackground,
                    InBackground,
                    InBackground,
                ],
            ),
            (
                Code::FailedPrecondition,
                [Final, Final, InUse, Final, Final, Final],
            ),
            (Code::Aborted, background),
            (
                Code::OutOfRange,
                [Final, Final, Infeasible, Final, Final, Final],
            ),
            (Code::Unimplemented, done),
            (Code::Internal, done),
            (Code::Unavailable, background),
            (Code::DataLoss, done),
            (Code::Unauthenticated, done),
        ] {
            for (call, expected) in calls.into_iter().zip(expected) {
                assert_eq!(class(call, code), expected, "{call:?} {code:?}");
            }
            assert_eq!(class(Call::UntilDone, code), Retry);
        }
    }
}
