//! The records that have a directory in a pool, and their validated decoding.
//!
//! An unreadable record is never deleted or overwritten: a newer build may have written it, or it
//! is damaged, and in both cases a volume depends on it.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::boot_state;
use super::encoding::{check_schema, peek};
use super::file_names::EntryKind;
use super::{Error, GroupId, GroupRecord, PoolId, SnapshotId, SnapshotRecord};
use super::{VolumeId, VolumeRecord};
use crate::record::SCHEMA;

#[cfg(test)]
mod tests;

/// A record that has a directory in a pool.
pub(super) trait Record: Serialize + DeserializeOwned {
    /// The ID type; the ID names the directory.
    type Id: Copy + Ord + FromStr + std::fmt::Display;
    /// The kind of the record, which selects the parent directory.
    const SHELF: EntryKind;
    /// The record's file name in its directory.
    const FILE: &'static str;

    fn id(&self) -> Self::Id;
    fn schema(&self) -> u32;
    fn pool_of(id: Self::Id) -> PoolId;

    /// Adds what the file at `state` says about the running kernel, which only volumes have.
    fn add_state(&mut self, _dir: BorrowedFd<'_>, _state: &Path, _boot: &str) {}

    /// The name of the record's directory.
    fn entry(&self) -> String {
        self.id().to_string()
    }
}

macro_rules! record {
    ($record:ident, $id:ident, $shelf:ident, $file:literal $($more:tt)*) => {
        impl Record for $record {
            type Id = $id;
            const SHELF: EntryKind = EntryKind::$shelf;
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
record!(VolumeRecord, VolumeId, Volumes, "volume.json"
    fn add_state(&mut self, dir: BorrowedFd<'_>, state: &Path, boot: &str) {
        boot_state::add(self, dir, state, boot);
    }
);
record!(SnapshotRecord, SnapshotId, Snapshots, "snapshot.json");
record!(GroupRecord, GroupId, Groups, "group.json");

/// An entry with an unusable record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// The path of the record's file.
    pub(super) path: PathBuf,
    /// The reason why the record is unusable.
    pub(super) why: String,
    /// The name in the record, if it is readable: the name stays taken.
    pub(super) name: Option<String>,
    /// The space that the record promises in bytes, if it is readable.
    pub(super) bytes: u64,
}

impl Broken {
    /// The error for calls that need this record.
    pub(super) fn error(&self) -> Error {
        Error::Corrupt { path: self.path.clone(), why: self.why.clone() }
    }
}

/// Decodes a record. The error is the reason why it is unusable.
pub(super) fn decode<R: Record>(bytes: &[u8], id: R::Id) -> Result<R, String> {
    let record: R = serde_json::from_slice(bytes).map_err(|e| {
        let schema = peek(bytes, "schema").and_then(|v| v.as_u64());
        let newer = schema.filter(|schema| *schema > u64::from(SCHEMA)).map(check_schema);
        newer.and_then(Result::err).unwrap_or_else(|| format!("is not a readable record: {e}"))
    })?;
    check_schema(record.schema().into())?;
    if record.id() != id {
        return Err(format!("is the record of {}", record.id()));
    }
    Ok(record)
}
