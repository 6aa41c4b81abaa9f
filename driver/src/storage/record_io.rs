//! Encoding and validated decoding of records, with a schema version.
//!
//! An unreadable record is never deleted or overwritten: a newer build may have written it, or it
//! is damaged, and in both cases a volume depends on it.

use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::boot_state;
use super::directory::{EntryKind, Layout};
use super::record::SCHEMA;
use super::{Error, GroupId, GroupRecord, PoolId, SnapshotId, SnapshotRecord};
use super::{VolumeId, VolumeRecord};
use crate::kernel::{self, file};

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

/// The result of reading all entries of a kind.
#[derive(Debug)]
pub(super) struct Loaded<R: Record> {
    /// The usable records.
    pub(super) records: Vec<R>,
    /// Entries of this pool with an unusable record.
    pub(super) broken: Vec<(R::Id, Broken)>,
    /// Paths that are not entries of this pool; they stay untouched.
    pub(super) strangers: Vec<PathBuf>,
}

/// Encodes a record as JSON that people can read. A value that JSON can't hold (a path that is not
/// UTF-8) is an error.
pub(super) fn encode<R: Serialize>(record: &R, file: &'static str) -> Result<Vec<u8>, Error> {
    let mut bytes =
        serde_json::to_vec_pretty(record).map_err(|source| Error::Unwritable { file, source })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Decodes a record. The error is the reason why it is unusable.
pub(super) fn decode<R: Record>(bytes: &[u8], id: R::Id) -> Result<R, String> {
    let record: R = match serde_json::from_slice(bytes) {
        Ok(record) => record,
        Err(e) => {
            let schema = peek(bytes, "schema").and_then(|v| v.as_u64());
            return Err(match schema {
                Some(newer) if newer > u64::from(SCHEMA) => newer_schema(newer),
                _ => format!("is not a readable record: {e}"),
            });
        }
    };
    match record.schema() {
        SCHEMA => {}
        newer if newer > SCHEMA => return Err(newer_schema(newer.into())),
        other => return Err(format!("has the unknown schema {other}")),
    }
    if record.id() != id {
        return Err(format!("is the record of {}", record.id()));
    }
    Ok(record)
}

/// Reads a file of versioned JSON that is not a [`Record`]; `None` if it does not exist.
pub(super) fn read_versioned<T: DeserializeOwned>(
    dir: BorrowedFd<'_>,
    file: &str,
) -> Result<Option<T>, Error> {
    let mut bytes = Vec::new();
    match read_whole(dir, Path::new(file), &mut bytes) {
        Ok(()) => {}
        Err(kernel::Error::NotFound { .. }) => return Ok(None),
        Err(e) => return Err(e.into()),
    }
    let decoded = decode_versioned(&bytes)
        .map_err(|why| Error::Corrupt { path: file::name_of(dir).join(file), why });
    decoded.map(Some)
}

/// Checks the schema first: the fields of a newer schema mean nothing here.
pub(super) fn decode_versioned<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Version {
        schema: u64,
    }
    let unreadable = |e| format!("is not readable: {e}");
    let version: Version = serde_json::from_slice(bytes).map_err(unreadable)?;
    match version.schema {
        newer if newer > u64::from(SCHEMA) => Err(newer_schema(newer)),
        older if older < u64::from(SCHEMA) => Err(format!("has the unknown schema {older}")),
        _ => serde_json::from_slice(bytes).map_err(unreadable),
    }
}

fn newer_schema(newer: u64) -> String {
    format!(
        "has schema {newer}; this build reads up to {SCHEMA}: a newer version of hostloop wrote \
         it; install that version again"
    )
}

fn peek(bytes: &[u8], key: &str) -> Option<serde_json::Value> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    value.get(key).cloned()
}

/// Reads all records of a kind. Few system calls per record (open, read, close) let a pool of ten
/// thousand volumes open in a fraction of a second.
pub(super) fn load<R: Record>(layout: &Layout, pool: PoolId) -> Result<Loaded<R>, Error> {
    let shelf = layout.shelf(R::SHELF);
    let mut loaded = Loaded { records: Vec::new(), broken: Vec::new(), strangers: Vec::new() };
    let mut buffer = Vec::new();
    for entry in file::list(shelf)? {
        let id = entry.parse::<R::Id>().ok();
        let Some(id) = id.filter(|id| R::pool_of(*id) == pool) else {
            loaded.strangers.push(layout.path().join(R::SHELF.name()).join(entry));
            continue;
        };
        let why = match read_whole(shelf, &Path::new(&entry).join(R::FILE), &mut buffer) {
            Ok(()) => match decode::<R>(&buffer, id) {
                Ok(mut record) => {
                    let state = Path::new(&entry).join(boot_state::FILE);
                    record.add_state(shelf, &state, layout.boot());
                    loaded.records.push(record);
                    continue;
                }
                Err(why) => why,
            },
            Err(kernel::Error::NotFound { .. }) => "is missing".to_owned(),
            Err(e) => format!("can't be read: {e}"),
        };
        let broken = Broken {
            path: layout.path_of(R::SHELF, &entry, R::FILE),
            why,
            name: peek(&buffer, "name").and_then(|v| v.as_str().map(str::to_owned)),
            bytes: ["capacity_bytes", "allocated_bytes"]
                .iter()
                .find_map(|key| peek(&buffer, key)?.as_u64())
                .unwrap_or(0),
        };
        loaded.broken.push((id, broken));
    }
    Ok(loaded)
}

/// Reads one record from disk again, without the state of the running kernel.
pub(super) fn read_one<R: Record>(layout: &Layout, id: R::Id) -> Result<R, Error> {
    let entry = id.to_string();
    let mut bytes = Vec::new();
    read_whole(layout.shelf(R::SHELF), &Path::new(&entry).join(R::FILE), &mut bytes)?;
    decode(&bytes, id)
        .map_err(|why| Error::Corrupt { path: layout.path_of(R::SHELF, &entry, R::FILE), why })
}

/// Reads a file beneath a directory into the buffer, which it empties first.
pub(super) fn read_whole(
    dir: BorrowedFd<'_>,
    path: &Path,
    buffer: &mut Vec<u8>,
) -> kernel::Result<()> {
    read_with(dir, path, OFlags::RDONLY, buffer)
}

/// [`read_whole`] with flags for the opening of the file.
pub(super) fn read_with(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    buffer: &mut Vec<u8>,
) -> kernel::Result<()> {
    buffer.clear();
    let file = file::open_beneath(dir, path, flags)?;
    // `File::read_to_end` queries size and position first: two more calls for each record.
    let mut reader = Plain(&file);
    reader.read_to_end(buffer).map_err(|e| kernel::Error::io("read", path, e))?;
    Ok(())
}

/// A file that implements only [`Read`].
struct Plain<'a>(&'a File);

impl Read for Plain<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut file = self.0;
        file.read(buffer)
    }
}
