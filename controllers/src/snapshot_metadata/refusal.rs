//! Why a call is refused, and the gRPC code of each reason.

use tonic::{Code, Status};

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// A required field of the request is empty.
    #[error("{0} is empty: set it")]
    Empty(&'static str),
    /// Nothing can have this name. The message does not repeat it.
    #[error("{0} is not the name of an object")]
    NotAName(&'static str),
    #[error("base_snapshot_id has more than 128 bytes")]
    LongBase,
    /// There is no object that names the audience of tokens.
    #[error(
        "cannot authenticate the caller: SnapshotMetadataService {name} does not exist or names \
         no audience"
    )]
    NoAudience { name: String },
    /// The API server did not review the token or the access.
    #[error(
        "cannot {0}: the API server did not answer as it should; the controller's log says why"
    )]
    NotReviewed(&'static str),
    /// The token is not valid for the audience.
    #[error(
        "unauthenticated user: the token is invalid, has expired or is not for audience \
         {audience:?}; request a new one"
    )]
    Unauthenticated { audience: String },
    /// The caller may not see snapshots in the namespace.
    #[error(
        "user does not have permissions to perform the operation: it needs \"get\" of \
         volumesnapshots in namespace {namespace}: {reason}"
    )]
    Denied { namespace: String, reason: String },
    #[error("VolumeSnapshot {namespace}/{name} does not exist")]
    NoSnapshot { namespace: String, name: String },
    /// The snapshot can't be read at present.
    #[error("VolumeSnapshot {namespace}/{name} is not available: {why}")]
    NotAvailable {
        namespace: String,
        name: String,
        why: String,
    },
    #[error("VolumeSnapshot {name} does not belong to the CSI driver {driver}")]
    OtherDriver { name: String, driver: String },
    /// No snapshot with the handle of the base is known to have been in the namespace.
    #[error(
        "base_snapshot_id: no VolumeSnapshotContent with this handle is or was of namespace \
         {namespace}: make one there, or do a full backup"
    )]
    ForeignBase { namespace: String },
    #[error(
        "base_snapshot_id: the snapshot is of another volume than the target: name one of the same \
         volume"
    )]
    OtherVolume,
}

impl Refusal {
    /// The code of upstream's service for this reason.
    pub(super) fn code(&self) -> Code {
        match self {
            Refusal::Empty(_)
            | Refusal::NotAName(_)
            | Refusal::LongBase
            | Refusal::OtherDriver { .. }
            | Refusal::OtherVolume => Code::InvalidArgument,
            Refusal::NoAudience { .. } | Refusal::NotReviewed(_) => Code::Internal,
            Refusal::Unauthenticated { .. } => Code::Unauthenticated,
            Refusal::Denied { .. } | Refusal::ForeignBase { .. } => Code::PermissionDenied,
            Refusal::NoSnapshot { .. } => Code::NotFound,
            Refusal::NotAvailable { .. } => Code::Unavailable,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Status::new(refusal.code(), refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_who_is_not_known_learns_nothing_of_the_cluster() {
        let refused = Status::from(Refusal::NotReviewed("authenticate the caller"));
        assert_eq!(refused.code(), Code::Internal);
        assert!(refused.message().contains("the controller's log"));
    }
}
