//! Judges the state of a pool, and finds the loop devices over its files. Pure.

use std::path::Path;

use crate::kernel::{FileId, FsUsage, LoopInfo};
use crate::record::id::{PoolId, pool_named_in};

#[cfg(test)]
mod tests;

/// Facts about a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolFacts {
    pub name: String,
    /// The reason if the pool is not open.
    pub missing: Option<String>,
    /// The reason if the pool is open but does not answer.
    pub silent: Option<String>,
    /// Usage of the pool's filesystem, if it could be read.
    pub usage: Option<FsUsage>,
    /// Reserved bytes, which no volume gets.
    pub reserve_bytes: u64,
    /// Problems that the pool itself reports.
    pub findings: Vec<String>,
}

/// A problem of a pool, with a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolIssue {
    /// The pool is not open.
    Missing(String),
    /// The pool is open but does not answer.
    Silent(String),
    /// The pool's filesystem is read-only.
    ReadOnly,
    /// Thin volumes may soon find no space.
    NearlyFull(String),
    /// The pool itself reports a problem.
    Findings(String),
}

impl PoolFacts {
    /// The reason if the whole pool is unreachable.
    pub fn unreachable(&self) -> Option<&str> {
        self.missing.as_deref().or(self.silent.as_deref())
    }

    /// Describes how full the pool is, if its free space is less than the reserve, or less than 1 %
    /// if that is more. `None` if it is not nearly full.
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

/// Returns the issues of a pool. For an unreachable pool, that is the only one.
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
