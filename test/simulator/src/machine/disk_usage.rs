//! How much of the disk under a pool is in use.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hostloop_driver::kernel::{FileId, FsUsage};
use hostloop_fake_kernel::SharedBlocks;
use parking_lot::Mutex;

use crate::dice::Dice;
use crate::effects;
use crate::history::History;

/// The size of the disk, in bytes. A thick volume takes as much memory as it has room here.
pub(crate) const SIZE: u64 = 768 << 20;

/// What a disk that is nearly full has left, in bytes: the least, and by how much it varies.
const LEFT: (u64, u64) = (96 << 20, 96 << 20);

/// A disk with a pool on it.
pub(super) struct DiskUsage {
    node: &'static str,
    pool: PathBuf,
    /// What is on it beside the pool, in bytes.
    others: u64,
    /// What its files share.
    shared: SharedBlocks,
    /// What was measured last, and the number of changes then. Reading all folders takes long, and
    /// the capacity of each class is asked for after each change.
    measured: Mutex<Option<(u64, u64)>>,
}

impl DiskUsage {
    /// The disk of a node.
    pub(super) fn of(
        node: &'static str,
        pool: PathBuf,
        others: u64,
        shared: SharedBlocks,
    ) -> DiskUsage {
        DiskUsage {
            node,
            pool,
            others,
            shared,
            measured: Mutex::new(None),
        }
    }

    /// The usage of the disk. Unlike the machine's own, it depends on no other program.
    pub(super) fn usage(&self) -> FsUsage {
        let free = if effects::is_disk_full(self.node) {
            0
        } else {
            SIZE.saturating_sub(self.others + self.used())
        };
        FsUsage {
            total_bytes: SIZE,
            free_bytes: free,
            available_bytes: free,
            // As a filesystem that does not count them.
            total_inodes: 0,
            free_inodes: 0,
            read_only: false,
        }
    }

    fn used(&self) -> u64 {
        let changes = effects::unchanged();
        let mut measured = self.measured.lock();
        if let Some((then, used)) = *measured
            && changes == Some(then)
        {
            return used;
        }
        let used = used_in(&self.pool, &self.shared);
        *measured = changes.map(|now| (now, used));
        used
    }
}

/// What is on the disk of a node beside its pool, in bytes. Every second one may be nearly full.
pub(super) fn others(history: &History, number: usize) -> u64 {
    let mut dice = Dice::of(history.seed, "nearly full", number as u64);
    if history.tight && dice.percent(50) {
        SIZE - LEFT.0 - dice.below(LEFT.1)
    } else {
        0
    }
}

/// The space of all files in a folder, in bytes. Blocks that several of them share count once.
pub(crate) fn used_in(folder: &Path, shared: &SharedBlocks) -> u64 {
    let mut sharers = (!shared.is_empty()).then(BTreeSet::new);
    let allocated = allocated_in(folder, &mut sharers);
    let saved = sharers.map_or(0, |files| shared.saved_bytes(&files));
    allocated.saturating_sub(saved)
}

/// The space that all files in a folder have, in bytes. Adds their identities to `files`, if there is
/// such a set.
fn allocated_in(folder: &Path, files: &mut Option<BTreeSet<FileId>>) -> u64 {
    let mut allocated = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        // A file without metadata has just been removed.
        let Ok(found) = entry.metadata() else {
            continue;
        };
        if found.is_dir() {
            allocated += allocated_in(&entry.path(), files);
            continue;
        }
        allocated += found.blocks() * 512;
        if let Some(files) = files.as_mut() {
            files.insert(identity(&found));
        }
    }
    allocated
}

/// The identity of a file.
pub(crate) fn identity(file: &Metadata) -> FileId {
    FileId {
        dev: file.dev(),
        ino: file.ino(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use hostloop_driver::kernel::Filesystems;
    use hostloop_fake_kernel::Model;

    use super::*;
    use crate::history::World;

    /// In memory, as pools are.
    #[test]
    fn blocks_that_files_share_count_once() {
        const BYTES: usize = 8192;
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("volume"), [1; BYTES]).expect("a file");
        let volume = File::open(path("volume")).expect("a file");
        let snapshot = File::create_new(path("snapshot")).expect("a file");
        let kernel = Model::new();
        kernel.set_reflinks(true);
        kernel.clone_file(&volume, &snapshot).expect("a clone");
        let used = |shared: &SharedBlocks| used_in(dir.path(), shared);
        let once = BYTES as u64;
        assert_eq!(used(&SharedBlocks::default()), 2 * once);
        assert_eq!(used(&kernel.shared_blocks()), once);
    }

    #[test]
    fn a_disk_may_be_full_or_nearly_full() {
        let dir = tempfile::tempdir().expect("a directory");
        let free = |node: &'static str, others: u64| {
            let shared = SharedBlocks::default();
            let disk = DiskUsage::of(node, dir.path().to_owned(), others, shared);
            disk.usage().available_bytes
        };
        assert_eq!((free("d", 0), free("d", SIZE - 5)), (SIZE, 5));
        effects::fill_disk("d");
        assert_eq!((free("d", 0), free("e", 0)), (0, SIZE));
    }

    #[test]
    fn some_disks_of_a_tight_history_are_nearly_full() {
        let mut history = History::of(1, World::Calm, 0);
        for is_tight in [false, true] {
            history.tight = is_tight;
            let all: Vec<u64> = (0..40).map(|number| others(&history, number)).collect();
            assert_eq!(all.iter().any(|others| *others > 0), is_tight);
            assert!(
                all.iter()
                    .all(|others| *others == 0 || SIZE - others >= LEFT.0)
            );
            assert!(all.contains(&0));
        }
    }
}
