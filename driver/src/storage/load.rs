//! Reads the records of a pool.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use super::directory::Layout;
use super::encoding::{peek, read_whole};
use super::record_io::{Broken, Record, Unreadable, decode};
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
    let mut unusable = Unusable {
        broken: Vec::new(),
        strangers: Vec::new(),
    };
    let mut buffer = Vec::new();
    for entry in file::list(shelf)? {
        let id = entry.parse::<R::Id>().ok();
        let Some(id) = id.filter(|id| R::pool_of(*id) == pool) else {
            unusable
                .strangers
                .push(layout.path().join(R::SHELF.name()).join(entry));
            continue;
        };
        match read(layout, id, &entry, &mut buffer) {
            Ok(record) => put(record),
            Err(broken) => unusable.broken.push((id, broken)),
        }
    }
    Ok(unusable)
}

/// Reads the record of an entry, with the state of the running kernel.
fn read<R: Record>(
    layout: &Layout,
    id: R::Id,
    entry: &str,
    buffer: &mut Vec<u8>,
) -> Result<R, Broken> {
    let shelf = layout.shelf(R::SHELF);
    let mut record = in_entry::<R>(shelf, Path::new(entry), id, buffer)
        .map_err(|why| broken::<R>(layout, entry, why, buffer))?;
    record.add_state(
        shelf,
        &Path::new(entry).join(boot_state::FILE),
        layout.boot(),
    );
    Ok(record)
}

/// Reads the record in the entry at this path beneath `dir`.
pub(super) fn in_entry<R: Record>(
    dir: BorrowedFd<'_>,
    entry: &Path,
    id: R::Id,
    buffer: &mut Vec<u8>,
) -> Result<R, Unreadable> {
    match read_whole(dir, &entry.join(R::FILE), buffer) {
        Ok(()) => decode(buffer, id),
        Err(kernel::Error::NotFound { .. }) => Err(Unreadable::Missing),
        Err(e) => Err(Unreadable::Damaged(format!("can't be read: {e}"))),
    }
}

fn broken<R: Record>(layout: &Layout, entry: &str, why: Unreadable, bytes: &[u8]) -> Broken {
    // An image that can't be examined is reported, too, once the object is used.
    let image = layout.stat_image(R::SHELF, entry).ok().flatten();
    Broken {
        path: layout.path_of(R::SHELF, entry, R::FILE),
        why,
        name: peek(bytes, "name").and_then(|v| v.as_str().map(str::to_owned)),
        bytes: image.as_ref().map_or(0, R::promised_to),
    }
}

/// An entry that is read again.
pub(super) enum Again<R> {
    /// Its record can be used.
    Sound(R),
    /// Its record can't be used.
    Broken(Broken),
    /// A person moved it out of the pool.
    Gone,
}

/// Reads an entry with an unusable record again.
pub(super) fn again<R: Record>(layout: &Layout, id: R::Id) -> Result<Again<R>, Error> {
    let entry = id.to_string();
    match read(layout, id, &entry, &mut Vec::new()) {
        Ok(record) => Ok(Again::Sound(record)),
        Err(broken) => Ok(match file::inode(layout.shelf(R::SHELF), &entry)? {
            Some(_) => Again::Broken(broken),
            None => Again::Gone,
        }),
    }
}

/// Reads one record from disk again, without the state of the running kernel.
pub(super) fn read_one<R: Record>(layout: &Layout, id: R::Id) -> Result<R, Error> {
    let entry = id.to_string();
    let path = layout.path_of(R::SHELF, &entry, R::FILE);
    in_entry(
        layout.shelf(R::SHELF),
        Path::new(&entry),
        id,
        &mut Vec::new(),
    )
    .map_err(|why| Error::Corrupt {
        path,
        why: why.to_string(),
    })
}
