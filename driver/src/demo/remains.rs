//! What there is of the demo in kernel and file system: before it began, and after it ended.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::sys::{Kernel, LoopInfo, MountEntry};

use super::error::Result;
use super::tree::Tree;

/// What the machine had before.
#[derive(Clone, Debug, Default)]
pub(super) struct Baseline {
    loops: BTreeSet<(u32, Option<crate::sys::FileId>)>,
    mounts: BTreeSet<u64>,
}

/// What is there now and was not before, and is the demo's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Remains {
    /// Loop devices.
    pub(super) loops: Vec<String>,
    /// Mounts.
    pub(super) mounts: Vec<String>,
    /// Processes.
    pub(super) processes: Vec<String>,
    /// Files and directories, without the root itself.
    pub(super) files: Vec<String>,
}

impl Baseline {
    /// Looks.
    pub(super) fn take(tree: &Tree, kernel: &dyn Kernel) -> Result<Baseline> {
        let of_ours = |m: &&MountEntry| m.mount_point.starts_with(tree.root());
        Ok(Baseline {
            loops: kernel
                .loops()?
                .iter()
                .map(|l| (l.minor, l.backing))
                .collect(),
            // A mount of ours cannot have been there: its ID is somebody's before us.
            mounts: kernel
                .mounts()?
                .entries
                .iter()
                .filter(|m| !of_ours(m))
                .map(|m| m.id)
                .collect(),
        })
    }

    /// What has come since and is the demo's. Others may attach and mount at the same time; theirs
    /// has nothing under our root.
    pub(super) fn remains(&self, tree: &Tree, kernel: &dyn Kernel) -> Result<Remains> {
        let loops = loops_of(tree, kernel)?;
        let loops = loops
            .iter()
            .filter(|l| !self.loops.contains(&(l.minor, l.backing)));
        let mounts = mounts_of(tree, kernel)?;
        let mounts = mounts.iter().filter(|m| !self.mounts.contains(&m.id));
        let mut files = Vec::new();
        walk(tree.root(), &mut |path| files.push(tree.below(path)));
        Ok(Remains {
            loops: loops
                .map(|l| format!("/dev/loop{} over {}", l.minor, l.backing_path))
                .collect(),
            mounts: mounts.map(|m| tree.below(&m.mount_point)).collect(),
            processes: processes_of(tree),
            files,
        })
    }
}

/// Loop devices over files below the root, deleted ones included.
pub(super) fn loops_of(tree: &Tree, kernel: &dyn Kernel) -> Result<Vec<LoopInfo>> {
    let mut loops = kernel.loops()?;
    loops.retain(|l| Path::new(&l.backing_path).starts_with(tree.root()));
    Ok(loops)
}

/// Mounts at or below the root, the last first: that is how they can be unmounted.
pub(super) fn mounts_of(tree: &Tree, kernel: &dyn Kernel) -> Result<Vec<MountEntry>> {
    let mut mounts = kernel.mounts()?.entries;
    mounts.retain(|m| m.mount_point.starts_with(tree.root()));
    mounts.reverse();
    Ok(mounts)
}

/// Processes that run from, in, or on something below the root, without this one.
fn processes_of(tree: &Tree) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbers = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let others = numbers.filter(|pid| *pid != std::process::id());
    others.filter_map(|pid| process(tree, pid)).collect()
}

fn process(tree: &Tree, pid: u32) -> Option<String> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let links = ["cwd", "root", "exe"].map(|name| proc.join(name));
    let open = fs::read_dir(proc.join("fd")).ok();
    let open = open.into_iter().flatten().flatten().map(|e| e.path());
    let mut links = links.into_iter().chain(open);
    let uses =
        links.any(|link| fs::read_link(link).is_ok_and(|target| target.starts_with(tree.root())));
    let words = fs::read_to_string(proc.join("cmdline")).unwrap_or_default();
    let name = words.split('\0').next().unwrap_or_default();
    uses.then(|| format!("{name} (pid {pid})"))
}

/// Everything below a directory, the deepest first, symlinks not followed.
fn walk(dir: &Path, visit: &mut dyn FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            walk(&path, visit);
        }
        visit(&path);
    }
}

/// Removes the directories below (and not including) one, where they are empty. Files are left,
/// and with them what holds them.
pub(super) fn remove_empty_dirs(dir: &Path) {
    walk(dir, &mut |path| {
        // A file, or a directory that is not empty or a mount point, makes this fail: it stays,
        // and is found by whoever looks for remains.
        let _ = fs::remove_dir(path);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_directories_go() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for name in ["a/b/c", "a/d", "e/f"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::write(root.join("e/f/file"), "").unwrap();
        std::os::unix::fs::symlink(root.join("a"), root.join("link")).unwrap();
        remove_empty_dirs(root);
        let mut left = Vec::new();
        walk(root, &mut |path| {
            left.push(path.strip_prefix(root).unwrap().to_path_buf())
        });
        left.sort();
        let expected = ["e", "e/f", "e/f/file", "link"].map(PathBuf::from);
        assert_eq!(left, expected);
    }

    #[test]
    fn a_process_in_the_tree_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::new(dir.path().canonicalize().unwrap());
        assert_eq!(processes_of(&tree), Vec::<String>::new());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .current_dir(tree.root())
            .spawn()
            .unwrap();
        let found = processes_of(&tree);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(&child.id().to_string()));
    }
}
