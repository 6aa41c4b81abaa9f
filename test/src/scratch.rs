//! A directory for one test, with a complete cleanup even if the test fails.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};

use crate::PATIENCE;
use crate::leaks::mount_points;
use crate::loop_devices;

/// A directory beneath the system's temporary one. Dropping it unmounts what is mounted beneath,
/// detaches the loop devices that stand on files in it, and only then removes the files.
pub struct Scratch {
    dir: Option<tempfile::TempDir>,
    path: PathBuf,
}

impl Scratch {
    /// Creates a directory.
    pub fn new() -> Scratch {
        let dir = tempfile::Builder::new()
            .prefix(&format!("hostloop-test-{}-", std::process::id()))
            .tempdir()
            .expect("a temporary directory can be made");
        // The path is resolved, so that it matches the kernel's tables.
        let path = dir
            .path()
            .canonicalize()
            .expect("the new directory is there");
        Scratch {
            dir: Some(dir),
            path,
        }
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A subdirectory, created if missing.
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.path.join(name);
        std::fs::create_dir_all(&dir).expect("a scratch directory can be made");
        dir
    }

    /// Writes a file in the directory.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let file = self.path.join(name);
        std::fs::write(&file, content).expect("a scratch file can be written");
        file
    }

    /// Unmounts and detaches everything beneath. The error names what could not be removed.
    fn take_down(&self) -> Result<(), String> {
        let (mut fewest, mut deadline) = (usize::MAX, Instant::now());
        loop {
            let mounts = mount_points(&own_mountinfo()?, &self.path);
            for mount in mounts.iter().rev() {
                // A tool for each would take minutes for the thousands that benchmarks mount.
                let _ = umount2(mount, MntFlags::UMOUNT_NOFOLLOW);
            }
            let mut devices = loop_devices::beneath(&self.path);
            // A device that stands on another is removed first.
            devices.reverse();
            loop_devices::detach(&devices);
            let mounts = mount_points(&own_mountinfo()?, &self.path);
            let devices = loop_devices::beneath(&self.path);
            let left = mounts.len() + devices.len();
            if left == 0 {
                return Ok(());
            }
            // Thousands of devices take longer, but some of them are gone each time.
            if left < fewest {
                (fewest, deadline) = (left, Instant::now() + PATIENCE);
            } else if Instant::now() > deadline {
                return Err(format!(
                    "still there: mounts {mounts:?}, loop devices {devices:?}"
                ));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn own_mountinfo() -> Result<String, String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo");
    table.map_err(|e| format!("/proc/self/mountinfo: {e}"))
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        match self.take_down() {
            Ok(()) => drop(self.dir.take()),
            Err(why) => {
                // Removing files under a live mount would delete the mounted files, so keep them.
                let kept = self.dir.take().map(tempfile::TempDir::keep);
                let why = format!("{kept:?} is left as it is: {why}");
                assert!(std::thread::panicking(), "{why}");
                eprintln!("{why}");
            }
        }
    }
}
