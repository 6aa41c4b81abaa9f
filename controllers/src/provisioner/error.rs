//! The reasons why a claim has no volume yet, in words its user can act on. Each has a state, which
//! decides the next attempt.

use std::collections::BTreeMap;

use crate::api::pvc::DataSourceError;
use crate::client::ApiError;
use crate::secrets::{SecretError, TemplateError};

use super::access::AccessError;
use super::source::SourceError;
use crate::api::topology::TopologyError;

/// What a failed attempt leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
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
    /// The class does not exist.
    #[error("StorageClass {name:?} does not exist: create it, or name another in the claim")]
    NoClass {
        /// The class's name.
        name: String,
    },
    /// The driver lacks a capability.
    #[error("the CSI driver {driver} cannot do this: it lacks {lacks}. {advice}")]
    Unable {
        /// The driver's name.
        driver: String,
        /// The capability that the driver lacks.
        lacks: &'static str,
        /// Advice for the user.
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
    FsTypeTwice {
        /// The deprecated parameter's key.
        old: String,
    },
    /// The access modes are invalid.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The volume mode is unknown.
    #[error("spec.volumeMode is {0:?}: it must be Filesystem or Block")]
    Mode(String),
    /// The size is invalid.
    #[error(
        "spec.resources.requests.storage is {0:?}: it must be a size above 0 and below 8Ei, such \
         as 1Gi"
    )]
    Size(String),
    /// The kind or namespace of the source is not supported.
    #[error(transparent)]
    DataSource(#[from] DataSourceError),
    /// The source cannot be used, or cannot be used yet.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The topology requirement cannot be met.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The class's parameters name no valid secret.
    #[error(transparent)]
    Secret(#[from] TemplateError),
    /// A secret does not exist.
    #[error(
        "secret {namespace}/{name}, named by parameters of StorageClass {class:?}, does not \
         exist: create it, or correct the class"
    )]
    NoSecret {
        /// The secret's namespace.
        namespace: String,
        /// The secret's name.
        name: String,
        /// The class that names the secret.
        class: String,
    },
    /// A secret can't be read.
    #[error(transparent)]
    SecretUnreadable(#[from] SecretError),
    /// A reserved parameter is unknown.
    #[error(
        "StorageClass {class:?} has unknown parameters {keys}: those that begin with \
         csi.storage.k8s.io/ are for the provisioner, which does not know these; correct or \
         remove them (in a new class: parameters cannot be changed)"
    )]
    Parameters {
        /// The class's name.
        class: String,
        /// The unknown parameters.
        keys: String,
    },
    /// The VolumeAttributesClass does not exist.
    #[error(
        "VolumeAttributesClass {name:?}, named by spec.volumeAttributesClassName, does not exist: \
         create it, or name another in the claim"
    )]
    NoAttributesClass {
        /// The name of the VolumeAttributesClass.
        name: String,
    },
    /// The VolumeAttributesClass is for another driver.
    #[error(
        "VolumeAttributesClass {name:?} is for the driver {has}, but the claim's StorageClass \
         uses {driver}: name another in spec.volumeAttributesClassName"
    )]
    AttributesDriver {
        /// The name of the VolumeAttributesClass.
        name: String,
        /// The driver that the class names.
        has: String,
        /// This driver's name.
        driver: String,
    },
    /// A call to the API server failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// CreateVolume failed.
    #[error("rpc error: code = {code:?} desc = {message}")]
    Create {
        /// The gRPC status code.
        code: tonic::Code,
        /// The driver's message, with secrets masked.
        message: String,
        /// The state after this error.
        state: State,
    },
    /// The driver returned a volume that does not match the request.
    #[error("the CSI driver {driver} {what}; the volume was {fate}")]
    Unusable {
        /// The driver's name.
        driver: String,
        /// The defect of the volume.
        what: String,
        /// The outcome of the attempt to delete the volume.
        fate: String,
    },
}

impl Error {
    /// The state after a failed attempt with this error.
    pub(crate) fn state(&self) -> State {
        match self {
            Error::Unable { .. }
            | Error::Selector
            | Error::FsTypeTwice { .. }
            | Error::Access(_)
            | Error::Mode(_)
            | Error::Size(_)
            | Error::DataSource(_)
            | Error::Parameters { .. }
            | Error::AttributesDriver { .. } => State::Finished,
            Error::Topology(TopologyError::NoNode { .. } | TopologyError::NoCsiNode { .. }) => {
                State::Reschedule
            }
            Error::NoClass { .. }
            | Error::Source(_)
            | Error::Topology(_)
            | Error::Secret(_)
            | Error::NoSecret { .. }
            | Error::SecretUnreadable(_)
            | Error::NoAttributesClass { .. }
            | Error::Api(_) => State::NoChange,
            Error::Create { state, .. } => *state,
            Error::Unusable { .. } => State::Background,
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
