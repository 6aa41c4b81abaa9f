//! The disks of nodes: what of a pool's files a power cut leaves.
//!
//! Pools are in memory, where nothing is lost. So a disk listens to all changes of its pool's
//! files, and keeps a second name for each file that a power cut may bring back. After a power cut,
//! it makes the pool's directory again, in a state in which a real filesystem could be.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use hostloop_driver::kernel::file_changes::{self, FileChange};
use parking_lot::Mutex;

use crate::dice::Dice;
use crate::trace;

mod journal;
#[cfg(test)]
mod tests;

use journal::{Arrived, Inode, Journal, ROOT};

/// The disks of nodes, by their names.
static DISKS: Mutex<BTreeMap<&'static str, Disk>> = Mutex::new(BTreeMap::new());

/// Lets disks hear of changes from now on.
pub(crate) fn begin() {
    file_changes::listen(hear);
}

/// The disk of a node.
struct Disk {
    pool: PathBuf,
    /// The folder with the second names of files.
    names: PathBuf,
    journal: Journal,
    /// Files and directories by the inodes of the memory that has the pool.
    known: BTreeMap<u64, Inode>,
}

/// Gives a node a disk, which has all that is in the pool now. The folder is for the disk alone.
pub(crate) fn insert(node: &'static str, pool: &Path, folder: &Path) -> io::Result<()> {
    let disk = Disk::of(pool, folder)?;
    DISKS.lock().insert(node, disk);
    Ok(())
}

/// The disk of a node has all that is in the pool now, if the node has a disk.
pub(crate) fn settle(node: &str) -> io::Result<()> {
    match DISKS.lock().get_mut(node) {
        Some(disk) => disk.settle(),
        None => Ok(()),
    }
}

/// Cuts the power of a node's disk, if it has one. No process may have its files open. Returns
/// lines that say what is lost.
pub(crate) fn cut(node: &str, dice: &mut Dice) -> io::Result<Vec<String>> {
    match DISKS.lock().get_mut(node) {
        Some(disk) => disk.cut(dice),
        None => Ok(Vec::new()),
    }
}

/// Passes a change to the disk that it is on, if it is on one.
fn hear(change: FileChange<'_>) {
    let mut disks = DISKS.lock();
    if disks.is_empty() {
        return;
    }
    let heard = on(&change).and_then(|inode| {
        let mut disks = disks.values_mut();
        let disk = disks.find_map(|disk| Some((*disk.known.get(&inode)?, disk)));
        disk.map_or(Ok(()), |(known, disk)| disk.hear(&change, known))
    });
    if let Err(error) = heard {
        trace::violation(format!("the disk does not understand {change:?}: {error}"));
    }
}

/// The inode of the directory or file that changes.
fn on(change: &FileChange<'_>) -> io::Result<u64> {
    let fd = match change {
        FileChange::Made { dir, .. } | FileChange::Removed { dir, .. } => dir,
        FileChange::Renamed { from_dir, .. } => from_dir,
        FileChange::Written { file } => file,
        FileChange::Synced { on } => on,
    };
    Ok(std::fs::metadata(path_of(*fd))?.ino())
}

/// A path that leads to an open file or directory.
fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

impl Disk {
    fn of(pool: &Path, folder: &Path) -> io::Result<Disk> {
        let mut disk = Disk {
            pool: pool.to_owned(),
            names: folder.to_owned(),
            journal: Journal::new(),
            known: BTreeMap::new(),
        };
        disk.settle()?;
        Ok(disk)
    }

    /// It has all that is in the pool now.
    fn settle(&mut self) -> io::Result<()> {
        if self.names.exists() {
            std::fs::remove_dir_all(&self.names)?;
        }
        std::fs::create_dir(&self.names)?;
        (self.journal, self.known) = (Journal::new(), BTreeMap::new());
        self.known
            .insert(std::fs::metadata(&self.pool)?.ino(), ROOT);
        self.find_all(ROOT, &self.pool.clone())?;
        self.journal.settle();
        Ok(())
    }

    /// Adds all that is in a directory, in one order for all runs.
    fn find_all(&mut self, dir: Inode, path: &Path) -> io::Result<()> {
        let entries = std::fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
        let mut names: Vec<_> = entries.iter().map(|entry| entry.file_name()).collect();
        names.sort();
        for name in names {
            let (is_dir, inode) = self.add(dir, path, Path::new(&name))?;
            if is_dir {
                self.find_all(inode, &path.join(&name))?;
            }
        }
        Ok(())
    }

    /// Adds a file or directory, in the directory at this path. Returns if it is a directory.
    fn add(&mut self, dir: Inode, path: &Path, name: &Path) -> io::Result<(bool, Inode)> {
        let path = path.join(name);
        let (metadata, name) = (std::fs::symlink_metadata(&path)?, text(name));
        let known = self.known.get(&metadata.ino()).copied();
        if let Some(inode) = known
            && self.journal.find(dir, &name) == known
        {
            return Ok((metadata.is_dir(), inode));
        }
        let inode = self.journal.add(dir, &name, metadata.is_dir());
        self.known.insert(metadata.ino(), inode);
        if !metadata.is_dir() {
            std::fs::hard_link(&path, self.second_name(inode))?;
        }
        Ok((metadata.is_dir(), inode))
    }

    fn second_name(&self, inode: Inode) -> PathBuf {
        self.names.join(inode.to_string())
    }

    /// Notes a change of this directory or file.
    fn hear(&mut self, change: &FileChange<'_>, known: Inode) -> io::Result<()> {
        match change {
            FileChange::Made { dir, name } => {
                self.add(known, &path_of(*dir), name)?;
            }
            FileChange::Removed { name, .. } => {
                let removed = self.journal.remove(known, &text(name));
                // Another directory may have the inode of a removed one next. A file keeps its own,
                // because it has a second name.
                if let Some(removed) = removed
                    && !self.second_name(removed).exists()
                {
                    self.known.retain(|_, one| *one != removed);
                }
            }
            FileChange::Renamed {
                from, to_dir, to, ..
            } => {
                let inode = std::fs::metadata(path_of(*to_dir))?.ino();
                let Some(to_dir) = self.known.get(&inode).copied() else {
                    return Err(io::Error::other("a rename out of the pool"));
                };
                let (from, to) = (text(from), text(to));
                let (from, to) = ((known, from.as_str()), (to_dir, to.as_str()));
                self.journal.rename(from, to);
            }
            FileChange::Written { file } => {
                let len = std::fs::metadata(path_of(*file))?.len();
                self.journal.write(known, len);
            }
            FileChange::Synced { .. } => {
                let gone = self.journal.sync(known);
                for inode in &gone {
                    // A directory has no second name.
                    unless_missing(std::fs::remove_file(self.second_name(*inode)))?;
                }
                self.known.retain(|_, inode| !gone.contains(inode));
            }
        }
        Ok(())
    }

    /// Makes the pool's directory again as a power cut may leave it.
    fn cut(&mut self, dice: &mut Dice) -> io::Result<Vec<String>> {
        let changes = self.journal.pending();
        let kept = dice.below(changes as u64 + 1);
        let left = self.journal.after(usize::try_from(kept).unwrap_or(changes));
        let mut contents = Vec::new();
        let again = self.pool.with_extension("again");
        std::fs::create_dir(&again)?;
        for (path, inode) in left.paths() {
            let to = again.join(&path);
            if left.is_dir(inode) {
                DirBuilder::new().mode(0o700).create(&to)?;
                continue;
            }
            let file = self.second_name(inode);
            if let Some(possible) = left.uncertain.get(&inode) {
                let arrived = *dice.pick(possible);
                leave(&file, arrived)?;
                contents.push(format!("{} {arrived}", path.display()));
            }
            std::fs::hard_link(file, to)?;
        }
        std::fs::remove_dir_all(&self.pool)?;
        std::fs::rename(again, &self.pool)?;
        self.settle()?;
        let lines = [("lost", left.lost), ("not synced", contents)].into_iter();
        let lines = lines.filter(|(_, what)| !what.is_empty());
        let lines = lines.map(|(why, what)| format!("{why}: {}", what.join(", ")));
        Ok(lines.collect())
    }
}

/// Takes from a file what has not arrived.
fn leave(file: &Path, arrived: Arrived) -> io::Result<()> {
    let file = File::options().write(true).open(file)?;
    let len = file.metadata()?.len();
    let lengths = match arrived {
        Arrived::All => return Ok(()),
        Arrived::Before(before) => [before, before],
        Arrived::Nothing => [0, 0],
        Arrived::Length => [0, len],
        Arrived::HalfOfLength => [len / 2, len / 2],
        Arrived::Half => [len / 2, len],
    };
    lengths.into_iter().try_for_each(|len| file.set_len(len))
}

fn unless_missing(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn text(name: &Path) -> String {
    name.display().to_string()
}
