//! What a volume may be used as: the capability of a request against the volume's own, against
//! its staging and against what is at the target already. Pure.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::AccessType;

use super::{Error, Result};
use crate::pool::{Access, AccessMode, Capability, Format, VolumeRecord};
use crate::request::{self, CapabilityRules, Invalid};
use crate::sys::FsType;

/// A capability as a request has it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    capability: Capability,
    names_fs: bool,
}

impl Asked {
    /// Reads a required capability.
    pub(crate) fn read(
        field: &str,
        value: Option<&csi::VolumeCapability>,
        rules: &CapabilityRules,
    ) -> std::result::Result<Asked, Invalid> {
        let capability = request::capability(field, value, rules)?;
        let names_fs = match value.and_then(|v| v.access_type.as_ref()) {
            Some(AccessType::Mount(mount)) => !mount.fs_type.is_empty(),
            _ => false,
        };
        Ok(Asked {
            capability,
            names_fs,
        })
    }

    /// What it means for a volume that is yet to be made.
    pub(crate) fn plain(&self) -> &Capability {
        &self.capability
    }

    /// What it means for this volume. A mount that names no filesystem takes the volume's own,
    /// whatever the default has become since. The volume must have been made for it; any access
    /// mode will do, since a volume is on one node and every mode can be kept there.
    pub(crate) fn of(mut self, record: &VolumeRecord) -> Result<Capability> {
        if let Access::Mount { fs, .. } = &mut self.capability.access
            && !self.names_fs
        {
            *fs = own_fs(record).unwrap_or(*fs);
        }
        let fits = |made: &Capability| same_use(&made.access, &self.capability.access);
        if record.capabilities.is_empty() || record.capabilities.iter().any(fits) {
            return Ok(self.capability);
        }
        let made: Vec<_> = record
            .capabilities
            .iter()
            .map(|c| word(&c.access))
            .collect();
        Err(Error::FailedPrecondition(format!(
            "volume {} was made for {}, not for {}",
            record.id,
            made.join(", "),
            word(&self.capability.access),
        )))
    }
}

/// The filesystem a volume was made for, or has.
fn own_fs(record: &VolumeRecord) -> Option<FsType> {
    let made = record.capabilities.iter().find_map(|c| match c.access {
        Access::Mount { fs, .. } => Some(fs),
        Access::Block => None,
    });
    made.or(match record.format {
        Format::Done(fs) => Some(fs),
        _ => None,
    })
}

/// Both the raw device, or both the same filesystem.
fn same_use(a: &Access, b: &Access) -> bool {
    match (a, b) {
        (Access::Block, Access::Block) => true,
        (Access::Mount { fs: a, .. }, Access::Mount { fs: b, .. }) => a == b,
        _ => false,
    }
}

/// An access in a word, for messages.
pub(crate) fn word(access: &Access) -> &'static str {
    match access {
        Access::Block => "a block device",
        Access::Mount { fs, .. } => fs.as_str(),
    }
}

/// Whether a mode lets a volume be at several targets of one node (CSI, the second table of
/// NodePublishVolume).
pub(crate) fn many_targets(mode: AccessMode) -> bool {
    mode == AccessMode::SingleNodeMultiWriter || mode.is_multi_node()
}

/// Whether what was staged for one use can be published for another. Several PVs can name one
/// volume, each with a mode of its own, as long as all of them are made for sharing. Mount flags
/// belong to the filesystem, which is mounted once, so they can't differ.
fn publishable(staged: &Capability, asked: &Capability) -> bool {
    let modes = staged.mode == asked.mode || many_targets(staged.mode) && many_targets(asked.mode);
    let flags = match (&staged.access, &asked.access) {
        (Access::Mount { flags: a, .. }, Access::Mount { flags: b, .. }) => a == b,
        _ => true,
    };
    modes && flags && same_use(&staged.access, &asked.access)
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
    let fits = publishable(staged, asked);
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
