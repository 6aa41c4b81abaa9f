//! Finds the objects that the IDs in requests name.
//!
//! A string that is not an ID of this driver names no object: callers treat it like the ID of a
//! deleted object. [`Pools`](crate::storage::Pools) distinguishes the ID of another node's pool
//! from that of a missing pool.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use super::{Controller, Error, Result};
use crate::csi::validate;
use crate::record::id::NotAnId;
use crate::storage::{
    self, GroupId, GroupRecord, SnapshotId, SnapshotRecord, VolumeHandle, VolumeRecord,
};

/// The maximum number of characters of an invalid ID in a message.
const SHOWN: usize = 64;

/// An ID from a request; `None` for a string that is not an ID of this driver.
pub(super) fn id<T: FromStr<Err = NotAnId>>(field: &str, value: &str) -> Result<Option<T>> {
    Ok(validate::required(field, value)?.parse().ok())
}

/// The error for an ID that names no object.
pub(super) fn not_found(what: &str, value: &str) -> Error {
    Error::NotFound(format!("{what} {}", shown(value)))
}

/// The error for a name that belongs to an object of another request; `why` says what differs.
pub(super) fn name_taken(what: &str, id: impl Display, name: &str, why: impl Display) -> Error {
    let name = shown(name);
    Error::AlreadyExists(format!(
        "{what} {id} has the name {name} already, and {why}"
    ))
}

/// Quotes, escapes and shortens a string from a request for a message.
pub(super) fn shown(value: &str) -> String {
    match value.char_indices().nth(SHOWN) {
        None => format!("{value:?}"),
        Some((end, _)) => format!("{:?}…", &value[..end]),
    }
}

/// Maps a missing object to `None`, so that its deletion succeeds.
pub(super) fn unless_gone<T>(found: storage::Result<T>) -> Result<Option<T>> {
    use storage::Error::{NoGroup, NoSnapshot, NoVolume};
    match found {
        Ok(found) => Ok(Some(found)),
        Err(NoVolume(_) | NoSnapshot(_) | NoGroup(_)) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

impl Controller {
    /// Finds the volume that a request names.
    pub(super) fn volume(&self, field: &str, value: &str) -> Result<Arc<VolumeRecord>> {
        let handle: VolumeHandle = id(field, value)?.ok_or_else(|| not_found("volume", value))?;
        Ok(self.pools.volume(&handle)?)
    }

    /// Finds the snapshot that a request names.
    pub(super) fn snapshot(&self, field: &str, value: &str) -> Result<Arc<SnapshotRecord>> {
        let id: SnapshotId = id(field, value)?.ok_or_else(|| not_found("snapshot", value))?;
        Ok(self.pools.snapshot(&id)?)
    }

    /// Finds the group that a request names.
    pub(super) fn group(&self, field: &str, value: &str) -> Result<Arc<GroupRecord>> {
        let id: GroupId = id(field, value)?.ok_or_else(|| not_found("group snapshot", value))?;
        Ok(self.pools.group(&id)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_shown_safely() {
        assert_eq!(shown("vol-1"), "\"vol-1\"");
        assert_eq!(shown("a\n\u{1b}[2J"), "\"a\\n\\u{1b}[2J\"");
        let long = shown(&"é".repeat(100_000));
        assert!(long.len() < 200, "{long}");
    }

    #[test]
    fn an_id_is_required_and_may_be_none() {
        assert!(matches!(id::<SnapshotId>("f", ""), Err(Error::Invalid(_))));
        assert!(matches!(id::<SnapshotId>("f", "../x"), Ok(None)));
    }
}
