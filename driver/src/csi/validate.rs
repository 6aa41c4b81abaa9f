//! Checks that requests have in common: required fields, names, filesystems, ranges, paths.
//!
//! Pure: the functions return the parsed value, or [`Invalid`] with the field and the reason.

use std::path::{Component, Path, PathBuf};

use hostloop_proto::csi;

use crate::kernel::{BLOCK_SIZE, FsType};

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

/// The filesystem of this name, or what is wrong with the name.
pub(crate) fn filesystem(name: &str) -> Result<FsType, String> {
    FsType::parse(name).ok_or_else(|| {
        let known = FsType::ALL.map(FsType::as_str).join(", ");
        format!("is none of {known}")
    })
}

/// A capacity range, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeRange {
    /// The minimum.
    pub required: u64,
    /// The maximum; `None` means no limit.
    pub limit: Option<u64>,
}

impl SizeRange {
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
pub fn range(field: &str, value: Option<&csi::CapacityRange>) -> Result<SizeRange, Invalid> {
    let Some(value) = value else {
        return Ok(SizeRange::default());
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
    Ok(SizeRange { required, limit })
}
