//! Decides what NodePublishVolume does, from the staging and from what is at the target. Pure.

use super::{Error, Result};
use crate::csi::capability::{compatible, many_targets};
use crate::kernel::mounts_read_only;
use crate::storage::Capability;

/// The action of NodePublishVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodePublish {
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

/// True if a publication is read-only: as `readonly` says, by its own mount flags, or because the
/// filesystem is mounted so.
pub(crate) fn read_only(staged: &Capability, requested: &Capability, readonly: bool) -> bool {
    readonly
        || [staged, requested]
            .into_iter()
            .any(|it| mounts_read_only(it.access.flags()))
}

/// Decides by volume, capability and `readonly` alone. `volume_context` changes with every token
/// that kubelet renews.
///
/// What is published stays as it is if its PV has a new flag `ro` since: its pod runs.
pub(crate) fn decide(
    staged: &Capability,
    requested: &Capability,
    readonly: bool,
    published: Published,
) -> Result<NodePublish> {
    let fits = compatible(staged, requested);
    let before = read_only(staged, staged, readonly);
    let now_requested = read_only(staged, requested, readonly);
    match published.here {
        Some(now) if !fits || now != before && now != now_requested => {
            Err(Error::AlreadyExists(format!(
                "the volume is already published {} at this path, which differs from the request: \
                 unpublish it first",
                if now { "read-only" } else { "writable" },
            )))
        }
        Some(_) => Ok(NodePublish::Done),
        None if !fits => Err(Error::FailedPrecondition(
            "staged for another access type, access mode or SELinux label".to_owned(),
        )),
        None if published.elsewhere && !many_targets(requested.mode) => {
            Err(Error::FailedPrecondition(
                "published at another path, and its access mode allows only one".to_owned(),
            ))
        }
        None => Ok(NodePublish::Bind),
    }
}

#[cfg(test)]
mod tests;
