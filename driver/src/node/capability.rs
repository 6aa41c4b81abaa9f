//! What NodePublishVolume does, by how the volume is staged and what is at the target. Pure.

use super::{Error, Result};
use crate::csi::capability::{Asked, compatible, many_targets};
use crate::storage::{Capability, VolumeRecord};

/// What a capability means for a volume: it must have been made for it.
pub(crate) fn of_volume(asked: Asked, record: &VolumeRecord) -> Result<Capability> {
    let why = |why| Error::FailedPrecondition(format!("volume {}: {why}", record.id));
    asked.of(record).map_err(why)
}

/// What NodePublishVolume has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Bind it there.
    Bind,
    /// It is there.
    Done,
}

/// What is at the target and elsewhere, when a volume is to be published.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Published {
    /// This volume is at the target: read-only, or not.
    pub(crate) here: Option<bool>,
    /// It is at another target too.
    pub(crate) elsewhere: bool,
}

/// Judges a publication by volume, capability and readonly alone: `volume_context` changes with
/// every token that kubelet renews.
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
