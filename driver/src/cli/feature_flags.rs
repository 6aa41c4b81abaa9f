//! The boolean flags: `--flag`, `--flag=true` and `--flag=false`, as Go programs accept them.

use clap::Args;

/// The services to offer, and how strictly they check requests.
#[derive(Clone, Debug, Args, PartialEq, Eq)]
#[command(next_help_heading = "Switches (each also as --flag=false)")]
pub struct FeatureFlags {
    /// Serve ControllerPublishVolume and ControllerUnpublishVolume. Attaching protects nothing on a
    /// local volume and delays a pod by seconds; switch it off together with attachRequired
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub enable_attach: bool,

    /// Report the node of volumes and snapshots, and obey the topology requirements of claims
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub enable_topology: bool,

    /// Serve volume expansion
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub enable_volume_expansion: bool,

    /// Leave expansion to the node service
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub disable_controller_expansion: bool,

    /// Leave expansion to the controller service
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub disable_node_expansion: bool,

    /// Serve ControllerModifyVolume
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub enable_controller_modify_volume: bool,

    /// Serve the changed blocks of snapshots
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub enable_snapshot_metadata: bool,

    /// Reject NodeStageVolume and NodePublishVolume until ControllerPublishVolume has published the
    /// volume to this node
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub check_volume_lifecycle: bool,

    /// Reject multi-node access modes; otherwise all pods of such a volume run on the volume's node
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub reject_multi_node: bool,

    /// Ignore parameters of classes that the driver does not know, with a warning. Otherwise it
    /// rejects them, so that no mistyped parameter goes unnoticed
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub ignore_unknown_parameters: bool,

    /// Apply fsGroup instead of kubelet (VOLUME_MOUNT_GROUP). fsGroupPolicy File does it better
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub volume_mount_group: bool,

    /// Serve the faults that classes, annotations and --fault-rules ask for, such as a snapshot with
    /// consistency: powercut. Otherwise each of them is rejected
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub enable_faults: bool,
}
