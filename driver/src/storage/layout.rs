//! A pool's directories, and the creation and deletion of entries in them.
//!
//! All calls work beneath open directory handles, so a path cannot change its target between two
//! calls. A new entry is built under `incoming/` and appears complete, by a rename. A deleted entry
//! moves to `trash/` by a rename and is freed there. A crash therefore leaves incomplete entries
//! only in these two directories, which hold nothing else.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use hostloop_events::phase;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, OFlags};

use super::encoding;
use super::file_names::{EntryKind, IMAGE, INCOMING, MARK, TRASH};
use super::image_stat::{ImageStat, nanoseconds};
use super::pool_gate::PoolGate;
use super::record_io::Record;
use super::state_until_reboot;
use super::{Error, Result, VolumeId, VolumeRecord};
use crate::kernel::file::PutError;
use crate::kernel::linux::start_sync;
use crate::kernel::shared_dir::SharedDir;
use crate::kernel::{self, FileId, Kernel, file};

mod kept;

/// The open directories of a pool.
#[derive(Debug)]
pub(super) struct PoolLayout {
    path: PathBuf,
    /// The ID of the running boot.
    boot: String,
    root: File,
    entries: [SharedDir; 3],
    incoming: File,
    trash: SharedDir,
    /// Entries that could not be removed from these directories, for a later try.
    left: Mutex<Vec<(Left, String)>>,
    /// A power cut leaves a rename done or not done, never half done.
    renames_whole: bool,
    /// Entries in place that must not be deleted, by name.
    held: Mutex<BTreeMap<String, HeldEntry>>,
    /// Each use of the directories passes it. It is closed while a fault lets them wait.
    pub(super) gate: PoolGate,
}

/// Why an entry in place must not be deleted: another entry is, or could be, the same.
#[derive(Debug)]
struct HeldEntry {
    from: Left,
    name: String,
    /// The reason, for people.
    why: String,
}

/// The location of an entry that must be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// An unfinished entry under `incoming/`.
    Incoming,
    /// A deleted entry under `trash/`.
    Trash,
    /// An entry that is not under `trash/` yet, though no record refers to it any more.
    On(EntryKind),
}

impl Left {
    /// The name of this location's directory.
    pub(super) fn name(self) -> &'static str {
        match self {
            Left::Incoming => INCOMING,
            Left::Trash => TRASH,
            Left::On(kind) => kind.name(),
        }
    }
}

/// Why a volume's record on disk is not replaced for good.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplaceError {
    /// A step before the rename failed: the disk has the earlier record.
    #[error(transparent)]
    Before(Error),
    /// The rename failed. Over a network, it may have happened all the same.
    #[error(transparent)]
    Rename(Error),
    /// The disk has the new record, which may not survive a power cut.
    #[error(transparent)]
    Sync(Error),
}

impl From<ReplaceError> for Error {
    fn from(error: ReplaceError) -> Error {
        match error {
            ReplaceError::Before(error)
            | ReplaceError::Rename(error)
            | ReplaceError::Sync(error) => error,
        }
    }
}

impl From<PutError> for ReplaceError {
    fn from(error: PutError) -> ReplaceError {
        match error {
            PutError::Before(error) => ReplaceError::Before(error.into()),
            PutError::Rename(error) => ReplaceError::Rename(error.into()),
        }
    }
}

impl PoolLayout {
    /// Opens the pool's directories. With `make`, it creates missing ones. Without, a missing
    /// directory is an error, because a pool known to this node had all of them. The caller calls
    /// [`PoolLayout::sync`].
    pub(super) fn open(
        root: File,
        path: &Path,
        make: bool,
        kernel: &dyn Kernel,
    ) -> Result<PoolLayout> {
        // Both directories hold only temporary entries, so their absence does not mean data loss.
        for passing in [INCOMING, TRASH] {
            file::make_dir(root.as_fd(), passing)?;
        }
        let renames_whole = kernel.renames_whole(root.as_fd());
        Ok(PoolLayout {
            path: path.to_path_buf(),
            boot: kernel.boot_id()?,
            entries: [
                SharedDir::new(open_in(&root, EntryKind::Volumes.name(), make)?),
                SharedDir::new(open_in(&root, EntryKind::Snapshots.name(), make)?),
                SharedDir::new(open_in(&root, EntryKind::Groups.name(), make)?),
            ],
            incoming: open_in(&root, INCOMING, make)?,
            trash: SharedDir::new(open_in(&root, TRASH, make)?),
            left: Mutex::default(),
            renames_whole,
            held: Mutex::default(),
            gate: PoolGate::default(),
            root,
        })
    }

    /// Syncs the pool's directories: the pool serves what it finds in them, and an earlier process
    /// may have died between a rename and its fsync. Those of the entries in place go first: where
    /// a rename is not one change of the filesystem, an entry would otherwise be in none for a
    /// moment. After an error, which is the first one, as many as possible are synced.
    pub(super) fn sync(&self) -> kernel::Result<()> {
        let mut synced = Ok(());
        for entries in &self.entries {
            synced = synced.and(entries.sync());
        }
        if self.renames_whole || synced.is_ok() {
            synced = synced.and(self.trash.sync());
        }
        if !self.renames_whole && synced.is_ok() {
            synced = self.sync_incoming();
        }
        synced.and(file::sync(&self.root, &self.path))
    }

    fn sync_incoming(&self) -> kernel::Result<()> {
        file::sync(&self.incoming, &self.path.join(INCOMING))
    }

    /// The pool's root directory.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.gate.pass(&self.root)
    }

    /// The path of the pool, for messages only.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The ID of the running boot.
    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    pub(super) fn incoming(&self) -> BorrowedFd<'_> {
        self.gate.pass(&self.incoming)
    }

    pub(super) fn trash(&self) -> BorrowedFd<'_> {
        self.gate.pass(&self.trash)
    }

    pub(super) fn entries(&self, kind: EntryKind) -> BorrowedFd<'_> {
        self.gate.pass(&self.entries[kind as usize])
    }

    /// The path of an entry's file, for messages only.
    pub(super) fn path_of(&self, kind: EntryKind, entry: &str, file: &str) -> PathBuf {
        self.path.join(kind.name()).join(entry).join(file)
    }

    /// Opens an entry's image; [`Error::ImageMissing`] if it does not exist.
    pub(super) fn open_image(&self, kind: EntryKind, entry: &str, write: bool) -> Result<File> {
        let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
        let path = Path::new(entry).join(IMAGE);
        match file::open_beneath(self.entries(kind), &path, flags) {
            Err(kernel::Error::NotFound { .. }) => Err(Error::ImageMissing {
                path: self.path_of(kind, entry, IMAGE),
            }),
            opened => Ok(opened?),
        }
    }

    /// Reads the status of an entry's image without opening it; `None` if it does not exist.
    pub(super) fn stat_image(
        &self,
        kind: EntryKind,
        entry: &str,
    ) -> kernel::Result<Option<ImageStat>> {
        let path = Path::new(entry).join(IMAGE);
        match rustix::fs::statat(self.entries(kind), &path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(ImageStat {
                file: FileId {
                    dev: stat.st_dev,
                    ino: stat.st_ino,
                },
                bytes: u64::try_from(stat.st_size).unwrap_or_default(),
                allocated: u64::try_from(stat.st_blocks).unwrap_or_default() * 512,
                written_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec.cast_signed()),
            })),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => {
                let path = self.path_of(kind, entry, IMAGE);
                Err(kernel::Error::io("stat", path, e.into()))
            }
        }
    }

    /// Replaces a volume's record on disk, without its state in the running kernel.
    pub(super) fn replace(&self, record: &VolumeRecord) -> std::result::Result<(), ReplaceError> {
        let content = encoding::encode(&record.durable(), VolumeRecord::FILE)
            .map_err(ReplaceError::Before)?;
        phase("record", || {
            let dir = self
                .volume_dir(record.id)
                .map_err(|e| ReplaceError::Before(e.into()))?;
            file::replace_content(dir.as_fd(), VolumeRecord::FILE, &content)
                .map_err(ReplaceError::from)?;
            file::sync_dir(dir.as_fd()).map_err(|e| ReplaceError::Sync(e.into()))
        })
    }

    /// Replaces a volume's encoded state in the running kernel, without an fsync.
    pub(super) fn replace_state(&self, id: VolumeId, state: Option<&[u8]>) -> Result<()> {
        let dir = self.volume_dir(id)?;
        Ok(phase("record", || {
            state_until_reboot::write(dir.as_fd(), state)
        })?)
    }

    /// Syncs the names in a volume's directory.
    pub(super) fn sync_volume(&self, id: VolumeId) -> Result<()> {
        let dir = self.volume_dir(id)?;
        let path = self.path.join(EntryKind::Volumes.name());
        Ok(file::sync(&dir, &path.join(id.to_string()))?)
    }

    fn volume_dir(&self, id: VolumeId) -> kernel::Result<File> {
        self.open_entry(self.entries(EntryKind::Volumes), &id.to_string())
    }

    /// Creates an entry under `incoming/`. Dropping it before [`Incoming::place`] removes it.
    pub(super) fn begin(&self, entry: String) -> Result<Incoming<'_>> {
        file::make_dir(self.incoming(), &entry)?;
        match file::open_beneath(self.incoming(), Path::new(&entry), OFlags::DIRECTORY) {
            Ok(dir) => Ok(Incoming {
                layout: self,
                entry,
                dir,
                at: Some(Left::Incoming),
            }),
            Err(e) => {
                self.try_remove(Left::Incoming, entry);
                Err(e.into())
            }
        }
    }

    /// Moves an entry to `trash/`: it no longer exists, but its space may not be free yet.
    pub(super) fn discard(&self, kind: EntryKind, entry: &str) -> Result<()> {
        self.check_held(entry)?;
        phase("trash", || self.move_or_sync_trash(kind, entry))?;
        Ok(())
    }

    /// Keeps an entry in place from being deleted while the other one exists.
    pub(super) fn hold(&self, entry: &str, from: Left, name: &str, why: String) {
        let held = HeldEntry {
            from,
            name: name.to_owned(),
            why,
        };
        self.held.lock().insert(entry.to_owned(), held);
    }

    fn check_held(&self, entry: &str) -> Result<()> {
        let mut all = self.held.lock();
        let Some(held) = all.get(entry) else {
            return Ok(());
        };
        if file::inode(self.dir(held.from), &held.name)?.is_some() {
            return Err(Error::Refused(held.why.clone()));
        }
        all.remove(entry);
        Ok(())
    }

    /// Marks an entry as being in place, for the case that only its other name is left.
    pub(super) fn mark(&self, kind: EntryKind, entry: &str) -> Result<()> {
        let dir = self.open_entry(self.entries(kind), entry)?;
        Ok(file::replace(dir.as_fd(), MARK, b"")?)
    }

    /// True if an entry has the mark. Only a rename that is not whole needs one.
    pub(super) fn is_marked(&self, from: Left, entry: &str) -> Result<bool> {
        Ok(!self.renames_whole && self.has_file(from, entry, MARK)?)
    }

    /// True if an entry is a directory with this file.
    pub(super) fn has_file(&self, from: Left, entry: &str, name: &str) -> Result<bool> {
        match self.open_entry(self.dir(from), entry) {
            Ok(dir) => Ok(file::inode(dir.as_fd(), name)?.is_some()),
            Err(_) => Ok(false),
        }
    }

    /// Moves an entry back into its place.
    pub(super) fn put_back(&self, from: Left, entry: &str, kind: EntryKind) -> Result<()> {
        file::rename(self.dir(from), entry, self.entries(kind), entry)?;
        self.entries[kind as usize].sync()?;
        match from {
            Left::Incoming => self.sync_incoming()?,
            Left::Trash => self.trash.sync()?,
            Left::On(other) => self.entries[other as usize].sync()?,
        }
        Ok(self.remove_mark(kind, entry)?)
    }

    fn remove_mark(&self, kind: EntryKind, entry: &str) -> kernel::Result<()> {
        let dir = self.open_entry(self.entries(kind), entry)?;
        match file::inode(dir.as_fd(), MARK)? {
            Some(_) => file::remove(dir.as_fd(), MARK),
            None => Ok(()),
        }
    }

    fn open_entry(&self, dir: BorrowedFd<'_>, entry: &str) -> kernel::Result<File> {
        file::open_beneath(dir, Path::new(entry), OFlags::DIRECTORY)
    }

    fn to_trash(&self, kind: EntryKind, entry: &str, name: &str) -> kernel::Result<()> {
        if !self.renames_whole {
            self.remove_mark(kind, entry)?;
        }
        file::rename(self.entries(kind), entry, self.trash(), name)?;
        self.sync_trash(kind)
    }

    fn sync_trash(&self, kind: EntryKind) -> kernel::Result<()> {
        self.trash.sync()?;
        self.entries[kind as usize].sync()
    }

    /// Moves an entry to `trash/`. False if it is not in its place: an earlier try may have moved
    /// it, and only an fsync may have failed. Then this repeats the fsyncs.
    fn move_or_sync_trash(&self, kind: EntryKind, entry: &str) -> kernel::Result<bool> {
        match self.to_trash(kind, entry, entry) {
            Err(kernel::Error::NotFound { .. }) => self.sync_trash(kind).map(|()| false),
            moved => moved.map(|()| true),
        }
    }

    /// Moves a failed entry out of its place, for good, and returns where it is then. It may never
    /// have been in its place.
    pub(super) fn withdraw(&self, kind: EntryKind, entry: &str) -> kernel::Result<Left> {
        let was_there = self.move_or_sync_trash(kind, entry)?;
        if was_there || file::inode(self.incoming(), entry)?.is_none() {
            return Ok(Left::Trash);
        }
        Ok(Left::Incoming)
    }

    /// Frees a discarded entry. A failure is logged, and the entry is freed later.
    pub(super) fn free(&self, entry: &str) {
        // A failure is logged, and no failure of the call.
        let Ok(()) = phase("free", || {
            self.try_remove(Left::Trash, entry.to_owned());
            Ok::<_, Infallible>(())
        });
        self.remove_left();
    }

    /// Retries failed removals. A full filesystem may refuse even a removal, and callers do not
    /// repeat calls for deleted entries.
    pub(super) fn remove_left(&self) {
        let left = std::mem::take(&mut *self.left.lock());
        for (from, entry) in left {
            self.try_remove(from, entry);
        }
    }

    /// Queues an entry that could not be removed, for a later try.
    fn remove_later(&self, from: Left, entry: String) {
        self.left.lock().push((from, entry));
    }

    /// Moves an unreferenced entry to `trash/` and frees it, now or later. False if even the move
    /// failed.
    pub(super) fn abandon(&self, kind: EntryKind, entry: String) -> bool {
        self.try_remove(Left::On(kind), entry)
    }

    /// The directory of this location.
    pub(super) fn dir(&self, left: Left) -> BorrowedFd<'_> {
        match left {
            Left::Incoming => self.incoming(),
            Left::Trash => self.trash(),
            Left::On(kind) => self.entries(kind),
        }
    }

    /// Removes an entry; after an error, the entry is queued for a later try. Success means that
    /// the entry has left its location, but its space may not be free yet.
    pub(super) fn remove(&self, from: Left, entry: String) -> kernel::Result<()> {
        let removed = match from {
            Left::Incoming | Left::Trash => file::remove_entry(self.dir(from), &entry),
            Left::On(kind) => self.withdraw(kind, &entry).map(|left| {
                self.try_remove(left, entry.clone());
            }),
        };
        match removed {
            // An earlier try may have removed the entry.
            Ok(()) | Err(kernel::Error::NotFound { .. }) => Ok(()),
            Err(e) => {
                self.remove_later(from, entry);
                Err(e)
            }
        }
    }

    /// [`PoolLayout::remove`] for callers that only log an error. True if it succeeded.
    fn try_remove(&self, from: Left, entry: String) -> bool {
        let removed = self.remove(from, entry.clone());
        if let Err(error) = &removed {
            tracing::warn!(entry, %error, "cannot free the space of a deleted entry yet");
        }
        removed.is_ok()
    }
}

/// An entry under construction.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    layout: &'a PoolLayout,
    entry: String,
    dir: File,
    /// The entry's current location; `None` once it is in its final place.
    at: Option<Left>,
}

impl Incoming<'_> {
    /// Creates the empty image file.
    pub(super) fn image(&self) -> Result<File> {
        Ok(file::create_beneath(self.dir.as_fd(), Path::new(IMAGE))?)
    }

    /// The path of the image, for messages.
    pub(super) fn image_path(&self) -> PathBuf {
        self.layout
            .path
            .join(INCOMING)
            .join(&self.entry)
            .join(IMAGE)
    }

    /// Writes the record, syncs it and the image, and moves the entry into its final place. `image`
    /// is `None` if the image is synced already.
    pub(super) fn commit<R: Record>(mut self, record: &R, image: Option<&File>) -> Result<()> {
        phase("sync", || self.write(record, image))?;
        phase("record", || self.place(R::KIND))
    }

    /// Writes the record into the entry, and syncs the record, the image and the names of all files
    /// in the entry.
    pub(super) fn write<R: Record>(&self, record: &R, image: Option<&File>) -> Result<()> {
        let content = encoding::encode(record, R::FILE)?;
        let record = file::write_new(self.dir.as_fd(), R::FILE, &content)?;
        let path = self.layout.path.join(INCOMING).join(&self.entry);
        if let Some(image) = image {
            // The disk then writes the record while it syncs the image.
            start_sync(&record, &path.join(R::FILE))?;
            file::sync(image, &self.image_path())?;
        }
        file::sync(&record, &path.join(R::FILE))?;
        Ok(file::sync(&self.dir, &path)?)
    }

    /// Syncs `incoming/`, so that the entry survives a power cut with all that is written in it.
    pub(super) fn sync(&self) -> Result<()> {
        Ok(self.layout.sync_incoming()?)
    }

    /// Moves the entry into its final place; its record must be written first. Only the target
    /// directory is synced if a rename is one change of the filesystem: then an entry in its final
    /// place is not under `incoming/` any more.
    pub(super) fn place(&mut self, kind: EntryKind) -> Result<()> {
        let (layout, entry) = (self.layout, &self.entry);
        let moved = file::rename(layout.incoming(), entry, layout.entries(kind), entry)
            .and_then(|()| layout.entries[kind as usize].sync())
            .and_then(|()| {
                if layout.renames_whole {
                    return Ok(());
                }
                layout.sync_incoming()
            });
        self.at = match moved {
            Ok(()) => None,
            // The rename may have happened, and only its fsync may have failed.
            Err(_) => match phase("trash", || layout.to_trash(kind, entry, entry)) {
                Ok(()) => Some(Left::Trash),
                Err(kernel::Error::NotFound { .. }) => Some(Left::Incoming),
                Err(_) => Some(Left::On(kind)),
            },
        };
        Ok(moved?)
    }

    /// Moves the entry out of its final place, for good. False if it may still be there.
    pub(super) fn withdraw(&mut self) -> bool {
        let Some(Left::On(kind)) = self.at else {
            return true;
        };
        let withdrawn = self.layout.withdraw(kind, &self.entry);
        match &withdrawn {
            Ok(left) => self.at = Some(*left),
            Err(error) => {
                let entry = &self.entry;
                tracing::warn!(entry, %error, "a failed entry is still in its place");
            }
        }
        withdrawn.is_ok()
    }

    /// Leaves the entry where it is, and returns its location; `None` if it is in its place.
    pub(super) fn leave(mut self) -> Option<Left> {
        self.at.take()
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            self.layout.try_remove(at, std::mem::take(&mut self.entry));
        }
    }
}

/// Opens a directory in the root of a pool. With `make`, creates it if it is missing.
fn open_in(root: &File, name: &str, make: bool) -> kernel::Result<File> {
    if make {
        file::make_dir(root.as_fd(), name)?;
    }
    file::open_beneath(root.as_fd(), Path::new(name), OFlags::DIRECTORY)
}

/// Opens a directory of a pool or of its surroundings.
pub(super) fn open_dir(path: &Path) -> Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .map_err(|e| kernel::Error::io("open", path, e.into()))?;
    Ok(dir.into())
}

/// Opens a lock file. Two processes may create it at once; the lock decides between them.
pub(super) fn open_or_create(dir: BorrowedFd<'_>, name: &str) -> kernel::Result<File> {
    match open_file(dir, name) {
        Err(kernel::Error::NotFound { .. }) => {
            let made = file::create_beneath(dir, Path::new(name));
            open_file(dir, name).or(made)
        }
        other => other,
    }
}

/// Opens a file for reading and writing.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: &str) -> kernel::Result<File> {
    file::open_beneath(dir, Path::new(name), OFlags::RDWR)
}
