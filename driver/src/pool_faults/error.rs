//! Why a pool does not get a fault.

use hostloop_controllers::api::pool_fault::PoolFaultError;

use crate::storage::{self, VolumeId};

/// Why a pool can't have a fault, as the end of a sentence that names both.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolObstacle {
    #[error("it is not open: {0}")]
    NotOpen(String),
    #[error(
        "its filesystem holds other files, too, which would have no room either. Move away what is not \
         the pool's, or make the pool on a device or in an image (image=SIZE): it then has a filesystem \
         of its own"
    )]
    Shared,
    #[error(
        "the fault of its claim has frozen volume {0}, which could not be thawed meanwhile: clear that \
         fault first"
    )]
    Frozen(VolumeId),
}

/// Why a pool does not get the fault that is asked for.
#[derive(Debug, thiserror::Error)]
pub enum PoolFaultRefused {
    #[error(transparent)]
    Text(#[from] PoolFaultError),
    #[error(transparent)]
    Impossible(#[from] PoolObstacle),
    /// A step failed.
    #[error(transparent)]
    Pool(#[from] storage::Error),
}

impl PoolFaultRefused {
    /// True if the pool could have the fault, and a step failed.
    pub(super) fn is_failure(&self) -> bool {
        matches!(self, PoolFaultRefused::Pool(_))
    }
}
