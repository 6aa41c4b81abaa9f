//! The boolean flags: `--flag`, `--flag=true` and `--flag=false`, as Go programs take them.

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};

macro_rules! switches {
    ($($(#[doc = $doc:literal])+ $field:ident, $env:literal, $default:literal;)+) => {
        /// What is served, and how strictly.
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
    /// Serve ControllerPublishVolume and ControllerUnpublishVolume. Attaching protects nothing on
    /// a local volume and costs a pod seconds; switch it off together with attachRequired
    enable_attach, "HOSTLOOP_ENABLE_ATTACH", "true";
    /// Say on which node volumes and snapshots are, and obey what claims ask for
    enable_topology, "HOSTLOOP_ENABLE_TOPOLOGY", "true";
    /// Serve the expansion of volumes
    enable_volume_expansion, "HOSTLOOP_ENABLE_VOLUME_EXPANSION", "true";
    /// Leave expansion to the node service
    disable_controller_expansion, "HOSTLOOP_DISABLE_CONTROLLER_EXPANSION", "false";
    /// Leave expansion to the controller service
    disable_node_expansion, "HOSTLOOP_DISABLE_NODE_EXPANSION", "false";
    /// Serve ControllerModifyVolume
    enable_controller_modify_volume, "HOSTLOOP_ENABLE_CONTROLLER_MODIFY_VOLUME", "true";
    /// Serve the changed blocks of snapshots
    enable_snapshot_metadata, "HOSTLOOP_ENABLE_SNAPSHOT_METADATA", "true";
    /// Refuse to stage a volume that was not published to this node before
    check_volume_lifecycle, "HOSTLOOP_CHECK_VOLUME_LIFECYCLE", "false";
    /// Refuse access modes that speak of several nodes; otherwise all their pods come to the
    /// volume's node
    reject_multi_node, "HOSTLOOP_REJECT_MULTI_NODE", "false";
    /// Take over fsGroup from kubelet (VOLUME_MOUNT_GROUP). fsGroupPolicy File does it better
    volume_mount_group, "HOSTLOOP_VOLUME_MOUNT_GROUP", "false";
}
