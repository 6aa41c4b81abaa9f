//! Finds the problems of a pool, and the loop devices over its files. Pure.

use std::path::{Path, PathBuf};

use hostloop_terminal::humanize::bytes;

use super::{Lost, NotedFault, Problem};
use crate::kernel::{FileId, FsUsage, LoopInfo};
use crate::record::id::{PoolId, pool_named_in};

#[cfg(test)]
mod tests;

/// A file under a pool that lacks blocks, such as a sparse image: writes in the pool take space
/// from the filesystem that holds the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparseFile {
    /// The path of the file.
    pub path: PathBuf,
    /// Bytes of the file without a block.
    pub lacks_bytes: u64,
    /// Usage of the filesystem that holds the file.
    pub usage: FsUsage,
}

/// Facts about a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolFacts {
    pub name: String,
    /// The fault that the pool has by request.
    pub fault: Option<NotedFault>,
    /// The reason if the pool is not open.
    pub missing: Option<String>,
    /// The reason if the pool is open but does not answer.
    pub silent: Option<String>,
    /// Usage of the pool's filesystem, if it could be read.
    pub usage: Option<FsUsage>,
    /// Reserved bytes, which no volume gets.
    pub reserve_bytes: u64,
    /// The files under the pool without all their blocks, from the top down, and the bytes that
    /// stay free on the filesystem of each.
    pub sparse: Vec<(SparseFile, u64)>,
    /// What the pool has lost while it was open.
    pub lost: Option<Lost>,
    /// Problems that recovery noted, other than those of volumes.
    pub noted: Vec<String>,
}

impl PoolFacts {
    /// The reason if the whole pool is unreachable.
    pub fn unreachable(&self) -> Option<&str> {
        self.missing.as_deref().or(self.silent.as_deref())
    }

    /// Describes how full the pool or a disk below it is, if there is less free space than the
    /// reserve, or less than 1 % if that is more. `None` if neither is nearly full.
    pub fn nearly_full(&self) -> Option<String> {
        let usage = self.usage?;
        let floor = floor(&usage, self.reserve_bytes);
        let own = (usage.available_bytes < floor).then(|| {
            format!(
                "{} of {} are free, less than the {} that are kept free",
                bytes(usage.available_bytes),
                bytes(usage.total_bytes),
                bytes(floor)
            )
        });
        own.or_else(|| self.nearly_full_below())
    }

    /// Describes the first disk below that is nearly full, if the pool still needs space of it.
    pub fn nearly_full_below(&self) -> Option<String> {
        self.sparse.iter().find_map(|(file, reserve)| {
            let usage = &file.usage;
            let floor = floor(usage, *reserve);
            let full = usage.available_bytes < floor && usage.available_bytes < file.lacks_bytes;
            full.then(|| {
                format!(
                    "the disk below has {} of {} free, less than the {} that are kept free, and {} \
                     still needs {} of it",
                    bytes(usage.available_bytes),
                    bytes(usage.total_bytes),
                    bytes(floor),
                    file.path.display(),
                    bytes(file.lacks_bytes)
                )
            })
        })
    }

    /// Says which filesystem of the pool, or below it, is read-only.
    pub fn read_only(&self) -> Option<String> {
        if self.usage.is_some_and(|usage| usage.read_only) {
            return Some("its filesystem is read-only".to_owned());
        }
        let (below, _) = self.sparse.iter().find(|(file, _)| file.usage.read_only)?;
        Some(format!(
            "the filesystem of {} is read-only",
            below.path.display()
        ))
    }
}

/// The free space below which a filesystem counts as nearly full, in bytes.
fn floor(usage: &FsUsage, reserve_bytes: u64) -> u64 {
    reserve_bytes.max(usage.total_bytes / 100)
}

/// Returns the problems of a pool. For an unreachable pool, that is the only one. A fault by request
/// explains what follows from it.
pub fn pool_problems(facts: &PoolFacts) -> Vec<Problem> {
    let fault = facts.fault.clone();
    if let Some(fault) = fault.clone().filter(|fault| fault.total) {
        return vec![Problem::PoolFault(fault)];
    }
    if let Some(why) = &facts.missing {
        return vec![Problem::PoolMissing(why.clone())];
    }
    if let Some(why) = &facts.silent {
        return vec![Problem::PoolSilent(why.clone())];
    }
    let mut problems = Vec::new();
    let full = facts.nearly_full().filter(|_| fault.is_none());
    problems.extend(fault.map(Problem::PoolFault));
    problems.extend(facts.lost.clone().map(Problem::PoolLost));
    problems.extend(facts.read_only().map(Problem::PoolReadOnly));
    problems.extend(full.map(Problem::PoolNearlyFull));
    if !facts.noted.is_empty() {
        problems.push(Problem::PoolNeedsAttention(facts.noted.join("; ")));
    }
    problems
}

/// Location of a pool's files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolFiles<'a> {
    pub(crate) id: PoolId,
    /// The device number of its filesystem, as `stat` returns it.
    pub(crate) device: u64,
    pub(crate) root: &'a Path,
}

impl PoolFiles<'_> {
    /// True if a loop device is over one of the pool's files. The device's path comes from the
    /// mount namespace of the process that attached it, and another node's pool may have the same
    /// path. So the ID in the path counts. A path without an ID must lead to the same file from
    /// here.
    pub(crate) fn holds(
        &self,
        device: &LoopInfo,
        file_at: impl Fn(&Path) -> Option<FileId>,
    ) -> bool {
        let path = Path::new(&device.backing_path);
        device.backing.is_some_and(|file| file.dev == self.device)
            && match pool_named_in(path) {
                Some(named) => named == self.id,
                None => path.starts_with(self.root) && file_at(path) == device.backing,
            }
    }
}
