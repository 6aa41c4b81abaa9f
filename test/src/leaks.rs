//! Finds leaked loop devices, mounts, processes, files and bytes.

use std::fmt::Display;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::PATIENCE;
use crate::driver::Driver;
use crate::loop_devices;
use crate::pools::PoolFixture;
use crate::scratch::Scratch;

/// Metadata a filesystem may keep after everything in it was deleted: directory blocks, trees that
/// grew. A volume's image takes more.
const SLACK_BYTES: u64 = 8 << 20;

/// Directories of a pool that are empty when it holds nothing.
const POOL_DIRECTORIES: [&str; 5] = ["volumes", "snapshots", "groups", "incoming", "trash"];

/// A backing file: the device of its filesystem, and its inode number. The loop device's own number
/// may change over a restart.
type FileKey = (String, u64);

/// Removes one occurrence, if one exists.
fn take<T: PartialEq>(all: &mut Vec<T>, one: &T) -> bool {
    let at = all.iter().position(|there| there == one);
    at.map(|at| all.swap_remove(at)).is_some()
}

fn file_key(device: &loop_devices::Loop) -> FileKey {
    (device.backing_device.clone(), device.backing_inode)
}

/// The state at the beginning of a test.
pub struct Leaks {
    scratch: PathBuf,
    loops: Vec<FileKey>,
    mounts: Vec<PathBuf>,
    bytes: Vec<(String, u64)>,
}

impl Leaks {
    /// Records the state before the driver serves its first call. `driver` only provides the
    /// locations of its pools.
    pub fn before(scratch: &Scratch, pools: &[&PoolFixture], driver: &Driver) -> Leaks {
        Leaks {
            scratch: scratch.path().to_path_buf(),
            loops: loop_devices::beneath(scratch.path())
                .iter()
                .map(file_key)
                .collect(),
            mounts: mounts(scratch.path(), driver),
            bytes: pools
                .iter()
                .map(|p| (p.name.clone(), p.used_bytes(|path| driver.view(path))))
                .collect(),
        }
    }

    /// Everything that exists now and did not exist at the beginning, one line each. The test has
    /// deleted everything, and the driver still runs. A namespace's mounts go after its last
    /// process, and XFS frees an unlinked file's blocks in the background.
    pub fn after(&self, pools: &[&PoolFixture], driver: &Driver) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let leaks = self.now(pools, driver);
            if leaks.is_empty() || Instant::now() > deadline {
                return leaks;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Panics with a list if anything is left.
    pub fn assert_none(&self, pools: &[&PoolFixture], driver: &Driver) {
        let leaks = self.after(pools, driver);
        assert!(leaks.is_empty(), "left behind:\n  {}", leaks.join("\n  "));
    }

    /// [`Leaks::after`], without waiting for the kernel to release objects.
    pub fn now(&self, pools: &[&PoolFixture], driver: &Driver) -> Vec<String> {
        let mut leaks = self.kernel_leaks(driver);
        for pool in pools {
            let files = files_in(&driver.view(pool.root()));
            leaks.extend(files.iter().map(|file| format!("file {}", file.display())));
            let before = self.bytes.iter().find(|(name, _)| *name == pool.name);
            let now = pool.used_bytes(|path| driver.view(path));
            if let Some((name, before)) = before
                && now > before + SLACK_BYTES
            {
                leaks.push(format!(
                    "pool {name}: {now} bytes in use, {before} at the beginning"
                ));
            }
        }
        leaks
    }

    fn kernel_leaks(&self, driver: &Driver) -> Vec<String> {
        let devices = loop_devices::beneath(&self.scratch);
        let processes = processes(&self.scratch, &devices, driver.pid());
        let (mut old_loops, mut old_mounts) = (self.loops.clone(), self.mounts.clone());
        let new_loops = devices
            .into_iter()
            .filter(|l| !take(&mut old_loops, &file_key(l)));
        let new_mounts = mounts(&self.scratch, driver)
            .into_iter()
            .filter(|mount| !take(&mut old_mounts, mount));
        new_loops
            .map(|l| format!("loop device /dev/loop{} over {}", l.minor, l.backing))
            .chain(new_mounts.map(|at| format!("mount at {}", at.display())))
            .chain(processes)
            .collect()
    }
}

/// The entries of a pool's directories. Panics if one cannot be read: it may hold anything.
pub fn files_in(root: &Path) -> Vec<PathBuf> {
    let entries = |dir: &str| {
        let dir = root.join(dir);
        let read = std::fs::read_dir(&dir).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        read.unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
    };
    let all = POOL_DIRECTORIES.iter().flat_map(|dir| entries(dir));
    all.map(|entry| entry.path()).collect()
}

fn mounts(scratch: &Path, driver: &Driver) -> Vec<PathBuf> {
    let tables = [mountinfo("self"), mountinfo(driver.pid())];
    tables
        .iter()
        .flat_map(|table| mount_points(table, scratch))
        .collect()
}

/// The mount table of a process. Panics if it cannot be read: it may contain any mount.
pub fn mountinfo(process: impl Display) -> String {
    let path = format!("/proc/{process}/mountinfo");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The mount point.
    pub at: PathBuf,
    /// The mount source, often a device.
    pub source: String,
}

impl Mounted {
    /// True if the source is a loop device.
    pub fn on_loop(&self) -> bool {
        self.source.starts_with("/dev/loop")
    }
}

/// All mounts of a table, in the kernel's order.
pub fn mounted(mountinfo: &str) -> Vec<Mounted> {
    let read = |line: &str| {
        let field = line.split(' ').nth(4)?;
        let at = PathBuf::from(std::ffi::OsString::from_vec(unescape(field.as_bytes())));
        let (_, rest) = line.split_once(" - ")?;
        let source = rest.split(' ').nth(1)?.to_owned();
        Some(Mounted { at, source })
    };
    mountinfo.lines().filter_map(read).collect()
}

/// The mount points beneath a directory, in the kernel's order.
pub fn mount_points(mountinfo: &str, beneath: &Path) -> Vec<PathBuf> {
    let points = mounted(mountinfo).into_iter().map(|mount| mount.at);
    points.filter(|at| at.starts_with(beneath)).collect()
}

/// mountinfo escapes space, tab, newline and backslash as `\040` and similar.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\');
        let byte = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &tail[3..] } else { tail };
    }
    plain
}

/// Processes that name the scratch directory or one of its loop devices. This process, `driver` and
/// the process that holds its namespace are not listed.
fn processes(scratch: &Path, devices: &[loop_devices::Loop], driver: u32) -> Vec<String> {
    let scratch = scratch.to_string_lossy();
    let devices: Vec<_> = devices
        .iter()
        .map(|l| format!("/dev/loop{}", l.minor))
        .collect();
    let entries = std::fs::read_dir("/proc").expect("/proc is there");
    let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != driver && *pid != std::process::id())
        .filter_map(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let words: Vec<_> = line
                .split(|b| *b == 0)
                .map(|w| String::from_utf8_lossy(w).into_owned())
                .collect();
            let named = |word: &String| word.contains(&*scratch) || devices.contains(word);
            words
                .iter()
                .any(named)
                .then(|| format!("process {pid}: {}", words.join(" ")))
        })
        .collect()
}
