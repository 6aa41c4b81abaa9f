//! Encoding and decoding of JSON files with a schema version.

use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Error;
use crate::kernel::{self, file};
use crate::record::{SCHEMA, check_schema};

/// Encodes a record as JSON that people can read. A value that JSON can't hold (a path that is not
/// UTF-8) is an error.
pub(crate) fn encode<R: Serialize>(record: &R, file: &'static str) -> Result<Vec<u8>, Error> {
    let mut bytes =
        serde_json::to_vec_pretty(record).map_err(|source| Error::Unwritable { file, source })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Reads a file of versioned JSON that is not a [`Record`](super::record_io::Record). `None` if it
/// does not exist. The error of a damaged file ends with this advice.
pub(crate) fn read_versioned<T: DeserializeOwned>(
    dir: BorrowedFd<'_>,
    file: &str,
    advice: impl FnOnce() -> String,
) -> Result<Option<T>, Error> {
    let mut bytes = Vec::new();
    match read_with(dir, Path::new(file), OFlags::RDONLY, &mut bytes) {
        Ok(()) => {}
        Err(kernel::Error::NotFound { .. }) => return Ok(None),
        Err(e) => return Err(e.into()),
    }
    let decoded = decode_versioned(&bytes).map_err(|why| {
        let schema = peek(&bytes, "schema").and_then(|schema| schema.as_u64());
        let is_newer = schema > Some(SCHEMA.into());
        Error::Corrupt {
            path: file::name_of(dir).join(file),
            why: if is_newer {
                why
            } else {
                format!("{why}; {}", advice())
            },
        }
    });
    decoded.map(Some)
}

/// Checks the schema first: the fields of a newer schema mean nothing here.
pub(super) fn decode_versioned<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Version {
        schema: u64,
    }
    let version: Version = read(bytes)?;
    check_schema(version.schema)?;
    read(bytes)
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|e| format!("is not readable: {e}"))
}

/// The value of a field in a JSON object, whatever else it holds.
pub(super) fn peek(bytes: &[u8], key: &str) -> Option<serde_json::Value> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    value.get(key).cloned()
}

/// Maximum size of a file in bytes; no more is read into memory.
const LIMIT: u64 = 16 << 20;

/// Reads a file beneath a directory into the buffer, which it empties first. A FIFO at the path
/// reads as empty: it must block neither the driver nor `fsck`.
pub(super) fn read_whole(
    dir: BorrowedFd<'_>,
    path: &Path,
    buffer: &mut Vec<u8>,
) -> kernel::Result<()> {
    read_with(dir, path, OFlags::RDONLY | OFlags::NONBLOCK, buffer)
}

/// [`read_whole`] with flags for the opening of the file.
fn read_with(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    buffer: &mut Vec<u8>,
) -> kernel::Result<()> {
    buffer.clear();
    let file = file::open_beneath(dir, path, flags)?;
    // `File::read_to_end` queries size and position first: two more calls for each record.
    let mut reader = PlainReader(&file).take(LIMIT);
    reader
        .read_to_end(buffer)
        .map_err(|e| kernel::Error::io("read", path, e))?;
    Ok(())
}

/// A file that implements only [`Read`].
struct PlainReader<'a>(&'a File);

impl Read for PlainReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut file = self.0;
        file.read(buffer)
    }
}
