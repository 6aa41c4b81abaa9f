//! The capabilities a volume is asked to have, against those it was made with. Pure.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::AccessType;

use crate::pool::{Access, AccessMode, Capability, Format, VolumeRecord};
use crate::request::{self, CapabilityRules, Invalid, invalid};
use crate::sys::FsType;

/// The capabilities of one request: all of a raw block volume, or all of one filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    all: Vec<Capability>,
    /// One of them says which filesystem; otherwise the default stands in.
    names_fs: bool,
}

impl Wanted {
    /// Reads a list of capabilities, which may be empty.
    pub(super) fn read(
        field: &str,
        values: &[csi::VolumeCapability],
        rules: &CapabilityRules,
    ) -> Result<Wanted, Invalid> {
        let mut all = Vec::with_capacity(values.len());
        let mut named = None;
        for (i, value) in values.iter().enumerate() {
            let capability = request::capability(&format!("{field}[{i}]"), Some(value), rules)?;
            if let (true, Access::Mount { fs, .. }) = (names_fs(value), &capability.access)
                && named.replace(*fs).is_some_and(|other| other != *fs)
            {
                return Err(invalid(field, "name more than one filesystem"));
            }
            all.push(capability);
        }
        let blocks = all.iter().filter(|c| c.access == Access::Block).count();
        if blocks > 0 && blocks < all.len() {
            // One volume can't be both: mounting a filesystem writes to it.
            return Err(invalid(field, "ask for a block device and a filesystem"));
        }
        let wanted = Wanted {
            all,
            names_fs: named.is_some(),
        };
        Ok(match named {
            Some(fs) => wanted.on(fs),
            None => wanted,
        })
    }

    fn on(mut self, fs: FsType) -> Wanted {
        for capability in &mut self.all {
            if let Access::Mount { fs: own, .. } = &mut capability.access {
                *own = fs;
            }
        }
        self
    }

    /// The same, of a volume that has this filesystem: whoever names none means that one.
    pub(super) fn on_volume_with(self, fs: Option<FsType>) -> Wanted {
        match fs {
            Some(fs) if !self.names_fs => self.on(fs),
            _ => self,
        }
    }

    /// The filesystem; `None` for a raw block volume, or where nothing is asked.
    pub(super) fn fs(&self) -> Option<FsType> {
        self.all.iter().find_map(|c| fs_of(&c.access))
    }

    /// Whether they are these, in whatever order and however often.
    pub(super) fn are(&self, others: &[Capability]) -> bool {
        let within = |a: &[Capability], b: &[Capability]| a.iter().all(|c| b.contains(c));
        within(&self.all, others) && within(others, &self.all)
    }

    /// The capabilities.
    pub(super) fn into_all(self) -> Vec<Capability> {
        self.all
    }
}

fn names_fs(value: &csi::VolumeCapability) -> bool {
    matches!(&value.access_type, Some(AccessType::Mount(mount)) if !mount.fs_type.is_empty())
}

fn fs_of(access: &Access) -> Option<FsType> {
    match access {
        Access::Mount { fs, .. } => Some(*fs),
        Access::Block => None,
    }
}

/// The filesystem a volume was made for, or has.
pub(super) fn own_fs(record: &VolumeRecord) -> Option<FsType> {
    let made_for = record.capabilities.iter().find_map(|c| fs_of(&c.access));
    made_for.or(match record.format {
        Format::Done(fs) => Some(fs),
        Format::None | Format::Formatting(_) | Format::Raw => None,
    })
}

/// Reads the one capability of a request about this volume.
pub(super) fn of_volume(
    field: &str,
    value: Option<&csi::VolumeCapability>,
    rules: &CapabilityRules,
    record: &VolumeRecord,
) -> Result<Capability, Invalid> {
    let rules = CapabilityRules {
        default_fs: own_fs(record).unwrap_or(rules.default_fs),
        ..rules.clone()
    };
    let capability = request::capability(field, value, &rules)?;
    match unsupported(record, &capability) {
        None => Ok(capability),
        Some(why) => Err(invalid(field, why)),
    }
}

/// Why a volume can't be used so; nothing, if it can. The access mode is no reason: a volume is on
/// one node, where every mode can be kept.
pub(super) fn unsupported(record: &VolumeRecord, wanted: &Capability) -> Option<String> {
    let fits = |made: &Capability| same_use(&made.access, &wanted.access);
    if record.capabilities.is_empty() || record.capabilities.iter().any(fits) {
        return None;
    }
    let made = record.capabilities.first().map(|c| word(&c.access))?;
    let wanted = word(&wanted.access);
    Some(format!("the volume was made as {made}, not as {wanted}"))
}

/// Both the raw device, or both the same filesystem.
fn same_use(a: &Access, b: &Access) -> bool {
    fs_of(a) == fs_of(b)
}

fn word(access: &Access) -> &'static str {
    fs_of(access).map_or("a block device", FsType::as_str)
}

/// Whether what is published for one use serves another, too. Several PVs may name one volume,
/// each with a mode of its own, if all of them are for sharing.
pub(super) fn compatible(published: &Capability, asked: &Capability) -> bool {
    let flags = |access: &Access| match access {
        Access::Mount { flags, .. } => flags.clone(),
        Access::Block => Vec::new(),
    };
    let shared = shareable(published.mode) && shareable(asked.mode);
    same_use(&published.access, &asked.access)
        && (published.mode == asked.mode || shared)
        && flags(&published.access) == flags(&asked.access)
}

fn shareable(mode: AccessMode) -> bool {
    mode == AccessMode::SingleNodeMultiWriter || mode.is_multi_node()
}

#[cfg(test)]
mod tests;
