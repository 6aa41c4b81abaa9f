//! The Node service, without locks and without a runtime. The gRPC server calls it on blocking
//! threads and holds the locks of the volume.

use std::path::PathBuf;
use std::sync::Arc;

mod attach_loop;
mod btrfs_devices;
mod detach_loop;
mod ephemeral;
mod expand;
mod fault_disk;
mod format_at_stage;
mod fs_group;
mod grow;
mod health;
mod info;
pub(crate) mod inline_attributes;
mod inline_limits;
mod marker;
mod mount_options;
mod mount_stage;
mod publish;
mod publish_decision;
mod read_only_caches;
mod read_only_loop;
mod replay;
mod same_uuid;
mod shared;
mod stage;
mod stats;
mod target_path;
mod unknown_mounts;
mod unpublish;
mod unstage;
mod volume_lookup;

pub use crate::csi::error::{Error, Result};
pub use inline_limits::InlineLimits;
pub use read_only_caches::ReadOnlyCaches;

use hostloop_report::flags::DRIVER_NAME;

use self::inline_limits::NewInlineVolumes;
use self::shared::Pinning;
use self::unknown_mounts::UnknownMounts;
use crate::csi::capability::CapabilityRules;
use crate::csi::topology::Topology;
use crate::reach::kernels::Kernels;
use crate::storage::{Capability, Pools};

/// A requested staging or publication.
#[derive(Clone, Debug)]
struct Requested {
    /// The staging path or the target path, as the mount table shows it.
    path: PathBuf,
    /// The requested capability.
    capability: Capability,
    /// True if the mount must not be writable. For a staging, the superblock is read-only too.
    read_only: bool,
}

/// Configuration of the node service, from the command line.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_id: String,
    /// The driver's name, as in the CSIDriver object.
    pub driver_name: String,
    /// The topology of this node.
    pub topology: Topology,
    /// Reported as `max_volumes_per_node`; 0 lets the orchestrator decide.
    pub max_volumes: u64,
    /// Report the topology (`--enable-topology`).
    pub report_topology: bool,
    /// Serve NodeExpandVolume.
    pub expansion: bool,
    /// The largest size that NodeExpandVolume accepts, in bytes (`--max-volume-size-node`).
    pub max_volume_bytes: Option<u64>,
    /// Refuse to stage a volume that ControllerPublishVolume did not publish
    /// (`--check-volume-lifecycle`).
    pub check_lifecycle: bool,
    /// How capabilities are read.
    pub capabilities: CapabilityRules,
    /// Limits on the number and the size of inline volumes.
    pub inline: InlineLimits,
    /// Volumes may have the faults that their claims ask for (`--enable-faults`).
    pub faults: bool,
    /// Which nodes share a kernel (`--kernels`).
    pub kernels: Kernels,
}

impl Config {
    /// A configuration for this node ID: all optional services, no limits, no topology.
    pub fn new(node_id: &str) -> Config {
        Config {
            node_id: node_id.to_owned(),
            driver_name: DRIVER_NAME.to_owned(),
            topology: Topology::default(),
            max_volumes: 0,
            report_topology: true,
            expansion: true,
            max_volume_bytes: None,
            check_lifecycle: false,
            capabilities: CapabilityRules::default(),
            inline: InlineLimits::default(),
            faults: false,
            kernels: Kernels::default(),
        }
    }
}

/// The Node service.
pub struct Node {
    /// The pools with the volumes, and the kernel.
    pub pools: Arc<Pools>,
    /// The command line's settings.
    pub config: Config,
    making: NewInlineVolumes,
    unknown_mounts: UnknownMounts,
    pinning: Pinning,
}

impl Node {
    /// Creates the service over these pools.
    pub fn new(pools: Arc<Pools>, config: Config) -> Node {
        Node {
            pools,
            config,
            making: NewInlineVolumes::default(),
            unknown_mounts: UnknownMounts::default(),
            pinning: Pinning::default(),
        }
    }
}

#[cfg(test)]
mod tests;
