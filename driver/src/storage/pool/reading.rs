//! What a check of an open pool reads.

use crate::diagnose::Lost;
use crate::diagnose::pool::SparseFile;
use crate::kernel::FsUsage;
use crate::storage::Capacity;

/// The result of checking an open pool; the error says why the pool does not answer.
pub type Look = std::result::Result<Reading, String>;

/// The state of an open pool that answers a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Size and free space of the pool's filesystem.
    pub usage: FsUsage,
    /// Space that the pool can still promise to thin volumes.
    pub capacity: Capacity,
    /// The files under the pool without all their blocks, from the top down.
    pub sparse: Vec<SparseFile>,
    /// What the next opening of the pool would not find.
    pub lost: Option<Lost>,
}

impl Reading {
    /// Bytes that can still be written to the pool's filesystem: no more than its free space, and
    /// no more than the disks below have for it.
    pub fn free_bytes(&self) -> u64 {
        let mut free = self.usage.free_bytes;
        for file in &self.sparse {
            let held = free.saturating_sub(file.lacks_bytes);
            free = free.min(held.saturating_add(file.usage.available_bytes));
        }
        free
    }
}
