//! What fields of CSI requests mean, for both services.

pub mod capability;
pub(crate) mod capacity_range;
pub mod error;
pub(crate) mod expansion;
pub mod identity;
pub mod topology;
pub mod validate;

/// A number for a field of type int64, at most the field's maximum.
pub(crate) fn int64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
