//! What the command line says, as the parts of the driver take it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use crate::args::{BlockType, PoolArgsError, ServeArgs, is_label_value};
use crate::identity::Identity;
use crate::pool::{PoolOptions, PoolSpec};
use crate::request::CapabilityRules;
use crate::sys::BLOCK_SIZE;
use crate::{controller, node};

/// Size of an inline volume that names none, in bytes.
const INLINE_BYTES: u64 = 1 << 30;
/// The longest node ID CSI allows, in bytes.
const MAX_NODE_ID: usize = 256;

/// Flags that contradict each other or the machine.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// No `--endpoint`.
    #[error("--endpoint is missing")]
    NoEndpoint,
    /// No `--nodeid`, and no name of the host.
    #[error("--nodeid is not given, and the host's name can't be read: {0}")]
    NoNodeId(#[source] io::Error),
    /// A node ID that can't be one.
    #[error("--nodeid {id:?} {why}")]
    NodeId {
        /// The ID.
        id: String,
        /// What is wrong with it.
        why: String,
    },
    /// Pools.
    #[error(transparent)]
    Pools(#[from] PoolArgsError),
}

/// The parts' configurations.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) endpoint: PathBuf,
    pub(super) http: Option<String>,
    pub(super) node_id: String,
    pub(super) identity: Identity,
    pub(super) pools: Vec<PoolSpec>,
    pub(super) options: PoolOptions,
    pub(super) controller: controller::Config,
    pub(super) node: node::Config,
}

impl Settings {
    /// Of these arguments, on the host of this name.
    pub(super) fn read(
        args: &ServeArgs,
        hostname: impl FnOnce() -> io::Result<String>,
    ) -> Result<Settings, SettingsError> {
        let endpoint = args.endpoint().ok_or(SettingsError::NoEndpoint)?.clone();
        let node_id = match &args.node_id {
            Some(id) => id.clone(),
            None => hostname().map_err(SettingsError::NoNodeId)?,
        };
        let on = &args.switches;
        check_node_id(&node_id, on.enable_topology)?;
        let topology = match on.enable_topology {
            true => BTreeMap::from([(args.volumes.topology_key.clone(), node_id.clone())]),
            false => BTreeMap::new(),
        };
        let expansion = on.enable_volume_expansion;
        Ok(Settings {
            endpoint,
            http: args.watch.http_endpoint.as_ref().map(ToString::to_string),
            identity: Identity {
                name: args.pools.driver_name.clone(),
                vendor_version: args.vendor_version.clone(),
                topology: on.enable_topology,
                expansion,
                snapshot_metadata: on.enable_snapshot_metadata,
            },
            pools: args.pools.specs()?,
            options: args.pools.options(),
            controller: controller_config(args, &node_id, &topology),
            node: node::Config {
                node_id: node_id.clone(),
                topology,
                max_volumes: max_volumes(args),
                report_topology: on.enable_topology,
                expansion: expansion && !on.disable_node_expansion,
                max_volume_bytes: args.limits.max_volume_size_node,
                check_lifecycle: on.check_volume_lifecycle,
                capabilities: capability_rules(args),
                default_inline_bytes: INLINE_BYTES,
            },
            node_id,
        })
    }
}

fn controller_config(
    args: &ServeArgs,
    node_id: &str,
    topology: &BTreeMap<String, String>,
) -> controller::Config {
    let on = &args.switches;
    controller::Config {
        node_id: node_id.to_owned(),
        topology: topology.clone(),
        attach_limit: (args.limits.attach_limit > 0).then_some(args.limits.attach_limit),
        attach: on.enable_attach,
        expansion: on.enable_volume_expansion,
        controller_expansion: on.enable_volume_expansion && !on.disable_controller_expansion,
        modify: on.enable_controller_modify_volume,
        mutable_parameters: args.volumes.mutable_parameters.clone(),
        snapshot_metadata: on.enable_snapshot_metadata,
        metadata_blocks: match args.volumes.metadata_blocks {
            BlockType::Fixed => controller::MetadataBlocks::Fixed(BLOCK_SIZE),
            BlockType::Variable => controller::MetadataBlocks::Variable,
        },
        capabilities: capability_rules(args),
    }
}

fn capability_rules(args: &ServeArgs) -> CapabilityRules {
    CapabilityRules {
        default_fs: args.volumes.default_fs,
        reject_multi_node: args.switches.reject_multi_node,
        mount_group: args.switches.volume_mount_group,
    }
}

/// What NodeGetInfo tells the scheduler: the node takes no more than either limit. 0 is none.
fn max_volumes(args: &ServeArgs) -> u64 {
    let limits = [args.limits.max_volumes_per_node, args.limits.attach_limit];
    limits
        .into_iter()
        .filter(|limit| *limit > 0)
        .min()
        .unwrap_or(0)
}

fn check_node_id(id: &str, topology: bool) -> Result<(), SettingsError> {
    let bad = |why: &str| {
        Err(SettingsError::NodeId {
            id: id.to_owned(),
            why: why.to_owned(),
        })
    };
    if id.is_empty() {
        return bad("is empty");
    }
    if id.len() > MAX_NODE_ID {
        return bad("has more than 256 bytes");
    }
    // It becomes the value of a label of the node.
    if topology && !is_label_value(id) {
        return bad(
            "can't be a topology segment: at most 63 letters, digits, '-', '_' and '.', beginning \
             and ending with a letter or digit; choose another, or --enable-topology=false",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn read(flags: &str) -> Result<Settings, String> {
        let line = format!("hostloop serve --endpoint /s --pool a=/p {flags}");
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Serve(args) = cli.command else {
            panic!("not serve");
        };
        Settings::read(&args, || Ok("host".to_owned())).map_err(|error| error.to_string())
    }

    #[test]
    fn the_node_is_the_host_unless_it_has_an_id() {
        let settings = read("").unwrap();
        assert_eq!(settings.node_id, "host");
        let settings = read("--nodeid n1 --topology-key k").unwrap();
        assert_eq!(settings.node.node_id, "n1");
        assert_eq!(settings.controller.node_id, "n1");
        let topology = BTreeMap::from([("k".to_owned(), "n1".to_owned())]);
        assert_eq!(settings.node.topology, topology);
        assert_eq!(settings.controller.topology, topology);
    }

    #[test]
    fn node_ids_are_checked() {
        let long = "x".repeat(64);
        assert!(
            read(&format!("--nodeid {long}"))
                .unwrap_err()
                .contains("at most 63")
        );
        assert!(read(&format!("--nodeid {long} --enable-topology=false")).is_ok());
        let endless = "x".repeat(257);
        let refused = read(&format!("--nodeid {endless} --enable-topology=false"));
        assert!(refused.unwrap_err().contains("256 bytes"));
    }

    #[test]
    fn without_topology_there_is_none() {
        let settings = read("--enable-topology=false").unwrap();
        assert!(settings.controller.topology.is_empty());
        assert!(!settings.node.report_topology);
        assert!(!settings.identity.topology);
    }

    #[test]
    fn expansion_is_two_halves() {
        for (flags, plugin, controller, node) in [
            ("", true, true, true),
            ("--enable-volume-expansion=false", false, false, false),
            ("--disable-controller-expansion", true, false, true),
            ("--disable-node-expansion", true, true, false),
        ] {
            let settings = read(flags).unwrap();
            let got = (
                settings.identity.expansion,
                settings.controller.controller_expansion,
                settings.node.expansion,
            );
            assert_eq!(got, (plugin, controller, node), "{flags}");
        }
    }

    #[test]
    fn the_scheduler_hears_of_the_smaller_limit() {
        for (flags, limit, told) in [
            ("", None, 0),
            ("--attach-limit 16", Some(16), 16),
            ("--maxvolumespernode 9", None, 9),
            ("--maxvolumespernode 9 --attach-limit 16", Some(16), 9),
            ("--maxvolumespernode 20 --attach-limit 16", Some(16), 16),
        ] {
            let settings = read(flags).unwrap();
            assert_eq!(settings.controller.attach_limit, limit, "{flags}");
            assert_eq!(settings.node.max_volumes, told, "{flags}");
        }
    }

    #[test]
    fn changed_blocks_come_as_asked() {
        use controller::MetadataBlocks::*;
        let blocks = |flags| read(flags).unwrap().controller.metadata_blocks;
        assert_eq!(blocks(""), Fixed(4096));
        assert_eq!(
            blocks("--snapshot-metadata-block-type=variable_length"),
            Variable
        );
    }

    #[test]
    fn contradictions_are_refused() {
        assert!(
            read("--capacity b=1Gi")
                .unwrap_err()
                .contains("no pool is named")
        );
    }
}
