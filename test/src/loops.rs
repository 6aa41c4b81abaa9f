//! The machine's loop devices, and which of them belong to a test.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::stat::{major, minor};
use serde::Deserialize;

use crate::machine;

/// An attached loop device, as `losetup` lists it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loop {
    /// N of `/dev/loopN`.
    pub minor: u32,
    /// The backing file's path when it was attached.
    pub backing: String,
    /// Device number of the filesystem the backing file is on, "major:minor".
    pub backing_device: String,
    /// The backing file's inode number.
    pub backing_inode: u64,
    /// True if direct I/O is on.
    pub direct_io: bool,
    /// Logical sector size in bytes.
    pub sector: u32,
}

#[derive(Deserialize)]
struct Listing {
    loopdevices: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    #[serde(rename = "back-file")]
    back_file: Option<String>,
    #[serde(rename = "back-maj:min")]
    back_device: Option<String>,
    #[serde(rename = "back-ino")]
    back_inode: Option<u64>,
    dio: bool,
    #[serde(rename = "log-sec")]
    sector: Option<u32>,
}

/// All attached loop devices of the machine.
pub fn all() -> Vec<Loop> {
    const COLUMNS: &str = "NAME,BACK-FILE,BACK-MAJ:MIN,BACK-INO,DIO,LOG-SEC";
    // losetup fails if a device disappears while it lists. Retry.
    let listed = (0..5)
        .find_map(|_| machine::try_run("losetup", &["--list", "--json", "--output", COLUMNS]).ok());
    let listed = listed.expect("losetup lists the loop devices");
    if listed.trim().is_empty() {
        return Vec::new();
    }
    let listing: Listing = serde_json::from_str(&listed).expect("losetup prints JSON");
    listing.loopdevices.into_iter().filter_map(read_row).collect()
}

fn read_row(row: Row) -> Option<Loop> {
    Some(Loop {
        minor: row.name.strip_prefix("/dev/loop")?.parse().ok()?,
        backing: row.back_file.unwrap_or_default(),
        backing_device: row.back_device.unwrap_or_default().trim().to_owned(),
        backing_inode: row.back_inode.unwrap_or(0),
        direct_io: row.dio,
        sector: row.sector.unwrap_or(0),
    })
}

/// The devices with a backing file beneath `dir`, and the devices that stand on one of them. Those
/// are on a filesystem in the device (a pool in an image shows no path beneath `dir` once its mount
/// is gone) or on the device itself.
pub fn beneath(dir: &Path) -> Vec<Loop> {
    let prefix = format!("{}/", machine::text(dir));
    standing_on(&all(), |l| l.backing.starts_with(&prefix))
}

/// [`beneath`] in a mount namespace with its root visible at `root`. A path there may belong to
/// another file elsewhere, so the file's identity must match.
pub fn beneath_on(root: &Path, dir: &Path) -> Vec<Loop> {
    let prefix = format!("{}/", machine::text(dir));
    standing_on(&all(), |l| {
        l.backing.starts_with(&prefix) && is_at(l, &root.join(l.backing.trim_start_matches('/')))
    })
}

/// True if a device's file is or was at this path. A deleted file counts if it was on its folder's
/// filesystem.
fn is_at(device: &Loop, path: &Path) -> bool {
    let number = |dev| format!("{}:{}", major(dev), minor(dev));
    let found = |m: &Metadata| number(m.dev()) == device.backing_device;
    match std::fs::metadata(path) {
        Ok(file) => found(&file) && file.ino() == device.backing_inode,
        Err(_) if device.backing.ends_with(" (deleted)") => {
            let there = path.ancestors().find_map(|dir| dir.metadata().ok());
            there.is_some_and(|dir| found(&dir))
        }
        Err(_) => false,
    }
}

fn standing_on(all: &[Loop], is_ours: impl Fn(&Loop) -> bool) -> Vec<Loop> {
    let mut ours: BTreeSet<&Loop> = BTreeSet::new();
    loop {
        let stands = |l: &&Loop| {
            is_ours(l)
                || ours.iter().any(|under| {
                    l.backing_device == format!("7:{}", under.minor)
                        || l.backing == format!("/dev/loop{}", under.minor)
                })
        };
        let more: BTreeSet<&Loop> = all.iter().filter(stands).collect();
        if more.len() == ours.len() {
            return ours.into_iter().cloned().collect();
        }
        ours = more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(minor: u32, backing: &str, on: &str) -> Loop {
        Loop {
            minor,
            backing: backing.to_owned(),
            backing_device: on.to_owned(),
            backing_inode: 1,
            direct_io: true,
            sector: 4096,
        }
    }

    #[test]
    fn what_stands_on_a_tests_loop_is_the_tests_too() {
        let all = [
            device(0, "/tmp/other/pool.img", "8:1"),
            device(1, "/tmp/mine/pool.img", "8:1"),
            device(2, "/volumes/v/image", "7:1"),
            device(3, "/dev/loop2", "0:5"),
            device(4, "/volumes/v/image", "7:0"),
            device(5, "/tmp/mine-too/pool.img", "8:1"),
        ];
        let mine = |l: &Loop| l.backing.starts_with("/tmp/mine/");
        let minors: Vec<_> = standing_on(&all, mine).iter().map(|l| l.minor).collect();
        assert_eq!(minors, [1, 2, 3]);
    }
}
