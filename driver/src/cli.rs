//! The command line.
//!
//! Flags that mean the same as flags of the host-path CSI driver have the same names, and a command
//! line of that driver's is read as one of `serve`, so its manifests work with the image swapped. So
//! is a command line of Kubernetes' sidecars, as one of `controllers`. The environment variable
//! `HOSTLOOP_<FLAG>` sets a flag too.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use hostloop_controllers::api::duration;
use hostloop_controllers::flags;

use crate::kernel::FsType;
use crate::storage::config;

mod cuts;
mod delete;
mod events;
mod fault_disks;
mod faults;
mod feature_flags;
mod host_path;
mod pool_fault;
mod pools;
mod probe;
mod proxy;
mod sidecar_line;
mod tips;
mod values;
mod watch;

pub use cuts::{CutsArgs, CutsCommand, TakeCutsArgs};
pub use delete::DeleteArgs;
pub use events::{EventsArgs, EventsSocket};
pub use fault_disks::FaultDisksArgs;
pub use faults::FaultRulesArgs;
pub use feature_flags::FeatureFlags;
pub use host_path::HostPathLine;
pub use pool_fault::{PoolFaultArgs, PoolFaultCommand};
pub use pools::{PoolArgs, PoolArgsError};
pub use probe::{ProbeArgs, ProbeCommand};
pub use proxy::ProxyArgs;
pub use sidecar_line::{SidecarLine, SidecarLineError};
pub use tips::with_tips;
pub(crate) use values::is_label_value;
pub use values::{Cap, HttpEndpoint, Segment};
pub use watch::{LogArgs, LogFormat, WatchArgs};

const CLIENT: &str = "\
These commands act on this node. `kubectl hostloop`, the client of a cluster, installs hostloop, and
shows pools, volumes and snapshots of all nodes.";

/// Kubernetes volumes that are files on a node's own storage, each behind a loop device.
#[derive(Debug, Parser)]
#[command(
    name = "hostloop",
    version,
    max_term_width = 100,
    propagate_version = true,
    mut_subcommands = flags::complete,
    after_help = CLIENT
)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the CSI services on a Unix socket
    Serve(Box<ServeArgs>),
    /// Serve the CSI services and run the Kubernetes controllers for them, in one process
    Run(Box<RunArgs>),
    /// Run the Kubernetes controllers in front of any CSI driver
    Controllers(Box<ControllersArgs>),
    /// Pass the calls of any CSI driver through: record them, and make them fail by rules
    Proxy(Box<ProxyArgs>),
    /// Serve the disks that fail on request, of volumes with faultDisk in their class
    FaultDisks(FaultDisksArgs),
    /// Show pools, volumes, snapshots, loop devices and mounts, and those without an owner
    Status(StatusArgs),
    /// Check the records of the pools against disk and kernel, and repair them on request
    Fsck(FsckArgs),
    /// Delete volumes and snapshots that no object of a cluster has any more
    Delete(DeleteArgs),
    /// Take power cuts of a volume that is in use, many in one burst, for a crash exploration
    Cuts(CutsArgs),
    /// Print what the driver did last: calls, their steps, and the work of controllers
    Events(EventsArgs),
    /// What `kubectl hostloop check` runs inside pods
    #[command(hide = true)]
    Probe(ProbeArgs),
    /// What `kubectl hostloop fault node` runs inside pods
    #[command(hide = true)]
    PoolFault(PoolFaultArgs),
}

/// Arguments of `hostloop status`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Reads disk and kernel itself and changes nothing: the driver may be running or \
                  not. The fields of --json are stable.\n\
                  The status of a whole cluster: kubectl hostloop status."
)]
pub struct StatusArgs {
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,

    /// Print where the blocks of these volumes' and snapshots' images are, as JSON, and which of
    /// them other files share. Images are left out once there are 50,000 runs of blocks
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    pub extents: Vec<String>,

    /// The driver's directory with the nodes that share a kernel, to show them
    #[arg(long, value_name = "DIR")]
    pub kernels: Option<PathBuf>,

    /// The configured pools
    #[command(flatten)]
    pub pools: PoolArgs,
}

/// Arguments of `hostloop fsck`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Looking needs no lock and changes nothing; repairing needs the pools for itself: \
                  stop the driver first.\n\
                  Exit code: 0 nothing is wrong, 1 problems found, 2 problems found and all of \
                  them repaired, 3 it could not be done."
)]
pub struct FsckArgs {
    /// Repair what can be repaired without losing anything
    #[arg(long)]
    pub repair: bool,

    /// Print JSON instead of sentences
    #[arg(long)]
    pub json: bool,

    /// The configured pools
    #[command(flatten)]
    pub pools: PoolArgs,
}

const SERVE_EXAMPLES: &str = "\
Examples:
  A pool in a directory:
    hostloop serve --endpoint unix:///run/hostloop/csi.sock --nodeid n1 --pool default=/srv/volumes

  Two pools, a whole disk and an image that can't outgrow 200 GiB:
    hostloop serve --endpoint unix:///run/hostloop/csi.sock --nodeid n1 \\
      --pool fast=/dev/nvme1n1 --pool slow=/srv/volumes,image=200Gi

  By the environment:
    HOSTLOOP_ENDPOINT=unix:///run/hostloop/csi.sock HOSTLOOP_NODEID=n1 \\
    HOSTLOOP_POOL='default=/srv/volumes' hostloop serve";

/// `hostloop serve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub struct ServeArgs {
    /// The Unix socket to serve on; CSI_ENDPOINT sets it too
    #[arg(
        long,
        value_name = "unix:///PATH",
        value_parser = values::endpoint,
        required_unless_present = "csi_endpoint"
    )]
    pub endpoint: Option<PathBuf>,

    /// The endpoint under the environment variable of other CSI drivers; the flag is hidden
    #[arg(long, env = "CSI_ENDPOINT", value_parser = values::endpoint, hide = true)]
    pub csi_endpoint: Option<PathBuf>,

    /// This node's ID [default: the hostname]
    #[arg(long = "nodeid", value_name = "ID")]
    pub node_id: Option<String>,

    /// The pools and their limits.
    #[command(flatten)]
    pub pools: PoolArgs,

    /// How long startup waits for the pools to open and recover. Then the driver serves the open
    /// pools; calls for the others return UNAVAILABLE until they are open
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = duration::parse,
        help_heading = "Pools"
    )]
    pub pool_open_timeout: Duration,

    /// The boolean flags.
    #[command(flatten)]
    pub switches: FeatureFlags,

    /// The rules of faults.
    #[command(flatten)]
    pub faults: FaultRulesArgs,

    /// Limits on volumes and their sizes.
    #[command(flatten)]
    pub limits: LimitArgs,

    /// Properties of volumes.
    #[command(flatten)]
    pub volumes: VolumeArgs,

    /// Logging and HTTP.
    #[command(flatten)]
    pub watch: WatchArgs,

    /// The version in the GetPluginInfo response.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"), hide = true)]
    pub vendor_version: String,
}

/// `hostloop run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// The flags of the CSI services.
    #[command(flatten)]
    pub serve: ServeArgs,

    /// Label keys to add to the node's topology, with the values of the node's labels
    ///
    /// An example is topology.kubernetes.io/zone. The driver reads the labels from the API server
    /// at start, and volumes are tied to them. --statedir keeps the values, so that the node
    /// registers while the API server is unreachable. Until the first successful read, and while
    /// the node lacks one of the labels, NodeGetInfo returns UNAVAILABLE and the driver is not
    /// registered. Later changes of the labels take effect at the next start
    #[arg(
        long,
        value_name = "KEY,...",
        value_delimiter = ',',
        value_parser = values::label_key,
        help_heading = "Volumes"
    )]
    pub topology_from_node_labels: Vec<String>,

    /// The flags of the Kubernetes controllers.
    #[command(flatten)]
    pub controllers: hostloop_controllers::cli::Args,
}

const RUN_EXAMPLES: &str = "\
Example, as in a DaemonSet's pod:
    NODE_NAME=n1 hostloop run --endpoint unix:///var/lib/kubelet/plugins/hostloop.csi.dev/csi.sock \\
      --pool default=/var/lib/hostloop";

const CONTROLLERS_EXAMPLES: &str = "\
Examples:
  In the pod of another driver, in place of its sidecars:
    hostloop controllers --csi-address unix:///csi/csi.sock --leader-election

  Only some, from outside the cluster:
    hostloop controllers --csi-address unix:///tmp/csi.sock --kubeconfig ~/.kube/config \\
      --controllers provisioner,snapshotter,snapshot-controller

  The leader's tasks alone, for nodes that run with --leader-tasks=elsewhere:
    hostloop controllers --leader-tasks only --drivername hostloop.csi.dev";

/// `hostloop controllers`.
#[derive(Clone, Debug, Args)]
#[command(after_help = CONTROLLERS_EXAMPLES)]
pub struct ControllersArgs {
    /// The driver's Unix socket
    #[arg(
        long,
        value_name = "unix:///PATH",
        default_value = "unix:///run/csi/socket",
        value_parser = values::endpoint
    )]
    pub csi_address: PathBuf,

    /// With --leader-tasks=only: hostloop's driver name in Kubernetes. The leader calls no CSI
    /// driver
    #[arg(
        long = "drivername",
        value_name = "NAME",
        value_parser = values::driver_name,
        conflicts_with = "csi_address"
    )]
    pub driver_name: Option<String>,

    /// The filesystem of volumes if their class names none [default: the driver chooses]
    #[arg(long, value_name = "FS", default_value = "", hide_default_value = true)]
    pub default_fstype: String,

    /// The flags of the Kubernetes controllers.
    #[command(flatten)]
    pub controllers: hostloop_controllers::cli::Args,

    /// Logging and HTTP.
    #[command(flatten)]
    pub watch: WatchArgs,
}

/// Limits on the number and size of volumes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Maximum number of volumes that the scheduler places on this node; 0 leaves it to the
    /// scheduler
    #[arg(long = "maxvolumespernode", value_name = "N", default_value_t = 0)]
    pub max_volumes_per_node: u64,

    /// Maximum number of volumes published to this node at once; 0 means no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub attach_limit: u64,

    /// NodeExpandVolume rejects sizes above this [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = config::size)]
    pub max_volume_size_node: Option<u64>,

    /// Maximum size of one inline volume. Any user who may create pods may request inline volumes,
    /// and no Kubernetes quota counts them
    #[arg(long, value_name = "SIZE", default_value = "1Gi", value_parser = config::size)]
    pub max_inline_size: u64,

    /// Maximum number of inline volumes on this node, half of it in one namespace; 0 rejects all
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_inline_volumes: usize,

    /// Maximum total size of this node's inline volumes, half of it in one namespace
    #[arg(long, value_name = "SIZE", default_value = "16Gi", value_parser = config::size)]
    pub max_inline_total: u64,
}

/// Properties of volumes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Volumes")]
pub struct VolumeArgs {
    /// The default filesystem of volumes: ext4, xfs or btrfs
    #[arg(
        long = "default-fstype",
        value_name = "FS",
        default_value = "ext4",
        value_parser = values::filesystem
    )]
    pub default_fs: FsType,

    /// The topology key for the node's ID
    #[arg(
        long,
        value_name = "KEY",
        default_value = "topology.hostloop.csi.dev/node",
        value_parser = values::label_key
    )]
    pub topology_key: String,

    /// Topology keys and values to add for this node, as rack=r1,zone=z1; repeat the flag, or
    /// separate them by commas. Volumes are tied to all of them, and kubelet labels the node with
    /// them
    #[arg(long, value_name = "KEY=VALUE,...", value_delimiter = ',')]
    pub topology: Vec<Segment>,

    /// A directory with a file for each kernel that several nodes share, as those of kind do: its
    /// name is the kernel's, and it has the names of the nodes, at most 16, separated by spaces or
    /// new lines. Volumes of classes with reach=kernel can be used on all of them. The driver reads
    /// the files again at each use [default: no node shares its kernel]
    #[arg(long, value_name = "DIR")]
    pub kernels: Option<PathBuf>,

    /// Mutable parameters that the driver accepts [default: all that it knows]
    #[arg(
        long = "accepted-mutable-parameter-names",
        value_name = "NAME,...",
        value_delimiter = ','
    )]
    pub mutable_parameters: Vec<String>,

    /// The form of changed-block lists
    #[arg(
        long = "snapshot-metadata-block-type",
        value_name = "TYPE",
        default_value = "FIXED_LENGTH",
        ignore_case = true
    )]
    pub metadata_blocks: BlockType,
}

/// The form of changed-block lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BlockType {
    /// Blocks of 4096 bytes.
    #[value(name = "FIXED_LENGTH")]
    Fixed,
    /// Extents of any length.
    #[value(name = "VARIABLE_LENGTH")]
    Variable,
}

impl ServeArgs {
    /// The path of the socket. clap requires one on the command line.
    pub fn endpoint(&self) -> Option<&PathBuf> {
        self.endpoint.as_ref().or(self.csi_endpoint.as_ref())
    }
}

#[cfg(test)]
mod tests;
