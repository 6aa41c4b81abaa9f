//! The rows of the table of claim faults in docs/faults.md. A test compares both.

use std::time::Duration;

/// Reads the disk, and not the page cache.
const READ: &str = "dd if=/data/blocks of=/dev/null bs=4k iflag=direct";
/// Reads blocks all over the disk.
const READ_ALL: &str = "dd if=/data/large of=/dev/null bs=1M iflag=direct";
pub(super) const WRITE: &str = "echo new >/data/new";
/// Writes more than a filesystem keeps for itself.
const WRITE_MUCH: &str = "dd if=/dev/zero of=/data/much bs=1M count=64 conv=fsync";

/// What a program does that wants to know that its data is on the disk.
const WRITE_SYNCED: &str = "dd if=/dev/zero of=/data/more bs=4k count=16 conv=fsync";

/// What the kernel says, as a pod's programs print it.
const EIO: &[&str] = &["Input/output error", "I/O error"];
const EROFS: &[&str] = &["Read-only file system"];
const ENOSPC: &[&str] = &["No space left on device"];
/// A disk that answers writes with ENOSPC also stops the filesystem's journal, and that may come first.
const ENOSPC_OR_STOPPED: &[&str] = &[
    "No space left on device",
    "Input/output error",
    "I/O error",
    "Read-only file system",
];

/// What a pod sees of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    /// This command fails, and prints one of these.
    Fails(&'static str, &'static [&'static str]),
    /// This command works, and takes this long at least.
    Takes(&'static str, Duration),
    /// Writes wait, and go on once the fault is over.
    Waits,
    /// The volume can't have the fault.
    Nothing,
}

/// How a fault ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heals {
    /// In place, as soon as it is cleared.
    InPlace,
    /// In place if nothing was written meanwhile, which the kernel may do by itself.
    Perhaps,
    /// Once the pods are deleted.
    Restaged,
    /// In place, after its time.
    InTime,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) fault: &'static str,
    pub(super) fs: &'static str,
    pub(super) seen: Seen,
    pub(super) heals: Heals,
    /// The volume is on a fault disk.
    pub(super) on_fault_disk: bool,
}

/// A row of a volume on a plain disk.
pub(super) const fn row(fault: &'static str, fs: &'static str, seen: Seen, heals: Heals) -> Row {
    Row {
        fault,
        fs,
        seen,
        heals,
        on_fault_disk: false,
    }
}

/// A row of a volume on a fault disk.
pub(super) const fn disk_row(
    fault: &'static str,
    fs: &'static str,
    seen: Seen,
    heals: Heals,
) -> Row {
    Row {
        on_fault_disk: true,
        ..row(fault, fs, seen, heals)
    }
}

const NO_READ: Seen = Seen::Fails(READ, EIO);
const NO_LATE_READ: Seen = Seen::Fails(READ_ALL, EIO);
const NO_ROOM: Seen = Seen::Fails(WRITE_MUCH, ENOSPC);
const NO_SYNC: Seen = Seen::Fails(WRITE_SYNCED, ENOSPC_OR_STOPPED);
/// 16 blocks, one after the other, each half a second late.
const SLOW_READ: Seen = Seen::Takes(READ, Duration::from_secs(8));

pub(super) const ROWS: [Row; 31] = [
    row("gone", "ext4", NO_READ, Heals::Perhaps),
    row("gone", "xfs", NO_READ, Heals::Perhaps),
    row("gone", "btrfs", NO_READ, Heals::Perhaps),
    row("eio-from=64Mi", "ext4", NO_LATE_READ, Heals::Perhaps),
    row("eio-from=64Mi", "xfs", NO_LATE_READ, Heals::Perhaps),
    row("eio-from=64Mi", "btrfs", NO_LATE_READ, Heals::Perhaps),
    row("powercut", "ext4", NO_READ, Heals::Restaged),
    row("powercut", "xfs", NO_READ, Heals::Restaged),
    row("powercut", "btrfs", NO_READ, Heals::Perhaps),
    row("frozen", "ext4", Seen::Waits, Heals::InTime),
    row("frozen", "xfs", Seen::Waits, Heals::InTime),
    row("frozen", "btrfs", Seen::Waits, Heals::InTime),
    row(
        "readonly",
        "ext4",
        Seen::Fails(WRITE, EROFS),
        Heals::Restaged,
    ),
    row("readonly", "xfs", Seen::Nothing, Heals::InPlace),
    row("readonly", "btrfs", Seen::Nothing, Heals::InPlace),
    row("full", "ext4", NO_ROOM, Heals::InPlace),
    row("full", "xfs", NO_ROOM, Heals::InPlace),
    row("full", "btrfs", NO_ROOM, Heals::InPlace),
    row("eio", "ext4", Seen::Nothing, Heals::InPlace),
    disk_row("eio", "ext4", NO_READ, Heals::Perhaps),
    disk_row("eio", "xfs", NO_READ, Heals::Perhaps),
    disk_row("eio", "btrfs", NO_READ, Heals::Perhaps),
    disk_row("enospc,op=write", "ext4", NO_SYNC, Heals::Perhaps),
    disk_row("enospc,op=write", "xfs", NO_SYNC, Heals::Perhaps),
    disk_row("enospc,op=write", "btrfs", NO_SYNC, Heals::Perhaps),
    disk_row("slow=500ms", "ext4", SLOW_READ, Heals::InPlace),
    disk_row("slow=500ms", "xfs", SLOW_READ, Heals::InPlace),
    disk_row("slow=500ms", "btrfs", SLOW_READ, Heals::InPlace),
    disk_row("powercut,loss=all", "ext4", NO_READ, Heals::Restaged),
    disk_row("powercut,loss=all", "xfs", NO_READ, Heals::Restaged),
    disk_row("powercut,loss=all", "btrfs", NO_READ, Heals::Restaged),
];

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/faults.md");

    /// A row of the page.
    #[derive(Debug)]
    struct Documented<'p> {
        faults: &'p str,
        on: &'p str,
        seen: &'p str,
        shown: &'p str,
        heals: &'p str,
    }

    fn documented() -> Vec<Documented<'static>> {
        let table = PAGE.split_once("| Fault | Filesystem | A pod sees |");
        let (_, table) = table.expect("the page has the table");
        let lines = table.lines().skip(2);
        lines
            .take_while(|line| line.starts_with('|'))
            .map(|line| {
                let cells: Vec<&str> = line.split('|').map(str::trim).collect();
                let [_, faults, on, seen, shown, heals, ..] = cells[..] else {
                    panic!("{line}");
                };
                Documented {
                    faults,
                    on,
                    seen,
                    shown,
                    heals,
                }
            })
            .collect()
    }

    /// The fault without its value, which the page has as a word in capitals.
    fn form(fault: &str) -> &str {
        let fault = fault.trim_matches('`');
        fault.rsplit_once('=').map_or(fault, |(form, _)| form)
    }

    impl Documented<'_> {
        fn is_of(&self, row: &Row) -> bool {
            let has_fs = self.on.starts_with("all") || self.on.to_lowercase().contains(row.fs);
            has_fs
                && self.on.contains("on a [fault disk]") == row.on_fault_disk
                && self.faults.split(", ").any(|f| form(f) == form(row.fault))
        }

        /// True if the page says what the row shows.
        fn agrees_with(&self, row: &Row) -> bool {
            let word = match row.seen {
                Seen::Nothing => {
                    return self.seen == "nothing" && self.shown.starts_with("`FaultRefused`");
                }
                Seen::Waits => "wait",
                Seen::Takes(..) => "late",
                Seen::Fails(_, EROFS) => "EROFS",
                Seen::Fails(_, ENOSPC | ENOSPC_OR_STOPPED) => "ENOSPC",
                Seen::Fails(..) => "EIO",
            };
            let ends: &[&str] = match row.heals {
                Heals::InPlace | Heals::InTime => &["when it ends"],
                Heals::Restaged => &["once it is staged again"],
                Heals::Perhaps => &["when it ends, if", "In place if", "like `gone`"],
            };
            self.seen.contains(word)
                && self.shown.starts_with("`FaultInjected`")
                && ends.iter().any(|end| self.heals.contains(end))
        }
    }

    #[test]
    fn the_page_has_these_rows() {
        let documented = documented();
        for row in &ROWS {
            let mut own = documented.iter().filter(|line| line.is_of(row));
            let (first, second) = (own.next(), own.next());
            let agrees = first.is_some_and(|line| line.agrees_with(row));
            assert!(agrees && second.is_none(), "{row:?}: {first:?} {second:?}");
        }
        let mut with_filesystem = documented.iter().filter(|line| !line.on.starts_with("raw"));
        let untested = with_filesystem.find(|line| !ROWS.iter().any(|row| line.is_of(row)));
        assert!(untested.is_none(), "{untested:?}");
    }
}
