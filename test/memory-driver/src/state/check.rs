//! Checks of request fields.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use tonic::Status;

use super::Answer;
use crate::options::{GRANULARITY, Options};

/// The protocol's limit for strings without another limit.
const MAX_LENGTH: usize = 128;

pub(crate) fn given(field: &str, value: &str) -> Answer<()> {
    match value.len() {
        0 => Err(Status::invalid_argument(format!("{field} is required"))),
        1..=MAX_LENGTH => Ok(()),
        _ => Err(Status::invalid_argument(format!("{field} is too long"))),
    }
}

/// Like [`given`], for fields without that limit.
pub(crate) fn path(field: &str, value: &str) -> Answer<()> {
    if value.is_empty() {
        Err(Status::invalid_argument(format!("{field} is required")))
    } else {
        Ok(())
    }
}

pub(crate) fn capability(given: Option<&csi::VolumeCapability>) -> Answer<csi::VolumeCapability> {
    let missing = || Status::invalid_argument("volume_capability is required");
    let capability = given.ok_or_else(missing)?;
    mode(capability)?;
    match capability.access_type {
        Some(_) => Ok(capability.clone()),
        None => Err(Status::invalid_argument("access_type is required")),
    }
}

pub(crate) fn capabilities(given: &[csi::VolumeCapability]) -> Answer<()> {
    if given.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities is required"));
    }
    given.iter().try_for_each(|c| capability(Some(c)).map(drop))
}

pub(crate) fn mode(capability: &csi::VolumeCapability) -> Answer<Mode> {
    let number = capability.access_mode.as_ref().map_or(0, |m| m.mode);
    match Mode::try_from(number) {
        Ok(Mode::Unknown) | Err(_) => Err(Status::invalid_argument("access_mode is required")),
        Ok(mode) => Ok(mode),
    }
}

/// True if a volume can be published to one node only.
pub(crate) fn single_node(mode: Mode) -> bool {
    matches!(
        mode,
        Mode::SingleNodeWriter
            | Mode::SingleNodeReaderOnly
            | Mode::SingleNodeSingleWriter
            | Mode::SingleNodeMultiWriter
    )
}

/// The size of a volume: the required bytes, rounded up, within all limits.
pub(crate) fn size(
    options: &Options,
    range: Option<&csi::CapacityRange>,
    default: i64,
) -> Answer<i64> {
    let (required, limit) = range.map_or((0, 0), |r| (r.required_bytes, r.limit_bytes));
    if required < 0 || limit < 0 || (limit > 0 && required > limit) {
        return Err(Status::invalid_argument(
            "capacity_range contradicts itself",
        ));
    }
    let wanted = match (required, limit) {
        (0, 0) => default,
        (0, limit) => default.min(limit),
        (required, _) => required,
    };
    let size = (wanted as u64).div_ceil(GRANULARITY as u64) as i64 * GRANULARITY;
    let too_large = (limit > 0 && size > limit)
        || (options.max_volume_size > 0 && size > options.max_volume_size);
    if too_large {
        Err(Status::out_of_range(format!(
            "a volume of {required} bytes exceeds the limit"
        )))
    } else {
        Ok(size)
    }
}

/// True if a size satisfies a range.
pub(crate) fn fits(size: i64, range: Option<&csi::CapacityRange>) -> bool {
    let (required, limit) = range.map_or((0, 0), |r| (r.required_bytes, r.limit_bytes));
    size >= required && (limit == 0 || size <= limit)
}
