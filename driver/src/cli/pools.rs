//! The flags about pools, which all subcommands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hostloop_controllers::api::duration;
use hostloop_report::flags::{DRIVER_NAME, RESERVE_PERCENT};

use super::values::{self, Cap};
use crate::kernel::blocks_for;
use crate::storage::{PoolOptions, PoolSpec, Reserve, config};

/// The default state directory of a driver.
fn default_state_dir(driver_name: &str) -> PathBuf {
    PathBuf::from("/var/lib/kubelet/plugins").join(driver_name)
}

/// The pools, and the limits on what they promise.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Pools")]
pub struct PoolArgs {
    /// A pool for volumes; repeat the flag for several pools (in the environment, separate them by
    /// ';'). PATH is a directory or an empty block device.
    ///
    /// A directory that is missing is made, unless the pool was there before.
    ///
    /// The driver formats an empty block device once, with XFS, and mounts it. It rejects a device
    /// that holds any data. Options: image=SIZE keeps the pool in one image file of that size in
    /// the directory, which gives instant snapshots on a filesystem without reflinks, and a hard
    /// cap; preallocate allocates the image's space at once; wipe also formats a block device that
    /// holds bytes without a known signature (rejected otherwise, since they may be encrypted
    /// data); capacity=SIZE promises at most SIZE; inline allows inline volumes of pods in this
    /// pool. If no pool has the option inline, only the first pool allows them. A SIZE is a
    /// Kubernetes quantity such as 20Gi, 500M or 1e9
    #[arg(
        long = "pool",
        value_name = "NAME=PATH[,OPTION...]",
        value_delimiter = ';',
        required = true
    )]
    pub pools: Vec<PoolSpec>,

    /// Promise at most this much from a pool, whatever space its filesystem has; repeat the flag
    /// for several pools (or separate them by commas)
    #[arg(long = "capacity", value_name = "NAME=SIZE", value_delimiter = ',')]
    pub caps: Vec<Cap>,

    /// The driver's name in Kubernetes
    #[arg(
        long = "drivername",
        value_name = "NAME",
        default_value = DRIVER_NAME,
        value_parser = values::driver_name
    )]
    pub driver_name: String,

    /// Directory for the registry of known pools and the mounts of pools that are devices or images
    /// [default: /var/lib/kubelet/plugins/<drivername>]
    #[arg(long = "statedir", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Promise this many times the available space to thin volumes
    #[arg(long, value_name = "FACTOR", default_value = "1.0", value_parser = values::overcommit)]
    pub overcommit: f64,

    /// Part of each pool that is never promised: a percentage or a size
    #[arg(long, value_name = "PART", default_value = format!("{RESERVE_PERCENT}%"))]
    pub reserve: Reserve,

    /// Maximum size of a volume [default: no limit but the pool's]
    #[arg(long, value_name = "SIZE", value_parser = config::size)]
    pub max_volume_size: Option<u64>,

    /// Maximum time that a filesystem may stay frozen while its snapshot is copied or cloned
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub max_freeze: Duration,

    /// Maximum space that the snapshots of one namespace may promise on this node [default: no
    /// limit but the pools']. It needs the snapshotter's --extra-create-metadata, which names the
    /// namespace: snapshots without a namespace count as those of one
    #[arg(long, value_name = "SIZE", value_parser = config::size)]
    pub max_snapshot_bytes_per_namespace: Option<u64>,
}

/// Errors in the combination of the flags about pools.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolArgsError {
    /// Two pools have the same name.
    #[error("--pool: two pools are named {0:?}")]
    Twice(String),
    /// Two pools have the same path.
    #[error("--pool: {0:?} and {1:?} are at the same path")]
    SamePath(String, String),
    /// A cap names an unknown pool.
    #[error("--capacity: no pool is named {0:?}")]
    CapOfNone(String),
    /// A pool has two caps.
    #[error("--capacity: pool {0:?} has two capacities")]
    TwoCaps(String),
}

impl PoolArgs {
    /// The pools, in the order of the command line.
    pub fn specs(&self) -> Result<Vec<PoolSpec>, PoolArgsError> {
        let mut specs = self.pools.clone();
        for (n, spec) in specs.iter().enumerate() {
            for earlier in &specs[..n] {
                if earlier.name == spec.name {
                    return Err(PoolArgsError::Twice(spec.name.clone()));
                }
                if earlier.path == spec.path {
                    let (a, b) = (earlier.name.clone(), spec.name.clone());
                    return Err(PoolArgsError::SamePath(a, b));
                }
            }
        }
        for cap in &self.caps {
            let spec = specs.iter_mut().find(|spec| spec.name == cap.pool);
            let spec = spec.ok_or_else(|| PoolArgsError::CapOfNone(cap.pool.clone()))?;
            if spec.capacity_bytes.replace(cap.bytes).is_some() {
                return Err(PoolArgsError::TwoCaps(cap.pool.clone()));
            }
        }
        Ok(specs)
    }

    /// The state directory: `--statedir`, or the default for the driver's name.
    pub fn state_dir(&self) -> PathBuf {
        self.state_dir
            .clone()
            .unwrap_or_else(|| default_state_dir(&self.driver_name))
    }

    /// The options that apply to all pools.
    pub fn options(&self) -> PoolOptions {
        PoolOptions {
            state_dir: self.state_dir(),
            node_id: None,
            overcommit: self.overcommit,
            reserve: self.reserve,
            max_volume_bytes: self.max_volume_size.map(blocks_for),
            max_freeze: self.max_freeze,
            max_snapshot_bytes_per_namespace: self.max_snapshot_bytes_per_namespace,
        }
    }
}
