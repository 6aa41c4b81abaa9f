//! Finds the holder of a file's lock in `/proc/locks`, without taking the lock.

use std::path::Path;

use crate::kernel::FileId;
use crate::storage::file_names::LOCK;
use crate::storage::image_stat::ImageStat;

/// A process that holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process ID as seen from here; `None` if the process is in another PID namespace, or if
    /// the lock belongs to an open file rather than to a process.
    pub pid: Option<u32>,
}

/// Finds the process that has the pool in a directory open. `device` is the filesystem's device
/// number in the mount table: `/proc/locks` uses this one, and on btrfs `stat` returns another.
pub fn of_pool(root: &Path, device: (u32, u32)) -> Option<Holder> {
    let lock = ImageStat::at(&root.join(LOCK)).ok()??;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let file = FileId {
        dev: rustix::fs::makedev(device.0, device.1),
        ino: lock.file.ino,
    };
    holder(&locks, file)
}

/// Finds the holder of a lock on this file, in the text of `/proc/locks`.
///
/// A line reads `12: FLOCK  ADVISORY  WRITE 4711 fd:00:393224 0 EOF`. A process that only waits has
/// `->` after the number.
pub fn holder(locks: &str, file: FileId) -> Option<Holder> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let kind = words.next()?;
        if !matches!(kind, "FLOCK" | "POSIX" | "OFDLCK") {
            return None;
        }
        let mut words = words.skip(2);
        let pid = words.next()?;
        (file_id(words.next()?)? == file).then(|| Holder {
            pid: pid.parse().ok().filter(|pid| *pid > 0),
        })
    })
}

/// Parses `fd:00:393224`: major and minor in hex, inode in decimal.
fn file_id(text: &str) -> Option<FileId> {
    let mut parts = text.split(':');
    let major = u32::from_str_radix(parts.next()?, 16).ok()?;
    let minor = u32::from_str_radix(parts.next()?, 16).ok()?;
    Some(FileId {
        dev: rustix::fs::makedev(major, minor),
        ino: parts.next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCKS: &str = "\
1: FLOCK  ADVISORY  WRITE 4711 fd:00:393224 0 EOF
2: POSIX  ADVISORY  WRITE 17 fd:00:77 0 EOF
2: -> POSIX  ADVISORY  WRITE 18 fd:00:78 0 EOF
3: OFDLCK ADVISORY  WRITE -1 fd:00:79 0 EOF
4: LEASE  ACTIVE    READ 5 fd:00:80 0 EOF
nonsense
";

    #[test]
    fn finds_who_holds_a_file() {
        let file = |ino| FileId {
            dev: rustix::fs::makedev(0xfd, 0),
            ino,
        };
        for (ino, holder_) in [
            (393_224, Some(Some(4711))),
            (77, Some(Some(17))),
            (78, None), // only waits
            (79, Some(None)),
            (80, None), // a lease is not a lock
            (81, None),
        ] {
            assert_eq!(holder(LOCKS, file(ino)).map(|h| h.pid), holder_, "{ino}");
        }
    }
}
