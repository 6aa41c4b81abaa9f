//! Deleted snapshots that keep their images, under `trash/`.
//!
//! One rename deletes a snapshot and keeps its image, so no crash leaves it half done.

use std::fs::File;
use std::path::Path;

use hostloop_events::phase;
use rustix::fs::OFlags;

use super::{Left, PoolLayout};
use crate::kernel::{self, file};
use crate::storage::file_names::{EntryKind, IMAGE, kept_name};
use crate::storage::image_stat::ImageStat;
use crate::storage::{Error, Result, SnapshotId};

impl PoolLayout {
    /// Moves a snapshot to `trash/` under the name that keeps its image there. False if an earlier
    /// try moved it to be freed, or if what an earlier deletion kept has that name.
    pub(in crate::storage) fn keep_base(&self, id: SnapshotId) -> Result<bool> {
        let entry = id.to_string();
        self.check_held(&entry)?;
        Ok(phase("trash", || {
            self.move_or_sync_kept(&entry, &kept_name(id))
        })?)
    }

    /// Moves a snapshot. If it is not in its place, an earlier try may have moved it, and only an
    /// fsync may have failed. Then this repeats the fsyncs. False if it has another name there, or if
    /// a person has copied it back into its place, and what was kept of it still has this name.
    fn move_or_sync_kept(&self, entry: &str, name: &str) -> kernel::Result<bool> {
        match self.to_trash(EntryKind::Snapshots, entry, name) {
            Err(kernel::Error::NotFound { .. }) => {
                self.sync_trash(EntryKind::Snapshots)?;
                Ok(file::inode(self.trash(), name)?.is_some())
            }
            Err(kernel::Error::Io { source, .. })
                if source.raw_os_error() == Some(libc::EEXIST) =>
            {
                Ok(false)
            }
            moved => moved.map(|()| true),
        }
    }

    /// Queues an entry under `trash/` to be freed, without I/O.
    pub(in crate::storage) fn free_later(&self, entry: String) {
        self.remove_later(Left::Trash, entry);
    }

    /// Opens the image of a deleted snapshot for reading. [`Error::NoSnapshot`] if it is not kept.
    pub(in crate::storage) fn open_kept(&self, id: SnapshotId) -> Result<File> {
        match self.open_in_kept(id, OFlags::RDONLY) {
            Err(kernel::Error::NotFound { .. }) => Err(Error::NoSnapshot(id)),
            opened => Ok(opened?),
        }
    }

    /// Reads the status of a deleted snapshot's image; `None` if it is not kept.
    pub(in crate::storage) fn stat_kept(
        &self,
        id: SnapshotId,
    ) -> kernel::Result<Option<ImageStat>> {
        match self.open_in_kept(id, OFlags::PATH) {
            Err(kernel::Error::NotFound { .. }) => Ok(None),
            opened => ImageStat::of(&opened?, Path::new(IMAGE)),
        }
    }

    fn open_in_kept(&self, id: SnapshotId, flags: OFlags) -> kernel::Result<File> {
        let path = Path::new(&kept_name(id)).join(IMAGE);
        file::open_beneath(self.trash(), &path, flags)
    }
}
