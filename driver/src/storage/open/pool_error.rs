//! The errors for a pool that can't be opened.

use crate::storage::{Error, PoolSpec};

/// The error for a pool that can't be opened because of its configuration or its content.
pub(super) fn refused(spec: &PoolSpec, why: String) -> Error {
    Error::Refused(format!("pool {}: {why}", spec.name))
}

/// The error for a pool that is missing, but may come back.
pub(super) fn unavailable(spec: &PoolSpec, why: String) -> Error {
    Error::Unavailable {
        name: spec.name.clone(),
        why,
    }
}
