//! Reads the records of a pool.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use super::encoding::{peek, read_whole};
use super::layout::PoolLayout;
use super::record_io::{Record, UnusableEntry, decode};
use super::{Error, PoolId, state_until_reboot};
use crate::kernel::{self, file};
use crate::record::UnusableRecord;

/// Entries of one kind without a usable record.
#[derive(Debug)]
pub(super) struct Unloaded<R: Record> {
    /// Entries of this pool with an unusable record.
    pub(super) unusable: Vec<(R::Id, UnusableEntry)>,
    /// Paths that are not entries of this pool; they stay untouched.
    pub(super) unknown_files: Vec<PathBuf>,
}

/// Reads all records of a kind, and hands over each usable one. Few system calls per record (open,
/// read, close) let a pool of ten thousand volumes open in a fraction of a second.
pub(super) fn load<R: Record>(
    layout: &PoolLayout,
    pool: PoolId,
    mut put: impl FnMut(R),
) -> Result<Unloaded<R>, Error> {
    let entries = layout.entries(R::KIND);
    let mut unloaded = Unloaded {
        unusable: Vec::new(),
        unknown_files: Vec::new(),
    };
    let mut buffer = Vec::new();
    for entry in file::list(entries)? {
        let EntryName::Here(id) = entry_name::<R>(&entry, pool) else {
            unloaded
                .unknown_files
                .push(layout.path().join(R::KIND.name()).join(entry));
            continue;
        };
        match read::<R>(entries, layout.boot(), &entry, id, &mut buffer) {
            Ok(record) => put(record),
            Err(why) => unloaded
                .unusable
                .push((id, unusable_entry::<R>(layout, &entry, why, &buffer))),
        }
    }
    Ok(unloaded)
}

/// The name of an entry in the directory of its kind.
pub(super) enum EntryName<Id> {
    /// An ID of this pool.
    Here(Id),
    /// An ID of another pool: a person moved or copied the entry.
    OtherPool(PoolId),
    /// No ID.
    NoId,
}

/// Reads the name of an entry, as the driver and `fsck` both understand it.
pub(super) fn entry_name<R: Record>(entry: &str, pool: PoolId) -> EntryName<R::Id> {
    match entry.parse::<R::Id>() {
        Ok(id) if R::pool_of(id) == pool => EntryName::Here(id),
        Ok(id) => EntryName::OtherPool(R::pool_of(id)),
        Err(_) => EntryName::NoId,
    }
}

/// Reads the record of an entry beneath `entries`, with the state of the running kernel. The
/// driver, recovery, `fsck` and `status` read every record so, and get one answer.
pub(super) fn read<R: Record>(
    entries: BorrowedFd<'_>,
    boot: &str,
    entry: &str,
    id: R::Id,
    buffer: &mut Vec<u8>,
) -> Result<R, UnusableRecord> {
    let mut record: R = stored(entries, entry, id, buffer)?;
    record.add_state(
        entries,
        &Path::new(entry).join(state_until_reboot::FILE),
        boot,
    );
    Ok(record)
}

/// Reads the record of an entry beneath `dir`, as it is stored.
pub(super) fn stored<R: Record>(
    dir: BorrowedFd<'_>,
    entry: &str,
    id: R::Id,
    buffer: &mut Vec<u8>,
) -> Result<R, UnusableRecord> {
    read_record_bytes(dir, entry, R::FILE, buffer)?;
    decode(buffer, id)
}

/// Reads this file of an entry beneath `dir`.
pub(super) fn read_record_bytes(
    dir: BorrowedFd<'_>,
    entry: &str,
    file: &str,
    buffer: &mut Vec<u8>,
) -> Result<(), UnusableRecord> {
    match read_whole(dir, &Path::new(entry).join(file), buffer) {
        Ok(()) => Ok(()),
        Err(kernel::Error::NotFound { .. }) => Err(UnusableRecord::Missing),
        Err(e) => Err(UnusableRecord::Damaged(format!("can't be read: {e}"))),
    }
}

fn unusable_entry<R: Record>(
    layout: &PoolLayout,
    entry: &str,
    why: UnusableRecord,
    bytes: &[u8],
) -> UnusableEntry {
    // An image that can't be examined is reported, too, once the object is used.
    let image = layout.stat_image(R::KIND, entry).ok().flatten();
    UnusableEntry {
        path: layout.path_of(R::KIND, entry, R::FILE),
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
    Unusable(UnusableEntry),
    /// A person moved it out of the pool.
    Gone,
}

/// Reads an entry with an unusable record again.
pub(super) fn again<R: Record>(layout: &PoolLayout, id: R::Id) -> Result<Again<R>, Error> {
    let (entries, entry) = (layout.entries(R::KIND), id.to_string());
    let mut buffer = Vec::new();
    match read::<R>(entries, layout.boot(), &entry, id, &mut buffer) {
        Ok(record) => Ok(Again::Sound(record)),
        Err(why) => Ok(match file::inode(entries, &entry)? {
            Some(_) => Again::Unusable(unusable_entry::<R>(layout, &entry, why, &buffer)),
            None => Again::Gone,
        }),
    }
}

/// Reads one record from disk again, without the state of the running kernel.
pub(super) fn read_one<R: Record>(layout: &PoolLayout, id: R::Id) -> Result<R, Error> {
    let entry = id.to_string();
    stored(layout.entries(R::KIND), &entry, id, &mut Vec::new()).map_err(|why| Error::Corrupt {
        path: layout.path_of(R::KIND, &entry, R::FILE),
        why: why.to_string(),
    })
}
