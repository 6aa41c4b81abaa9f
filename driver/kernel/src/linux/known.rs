//! What is known of loop devices and mounts, followed by the kernel's notices instead of read again
//! for each call.
//!
//! The kernel announces each attached and detached loop device (uevents), and each change of the
//! mount table (poll on mountinfo). Only what changed is read. Some changes have no notice: a
//! remount, a moved mount, the settings of a loop device. So callers confirm what they rely on.
//!
//! Listing thousands of mounts, or walking over them, takes longer than most calls. So a table
//! finds them by keys, and after a change, only the latest mounts are listed. The count of all
//! mounts shows whether mounts have gone that this process did not unmount.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use rustix::fs::StatVfsMountFlags;

use super::uevents::{DeviceChanges, Uevents};
use super::{Linux, btrfs, ioctl, loopdev, mount, statmount};
use crate::file::mount_id;
use crate::look::LOOKS;
use crate::mount_words::Words;
use crate::stand_ins;
use crate::{Error, KnownLoops, LoopInfo, LoopScope, LoopTable, MountEntry, MountTable, Result};

mod follow_stand_ins;

/// How much a kernel shows of mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountQueries {
    /// The whole table only (mountinfo). A changed table is read whole.
    Table,
    /// Also all fields of a mount by its ID (Linux 6.13). Of a changed table, all IDs are listed.
    ById,
    /// Also the number of all mounts (Linux 6.12). Of a changed table, the latest IDs are listed.
    #[default]
    Counted,
}

/// The loop devices and mounts that are known.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The most to expect of the kernel.
    queries: MountQueries,
    /// The kernel's messages; `None` if this kernel does not announce attached devices here. (Linux
    /// 6.2 to 6.14 may not, and user namespaces get no messages.)
    uevents: OnceLock<Option<Uevents>>,
    loops: Mutex<Loops>,
    mounts: Mutex<Option<KnownMounts>>,
    /// Where this process has unmounted something since the last look.
    unmounted: Mutex<Vec<PathBuf>>,
}

/// The known loop devices.
#[derive(Debug, Default)]
struct Loops {
    known: LoopTable,
    /// Number of the last message.
    messages: u64,
    /// Devices to query again. Those that do not report their backing file stay here.
    changed: BTreeMap<u32, Change>,
    /// True if `known` has all devices but the changed ones.
    complete: bool,
    /// The last message after which messages were lost.
    lost: u64,
    /// How often [`stand_ins`] had changed at the last look.
    stand_ins: u64,
}

/// A device to query again.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    /// The message that announced it.
    message: u64,
    /// The path of the backing file, if that was read after the message.
    backing_path: Option<String>,
}

/// The devices to query before the list is right.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Query {
    /// All attached devices. Messages after this one count as later changes.
    All(u64),
    /// These, each with its message.
    These(Vec<(u32, u64)>),
}

impl Loops {
    /// Takes in messages, and says what to query for this scope.
    fn note(&mut self, changes: DeviceChanges, scope: LoopScope<'_>) -> Query {
        match changes {
            DeviceChanges::Loops(minors) => minors.into_iter().for_each(|minor| self.change(minor)),
            DeviceChanges::Unknown => self.forget(),
        }
        if !self.complete {
            return Query::All(self.messages);
        }
        let needed = self.changed.iter().filter(|(minor, change)| {
            let path = change.backing_path.as_ref();
            path.is_none_or(|path| scope.needs(**minor, path))
        });
        Query::These(
            needed
                .map(|(minor, change)| (*minor, change.message))
                .collect(),
        )
    }

    /// All devices must be queried again.
    fn forget(&mut self) {
        self.messages += 1;
        self.lost = self.messages;
        self.complete = false;
    }

    /// The device must be queried again.
    fn change(&mut self, minor: u32) {
        self.messages += 1;
        self.changed.insert(
            minor,
            Change {
                message: self.messages,
                backing_path: None,
            },
        );
    }

    /// Takes in the answers to a query, and returns the list. A device without an answer has
    /// nothing attached.
    fn learn(&mut self, query: Query, answers: Vec<LoopInfo>) -> KnownLoops {
        let asked = match query {
            Query::These(asked) => asked,
            Query::All(message) => {
                self.changed.retain(|_, change| change.message > message);
                self.complete = self.lost <= message;
                self.known = LoopTable::default();
                for info in &answers {
                    let change = Change {
                        message,
                        backing_path: None,
                    };
                    self.changed.entry(info.minor).or_insert(change);
                }
                answers.iter().map(|info| (info.minor, message)).collect()
            }
        };
        let mut answers: BTreeMap<u32, LoopInfo> =
            answers.into_iter().map(|info| (info.minor, info)).collect();
        let mut whole_answers = BTreeSet::new();
        for (minor, message) in asked {
            // Another call has learned this message already, or a later one.
            let Some(change) = self.changed.get_mut(&minor) else {
                continue;
            };
            let answer = answers.remove(&minor);
            let silent = answer.as_ref().filter(|info| info.backing.is_none());
            if change.message == message {
                match silent {
                    Some(info) => change.backing_path = Some(info.backing_path.clone()),
                    None => drop(self.changed.remove(&minor)),
                }
                whole_answers.extend(answer.as_ref().and_then(whole));
            }
            match answer {
                Some(info) => self.known.insert(minor.into(), Arc::new(info)),
                None => self.known.remove(minor.into()),
            }
        }
        KnownLoops {
            table: self.known.clone(),
            asked: whole_answers,
        }
    }
}

/// The minor of a device that has answered a query. Of others, only the path may have been read.
fn whole(answer: &LoopInfo) -> Option<u32> {
    answer.backing.map(|_| answer.minor)
}

/// The known mounts of one mount namespace.
#[derive(Debug)]
struct KnownMounts {
    /// Inode number of the namespace. Tests enter other ones with single threads.
    namespace: u64,
    /// An open mountinfo; poll on it reports a changed mount table once.
    notice: File,
    /// The open namespace.
    opened: File,
    /// How many mounts the namespace has besides the listed ones. They are outside of this
    /// process's root. `None` if the mount table changed while they were counted, or if the kernel
    /// does not count them.
    unlisted: Option<u32>,
    queries: MountQueries,
    table: MountTable,
    /// Numbers of the btrfs mounts without known devices: their filesystem could not be asked yet.
    unasked: BTreeSet<u64>,
    /// When the table was last read whole.
    read_whole: Option<Instant>,
    words: Words,
}

impl KnownMounts {
    fn read(namespace: u64, queries: MountQueries) -> Result<KnownMounts> {
        // Opened first: poll reports what changes from now on.
        let [notice, opened] = [MOUNTINFO, NAMESPACE]
            .map(|path| File::open(path).map_err(|e| Error::io("open", path, e)));
        let mut mounts = KnownMounts {
            namespace,
            notice: notice?,
            opened: opened?,
            unlisted: None,
            queries,
            table: MountTable::default(),
            unasked: BTreeSet::new(),
            read_whole: None,
            words: Words::default(),
        };
        mounts.list()?;
        Ok(mounts)
    }

    /// Reads what changed since the last time. This process has unmounted something at these paths.
    fn follow(&mut self, unmounted: &[PathBuf]) -> Result<()> {
        self.follow_changes(unmounted)?;
        self.ask_again();
        Ok(())
    }

    fn follow_changes(&mut self, unmounted: &[PathBuf]) -> Result<()> {
        // No change of the table announces the late answer of a btrfs, and only a mount that is
        // known by its ID can be asked alone.
        let is_unanswered =
            self.queries == MountQueries::Table && self.table.of_any_loop().next().is_some();
        let is_due = is_unanswered && self.read_whole.is_none_or(|at| at.elapsed() >= ASK_AGAIN);
        if !self.has_changed()? && !is_due {
            return Ok(());
        }
        for _ in 0..LOOKS {
            if self.follow_new(unmounted).is_some() {
                return Ok(());
            }
            // Without a change meanwhile, the count was right.
            if !self.has_changed()? {
                break;
            }
        }
        self.list()
    }

    /// Lists the new mounts. `None` if other mounts may have gone than those at these paths.
    fn follow_new(&mut self, unmounted: &[PathBuf]) -> Option<()> {
        let unlisted = self.unlisted?;
        let known = &self.table.entries;
        let after = known.numbers().rev().nth(LATEST).unwrap_or_default();
        let listed = statmount::list(after).ok()?;
        let at_paths = unmounted
            .iter()
            .flat_map(|path| self.table.numbers_at(path));
        // Without the latest ones, which the list shows.
        let old = at_paths.filter(|id| *id <= after && is_gone(*id));
        let latest = known.numbers().rev().take_while(|id| *id > after);
        let gone: Vec<u64> = old
            .chain(latest.filter(|id| listed.binary_search(id).is_err()))
            .collect();
        let mut new = Vec::new();
        for id in listed.into_iter().filter(|id| known.get(*id).is_none()) {
            let words = &mut self.words;
            new.push((id, statmount::stat(id, |mount| mount.entry(words)).ok()??));
        }
        let mut table = self.table.clone();
        let unasked = add(&mut table, gone, new);
        let all = u32::try_from(table.entries.len())
            .ok()?
            .checked_add(unlisted)?;
        if ioctl::count_mounts(&self.opened).ok()? != all {
            return None;
        }
        self.table = table;
        self.unasked.extend(unasked);
        Some(())
    }

    /// Asks those filesystems again that could not be asked before. Where the table is read whole,
    /// [`KnownMounts::follow_changes`] does that.
    fn ask_again(&mut self) {
        if self.unasked.is_empty() || self.queries == MountQueries::Table {
            return;
        }
        let unasked = std::mem::take(&mut self.unasked);
        let entries = unasked.into_iter();
        let entries: Vec<_> = entries
            .filter_map(|id| Some((id, (**self.table.entries.get(id)?).clone())))
            .collect();
        self.unasked = add(&mut self.table, [], entries).into_iter().collect();
    }

    /// Lists all mounts, and reads those that are new.
    fn list(&mut self) -> Result<()> {
        let before = self.count();
        let listed = match self.queries {
            MountQueries::Table => None,
            MountQueries::ById | MountQueries::Counted => by_id(&self.table, &mut self.words),
        };
        let Some((table, unasked)) = listed else {
            self.queries = MountQueries::Table;
            (self.unlisted, self.table) = (None, mount::table()?);
            self.read_whole = Some(Instant::now());
            return Ok(());
        };
        self.unasked.extend(unasked);
        let all = before.filter(|all| self.count() == Some(*all));
        let listed = u32::try_from(table.entries.len()).ok();
        self.unlisted = all
            .zip(listed)
            .and_then(|(all, listed)| all.checked_sub(listed));
        self.table = table;
        Ok(())
    }

    /// The number of all mounts, if the kernel counts them.
    fn count(&self) -> Option<u32> {
        match self.queries {
            MountQueries::Counted => ioctl::count_mounts(&self.opened).ok(),
            MountQueries::Table | MountQueries::ById => None,
        }
    }

    fn has_changed(&self) -> Result<bool> {
        let mut polled = [PollFd::new(self.notice.as_fd(), PollFlags::POLLPRI)];
        poll(&mut polled, PollTimeout::ZERO).map_err(|e| Error::io("poll", MOUNTINFO, e.into()))?;
        Ok(polled[0].any().unwrap_or(true))
    }
}

/// How many of the latest known mounts are listed again with the new ones. A mount has its ID
/// before it is attached, so one with an earlier ID may appear after them. (One from another
/// namespace gets its ID here when it is attached there.) A mount that appears still later changes
/// the count. It is missed only if a foreign old mount goes before the same look.
const LATEST: usize = 64;
/// How long an unchanged table is not read whole again for the answer of a btrfs. One that is
/// covered everywhere never answers, and each of many calls would read the table for it.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const MOUNTINFO: &str = "/proc/thread-self/mountinfo";
const NAMESPACE: &str = "/proc/thread-self/ns/mnt";

/// True if this thread's namespace has no mount with this ID any more.
fn is_gone(id: u64) -> bool {
    statmount::stat(id, |_| ()).is_ok_and(|mount| mount.is_none())
}

/// Removes and adds mounts by their IDs, with the loop devices of each btrfs. Returns the IDs of
/// those that could not be asked for theirs.
fn add(
    table: &mut MountTable,
    gone: impl IntoIterator<Item = u64>,
    new: Vec<(u64, MountEntry)>,
) -> Vec<u64> {
    let (ids, mut entries): (Vec<u64>, Vec<MountEntry>) = new.into_iter().unzip();
    let unasked = btrfs::find_loops(&mut entries);
    table.change(gone, ids.iter().copied().zip(entries));
    unasked
        .into_iter()
        .map(|at| ids[at])
        .filter(|id| !learn(table, *id))
        .collect()
}

/// Takes the loop devices of a btrfs from another mount of it; false if none has them.
fn learn(table: &mut MountTable, id: u64) -> bool {
    let Some(entry) = table.entries.get(id) else {
        return false;
    };
    let found = table
        .entries
        .iter()
        .filter(|other| other.device == entry.device)
        .find_map(|other| other.btrfs_loops.clone());
    let Some(loops) = found else {
        return false;
    };
    let entry = MountEntry {
        btrfs_loops: Some(loops),
        ..(**entry).clone()
    };
    table.change([], [(id, entry)]);
    true
}

/// Lists the mounts by ID, and reads those that `known` does not have. Returns also the IDs of the
/// btrfs mounts that could not be asked. `None` if this kernel does not show all fields by ID: it
/// needs Linux 6.13.
fn by_id(known: &MountTable, words: &mut Words) -> Option<(MountTable, Vec<u64>)> {
    let listed = statmount::list(0).ok()?;
    // The IDs are in rising order.
    let gone = known
        .entries
        .numbers()
        .filter(|id| listed.binary_search(id).is_err());
    let (gone, mut new): (Vec<u64>, _) = (gone.collect(), Vec::new());
    let mut has_source = !known.entries.is_empty();
    for id in listed
        .into_iter()
        .filter(|id| known.entries.get(*id).is_none())
    {
        let found = statmount::stat(id, |mount| (mount.has_source(), mount.entry(words)));
        if let Some((with_source, entry)) = found.ok()? {
            has_source |= with_source;
            new.push((id, entry));
        }
    }
    let mut table = known.clone();
    let unasked = add(&mut table, gone, new);
    has_source.then_some((table, unasked))
}

impl Known {
    pub(super) fn new(queries: MountQueries) -> Known {
        Known {
            queries,
            ..Known::default()
        }
    }

    /// All attached loop devices, lowest minor first.
    pub(super) fn loops(&self, linux: &Linux, scope: LoopScope<'_>) -> Result<KnownLoops> {
        let uevents = self.uevents.get_or_init(|| {
            let proved = loopdev::proved_uevents(linux);
            if proved.is_none() {
                tracing::info!(
                    "the kernel does not announce loop devices here: each call lists them all"
                );
            }
            proved
        });
        let Some(uevents) = uevents else {
            let all = loopdev::infos_in(linux, &loopdev::attached_minors()?, scope);
            let asked = all.iter().filter_map(whole).collect();
            return Ok(KnownLoops {
                table: all.into(),
                asked,
            });
        };
        let query = {
            let mut loops = self.loops.lock();
            let (changes, former) = stand_ins::changes_after(loops.stand_ins);
            loops.follow_stand_ins(changes, former);
            let changes = uevents
                .drain()
                .map_err(|e| Error::io("recvfrom", "uevents", e))?;
            loops.note(changes, scope)
        };
        // Without the lock: a device may hang.
        let minors = match &query {
            Query::All(_) => loopdev::attached_minors()?,
            Query::These(minors) => minors.iter().map(|(minor, _)| *minor).collect(),
        };
        let answers = loopdev::infos_in(linux, &minors, scope);
        Ok(self.loops.lock().learn(query, answers))
    }

    /// The mounts of this thread's namespace.
    pub(super) fn mounts(&self) -> Result<MountTable> {
        let namespace = std::fs::metadata(NAMESPACE);
        let namespace = namespace
            .map_err(|e| Error::io("stat", NAMESPACE, e))?
            .ino();
        let mut known = self.mounts.lock();
        let unmounted = std::mem::take(&mut *self.unmounted.lock());
        match known
            .as_mut()
            .filter(|mounts| mounts.namespace == namespace)
        {
            Some(mounts) => {
                let followed = mounts.follow(&unmounted).map(|()| mounts.table.clone());
                // The notice of the change is used up, so the old table would seem current.
                if followed.is_err() {
                    *known = None;
                }
                followed
            }
            None => Ok(known
                .insert(KnownMounts::read(namespace, self.queries)?)
                .table
                .clone()),
        }
    }

    /// Makes the next look at loop devices read all of them.
    pub(super) fn forget_loops(&self) {
        self.loops.lock().forget();
    }

    /// Makes the next look at mounts read all of them.
    pub(super) fn forget_mounts(&self) {
        *self.mounts.lock() = None;
    }

    /// Notes that this process has unmounted something.
    pub(super) fn unmounted(&self, path: &Path) {
        self.unmounted.lock().push(path.to_owned());
    }

    /// True if the kernel still shows these mounts, and these mounts as the topmost ones at these
    /// paths. If not, they are read again at the next call.
    pub(super) fn confirm_mounts(
        &self,
        mounts: &[&MountEntry],
        at: &[(&Path, Option<&MountEntry>)],
    ) -> bool {
        let same = mounts.iter().all(|entry| self.is_current(entry))
            && at
                .iter()
                .all(|(path, entry)| is_topmost(mounts, path, *entry));
        if !same {
            *self.mounts.lock() = None;
        }
        same
    }

    /// True if the kernel still shows these devices. If not, they are read again at the next call.
    pub(super) fn confirm_loops(&self, linux: &Linux, loops: &[&LoopInfo]) -> bool {
        let minors: Vec<u32> = loops.iter().map(|info| info.minor).collect();
        let now = match minors.as_slice() {
            [] => Vec::new(),
            minors => loopdev::infos(linux, minors),
        };
        let mut known = self.loops.lock();
        let mut same = true;
        for info in loops.iter().filter(|info| !now.contains(info)) {
            known.change(info.minor);
            same = false;
        }
        same
    }

    /// True if the kernel shows the same of this mount now.
    fn is_current(&self, entry: &MountEntry) -> bool {
        if let Some(id) = entry.unique_id {
            return statmount::stat(id, |now| now.is(entry)).is_ok_and(|same| same == Some(true));
        }
        let path = &*entry.mount_point;
        // Only the table shows a hidden mount.
        if mount_of(path) != Some(entry.id) {
            return mount::table().is_ok_and(|table| has(&table, entry));
        }
        // Poll reports all changes but those of the filesystem, like one that turned read-only.
        let read_only = entry.read_only() || entry.fs_read_only();
        self.mounts().is_ok_and(|table| has(&table, entry))
            && rustix::fs::statvfs(path)
                .is_ok_and(|now| now.f_flag.contains(StatVfsMountFlags::RDONLY) == read_only)
    }
}

/// True if this mount, or none, is the topmost one at this path. The kernel shows the `current`
/// mounts as they are.
fn is_topmost(current: &[&MountEntry], path: &Path, entry: Option<&MountEntry>) -> bool {
    match entry {
        // A mount that the kernel shows at a path is the topmost one if the path leads to it.
        Some(entry) if is_at(path, entry, current) => mount_of(path) == Some(entry.id),
        entry => topmost_id(path) == entry.map(|entry| entry.id),
    }
}

/// True if a mount is at this path, and one of these.
fn is_at(path: &Path, entry: &MountEntry, mounts: &[&MountEntry]) -> bool {
    let is_one = mounts
        .iter()
        .any(|mount| mount.unique_id == entry.unique_id);
    is_one && entry.unique_id.is_some() && entry.mount_point == path
}

/// True if the table has exactly this mount.
fn has(table: &MountTable, entry: &MountEntry) -> bool {
    let numbers = table.numbers_at(&entry.mount_point);
    let mut at_path = numbers.filter_map(|n| table.entries.get(n));
    at_path.any(|now| **now == *entry)
}

/// The ID of the topmost mount at exactly this path; `None` if the path is not a mount point. This
/// asks no filesystem but those above, so a dead one does not hang it.
fn topmost_id(path: &Path) -> Option<u64> {
    let here = mount_of(path)?;
    // A mount point is in another mount than its directory.
    let above = path.parent().and_then(mount_of);
    Some(here).filter(|here| above != Some(*here))
}

fn mount_of(path: &Path) -> Option<u64> {
    mount_id(rustix::fs::CWD, path).ok()?
}

#[cfg(test)]
mod tests;
