//! The machine's loop devices, and which of them belong to a test.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::sys::stat::{major, minor};
use serde::Deserialize;

use crate::{PATIENCE, machine};

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
    /// Minor number of the loop device that is the backing file. Its path tells nothing once the
    /// mount namespace of the path has ended.
    pub over: Option<u32>,
    /// True if direct I/O is on.
    pub direct_io: bool,
    /// Logical sector size in bytes.
    pub sector: u32,
}

impl Loop {
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.minor))
    }

    /// True if both are one device over one file.
    fn is_same(&self, other: &Loop) -> bool {
        let key = |l: &Loop| (l.minor, l.backing_device.clone(), l.backing_inode);
        key(self) == key(other)
    }
}

/// How many devices are held open at a time.
const AT_ONCE: usize = 256;

/// Attaches a file to a free device, with these options of `losetup`. Returns the device, and its
/// open file: while that is open, no other process can detach the device.
pub fn attach(file: &Path, options: &[&str]) -> (PathBuf, File) {
    let file = machine::text(file);
    let args = [&["--find", "--show"], options, &[file]].concat();
    let try_attach = || {
        let device = PathBuf::from(machine::try_run("losetup", &args)?);
        let open = File::open(&device).map_err(|e| format!("{}: {e}", device.display()))?;
        let over = ["--noheadings", "--output", "NAME", "--associated", file];
        let devices = machine::try_run("losetup", &over)?;
        let is_attached = devices.lines().any(|name| Path::new(name.trim()) == device);
        is_attached
            .then_some((device, open))
            .ok_or_else(|| format!("{file} was detached again"))
    };
    // Another process of this machine may take the free device first.
    let attached = (0..20).find_map(|_| try_attach().ok());
    attached.unwrap_or_else(|| try_attach().unwrap_or_else(|why| panic!("{why}")))
}

/// Detaches the devices that still have their files, the first one first. Another process may have a
/// device's number by now. While a device is open here, the kernel attaches no other file to it.
pub fn detach(devices: &[Loop]) {
    for some in devices.chunks(AT_ONCE) {
        let open = some
            .iter()
            .filter_map(|device| Some((device, File::open(device.path()).ok()?)));
        let (open, now) = (open.collect::<Vec<_>>(), all());
        for (device, _) in open
            .iter()
            .filter(|(device, _)| now.iter().any(|l| l.is_same(device)))
        {
            let _ = machine::try_run("losetup", &["--detach", machine::text(&device.path())]);
        }
    }
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
    let end = Instant::now() + PATIENCE;
    let listed = loop {
        match machine::try_run("losetup", &["--list", "--json", "--output", COLUMNS]) {
            Ok(listed) => break listed,
            Err(why) => assert!(Instant::now() < end, "{why}"),
        }
    };
    if listed.trim().is_empty() {
        return Vec::new();
    }
    let listing: Listing = serde_json::from_str(&listed).expect("losetup prints JSON");
    let mut devices: Vec<Loop> = listing
        .loopdevices
        .into_iter()
        .filter_map(read_row)
        .collect();
    let nodes: HashMap<_, _> = devices
        .iter()
        .filter_map(|l| Some((identity(&l.path().metadata().ok()?), l.minor)))
        .collect();
    for device in &mut devices {
        let backing = (device.backing_device.clone(), device.backing_inode);
        device.over = nodes.get(&backing).copied();
    }
    devices
}

/// How a listing identifies a backing file: the device number of its filesystem, and its inode.
fn identity(file: &Metadata) -> (String, u64) {
    let number = format!("{}:{}", major(file.dev()), minor(file.dev()));
    (number, file.ino())
}

fn read_row(row: Row) -> Option<Loop> {
    Some(Loop {
        minor: row.name.strip_prefix("/dev/loop")?.parse().ok()?,
        backing: row.back_file.unwrap_or_default(),
        backing_device: row.back_device.unwrap_or_default().trim().to_owned(),
        backing_inode: row.back_inode.unwrap_or(0),
        over: None,
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
    let is_there = |file: &Metadata| identity(file).0 == device.backing_device;
    match std::fs::metadata(path) {
        Ok(file) => is_there(&file) && file.ino() == device.backing_inode,
        Err(_) if device.backing.ends_with(" (deleted)") => {
            let there = path.ancestors().find_map(|dir| dir.metadata().ok());
            there.is_some_and(|dir| is_there(&dir))
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
                    l.backing_device == format!("7:{}", under.minor) || l.over == Some(under.minor)
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
            over: None,
            direct_io: true,
            sector: 4096,
        }
    }

    #[test]
    fn a_number_with_another_file_is_another_device() {
        let before = device(3, "/tmp/mine/pool.img", "8:1");
        let deleted = Loop {
            backing: "/tmp/mine/pool.img (deleted)".to_owned(),
            ..before.clone()
        };
        let other = Loop {
            backing_inode: 2,
            ..before.clone()
        };
        let elsewhere = Loop {
            backing_device: "8:2".to_owned(),
            ..before.clone()
        };
        let moved = Loop {
            minor: 4,
            ..before.clone()
        };
        for (now, same) in [
            (deleted, true),
            (other, false),
            (elsewhere, false),
            (moved, false),
        ] {
            assert_eq!(before.is_same(&now), same, "{now:?}");
        }
    }

    #[test]
    fn what_stands_on_a_tests_loop_is_the_tests_too() {
        let all = [
            device(0, "/tmp/other/pool.img", "8:1"),
            device(1, "/tmp/mine/pool.img", "8:1"),
            device(2, "/volumes/v/image", "7:1"),
            Loop {
                over: Some(2),
                ..device(3, "/loop2", "0:5")
            },
            device(4, "/volumes/v/image", "7:0"),
            device(5, "/tmp/mine-too/pool.img", "8:1"),
        ];
        let mine = |l: &Loop| l.backing.starts_with("/tmp/mine/");
        let minors: Vec<_> = standing_on(&all, mine).iter().map(|l| l.minor).collect();
        assert_eq!(minors, [1, 2, 3]);
    }
}
