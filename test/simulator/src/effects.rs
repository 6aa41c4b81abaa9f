//! Deaths of drivers at effects: of the process of a node, no effect but the first few happens.
//!
//! Work of drivers runs one after the other, so at any time the process of one node acts, or none
//! does. It dies before the effect at which its time has come. Its call goes on, but none of its
//! effects happens any more, and its answer is lost. If the power of the node fails, its process
//! dies in the same way. While the disk of the node is full, effects that need room on it fail.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use hostloop_driver::kernel::failpoint;
use hostloop_fake_api::Connection;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::trace;

/// An effect before which no process dies. It may run beside others, and so in any order.
const THAW: &str = "thaw";
/// An effect that matters to what a power cut takes, and to nothing else.
const SYNC: &str = "file.sync";

/// The effect of a copy of bytes.
const COPY: &str = "file.copy";
/// The effect of an allocation of blocks for a whole volume.
const ALLOCATE: &str = "file.allocate";

/// The effects that need room on the disk of a pool.
const NEED_ROOM: [&str; 9] = [
    ALLOCATE,
    "file.clone",
    COPY,
    "file.create",
    "file.mkdir",
    "file.scratch",
    "file.unshare",
    "file.write",
    "mkfs",
];

/// What ends a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Death,
    PowerCut,
}

impl End {
    /// True if it may come before this effect.
    fn counts(self, effect: &str) -> bool {
        effect != THAW && (effect != SYNC || self == End::PowerCut)
    }
}

/// How a process is ended.
struct Fuse {
    connection: Connection,
    dead: CancellationToken,
}

/// The driver's processes, by their nodes.
struct Processes {
    /// The node of the process that acts.
    acting: Option<&'static str>,
    /// Grows with each effect, and with each end of work that had some.
    changes: u64,
    /// The changes before the work of the process that acts.
    before: u64,
    /// Grows with each copy of bytes.
    copies: u64,
    /// Grows with each allocation.
    allocations: u64,
    /// How many effects happen before the one at which the process ends, and how.
    left: BTreeMap<&'static str, (u64, End)>,
    /// The processes that have not died at an effect.
    fuses: BTreeMap<&'static str, Fuse>,
    dead: BTreeSet<&'static str>,
    /// The nodes with a full disk, and how many troubles fill it.
    full: BTreeMap<&'static str, u64>,
}

static PROCESSES: Mutex<Processes> = Mutex::new(Processes {
    acting: None,
    changes: 0,
    before: 0,
    copies: 0,
    allocations: 0,
    left: BTreeMap::new(),
    fuses: BTreeMap::new(),
    dead: BTreeSet::new(),
    full: BTreeMap::new(),
});

/// Announces that a process has died.
static DEATH: Notify = Notify::const_new();

/// Lets processes die from now on.
pub(crate) fn begin() {
    failpoint::watch(decide);
}

/// The process of a node starts. At its death, it cuts this connection and cancels this token.
pub(crate) fn start(node: &'static str, connection: Connection, dead: CancellationToken) {
    let mut processes = PROCESSES.lock();
    processes.dead.remove(node);
    processes.fuses.insert(node, Fuse { connection, dead });
}

/// Lets the process of a node die after so many effects, or the next one if it ends before.
pub(crate) fn die_after(node: &'static str, effects: u64) {
    end_after(node, effects, End::Death);
}

/// Like [`die_after`], because the power of the node fails. An fsync counts as an effect.
pub(crate) fn lose_power_after(node: &'static str, effects: u64) {
    end_after(node, effects, End::PowerCut);
}

fn end_after(node: &'static str, effects: u64, end: End) {
    PROCESSES.lock().left.insert(node, (effects, end));
}

/// The disk of a node has no room any more, until [`make_room`] is called as often.
pub(crate) fn fill_disk(node: &'static str) {
    *PROCESSES.lock().full.entry(node).or_default() += 1;
}

/// The disk of a node has room again, unless another trouble fills it, too.
pub(crate) fn make_room(node: &'static str) {
    if let Some(troubles) = PROCESSES.lock().full.get_mut(node) {
        *troubles = troubles.saturating_sub(1);
    }
}

/// True if the disk of a node has no room.
pub(crate) fn is_disk_full(node: &str) -> bool {
    let processes = PROCESSES.lock();
    let troubles = processes.full.get(node);
    troubles.is_some_and(|troubles| *troubles > 0)
}

/// No process dies at an effect any more.
pub(crate) fn spare_all() {
    PROCESSES.lock().left.clear();
}

/// True if the last process of a node died at an effect.
pub(crate) fn has_died(node: &str) -> bool {
    PROCESSES.lock().dead.contains(node)
}

/// Waits for a death at an effect. One before this call counts, too.
pub(crate) async fn death() {
    DEATH.notified().await;
}

/// What a disk has may have changed without an effect.
pub(crate) fn changed() {
    PROCESSES.lock().changes += 1;
}

/// The number of changes so far, if the work that acts has made none. Two measures of a disk at one
/// number are the same: each change of it follows an effect in the same work.
pub(crate) fn unchanged() -> Option<u64> {
    let processes = PROCESSES.lock();
    let is_unchanged = processes.acting.is_some() && processes.before == processes.changes;
    // Other builds announce no effects.
    (cfg!(debug_assertions) && is_unchanged).then_some(processes.changes)
}

/// The number of changes so far. While it stays the same between two pieces of work, no disk has
/// changed. None in builds that announce no effects.
pub(crate) fn changes() -> Option<u64> {
    cfg!(debug_assertions).then(|| PROCESSES.lock().changes)
}

/// The number of copies of bytes so far. None in builds that announce no effects.
pub(crate) fn copies() -> Option<u64> {
    cfg!(debug_assertions).then(|| PROCESSES.lock().copies)
}

/// The number of allocations so far. None in builds that announce no effects.
pub(crate) fn allocations() -> Option<u64> {
    cfg!(debug_assertions).then(|| PROCESSES.lock().allocations)
}

/// While it exists, the process of this node acts.
pub(crate) struct Acting {
    /// What acted before, and the changes before that.
    outer: (Option<&'static str>, u64),
}

impl Acting {
    pub(crate) fn of(node: &'static str) -> Acting {
        let mut processes = PROCESSES.lock();
        let outer = (processes.acting.replace(node), processes.before);
        processes.before = processes.changes;
        Acting { outer }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        let mut processes = PROCESSES.lock();
        if processes.changes != processes.before {
            // The work may have gone on after its last effect.
            processes.changes += 1;
        }
        (processes.acting, processes.before) = self.outer;
    }
}

/// The error of all effects of a dead process.
fn never() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// Fails if an effect needs room on a disk that has none.
fn find_room(node: &'static str, effect: &str) -> io::Result<()> {
    if NEED_ROOM.contains(&effect) && is_disk_full(node) {
        trace::line(node, format!("no room for {effect}"));
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    Ok(())
}

/// Counts an effect, and kills the process that acts if its time has come.
fn decide(effect: &'static str) -> io::Result<()> {
    let mut processes = PROCESSES.lock();
    processes.changes += 1;
    processes.copies += u64::from(effect == COPY);
    processes.allocations += u64::from(effect == ALLOCATE);
    let Some(node) = processes.acting else {
        return Ok(());
    };
    if processes.dead.contains(node) {
        return Err(never());
    }
    let end = match processes.left.get_mut(node) {
        Some((left, end)) if end.counts(effect) => {
            let is_time = *left == 0;
            *left = left.saturating_sub(1);
            is_time.then_some(*end)
        }
        _ => None,
    };
    let Some(end) = end else {
        drop(processes);
        return find_room(node, effect);
    };
    processes.left.remove(node);
    processes.dead.insert(node);
    let fuse = processes.fuses.remove(node);
    // What wakes up may look at processes.
    drop(processes);
    if let Some(fuse) = fuse {
        fuse.connection.cut();
        fuse.dead.cancel();
    }
    let what = match end {
        End::Death => "the driver dies",
        End::PowerCut => "the power fails",
    };
    trace::line(node, format!("{what} before {effect}"));
    DEATH.notify_one();
    Err(never())
}

#[cfg(test)]
mod tests {
    use hostloop_fake_api::FakeApi;

    use super::*;

    fn done(effect: &'static str) -> bool {
        decide(effect).is_ok()
    }

    #[test]
    fn a_full_disk_has_no_room_until_each_trouble_is_over() {
        let outcome = |node: &'static str, effect: &'static str| {
            let failed = find_room(node, effect).err();
            failed.and_then(|error| error.raw_os_error())
        };
        fill_disk("f");
        fill_disk("f");
        make_room("f");
        assert!(is_disk_full("f") && !is_disk_full("g"));
        for (node, effect, expected) in [
            ("f", "file.write", Some(libc::ENOSPC)),
            ("f", "mkfs", Some(libc::ENOSPC)),
            ("f", "file.unlink", None),
            ("f", "mount", None),
            ("g", "file.write", None),
        ] {
            assert_eq!(outcome(node, effect), expected, "{node} {effect}");
        }
        make_room("f");
        assert_eq!(outcome("f", "file.write"), None);
    }

    /// One test, because all share the processes.
    #[test]
    fn a_process_dies_once_and_stays_dead_until_the_next_one_starts() {
        let dead = CancellationToken::new();
        start("m", FakeApi::cluster().connect("m"), dead.clone());
        die_after("m", 1);
        assert!(done("mount"), "no process acts");
        {
            let _other = Acting::of("k");
            assert!(done("mount") && done("mount"), "another node");
            let _acting = Acting::of("m");
            assert!(done("file.sync") && done("mount") && done("thaw"));
            assert!(!dead.is_cancelled());
            assert!(!done("mount"));
            assert!(dead.is_cancelled() && has_died("m"));
            assert!(!done("file.sync") && !done("unmount"));
        }
        start(
            "m",
            FakeApi::cluster().connect("m"),
            CancellationToken::new(),
        );
        let acting = Acting::of("m");
        assert!(!has_died("m") && done("mount") && done("mount"));
        die_after("m", 0);
        spare_all();
        assert!(done("mount"));
        drop(acting);
        assert_eq!(unchanged(), None, "no process acts");
        let acting = Acting::of("m");
        let measured = unchanged();
        drop(acting);
        let acting = Acting::of("k");
        assert!(measured.is_some() && unchanged() == measured);
        assert!(done("mount"));
        assert_eq!(unchanged(), None, "it has changed something");
        drop(acting);
        let copied = copies();
        assert!(done("file.mkdir") && done("file.create") && done("loop.flush"));
        assert!(copied.is_some() && copies() == copied, "no bytes");
        assert!(done("file.copy") && copies() > copied);
        let allocated = allocations();
        assert!(done("file.allocate") && allocations() > allocated);
        let _acting = Acting::of("m");
        assert!(unchanged() > measured);
        lose_power_after("m", 1);
        assert!(done("thaw") && done("file.sync") && !done("file.sync"));
        assert!(has_died("m"));
    }
}
