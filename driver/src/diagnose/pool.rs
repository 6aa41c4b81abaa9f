//! One judge of a pool: what it is like, and which loop devices are over its files. Pure.

use std::path::Path;

use crate::kernel::{FileId, FsUsage, LoopInfo};
use crate::storage::{PoolId, pool_named_in};

#[cfg(test)]
mod tests;

/// What is known of a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolFacts {
    /// Its name.
    pub name: String,
    /// Why it is not open, if it is not.
    pub missing: Option<String>,
    /// Why it does not answer, if it is open and does not.
    pub silent: Option<String>,
    /// Usage of its filesystem, if that could be read.
    pub usage: Option<FsUsage>,
    /// Bytes that are never promised.
    pub reserve_bytes: u64,
    /// What the pool noticed about itself.
    pub findings: Vec<String>,
}

/// Something wrong with a pool, and in words what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolIssue {
    /// It is not open.
    Missing(String),
    /// It is open and does not answer.
    Silent(String),
    /// Its filesystem is read-only.
    ReadOnly,
    /// Thin volumes may soon find no space.
    NearlyFull(String),
    /// The pool noticed something itself.
    Findings(String),
}

impl PoolFacts {
    /// Why nothing in the pool can be reached.
    pub fn unreachable(&self) -> Option<&str> {
        self.missing.as_deref().or(self.silent.as_deref())
    }

    /// How full the pool is, if it is nearly full: free is less than the reserve. Without a reserve,
    /// less than a hundredth.
    pub fn nearly_full(&self) -> Option<String> {
        let usage = self.usage?;
        let floor = self.reserve_bytes.max(usage.total_bytes / 100);
        (usage.available_bytes < floor).then(|| {
            format!(
                "{} of {} bytes are free, less than the {floor} that are kept free",
                usage.available_bytes, usage.total_bytes
            )
        })
    }
}

/// What is wrong with a pool. Of an unreachable pool nothing else is known.
pub fn judge(facts: &PoolFacts) -> Vec<PoolIssue> {
    if let Some(why) = &facts.missing {
        return vec![PoolIssue::Missing(why.clone())];
    }
    if let Some(why) = &facts.silent {
        return vec![PoolIssue::Silent(why.clone())];
    }
    let mut issues = Vec::new();
    if facts.usage.is_some_and(|usage| usage.read_only) {
        issues.push(PoolIssue::ReadOnly);
    }
    issues.extend(facts.nearly_full().map(PoolIssue::NearlyFull));
    if !facts.findings.is_empty() {
        issues.push(PoolIssue::Findings(facts.findings.join("; ")));
    }
    issues
}

/// Where a pool's files are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolFiles<'a> {
    /// The pool's identity.
    pub(crate) id: PoolId,
    /// The device number of its filesystem, as `stat` gives it.
    pub(crate) device: u64,
    /// Its directory.
    pub(crate) root: &'a Path,
}

impl PoolFiles<'_> {
    /// True if a loop device is over one of the pool's files. The device's path comes from the mount
    /// namespace of the process that attached it, and another node's pool may have the same path.
    /// So the ID in the path counts. A path without an ID must lead to the same file from here.
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
