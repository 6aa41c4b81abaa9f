//! What the last process left under `incoming/` and `trash/`.
//!
//! Most filesystems apply a rename as a whole. On an ext4 without a journal, a power cut can leave
//! both names of an entry that was moved, and they lead to one directory. Removing it by one name
//! would empty the other, so nothing is removed that is also in place. The kernel can't rename such
//! a directory, and e2fsck keeps the name that it reads first, which may be the one under
//! `incoming/`. So a mark in the directory says that the entry is in place, and an entry with the
//! mark is put back.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;

use super::{Unfinished, note_left, remove};
use crate::kernel::file;
use crate::record::UnusableRecord;
use crate::storage::file_names::{EntryKind, IMAGE, kept_id};
use crate::storage::layout::{Left, PoolLayout};
use crate::storage::load::read_record_bytes;
use crate::storage::noted_problem::Until;
use crate::storage::record_io::{Record, decode};
use crate::storage::{About, GroupId, GroupRecord, Pool, Result, SnapshotId, VolumeId};

#[cfg(test)]
mod tests;

/// Removes unfinished entries and frees deleted entries. The records of groups stay until
/// [`finish_groups`](super::finish_groups) has freed the members. Sweeping runs before the pool
/// serves calls, so it never collects the group of a running CreateVolumeGroupSnapshot.
pub(super) fn sweep(pool: &Pool) -> Result<()> {
    let mut left = Vec::new();
    for from in [Left::Incoming, Left::Trash] {
        let entries = file::list_inodes(pool.layout.dir(from))?.into_iter();
        left.extend(entries.map(|(name, inode)| SweptEntry { from, name, inode }));
    }
    if left.is_empty() {
        return Ok(());
    }
    let in_place = in_place(&pool.layout)?;
    for left in left {
        let holds = Holding {
            mark: pool.layout.is_marked(left.from, &left.name)?,
            image: pool.layout.has_file(left.from, &left.name, IMAGE)?,
            base: left.from == Left::Trash
                && kept_id(&left.name).is_some_and(|id| id.pool() == pool.id),
        };
        match decide(&left, holds, &in_place) {
            Step::Remove => sweep_one(pool, left),
            Step::PutBack(kind) => put_back(pool, &left, kind),
            Step::Keep(entry) => keep(pool, &left, entry),
            // `kept_bases` reads it once the volumes are known.
            Step::Leave => {}
        }
    }
    Ok(())
}

/// An entry under `incoming/` or `trash/`.
struct SweptEntry {
    from: Left,
    name: String,
    inode: u64,
}

/// What a leftover is.
#[derive(Clone, Copy)]
struct Holding {
    /// The mark of an entry in place.
    mark: bool,
    image: bool,
    /// The name of a deleted snapshot that keeps its image.
    base: bool,
}

/// An entry in its place.
struct InPlace {
    kind: EntryKind,
    name: String,
    inode: u64,
}

fn in_place(layout: &PoolLayout) -> Result<Vec<InPlace>> {
    let mut all = Vec::new();
    for kind in EntryKind::ALL {
        let entries = file::list_inodes(layout.entries(kind))?.into_iter();
        all.extend(entries.map(|(name, inode)| InPlace { kind, name, inode }));
    }
    Ok(all)
}

/// What to do with an entry under `incoming/` or `trash/`.
enum Step<'a> {
    Remove,
    /// Move it to the entries of this kind.
    PutBack(EntryKind),
    /// Leave it, because of this entry in place.
    Keep(&'a InPlace),
    /// Leave it, because it is a deleted snapshot that keeps its image.
    Leave,
}

fn decide<'a>(left: &SweptEntry, holds: Holding, in_place: &'a [InPlace]) -> Step<'a> {
    let kind = kind_of(&left.name);
    let same = in_place.iter().find(|entry| entry.inode == left.inode);
    // Two images have one ID, and only a person knows which one is needed.
    let named = in_place
        .iter()
        .find(|entry| holds.image && entry.name == left.name);
    match (same.or(named), kind) {
        (Some(entry), _) => Step::Keep(entry),
        (None, Some(kind)) if holds.mark => Step::PutBack(kind),
        (None, None) if holds.base => Step::Leave,
        (None, _) => Step::Remove,
    }
}

fn kind_of(name: &str) -> Option<EntryKind> {
    if name.parse::<VolumeId>().is_ok() {
        Some(EntryKind::Volumes)
    } else if name.parse::<SnapshotId>().is_ok() {
        Some(EntryKind::Snapshots)
    } else {
        name.parse::<GroupId>().is_ok().then_some(EntryKind::Groups)
    }
}

fn sweep_one(pool: &Pool, left: SweptEntry) {
    let id = left.name.parse::<GroupId>().ok();
    let Some(id) = id.filter(|id| id.pool() == pool.id) else {
        return remove(pool, left.from, left.name);
    };
    match members_of(pool.layout.dir(left.from), left.from, id) {
        Ok(None) => remove(pool, left.from, left.name),
        Ok(Some(waiting)) => pool.unfinished.lock().push(Unfinished {
            group: id,
            left: left.from,
            waiting,
        }),
        Err(why) => {
            let what = format!(
                "is kept: its record {why}. Restore the record and restart the driver, which then \
                 frees the group's snapshots. Or move this directory out of the pool, and delete the \
                 snapshots by hand"
            );
            note_left(pool, left.from, &left.name, what);
        }
    }
}

/// The members in the record of a group under `incoming/` or `trash/`; `None` if no member can be
/// in place. A record that can't be read may list some.
fn members_of(
    dir: BorrowedFd<'_>,
    from: Left,
    id: GroupId,
) -> std::result::Result<Option<Vec<SnapshotId>>, UnusableRecord> {
    let mut bytes = Vec::new();
    match read_record_bytes(dir, &id.to_string(), GroupRecord::FILE, &mut bytes) {
        Err(UnusableRecord::Missing) => return Ok(None),
        read => read?,
    }
    // The members are moved into place once the record is written and synced.
    let is_whole = serde_json::from_slice::<IgnoredAny>(&bytes).is_ok();
    if from == Left::Incoming && !is_whole {
        return Ok(None);
    }
    let group: GroupRecord = decode(&bytes, id)?;
    Ok(Some(group.snapshots))
}

fn put_back(pool: &Pool, left: &SweptEntry, kind: EntryKind) {
    match pool.layout.put_back(left.from, &left.name, kind) {
        Ok(()) => tracing::info!(
            pool = %pool.name(), entry = %left.name, from = left.from.name(),
            "put an entry back into its place, where it was before the filesystem was repaired"
        ),
        Err(e) => note_left(
            pool,
            left.from,
            &left.name,
            format!("can't be put back: {e}"),
        ),
    }
}

/// Keeps an entry that is also in place, and the entry in place, until a person has decided.
fn keep(pool: &Pool, left: &SweptEntry, entry: &InPlace) {
    let here = Path::new(left.from.name()).join(&left.name);
    let there = Path::new(entry.kind.name()).join(&entry.name);
    let is_same = entry.inode == left.inode;
    let advice = if is_same {
        "a power cut left both names of one directory, on a filesystem without a journal. Both stay, \
         and it can't be deleted: stop the driver, unmount the pool's filesystem, and run e2fsck -f \
         on its device"
    } else {
        "another directory has its ID. Both stay, and it can't be deleted: move the one that is not \
         needed out of the pool"
    };
    if is_same && let Err(error) = pool.layout.mark(entry.kind, &entry.name) {
        tracing::warn!(pool = %pool.name(), entry = %entry.name, %error, "can't mark an entry");
    }
    let what = format!(
        "{} is {} as well: {advice}",
        there.display(),
        here.display()
    );
    pool.layout
        .hold(&entry.name, left.from, &left.name, what.clone());
    pool.note_unrepaired(About::Pool, Until::FileGone(path_of(pool, left)), what);
}

fn path_of(pool: &Pool, left: &SweptEntry) -> PathBuf {
    pool.root().join(left.from.name()).join(&left.name)
}
