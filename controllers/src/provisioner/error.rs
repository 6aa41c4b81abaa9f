//! Why a claim has no volume yet: in words its user can act on, and with what is to come next.

use std::collections::BTreeMap;

use crate::api::pvc::DataSourceError;
use crate::runtime::ApiError;
use crate::secrets::{SecretError, TemplateError};

use super::access::AccessError;
use super::source::SourceError;
use crate::api::topology::TopologyError;

/// What a failed attempt leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing: there is no volume, and none is being made.
    Finished,
    /// What there was before.
    NoChange,
    /// There may be a volume: CreateVolume is repeated until the driver gives a final answer.
    Background,
    /// Nothing, and the scheduler is to choose another node.
    Reschedule,
    /// Nothing, and the same again would fail the same: only after a long time.
    Infeasible,
}

/// Why there is no volume.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The class is not there.
    #[error("StorageClass {name:?} does not exist: create it, or name another in the claim")]
    NoClass {
        /// Its name.
        name: String,
    },
    /// The driver can't make it.
    #[error("the CSI driver {driver} cannot do this: it lacks {lacks}. {advice}")]
    Unable {
        /// The driver.
        driver: String,
        /// The capability it does not have.
        lacks: &'static str,
        /// What the user can do.
        advice: &'static str,
    },
    /// A selector chooses among volumes that are there; this one is to be made.
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
        /// The older one, as it is written there.
        old: String,
    },
    /// The access modes are no good.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The volume mode is not known.
    #[error("spec.volumeMode is {0:?}: it must be Filesystem or Block")]
    Mode(String),
    /// The size is no good.
    #[error(
        "spec.resources.requests.storage is {0:?}: it must be a size above 0 and below 8Ei, such \
         as 1Gi"
    )]
    Size(String),
    /// The kind or place of the source is not supported.
    #[error(transparent)]
    DataSource(#[from] DataSourceError),
    /// The source cannot be used, or not yet.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// There is no place for it.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The secrets can't be made out.
    #[error(transparent)]
    Secret(#[from] TemplateError),
    /// A secret is not there.
    #[error(
        "secret {namespace}/{name}, named by parameters of StorageClass {class:?}, does not \
         exist: create it, or correct the class"
    )]
    NoSecret {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Where it is named.
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
        /// The class.
        class: String,
        /// The parameters.
        keys: String,
    },
    /// The attributes class is not there.
    #[error(
        "VolumeAttributesClass {name:?}, named by spec.volumeAttributesClassName, does not exist: \
         create it, or name another in the claim"
    )]
    NoAttributesClass {
        /// Its name.
        name: String,
    },
    /// The attributes class is another driver's.
    #[error(
        "VolumeAttributesClass {name:?} is for the driver {has}, but the claim's StorageClass \
         uses {driver}: name another in spec.volumeAttributesClassName"
    )]
    AttributesDriver {
        /// The class.
        name: String,
        /// Its driver.
        has: String,
        /// This driver.
        driver: String,
    },
    /// The API server did not answer as hoped.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The driver did not make it.
    #[error("rpc error: code = {code:?} desc = {message}")]
    Create {
        /// The code.
        code: tonic::Code,
        /// The driver's words.
        message: String,
        /// What it leaves.
        state: State,
    },
    /// The driver made something else.
    #[error("the CSI driver {driver} {what}; the volume was {fate}")]
    Unusable {
        /// The driver.
        driver: String,
        /// What is wrong with it.
        what: String,
        /// Whether it could be deleted.
        fate: String,
    },
}

impl Error {
    /// What it leaves behind.
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
