//! From the IDs in requests to what they name.
//!
//! A string that is no ID of this driver names nothing: for a caller it is as good as an ID whose
//! object is gone. The ID of another node's pool and that of a pool that is missing just now are
//! told apart by [`Pools`](crate::pool::Pools).

use std::str::FromStr;
use std::sync::Arc;

use super::{Controller, Error, Result};
use crate::csi::validate;
use crate::storage::id::NotAnId;
use crate::storage::{self, GroupId, GroupRecord, SnapshotId, SnapshotRecord};
use crate::storage::{VolumeHandle, VolumeRecord};

/// The most characters of a string that is no ID that are repeated in a message.
const SHOWN: usize = 64;

/// An ID from a request; `None` for a string that is no ID of this driver.
pub(super) fn id<T: FromStr<Err = NotAnId>>(field: &str, value: &str) -> Result<Option<T>> {
    Ok(validate::required(field, value)?.parse().ok())
}

/// What names nothing.
pub(super) fn not_found(what: &str, value: &str) -> Error {
    Error::NotFound(format!("{what} {}", shown(value)))
}

/// A string of somebody else's, safe to print: quoted, escaped and not too long.
pub(super) fn shown(value: &str) -> String {
    match value.char_indices().nth(SHOWN) {
        None => format!("{value:?}"),
        Some((end, _)) => format!("{:?}…", &value[..end]),
    }
}

/// What a deletion finds: nothing is what it wants, too.
pub(super) fn unless_gone<T>(found: storage::Result<T>) -> Result<Option<T>> {
    use storage::Error::{NoGroup, NoSnapshot, NoVolume};
    match found {
        Ok(found) => Ok(Some(found)),
        Err(NoVolume(_) | NoSnapshot(_) | NoGroup(_)) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

impl Controller {
    /// The volume a request names.
    pub(super) fn volume(&self, field: &str, value: &str) -> Result<Arc<VolumeRecord>> {
        let handle: VolumeHandle = id(field, value)?.ok_or_else(|| not_found("volume", value))?;
        Ok(self.pools.volume(&handle)?)
    }

    /// The snapshot a request names.
    pub(super) fn snapshot(&self, field: &str, value: &str) -> Result<Arc<SnapshotRecord>> {
        let id: SnapshotId = id(field, value)?.ok_or_else(|| not_found("snapshot", value))?;
        Ok(self.pools.snapshot(&id)?)
    }

    /// The group a request names.
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
