//! Compares requested capabilities with those a volume was created with. Pure.

use hostloop_proto::csi;

use crate::csi::capability::{CapabilityRules, RequestedCapability};
use crate::csi::validate::{Invalid, invalid};
use crate::kernel::{FsType, check_mount_options};
use crate::storage::{Access, Capability};

/// The capabilities of one request. All use a raw block volume, or all use one filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CapabilitySet {
    all: Vec<Capability>,
    /// True if a capability names the filesystem; otherwise it is the default one.
    names_fs: bool,
}

impl CapabilitySet {
    /// Reads a list of capabilities, which may be empty.
    pub(super) fn read(
        field: &str,
        values: &[csi::VolumeCapability],
        rules: &CapabilityRules,
    ) -> Result<CapabilitySet, Invalid> {
        let mut all = Vec::with_capacity(values.len());
        let mut named = None;
        for (i, value) in values.iter().enumerate() {
            let requested =
                RequestedCapability::read(&format!("{field}[{i}]"), Some(value), rules)?;
            if let Some(fs) = requested.named_fs()
                && named.replace(fs).is_some_and(|other| other != fs)
            {
                return Err(invalid(field, "name more than one filesystem"));
            }
            all.push(requested.plain().clone());
        }
        let blocks = all.iter().filter(|c| c.access == Access::Block).count();
        if blocks > 0 && blocks < all.len() {
            // One volume can't be both: a mount writes to the block device.
            return Err(invalid(field, "ask for a block device and a filesystem"));
        }
        let requested = CapabilitySet {
            all,
            names_fs: named.is_some(),
        };
        Ok(match named {
            Some(fs) => requested.on(fs),
            None => requested,
        })
    }

    fn on(mut self, fs: FsType) -> CapabilitySet {
        for capability in &mut self.all {
            if let Access::Mount { fs: own, .. } = &mut capability.access {
                *own = fs;
            }
        }
        self
    }

    /// The same capabilities for a volume with this filesystem, which replaces the default one.
    pub(super) fn on_volume_with(self, fs: Option<FsType>) -> CapabilitySet {
        match fs {
            Some(fs) if !self.names_fs => self.on(fs),
            _ => self,
        }
    }

    /// The filesystem; `None` for a raw block volume or an empty list.
    pub(super) fn fs(&self) -> Option<FsType> {
        self.all.iter().find_map(|c| c.access.fs())
    }

    /// Checks the mount options against those that a class may set. Volumes that exist are mounted
    /// with others, too: an earlier version accepted them, or an administrator wrote them into the
    /// PersistentVolume.
    pub(super) fn check_mount_options(&self, field: &str) -> Result<(), Invalid> {
        self.all
            .iter()
            .enumerate()
            .try_for_each(|(i, capability)| match &capability.access {
                Access::Mount { fs, flags, .. } => check_mount_options(*fs, flags)
                    .map_err(|why| invalid(format!("{field}[{i}].mount.mount_flags"), why)),
                Access::Block => Ok(()),
            })
    }

    /// True if both sets are equal, in any order and with any duplicates.
    pub(super) fn are(&self, others: &[Capability]) -> bool {
        is_within(&self.all, others) && is_within(others, &self.all)
    }

    pub(super) fn into_all(self) -> Vec<Capability> {
        self.all
    }
}

fn is_within(some: &[Capability], others: &[Capability]) -> bool {
    some.iter().all(|capability| others.contains(capability))
}

#[cfg(test)]
mod tests;
