//! How much of the disk under a pool is in use.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hostloop_driver::kernel::FsUsage;
use parking_lot::Mutex;

use crate::effects;

/// The size of the disk, in bytes. A thick volume takes as much memory as it has room here.
const SIZE: u64 = 768 << 20;

/// A disk with a pool and nothing else on it.
pub(super) struct DiskUsage {
    pool: PathBuf,
    /// What was measured last, and the number of changes then. Reading all folders takes long, and
    /// the capacity of each class is asked for after each change.
    measured: Mutex<Option<(u64, u64)>>,
}

impl DiskUsage {
    pub(super) fn of(pool: PathBuf) -> DiskUsage {
        DiskUsage {
            pool,
            measured: Mutex::new(None),
        }
    }

    /// The usage of the disk. Unlike the machine's own, it depends on no other program.
    pub(super) fn usage(&self) -> FsUsage {
        let free = SIZE.saturating_sub(self.allocated());
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

    fn allocated(&self) -> u64 {
        let changes = effects::unchanged();
        let mut measured = self.measured.lock();
        if let Some((then, allocated)) = *measured
            && changes == Some(then)
        {
            return allocated;
        }
        let allocated = allocated_in(&self.pool);
        *measured = changes.map(|now| (now, allocated));
        allocated
    }
}

/// The space of all files in a folder, in bytes. The model's clones share no blocks.
fn allocated_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let allocated = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => allocated_in(&entry.path()),
        Ok(found) => found.blocks() * 512,
        // It has just been removed.
        Err(_) => 0,
    });
    allocated.sum()
}
