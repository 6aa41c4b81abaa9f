//! The boolean flags: `--flag`, `--flag=true` and `--flag=false`, as Go programs accept them.

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};

macro_rules! switches {
    ($($(#[doc = $doc:literal])+ $field:ident, $env:literal, $default:literal;)+) => {
        /// The services to offer, and how strictly they check requests.
        #[derive(Clone, Debug, Args, PartialEq, Eq)]
        #[command(next_help_heading = "Switches (each also as --flag=false)")]
        pub struct Switches {
            $(
                $(#[doc = $doc])+
                #[arg(
                    long,
                    env = $env,
                    value_name = "BOOL",
                    action = ArgAction::Set,
                    value_parser = BoolishValueParser::new(),
                    num_args = 0..=1,
                    require_equals = true,
                    default_value = $default,
                    default_missing_value = "true",
                    hide_possible_values = true
                )]
                pub $field: bool,
            )+
        }
    };
}

switches! {
    /// Serve ControllerPublishVolume and ControllerUnpublishVolume. Attaching protects nothing on a
    /// local volume and delays a pod by seconds; switch it off together with attachRequired
    enable_attach, "HOSTLOOP_ENABLE_ATTACH", "true";
    /// Report the node of volumes and snapshots, and obey the topology requirements of claims
    enable_topology, "HOSTLOOP_ENABLE_TOPOLOGY", "true";
    /// Serve volume expansion
    enable_volume_expansion, "HOSTLOOP_ENABLE_VOLUME_EXPANSION", "true";
    /// Leave expansion to the node service
    disable_controller_expansion, "HOSTLOOP_DISABLE_CONTROLLER_EXPANSION", "false";
    /// Leave expansion to the controller service
    disable_node_expansion, "HOSTLOOP_DISABLE_NODE_EXPANSION", "false";
    /// Serve ControllerModifyVolume
    enable_controller_modify_volume, "HOSTLOOP_ENABLE_CONTROLLER_MODIFY_VOLUME", "true";
    /// Serve the changed blocks of snapshots
    enable_snapshot_metadata, "HOSTLOOP_ENABLE_SNAPSHOT_METADATA", "true";
    /// Reject NodeStageVolume and NodePublishVolume until ControllerPublishVolume has published the
    /// volume to this node
    check_volume_lifecycle, "HOSTLOOP_CHECK_VOLUME_LIFECYCLE", "false";
    /// Reject multi-node access modes; otherwise all pods of such a volume run on the volume's node
    reject_multi_node, "HOSTLOOP_REJECT_MULTI_NODE", "false";
    /// Apply fsGroup instead of kubelet (VOLUME_MOUNT_GROUP). fsGroupPolicy File does it better
    volume_mount_group, "HOSTLOOP_VOLUME_MOUNT_GROUP", "false";
}
