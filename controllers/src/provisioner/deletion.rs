//! Deletes volumes of deleted claims. A finalizer keeps their PersistentVolumes until then.

use tonic::Code;

use crate::client::ApiError;

mod apply;
mod decide;
mod gather;

pub(super) use decide::needs_work;

/// The reason why a volume is not deleted yet.
#[derive(Debug, thiserror::Error)]
enum Obstacle {
    #[error("persistentvolume {volume} is still attached to node {node}, waiting for detach")]
    Attached { volume: String, node: String },
    #[error(
        "neither the PersistentVolume's node affinity nor the CSI driver shows the node of the \
         volume: delete the volume on its node, and then the PersistentVolume"
    )]
    Nowhere,
    #[error("rpc error: code = {code:?} desc = {message}")]
    Refused { code: Code, message: String },
    #[error(transparent)]
    Api(#[from] ApiError),
}

#[cfg(test)]
mod tests;
