//! The reasons why a claim has no volume yet, in words its user can act on. Each has a state, which
//! decides the next attempt.

use std::collections::BTreeMap;

use crate::api::node_fitness::UnfitNode;
use crate::api::pvc::DataSourceError;
use crate::client::ApiError;
use crate::secrets::{SecretError, TemplateError};

use super::access::AccessError;
use super::source::SourceError;
use crate::api::topology::TopologyError;

/// What a failed attempt leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptState {
    /// No volume exists, and the driver is not creating one.
    Finished,
    /// The state before the attempt still holds.
    NoChange,
    /// A volume may exist: CreateVolume is repeated until the driver gives a final answer.
    Background,
    /// No volume exists, and the scheduler must select another node.
    Reschedule,
    /// No volume exists. The same call would fail again, so it is only repeated after a long time.
    Infeasible,
}

/// The reason why a claim has no volume.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("StorageClass {name:?} does not exist: create it, or name another in the claim")]
    NoClass { name: String },
    #[error("the CSI driver {driver} cannot do this: it lacks {lacks}. {advice}")]
    Unable {
        driver: String,
        lacks: &'static str,
        advice: &'static str,
    },
    /// The claim has a selector. Selectors choose among existing volumes only.
    #[error(
        "spec.selector of the claim is not supported for volumes that are made for claims: \
         remove it, or name a StorageClass without a provisioner"
    )]
    Selector,
    /// The class has both parameters for the filesystem type.
    #[error(
        "the StorageClass has both parameters csi.storage.k8s.io/fstype and {old}: remove {old}"
    )]
    FsTypeTwice { old: String },
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("spec.volumeMode is {0:?}: it must be Filesystem or Block")]
    Mode(String),
    #[error(
        "spec.resources.requests.storage is {0:?}: it must be a size above 0 and below 8Ei, such \
         as 1Gi"
    )]
    Size(String),
    /// The kind or namespace of the source is not supported.
    #[error(transparent)]
    DataSource(#[from] DataSourceError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The node is unfit, and the scheduler can't have selected it.
    #[error("the selected node {node} {unfit}, and {advice}")]
    Unfit {
        node: String,
        unfit: UnfitNode,
        advice: &'static str,
    },
    #[error(transparent)]
    Secret(#[from] TemplateError),
    #[error(
        "secret {namespace}/{name}, named by parameters of StorageClass {class:?}, does not \
         exist: create it, or correct the class"
    )]
    NoSecret {
        namespace: String,
        name: String,
        class: String,
    },
    #[error(transparent)]
    SecretUnreadable(#[from] SecretError),
    #[error(
        "StorageClass {class:?} has unknown parameters {keys}: those that begin with \
         csi.storage.k8s.io/ are for the provisioner, which does not know these; correct or \
         remove them (in a new class: parameters cannot be changed)"
    )]
    Parameters { class: String, keys: String },
    #[error(
        "VolumeAttributesClass {name:?}, named by spec.volumeAttributesClassName, does not exist: \
         create it, or name another in the claim"
    )]
    NoAttributesClass { name: String },
    #[error(
        "VolumeAttributesClass {name:?} is for the driver {has}, but the claim's StorageClass \
         uses {driver}: name another in spec.volumeAttributesClassName"
    )]
    AttributesDriver {
        name: String,
        has: String,
        driver: String,
    },
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("rpc error: code = {code:?} desc = {message}")]
    Create {
        code: tonic::Code,
        /// The driver's message, with secrets masked.
        message: String,
        /// The state after this error.
        state: AttemptState,
        /// The driver refused the volume for lack of room.
        lacks_room: bool,
    },
    /// The driver returned a volume that does not match the request.
    #[error("the CSI driver {driver} {what}; the volume was {fate}")]
    Unusable {
        driver: String,
        what: String,
        fate: String,
    },
}

impl Error {
    /// The error about a secret that this class names.
    pub(super) fn of_secret(error: SecretError, class: &str) -> Error {
        match error {
            SecretError::Missing { namespace, name } => Error::NoSecret {
                namespace,
                name,
                class: class.to_owned(),
            },
            error => error.into(),
        }
    }

    /// True if another attempt may succeed once a pool of the same node has more room.
    pub(crate) fn lacks_room(&self) -> bool {
        matches!(self, Error::Create { lacks_room: true, state, .. } if *state != AttemptState::Reschedule)
    }

    /// The state after a failed attempt with this error.
    pub(crate) fn state(&self) -> AttemptState {
        match self {
            Error::Unable { .. }
            | Error::Selector
            | Error::FsTypeTwice { .. }
            | Error::Access(_)
            | Error::Mode(_)
            | Error::Size(_)
            | Error::DataSource(_)
            | Error::Parameters { .. }
            | Error::AttributesDriver { .. } => AttemptState::Finished,
            Error::Unfit { .. }
            | Error::Topology(TopologyError::NoNode { .. } | TopologyError::NoCsiNode { .. }) => {
                AttemptState::Reschedule
            }
            Error::NoClass { .. }
            | Error::Source(_)
            | Error::Topology(_)
            | Error::Secret(_)
            | Error::NoSecret { .. }
            | Error::SecretUnreadable(_)
            | Error::NoAttributesClass { .. }
            | Error::Api(_) => AttemptState::NoChange,
            Error::Create { state, .. } => *state,
            Error::Unusable { .. } => AttemptState::Background,
        }
    }
}

/// A driver's message with the values of its secrets masked.
pub(super) fn without(message: &str, secrets: &BTreeMap<String, String>) -> String {
    let mut message = message.to_owned();
    for value in secrets.values().filter(|value| value.len() >= 4) {
        message = message.replace(value.as_str(), "***");
    }
    message
}
