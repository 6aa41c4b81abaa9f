//! The output of `hostloop probe machine`: what a node has, as its pod sees it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a machine has, as its pod sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MachineReport {
    /// The version of the program.
    pub version: String,
    /// The machine's time, in nanoseconds since the epoch.
    pub now_ns: u64,
    /// What the driver requires and the machine lacks, such as loop devices.
    pub missing: Vec<String>,
    /// The filesystems that volumes can have.
    pub filesystems: Vec<FilesystemReport>,
    /// Direct I/O, by pool.
    pub direct_io: Vec<DirectIoReport>,
    /// Loop devices that a deleted cluster may have left. Earlier versions do not report them.
    #[serde(default)]
    pub leftover_loops: Vec<LeftoverLoop>,
}

/// A filesystem that volumes can have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FilesystemReport {
    /// The kernel's name.
    pub name: String,
    /// The tool or module that is missing.
    pub missing: Option<String>,
}

/// Direct I/O in a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DirectIoReport {
    /// The pool's root directory.
    pub root: PathBuf,
    /// Why it does not work.
    pub missing: Option<String>,
}

/// A loop device that may be left over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftoverLoop {
    /// The device node.
    pub device: PathBuf,
    /// The path of the deleted file, as the kernel shows it.
    pub file: String,
}
