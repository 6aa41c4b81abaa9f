//! Announcements of changes to files and directories.
//!
//! The driver changes the files of its pools through [`file`](crate::file) and
//! [`shared_dir`](crate::shared_dir) alone. They announce here what they did, and which fsync has
//! returned. A program that runs the driver inside itself, such as the simulator of the tests,
//! knows from this what a power cut may take. Only builds with debug assertions announce, and only
//! to a program that listens.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::OnceLock;

/// A change to a file or a directory. Names are those of entries in an open directory.
#[derive(Clone, Copy, Debug)]
pub enum FileChange<'a> {
    /// A directory has a new file or directory. A file that was there before is announced again if
    /// the call would also have created it.
    Made { dir: BorrowedFd<'a>, name: &'a Path },
    /// The content or the length of a file is about to change.
    Written { file: BorrowedFd<'a> },
    /// An entry has another name, and has replaced the file that had it.
    Renamed {
        from_dir: BorrowedFd<'a>,
        from: &'a Path,
        to_dir: BorrowedFd<'a>,
        to: &'a Path,
    },
    /// A directory has lost a file or an empty directory.
    Removed { dir: BorrowedFd<'a>, name: &'a Path },
    /// An fsync of a file or a directory has returned.
    Synced { on: BorrowedFd<'a> },
}

/// What each change is passed to, if there is a listener.
static LISTENER: OnceLock<fn(FileChange<'_>)> = OnceLock::new();

/// From now on, passes each change to `hear`, on the thread of the change. Only the first call
/// counts, and only in builds with debug assertions.
pub fn listen(hear: fn(FileChange<'_>)) {
    let _ = LISTENER.set(hear);
}

#[inline(always)]
fn announce(change: FileChange<'_>) {
    if cfg!(debug_assertions)
        && let Some(hear) = LISTENER.get()
    {
        hear(change);
    }
}

/// Announces a file or directory that was made, or found instead.
pub(crate) fn made(dir: BorrowedFd<'_>, name: impl AsRef<Path>) {
    let name = name.as_ref();
    announce(FileChange::Made { dir, name });
}

/// Announces that the content or the length of a file is about to change.
pub(crate) fn written(file: &File) {
    announce(FileChange::Written { file: file.as_fd() });
}

/// Announces a rename.
pub(crate) fn renamed(
    from_dir: BorrowedFd<'_>,
    from: impl AsRef<Path>,
    to_dir: BorrowedFd<'_>,
    to: impl AsRef<Path>,
) {
    announce(FileChange::Renamed {
        from_dir,
        from: from.as_ref(),
        to_dir,
        to: to.as_ref(),
    });
}

/// Announces that a file or directory was removed.
pub(crate) fn removed(dir: BorrowedFd<'_>, name: impl AsRef<Path>) {
    let name = name.as_ref();
    announce(FileChange::Removed { dir, name });
}

/// Announces that an fsync has returned.
pub(crate) fn synced(on: BorrowedFd<'_>) {
    announce(FileChange::Synced { on });
}
