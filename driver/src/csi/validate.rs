//! Checks that requests have in common: required fields, capabilities, ranges, paths.
//!
//! Pure: the functions return the parsed value, or [`Invalid`] with the field and the reason.

use std::path::{Component, Path, PathBuf};

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::AccessType;
use hostloop_proto::csi::volume_capability::access_mode::Mode;

use crate::kernel::{BLOCK_SIZE, FsType};
use crate::storage::{Access, AccessMode, Capability};

/// A field of a request that breaks the specification: INVALID_ARGUMENT.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Invalid {
    /// The field, as the protocol names it ("volume_capability.mount.fs_type").
    pub field: String,
    /// The reason. It never contains a secret's value.
    pub why: String,
}

pub fn invalid(field: impl Into<String>, why: impl Into<String>) -> Invalid {
    Invalid {
        field: field.into(),
        why: why.into(),
    }
}

/// The maximum string length in CSI unless a field says otherwise, in bytes. It applies to names
/// and IDs, but not to paths and maps.
pub const MAX_STRING: usize = 128;

/// A required string.
pub fn required<'a>(field: &str, value: &'a str) -> Result<&'a str, Invalid> {
    if value.is_empty() {
        Err(invalid(field, "is required"))
    } else {
        Ok(value)
    }
}

/// A required name: at most 128 bytes, and no control characters but TAB, LF and CR (CSI, "Size
/// limits" and CreateVolumeRequest.name).
pub fn name<'a>(field: &str, value: &'a str) -> Result<&'a str, Invalid> {
    required(field, value)?;
    if value.len() > MAX_STRING {
        return Err(invalid(
            field,
            format!("has {} bytes, more than 128", value.len()),
        ));
    }
    let mut forbidden = value
        .chars()
        .filter(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r'));
    match forbidden.next() {
        Some(c) => Err(invalid(
            field,
            format!("contains the control character {c:?}"),
        )),
        None => Ok(value),
    }
}

/// A required absolute path, without `..` and NUL. It need not exist on disk.
pub fn path(field: &str, value: &str) -> Result<PathBuf, Invalid> {
    required(field, value)?;
    if value.contains('\0') {
        return Err(invalid(field, "contains a NUL"));
    }
    let path = Path::new(value);
    if !path.is_absolute() {
        return Err(invalid(field, "is not an absolute path"));
    }
    if path.components().any(|c| c == Component::ParentDir) {
        return Err(invalid(field, "contains \"..\""));
    }
    if path.file_name().is_none() {
        return Err(invalid(field, "is the root directory"));
    }
    // Removes trailing and doubled slashes and ".", so the path matches mountinfo.
    Ok(path.components().collect())
}

/// How capabilities are read.
#[derive(Clone, Debug)]
pub struct CapabilityRules {
    /// The filesystem of a mount capability that names none (`--default-fstype`).
    pub default_fs: FsType,
    /// Refuse multi-node access modes (`--reject-multi-node`).
    pub reject_multi_node: bool,
    /// Accept `volume_mount_group` (`--volume-mount-group`).
    pub mount_group: bool,
}

impl Default for CapabilityRules {
    /// The rules without any flags.
    fn default() -> CapabilityRules {
        CapabilityRules {
            default_fs: FsType::Ext4,
            reject_multi_node: false,
            mount_group: false,
        }
    }
}

/// A required capability.
pub fn capability(
    field: &str,
    value: Option<&csi::VolumeCapability>,
    rules: &CapabilityRules,
) -> Result<Capability, Invalid> {
    let value = value.ok_or_else(|| invalid(field, "is required"))?;
    let access = match &value.access_type {
        None => return Err(invalid(format!("{field}.access_type"), "is required")),
        Some(AccessType::Block(_)) => Access::Block,
        Some(AccessType::Mount(mount)) => mount_access(&format!("{field}.mount"), mount, rules)?,
    };
    let mode = value.access_mode.as_ref().map_or(0, |m| m.mode);
    let mode = access_mode(&format!("{field}.access_mode.mode"), mode, rules)?;
    Ok(Capability { access, mode })
}

/// The filesystem of this name, or what is wrong with the name.
pub(crate) fn filesystem(name: &str) -> Result<FsType, String> {
    FsType::parse(name).ok_or_else(|| {
        let known = FsType::ALL.map(FsType::as_str).join(", ");
        format!("is none of {known}")
    })
}

/// Mount options that panic the kernel on a filesystem error.
const PANICS: [&str; 2] = ["errors=panic", "fatal_errors=panic"];

fn mount_access(
    field: &str,
    mount: &csi::volume_capability::MountVolume,
    rules: &CapabilityRules,
) -> Result<Access, Invalid> {
    let fs = match mount.fs_type.as_str() {
        "" => rules.default_fs,
        name => filesystem(name).map_err(|why| invalid(format!("{field}.fs_type"), why))?,
    };
    // CSI says that mount flags may be sensitive, so the message does not contain them.
    if mount
        .mount_flags
        .iter()
        .any(|f| f.is_empty() || f.contains(['\0', '\n']))
    {
        return Err(invalid(
            format!("{field}.mount_flags"),
            "has an empty or broken flag",
        ));
    }
    let words: Vec<&str> = mount
        .mount_flags
        .iter()
        .flat_map(|flags| flags.split(','))
        .collect();
    if let Some(flag) = PANICS.iter().find(|flag| words.contains(flag)) {
        let why = format!("has {flag}: a damaged volume must not stop the node");
        return Err(invalid(format!("{field}.mount_flags"), why));
    }
    let group = match mount.volume_mount_group.as_str() {
        "" => None,
        _ if !rules.mount_group => {
            return Err(invalid(
                format!("{field}.volume_mount_group"),
                "is not supported",
            ));
        }
        gid => Some(gid.parse().map_err(|_| {
            invalid(
                format!("{field}.volume_mount_group"),
                "is not a decimal group ID",
            )
        })?),
    };
    Ok(Access::Mount {
        fs,
        flags: mount.mount_flags.clone(),
        group,
    })
}

fn access_mode(field: &str, mode: i32, rules: &CapabilityRules) -> Result<AccessMode, Invalid> {
    let mode = match Mode::try_from(mode) {
        Err(_) => return Err(invalid(field, format!("{mode} is not a known mode"))),
        Ok(Mode::Unknown) => return Err(invalid(field, "is required")),
        Ok(Mode::SingleNodeWriter) => AccessMode::SingleNodeWriter,
        Ok(Mode::SingleNodeReaderOnly) => AccessMode::SingleNodeReaderOnly,
        Ok(Mode::MultiNodeReaderOnly) => AccessMode::MultiNodeReaderOnly,
        Ok(Mode::MultiNodeSingleWriter) => AccessMode::MultiNodeSingleWriter,
        Ok(Mode::MultiNodeMultiWriter) => AccessMode::MultiNodeMultiWriter,
        Ok(Mode::SingleNodeSingleWriter) => AccessMode::SingleNodeSingleWriter,
        Ok(Mode::SingleNodeMultiWriter) => AccessMode::SingleNodeMultiWriter,
    };
    if rules.reject_multi_node && mode.is_multi_node() {
        return Err(invalid(
            field,
            "speaks of several nodes, and a volume is on one",
        ));
    }
    Ok(mode)
}

/// A capacity range, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The minimum.
    pub required: u64,
    /// The maximum; `None` means no limit.
    pub limit: Option<u64>,
}

impl Range {
    /// The smallest size of at least `floor` bytes within the range, rounded up to 4096. `None` if
    /// that exceeds the limit.
    pub fn size(&self, floor: u64) -> Option<u64> {
        let unit = u64::from(BLOCK_SIZE);
        let size = self
            .required
            .max(floor)
            .max(unit)
            .checked_next_multiple_of(unit)?;
        // Sizes must fit into the protocol's int64 and the kernel's off_t.
        (size <= i64::MAX as u64 && self.limit.is_none_or(|limit| size <= limit)).then_some(size)
    }

    /// True if an existing size is within the range.
    pub fn allows(&self, size: u64) -> bool {
        size >= self.required && self.limit.is_none_or(|limit| size <= limit)
    }
}

/// Reads a capacity range; an absent one allows any size.
pub fn range(field: &str, value: Option<&csi::CapacityRange>) -> Result<Range, Invalid> {
    let Some(value) = value else {
        return Ok(Range::default());
    };
    let required = u64::try_from(value.required_bytes)
        .map_err(|_| invalid(format!("{field}.required_bytes"), "is negative"))?;
    let limit = u64::try_from(value.limit_bytes)
        .map_err(|_| invalid(format!("{field}.limit_bytes"), "is negative"))?;
    let limit = (limit > 0).then_some(limit);
    if limit.is_some_and(|limit| limit < required) {
        return Err(invalid(
            format!("{field}.limit_bytes"),
            "is less than required_bytes",
        ));
    }
    Ok(Range { required, limit })
}
