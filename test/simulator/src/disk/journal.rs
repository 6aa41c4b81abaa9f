//! What a power cut may leave of a filesystem.
//!
//! As on ext4 and XFS, changes of directories enter a journal in their order, and the disk has the
//! first few of them. An fsync of a file or directory brings all up to its last change to the disk.
//! The content of a file arrives apart from that: an fsync brings all of it, and until then, any
//! part of it may be there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

#[cfg(test)]
mod tests;

/// A file or directory, by the order in which they came.
pub(super) type Inode = u64;

/// The directory that has all others.
pub(super) const ROOT: Inode = 0;

/// Directories, with their entries.
type Tree = BTreeMap<Inode, BTreeMap<String, Inode>>;

/// A change of directories.
#[derive(Clone, Debug)]
enum Change {
    Add {
        dir: Inode,
        name: String,
        inode: Inode,
        is_dir: bool,
    },
    Remove {
        dir: Inode,
        name: String,
        inode: Inode,
    },
    Rename {
        from_dir: Inode,
        from: String,
        to_dir: Inode,
        to: String,
        inode: Inode,
    },
}

impl Change {
    /// The file or directory of which a name changes.
    fn inode(&self) -> Inode {
        match self {
            Change::Add { inode, .. }
            | Change::Remove { inode, .. }
            | Change::Rename { inode, .. } => *inode,
        }
    }

    /// True if an fsync of this file or directory brings the change to the disk.
    fn is_of(&self, one: Inode) -> bool {
        let is_in = match self {
            Change::Add { dir, .. } | Change::Remove { dir, .. } => *dir == one,
            Change::Rename {
                from_dir, to_dir, ..
            } => *from_dir == one || *to_dir == one,
        };
        is_in || self.inode() == one
    }

    /// Makes the change. Returns what has lost its name by it.
    fn apply(&self, tree: &mut Tree) -> Option<Inode> {
        match self {
            Change::Add {
                dir,
                name,
                inode,
                is_dir,
            } => {
                if *is_dir {
                    tree.insert(*inode, BTreeMap::new());
                }
                tree.entry(*dir).or_default().insert(name.clone(), *inode)
            }
            Change::Remove { dir, name, inode } => {
                tree.remove(inode);
                tree.get_mut(dir)?.remove(name)
            }
            Change::Rename {
                from_dir,
                from,
                to_dir,
                to,
                inode,
            } => {
                tree.get_mut(from_dir)?.remove(from);
                tree.get_mut(to_dir)?.insert(to.clone(), *inode)
            }
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Add { name, .. } => write!(f, "{name} is made"),
            Change::Remove { name, .. } => write!(f, "{name} is removed"),
            Change::Rename { from, to, .. } if from == to => write!(f, "{from} is moved"),
            Change::Rename { from, to, .. } => write!(f, "{from} becomes {to}"),
        }
    }
}

/// What the disk has of the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    All,
    /// What it was at the last fsync: it had this length.
    Before(u64),
    Nothing,
    /// Only its length. It reads as zeros.
    Length,
    /// The first half, and no more of its length.
    HalfOfLength,
    /// The first half, and its length. The rest reads as zeros.
    Half,
}

impl Arrived {
    /// What may have arrived of a file that was changed since its last fsync, when it had this
    /// length. It may never have had one.
    ///
    /// Of files that matter, the driver changes only the length after an fsync. It overwrites the
    /// content of temporary files alone, and what others write to an image arrives with their own
    /// fsyncs.
    fn possible(synced: Option<u64>) -> Vec<Arrived> {
        match synced {
            Some(len) => vec![Arrived::All, Arrived::Before(len)],
            None => vec![
                Arrived::All,
                Arrived::Nothing,
                Arrived::Length,
                Arrived::HalfOfLength,
                Arrived::Half,
            ],
        }
    }
}

impl fmt::Display for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arrived::All => f.write_str("is whole"),
            Arrived::Before(len) => write!(f, "has {len} bytes"),
            Arrived::Nothing => f.write_str("is empty"),
            Arrived::Length => f.write_str("has zeros alone"),
            Arrived::HalfOfLength => f.write_str("is cut off"),
            Arrived::Half => f.write_str("has zeros in its second half"),
        }
    }
}

/// The changes of a filesystem, as far as a power cut may take them.
#[derive(Debug)]
pub(super) struct Journal {
    /// What the disk has.
    committed: Tree,
    /// What it will have after all changes.
    current: Tree,
    pending: Vec<Change>,
    /// Files with content that may be lost, and their length at the last fsync.
    unsynced: BTreeMap<Inode, Option<u64>>,
    next: Inode,
}

impl Journal {
    /// An empty filesystem.
    pub(super) fn new() -> Journal {
        let empty = Tree::from([(ROOT, BTreeMap::new())]);
        Journal {
            committed: empty.clone(),
            current: empty,
            pending: Vec::new(),
            unsynced: BTreeMap::new(),
            next: ROOT + 1,
        }
    }

    /// What has this name.
    pub(super) fn find(&self, dir: Inode, name: &str) -> Option<Inode> {
        self.current.get(&dir)?.get(name).copied()
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    /// Adds a new file or directory.
    pub(super) fn add(&mut self, dir: Inode, name: &str, is_dir: bool) -> Inode {
        let inode = self.next;
        self.next += 1;
        self.change(Change::Add {
            dir,
            name: name.to_owned(),
            inode,
            is_dir,
        });
        if !is_dir {
            self.unsynced.insert(inode, None);
        }
        inode
    }

    /// Removes what has this name, and returns it.
    pub(super) fn remove(&mut self, dir: Inode, name: &str) -> Option<Inode> {
        let inode = self.find(dir, name)?;
        let name = name.to_owned();
        self.change(Change::Remove { dir, name, inode });
        Some(inode)
    }

    /// Renames what has this name, if there is such a thing.
    pub(super) fn rename(&mut self, from: (Inode, &str), to: (Inode, &str)) {
        if let Some(inode) = self.find(from.0, from.1) {
            self.change(Change::Rename {
                from_dir: from.0,
                from: from.1.to_owned(),
                to_dir: to.0,
                to: to.1.to_owned(),
                inode,
            });
        }
    }

    /// A file changes, which has this length.
    pub(super) fn write(&mut self, file: Inode, len: u64) {
        self.unsynced.entry(file).or_insert(Some(len));
    }

    /// An fsync of a file or directory has returned. Returns what no power cut brings back from now
    /// on.
    pub(super) fn sync(&mut self, one: Inode) -> BTreeSet<Inode> {
        self.unsynced.remove(&one);
        let last = self.pending.iter().rposition(|change| change.is_of(one));
        let count = last.map_or(0, |last| last + 1);
        let mut gone = BTreeSet::new();
        for change in self.pending.drain(..count) {
            gone.extend(change.apply(&mut self.committed));
        }
        if !gone.is_empty() {
            let held = self.held();
            gone.retain(|inode| !held.contains(inode));
            self.unsynced.retain(|inode, _| !gone.contains(inode));
        }
        gone
    }

    /// All that may still be there after a power cut.
    fn held(&self) -> BTreeSet<Inode> {
        let dirs = self.committed.values().chain(self.current.values());
        let mut held: BTreeSet<Inode> = dirs.flat_map(|dir| dir.values().copied()).collect();
        held.extend(self.pending.iter().map(Change::inode));
        held
    }

    /// The disk has all changes, and the content of all files.
    pub(super) fn settle(&mut self) {
        self.committed = self.current.clone();
        self.pending.clear();
        self.unsynced.clear();
    }

    /// How many changes of directories may be lost.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// What a power cut leaves if the disk has so many of the pending changes.
    pub(super) fn after(&self, kept: usize) -> Left {
        let mut tree = self.committed.clone();
        let kept = kept.min(self.pending.len());
        for change in &self.pending[..kept] {
            change.apply(&mut tree);
        }
        let present: BTreeSet<Inode> = tree
            .values()
            .flat_map(|dir| dir.values().copied())
            .collect();
        let unsynced = self.unsynced.iter();
        let uncertain = unsynced
            .filter(|(inode, _)| present.contains(*inode))
            .map(|(inode, synced)| (*inode, Arrived::possible(*synced)))
            .collect();
        let lost = self.pending[kept..].iter().map(Change::to_string).collect();
        Left {
            tree,
            uncertain,
            lost,
        }
    }
}

/// What a power cut leaves of a filesystem.
#[derive(Debug)]
pub(super) struct Left {
    tree: Tree,
    /// The files with content that may not have arrived, and what of it may be there.
    pub(super) uncertain: BTreeMap<Inode, Vec<Arrived>>,
    /// The changes of directories that are lost, in words.
    pub(super) lost: Vec<String>,
}

impl Left {
    pub(super) fn is_dir(&self, inode: Inode) -> bool {
        self.tree.contains_key(&inode)
    }

    /// All paths, each after the directory that it is in.
    pub(super) fn paths(&self) -> Vec<(PathBuf, Inode)> {
        let (mut paths, mut dirs) = (Vec::new(), vec![(PathBuf::new(), ROOT)]);
        while let Some((above, dir)) = dirs.pop() {
            for (name, inode) in self.tree.get(&dir).into_iter().flatten() {
                let path = above.join(name);
                if self.is_dir(*inode) {
                    dirs.push((path.clone(), *inode));
                }
                paths.push((path, *inode));
            }
        }
        paths
    }
}
