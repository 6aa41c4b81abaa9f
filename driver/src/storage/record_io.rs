//! The records that have a directory in a pool, and their validated decoding.
//!
//! An unreadable record is never deleted or overwritten: a newer build may have written it, or it
//! is damaged, and in both cases a volume depends on it.

use std::fmt::Display;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hostloop_report::pool_files::{SNAPSHOT_RECORD, VOLUME_RECORD};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::encoding::peek;
use super::file_names::EntryKind;
use super::image_stat::ImageStat;
use super::state_until_reboot;
use super::{Error, GroupId, GroupRecord, PoolId, SnapshotId, SnapshotRecord};
use super::{VolumeId, VolumeRecord};
use crate::kernel::BLOCK_SIZE;
use crate::record::{SCHEMA, UnusableRecord, check_schema};

#[cfg(test)]
mod tests;

/// The name of the record in the directory of a group.
const GROUP_RECORD: &str = "group.json";

/// A record that has a directory in a pool.
pub(super) trait Record: Serialize + DeserializeOwned {
    /// The ID type; the ID names the directory.
    type Id: Copy + Ord + FromStr + Display;
    /// The kind of the record, which selects the parent directory.
    const KIND: EntryKind;
    /// The record's file name in its directory.
    const FILE: &'static str;

    fn id(&self) -> Self::Id;
    fn schema(&self) -> u32;
    fn pool_of(id: Self::Id) -> PoolId;

    /// What the pool promises to an object with this image, if its record can't be used.
    fn promised_to(image: &ImageStat) -> u64;

    /// Why the numbers in the record can't be true; `None` if they can.
    fn absurdity(&self) -> Option<String> {
        None
    }

    /// Adds what the file at `state` says about the running kernel, which only volumes have.
    fn add_state(&mut self, _dir: BorrowedFd<'_>, _state: &Path, _boot: &str) {}
}

macro_rules! record {
    ($record:ident, $id:ident, $kind:ident, $file:ident $($more:tt)*) => {
        impl Record for $record {
            type Id = $id;
            const KIND: EntryKind = EntryKind::$kind;
            const FILE: &'static str = $file;

            fn id(&self) -> $id {
                self.id
            }

            fn schema(&self) -> u32 {
                self.schema
            }

            fn pool_of(id: $id) -> PoolId {
                id.pool()
            }

            $($more)*
        }
    };
}
record!(VolumeRecord, VolumeId, Volumes, VOLUME_RECORD
    /// Its users may still write all of it.
    fn promised_to(image: &ImageStat) -> u64 {
        image.bytes
    }

    fn absurdity(&self) -> Option<String> {
        absurd_size("capacity_bytes", self.capacity_bytes)
    }

    fn add_state(&mut self, dir: BorrowedFd<'_>, state: &Path, boot: &str) {
        state_until_reboot::add(self, dir, state, boot);
    }
);
record!(SnapshotRecord, SnapshotId, Snapshots, SNAPSHOT_RECORD
    fn promised_to(image: &ImageStat) -> u64 {
        image.allocated.min(image.bytes)
    }

    fn absurdity(&self) -> Option<String> {
        absurd_size("size_bytes", self.size_bytes)
    }
);
record!(GroupRecord, GroupId, Groups, GROUP_RECORD
    fn promised_to(_image: &ImageStat) -> u64 {
        0
    }
);

/// Why a volume or snapshot can't have this size; `None` if it can. No file is longer than an
/// `off_t` can say.
fn absurd_size(field: &str, bytes: u64) -> Option<String> {
    let is_whole = bytes > 0 && bytes.is_multiple_of(BLOCK_SIZE.into());
    let is_possible = is_whole && i64::try_from(bytes).is_ok();
    (!is_possible).then(|| format!("can't be true: {field} is {bytes}"))
}

/// An entry with an unusable record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnusableEntry {
    /// The path of the record's file.
    pub(super) path: PathBuf,
    /// The reason why the record is unusable.
    pub(super) why: UnusableRecord,
    /// The name in the record, if it is readable: the name stays taken.
    pub(super) name: Option<String>,
    /// The space that the pool promises to the entry, in bytes.
    pub(super) bytes: u64,
}

impl UnusableEntry {
    /// The error for calls that need this record.
    pub(super) fn error(&self) -> Error {
        let why = format!("{}; {}", self.why, self.why.advice());
        Error::Corrupt {
            path: self.path.clone(),
            why,
        }
    }

    /// Fails if the entry must not be deleted.
    pub(super) fn check_deletable(&self) -> Result<(), Error> {
        let checked = self.why.check_deletable();
        checked.map_err(|why| Error::Refused(format!("{}: {why}", self.path.display())))
    }
}

/// Decodes a record.
pub(super) fn decode<R: Record>(bytes: &[u8], id: R::Id) -> Result<R, UnusableRecord> {
    let record: R = serde_json::from_slice(bytes).map_err(|e| {
        let schema = peek(bytes, "schema").and_then(|v| v.as_u64());
        let named = peek(bytes, "id").and_then(|v| v.as_str()?.parse::<R::Id>().ok());
        unusable(schema.unwrap_or(SCHEMA.into()), named.unwrap_or(id), id)
            .unwrap_or_else(|| UnusableRecord::Damaged(format!("is not a readable record: {e}")))
    })?;
    let why = unusable(record.schema().into(), record.id(), id);
    match why.or_else(|| record.absurdity().map(UnusableRecord::Damaged)) {
        Some(why) => Err(why),
        None => Ok(record),
    }
}

/// Why a record with this schema and ID can't be used in the entry `id`; `None` if it can.
fn unusable<Id: Eq + Display>(schema: u64, named: Id, id: Id) -> Option<UnusableRecord> {
    if schema > u64::from(SCHEMA) {
        return Some(UnusableRecord::Newer(schema));
    }
    if named != id {
        return Some(UnusableRecord::Misplaced(named.to_string()));
    }
    check_schema(schema).err().map(UnusableRecord::Damaged)
}
