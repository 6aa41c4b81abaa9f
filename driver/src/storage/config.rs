//! The pool options of the command line, and their parsers.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use hostloop_report::pool_spec::bad;
pub use hostloop_report::pool_spec::{BadOption, PoolSpec, size};

#[cfg(test)]
mod tests;

/// The kind of an opened pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// A directory of a filesystem that the driver does not manage.
    Directory,
    /// A block device that the driver formats and mounts.
    Device,
    /// An image file that the driver formats and mounts.
    Image,
}

/// Options that apply to all pools.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolOptions {
    /// Directory of the registry of known pools (`pools.json`) and of the mount points of the pools
    /// that the driver mounts (`pools/<name>`).
    pub state_dir: PathBuf,
    /// This node's ID, recorded in each pool as its owner. With `None`, pools have no owner check.
    pub node_id: Option<String>,
    /// Overcommit factor of thin volumes: promised space divided by the pool's room.
    pub overcommit: f64,
    /// Part of each pool that is never promised.
    pub reserve: Reserve,
    /// Maximum size of a volume, in bytes.
    pub max_volume_bytes: Option<u64>,
    /// The longest time that a filesystem may stay frozen for a copy.
    pub max_freeze: Duration,
    /// What the snapshots of one namespace may promise on this node, in bytes.
    pub max_snapshot_bytes_per_namespace: Option<u64>,
}

/// The part of a pool that is never promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reserve {
    /// Percent of the filesystem's size, from 0 to less than 100.
    Percent(f64),
    /// A fixed number of bytes.
    Bytes(u64),
}

impl Reserve {
    /// The part of a filesystem of this size that is never promised, in bytes.
    pub fn of(self, total_bytes: u64) -> u64 {
        match self {
            Reserve::Percent(percent) => (total_bytes as f64 * percent / 100.0) as u64,
            Reserve::Bytes(bytes) => bytes,
        }
    }
}

impl FromStr for Reserve {
    type Err = BadOption;

    /// Parses a percentage such as `5%`, or a size.
    fn from_str(s: &str) -> Result<Self, BadOption> {
        let Some(percent) = s.strip_suffix('%') else {
            return size(s).map(Reserve::Bytes);
        };
        match percent.parse::<f64>() {
            Ok(p) if (0.0..100.0).contains(&p) => Ok(Reserve::Percent(p)),
            _ => Err(bad(s, "is not a percentage from 0 to less than 100")),
        }
    }
}
