//! Why a claim has no volume yet: in words its user can act on, and with what is to come next.

use crate::runtime::ApiError;
use crate::secrets::{SecretError, TemplateError};

use super::access::AccessProblem;
use super::source::SourceProblem;
use crate::api::topology::TopologyProblem;

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
pub(crate) enum Problem {
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
    /// The filesystem is told twice.
    #[error(
        "the StorageClass has both parameters csi.storage.k8s.io/fstype and {old}: remove {old}"
    )]
    FsTypeTwice {
        /// The older one, as it is written there.
        old: String,
    },
    /// The access modes are no good.
    #[error(transparent)]
    Access(#[from] AccessProblem),
    /// The volume mode is not known.
    #[error("spec.volumeMode is {0:?}: it must be Filesystem or Block")]
    Mode(String),
    /// The size is no good.
    #[error(
        "spec.resources.requests.storage is {0:?}: it must be a size above 0 and below 8Ei, such \
         as 1Gi"
    )]
    Size(String),
    /// The source is no good.
    #[error(transparent)]
    Source(#[from] SourceProblem),
    /// There is no place for it.
    #[error(transparent)]
    Topology(#[from] TopologyProblem),
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
    /// A parameter nobody knows.
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

impl Problem {
    /// What it leaves behind.
    pub(crate) fn state(&self) -> State {
        match self {
            Problem::Unable { .. }
            | Problem::Selector
            | Problem::FsTypeTwice { .. }
            | Problem::Access(_)
            | Problem::Mode(_)
            | Problem::Size(_)
            | Problem::Source(SourceProblem::OtherNamespace { .. } | SourceProblem::NoName)
            | Problem::Parameters { .. }
            | Problem::AttributesDriver { .. } => State::Finished,
            Problem::Topology(
                TopologyProblem::NoNode { .. } | TopologyProblem::NoCsiNode { .. },
            ) => State::Reschedule,
            Problem::NoClass { .. }
            | Problem::Source(_)
            | Problem::Topology(_)
            | Problem::Secret(_)
            | Problem::NoSecret { .. }
            | Problem::SecretUnreadable(_)
            | Problem::NoAttributesClass { .. }
            | Problem::Api(_) => State::NoChange,
            Problem::Create { state, .. } => *state,
            Problem::Unusable { .. } => State::Background,
        }
    }
}
