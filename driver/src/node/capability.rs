//! Decides what NodePublishVolume does, from the staging and from what is at the target. Pure.

use super::{Error, Result};
use crate::csi::capability::{Asked, compatible, many_targets};
use crate::storage::{Capability, VolumeRecord};

/// The capability for a volume. FAILED_PRECONDITION if the volume does not support it.
pub(crate) fn of_volume(asked: Asked, record: &VolumeRecord) -> Result<Capability> {
    let why = |why| Error::FailedPrecondition(format!("volume {}: {why}", record.id));
    asked.of(record).map_err(why)
}

/// The action of NodePublishVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Bind the volume to the target.
    Bind,
    /// Do nothing: the volume is at the target.
    Done,
}

/// Where a volume is published already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Published {
    /// `Some` if this volume is at the target; true if it is read-only there.
    pub(crate) here: Option<bool>,
    /// True if the volume is at another target too.
    pub(crate) elsewhere: bool,
}

/// Decides by volume, capability and readonly alone. `volume_context` changes with every token that
/// kubelet renews.
pub(crate) fn decide(
    staged: &Capability,
    asked: &Capability,
    read_only: bool,
    published: Published,
) -> Result<Publish> {
    let fits = compatible(staged, asked);
    match published.here {
        Some(now) if !fits || now != read_only => Err(Error::AlreadyExists(format!(
            "published at this path already {}, and not as asked",
            if now { "read-only" } else { "writable" },
        ))),
        Some(_) => Ok(Publish::Done),
        None if !fits => Err(Error::FailedPrecondition(
            "staged for another access type, access mode or mount flags".to_owned(),
        )),
        None if published.elsewhere && !many_targets(asked.mode) => Err(Error::FailedPrecondition(
            "published at another path, and its access mode allows only one".to_owned(),
        )),
        None => Ok(Publish::Bind),
    }
}

#[cfg(test)]
mod tests;
