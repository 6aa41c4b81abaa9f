//! Reads the records of a pool.

use std::path::{Path, PathBuf};

use super::directory::Layout;
use super::encoding::{peek, read_whole};
use super::record_io::{Broken, Record, decode};
use super::{Error, PoolId, boot_state};
use crate::kernel::{self, file};

/// Entries of one kind without a usable record.
#[derive(Debug)]
pub(super) struct Unusable<R: Record> {
    /// Entries of this pool with an unusable record.
    pub(super) broken: Vec<(R::Id, Broken)>,
    /// Paths that are not entries of this pool; they stay untouched.
    pub(super) strangers: Vec<PathBuf>,
}

/// Reads all records of a kind, and hands over each usable one. Few system calls per record (open,
/// read, close) let a pool of ten thousand volumes open in a fraction of a second.
pub(super) fn load<R: Record>(
    layout: &Layout,
    pool: PoolId,
    mut put: impl FnMut(R),
) -> Result<Unusable<R>, Error> {
    let shelf = layout.shelf(R::SHELF);
    let mut unusable = Unusable { broken: Vec::new(), strangers: Vec::new() };
    let mut buffer = Vec::new();
    for entry in file::list(shelf)? {
        let id = entry.parse::<R::Id>().ok();
        let Some(id) = id.filter(|id| R::pool_of(*id) == pool) else {
            unusable.strangers.push(layout.path().join(R::SHELF.name()).join(entry));
            continue;
        };
        let why = match read_whole(shelf, &Path::new(&entry).join(R::FILE), &mut buffer) {
            Ok(()) => match decode::<R>(&buffer, id) {
                Ok(mut record) => {
                    let state = Path::new(&entry).join(boot_state::FILE);
                    record.add_state(shelf, &state, layout.boot());
                    put(record);
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
        unusable.broken.push((id, broken));
    }
    Ok(unusable)
}

/// Reads one record from disk again, without the state of the running kernel.
pub(super) fn read_one<R: Record>(layout: &Layout, id: R::Id) -> Result<R, Error> {
    let entry = id.to_string();
    let mut bytes = Vec::new();
    read_whole(layout.shelf(R::SHELF), &Path::new(&entry).join(R::FILE), &mut bytes)?;
    decode(&bytes, id)
        .map_err(|why| Error::Corrupt { path: layout.path_of(R::SHELF, &entry, R::FILE), why })
}
