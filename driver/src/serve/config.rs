//! Turns the command line into the configurations of the driver's parts.

use std::io;
use std::path::PathBuf;

use super::topology_flags::{self, TopologyFlagsError};
use crate::cli::{BlockType, PoolArgsError, ServeArgs, is_label_value};
use crate::controller::parameters::UnknownKeys;
use crate::csi::capability::CapabilityRules;
use crate::csi::identity::Identity;
use crate::csi::topology::Topology;
use crate::kernel::{BLOCK_SIZE, blocks_for};
use crate::reach::kernels::Kernels;
use crate::storage::{PoolOptions, PoolSpec};
use crate::{controller, node};

/// The longest node ID CSI allows, in bytes.
const MAX_NODE_ID: usize = 256;

/// Flags that contradict each other or the machine.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("--endpoint is missing")]
    NoEndpoint,
    /// No `--nodeid`, and no name of the host.
    #[error("--nodeid is not given, and the host's name can't be read: {0}")]
    NoNodeId(#[source] io::Error),
    /// The node ID is invalid.
    #[error("--nodeid {id:?} {why}")]
    NodeId {
        id: String,
        /// What is wrong with it.
        why: String,
    },
    /// Faults by rules, and they are not allowed.
    #[error("--fault-rules makes RPCs fail on purpose: it needs --enable-faults")]
    FaultsNotEnabled,
    /// The flags of the topology are invalid.
    #[error(transparent)]
    Topology(#[from] TopologyFlagsError),
    /// The pool arguments are invalid.
    #[error(transparent)]
    Pools(#[from] PoolArgsError),
}

/// The configurations of the driver's parts.
#[derive(Clone, Debug)]
pub(super) struct ServeSettings {
    pub(super) endpoint: PathBuf,
    pub(super) http: Option<String>,
    pub(super) fault_rules: Option<PathBuf>,
    pub(super) node_id: String,
    pub(super) identity: Identity,
    pub(super) pools: Vec<PoolSpec>,
    pub(super) options: PoolOptions,
    pub(super) topology: Topology,
    pub(super) controller: controller::Config,
    pub(super) node: node::Config,
}

impl ServeSettings {
    /// Reads the arguments and topology labels, on a host of this name.
    pub(super) fn read(
        args: &ServeArgs,
        labels: &[String],
        hostname: impl FnOnce() -> io::Result<String>,
    ) -> Result<ServeSettings, SettingsError> {
        let endpoint = args.endpoint().ok_or(SettingsError::NoEndpoint)?.clone();
        let node_id = match &args.node_id {
            Some(id) => id.clone(),
            None => hostname().map_err(SettingsError::NoNodeId)?,
        };
        let on = &args.switches;
        check_node_id(&node_id, on.enable_topology)?;
        let topology = topology_flags::topology(args, labels, &node_id)?;
        if args.faults.fault_rules.is_some() && !on.enable_faults {
            return Err(SettingsError::FaultsNotEnabled);
        }
        let expansion = on.enable_volume_expansion;
        Ok(ServeSettings {
            endpoint,
            http: args.watch.http_endpoint.as_ref().map(ToString::to_string),
            fault_rules: args.faults.fault_rules.clone(),
            identity: Identity {
                name: args.pools.driver_name.clone(),
                vendor_version: args.vendor_version.clone(),
                topology: on.enable_topology,
                expansion,
                snapshot_metadata: on.enable_snapshot_metadata,
            },
            pools: args.pools.specs()?,
            options: PoolOptions {
                node_id: Some(node_id.clone()),
                ..args.pools.options()
            },
            topology: topology.clone(),
            controller: controller_config(args, &node_id, &topology),
            node: node::Config {
                node_id: node_id.clone(),
                driver_name: args.pools.driver_name.clone(),
                topology,
                max_volumes: max_volumes(args),
                report_topology: on.enable_topology,
                expansion: expansion && !on.disable_node_expansion,
                max_volume_bytes: args.limits.max_volume_size_node.map(blocks_for),
                check_lifecycle: on.check_volume_lifecycle,
                capabilities: capability_rules(args),
                inline: node::InlineLimits {
                    size: blocks_for(args.limits.max_inline_size),
                    volumes: args.limits.max_inline_volumes,
                    total: args.limits.max_inline_total,
                },
                faults: on.enable_faults,
                kernels: Kernels::at(args.volumes.kernels.clone()),
            },
            node_id,
        })
    }
}

fn controller_config(args: &ServeArgs, node_id: &str, topology: &Topology) -> controller::Config {
    let on = &args.switches;
    controller::Config {
        node_id: node_id.to_owned(),
        topology: topology.clone(),
        attach_limit: (args.limits.attach_limit > 0).then_some(args.limits.attach_limit),
        attach: on.enable_attach,
        expansion: on.enable_volume_expansion && !on.disable_controller_expansion,
        modify: on.enable_controller_modify_volume,
        mutable_parameters: args.volumes.mutable_parameters.clone(),
        unknown_parameters: if on.ignore_unknown_parameters {
            UnknownKeys::Ignored
        } else {
            UnknownKeys::Rejected
        },
        snapshot_metadata: on.enable_snapshot_metadata,
        metadata_blocks: match args.volumes.metadata_blocks {
            BlockType::Fixed => controller::MetadataBlocks::Fixed(BLOCK_SIZE),
            BlockType::Variable => controller::MetadataBlocks::Variable,
        },
        capabilities: capability_rules(args),
        faults: on.enable_faults,
        kernels: Kernels::at(args.volumes.kernels.clone()),
    }
}

fn capability_rules(args: &ServeArgs) -> CapabilityRules {
    CapabilityRules {
        default_fs: args.volumes.default_fs,
        reject_multi_node: args.switches.reject_multi_node,
        mount_group: args.switches.volume_mount_group,
    }
}

/// The volume limit that NodeGetInfo reports: the lower of both flags. 0 means no limit.
fn max_volumes(args: &ServeArgs) -> u64 {
    let limits = [args.limits.max_volumes_per_node, args.limits.attach_limit];
    limits
        .into_iter()
        .filter(|limit| *limit > 0)
        .min()
        .unwrap_or(0)
}

fn check_node_id(id: &str, topology: bool) -> Result<(), SettingsError> {
    let why = if id.is_empty() {
        "is empty"
    } else if id.len() > MAX_NODE_ID {
        "has more than 256 bytes"
    } else if topology && !is_label_value(id) {
        // The node ID becomes the value of a node label.
        "can't be a topology segment: at most 63 letters, digits, '-', '_' and '.', beginning and \
         ending with a letter or digit; choose another, or --enable-topology=false"
    } else {
        return Ok(());
    };
    Err(SettingsError::NodeId {
        id: id.to_owned(),
        why: why.to_owned(),
    })
}

#[cfg(test)]
mod tests;
