//! The command line of the loops. Names are upstream's where upstream has the flag; what several
//! sidecars have under one name is one flag here, for all of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::capacity;
use crate::provisioner;
use crate::roles::Roles;
use crate::runtime::context::Common;
use crate::runtime::{boolean, duration};
use crate::{
    attacher, health, node_cleanup, orphaned_volumes, placement, resizer, snapshot_controller,
    snapshotter,
};

/// What all loops take.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Controllers")]
pub struct Args {
    /// What runs: names of controllers, * for all but the snapshot-controller, -name to leave one
    /// out
    #[arg(
        long,
        env = "HOSTLOOP_CONTROLLERS",
        value_name = "NAME,...",
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub controllers: Roles,

    /// Serve one node's volumes (true), or the whole cluster's (false) [default: true in `run`,
    /// false in `controllers`]
    #[arg(
        long,
        env = "HOSTLOOP_NODE_DEPLOYMENT",
        value_name = "BOOL",
        value_parser = boolean::parse,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub node_deployment: Option<bool>,

    /// The Kubernetes name of this node; the environment's NODE_NAME is read, too [default: the
    /// ID the driver gives the node]
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,

    /// How long one CSI call may take [default: 10s; 15s to attach, 1m for snapshots]
    #[arg(long, env = "HOSTLOOP_TIMEOUT", value_name = "DURATION", value_parser = duration::parse)]
    pub timeout: Option<Duration>,

    /// Objects each controller works on at once [default: 100 claims, 10 of anything else]
    #[arg(long, env = "HOSTLOOP_WORKER_THREADS", value_name = "N")]
    pub worker_threads: Option<usize>,

    /// The wait after a first failure; doubled with each further one
    #[arg(
        long,
        env = "HOSTLOOP_RETRY_INTERVAL_START",
        value_name = "DURATION",
        default_value = "1s",
        value_parser = duration::parse
    )]
    pub retry_interval_start: Duration,

    /// The longest wait after a failure
    #[arg(
        long,
        env = "HOSTLOOP_RETRY_INTERVAL_MAX",
        value_name = "DURATION",
        default_value = "5m",
        value_parser = duration::parse
    )]
    pub retry_interval_max: Duration,

    /// How often everything is looked at again [default: 10m to resize, 15m for the rest]
    #[arg(long, env = "HOSTLOOP_RESYNC_PERIOD", value_name = "DURATION", value_parser = duration::parse)]
    pub resync_period: Option<Duration>,

    /// Tell the driver the names of claims, volumes and snapshots
    #[arg(
        long,
        env = "HOSTLOOP_EXTRA_CREATE_METADATA",
        value_name = "BOOL",
        value_parser = boolean::parse,
        num_args = 0..=1,
        default_value = "false",
        default_missing_value = "true"
    )]
    pub extra_create_metadata: bool,

    /// The API server.
    #[command(flatten)]
    pub api: ApiArgs,

    /// Leader election.
    #[command(flatten)]
    pub election: ElectionArgs,

    /// Kubelet.
    #[command(flatten)]
    pub kubelet: KubeletArgs,

    /// Storage capacity.
    #[command(flatten)]
    pub capacity: capacity::Options,

    /// Placement.
    #[command(flatten)]
    pub placement: placement::Flags,

    /// The attacher.
    #[command(flatten)]
    pub attacher: attacher::Options,

    /// The resizer.
    #[command(flatten)]
    pub resizer: resizer::Options,

    /// The snapshotter.
    #[command(flatten)]
    pub snapshotter: snapshotter::Options,

    /// Health.
    #[command(flatten)]
    pub health: health::Options,

    /// Nodes that are gone.
    #[command(flatten)]
    pub gone: node_cleanup::Options,

    /// Volumes nobody knows.
    #[command(flatten)]
    pub orphans: orphaned_volumes::Options,

    /// The snapshot-controller.
    #[command(flatten)]
    pub snapshot_controller: snapshot_controller::Options,

    /// Volumes.
    #[command(flatten)]
    pub provisioner: provisioner::Options,
}

/// How the API server is reached.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "API server")]
pub struct ApiArgs {
    /// A kubeconfig file [default: the pod's service account]
    #[arg(long, env = "HOSTLOOP_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Requests a second; 0 leaves limiting to the server
    #[arg(
        long,
        env = "HOSTLOOP_KUBE_API_QPS",
        value_name = "N",
        default_value_t = 0.0
    )]
    pub kube_api_qps: f64,

    /// Requests at once after a quiet time, where --kube-api-qps is set
    #[arg(
        long,
        env = "HOSTLOOP_KUBE_API_BURST",
        value_name = "N",
        default_value_t = 0
    )]
    pub kube_api_burst: u32,
}

/// Who does what one process does for the cluster.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub struct ElectionArgs {
    /// Elect a leader; without it this process leads [default: where every node has a process]
    #[arg(
        long,
        env = "HOSTLOOP_LEADER_ELECTION",
        value_name = "BOOL",
        value_parser = boolean::parse,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub leader_election: Option<bool>,

    /// Where the cluster-wide tasks run: placement, labels, cleanup after deleted nodes, source
    /// protection, the snapshot-controller
    #[arg(
        long,
        env = "HOSTLOOP_LEADER_TASKS",
        value_name = "WHERE",
        default_value = "elected"
    )]
    pub leader_tasks: LeaderTasks,

    /// The namespace of the leases [default: the pod's]
    #[arg(long, env = "HOSTLOOP_LEADER_ELECTION_NAMESPACE", value_name = "NAME")]
    pub leader_election_namespace: Option<String>,

    /// How long others wait for a leader that is silent
    #[arg(
        long,
        env = "HOSTLOOP_LEADER_ELECTION_LEASE_DURATION",
        value_name = "DURATION",
        default_value = "15s",
        value_parser = duration::parse
    )]
    pub leader_election_lease_duration: Duration,

    /// How long a leader leads that can't renew its lease
    #[arg(
        long,
        env = "HOSTLOOP_LEADER_ELECTION_RENEW_DEADLINE",
        value_name = "DURATION",
        default_value = "10s",
        value_parser = duration::parse
    )]
    pub leader_election_renew_deadline: Duration,

    /// The wait between two tries
    #[arg(
        long,
        env = "HOSTLOOP_LEADER_ELECTION_RETRY_PERIOD",
        value_name = "DURATION",
        default_value = "5s",
        value_parser = duration::parse
    )]
    pub leader_election_retry_period: Duration,

    /// Labels of the leases
    #[arg(
        long,
        env = "HOSTLOOP_LEADER_ELECTION_LABELS",
        value_name = "KEY=VALUE,...",
        value_delimiter = ',',
        value_parser = label
    )]
    pub leader_election_labels: Vec<(String, String)>,

    /// The namespace of the snapshot-controller's lease
    #[arg(
        long,
        env = "HOSTLOOP_SNAPSHOT_CONTROLLER_NAMESPACE",
        value_name = "NAME",
        default_value = "kube-system"
    )]
    pub snapshot_controller_namespace: String,
}

/// Where the cluster-wide tasks run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LeaderTasks {
    /// In whichever process holds the lease: every process is a candidate.
    #[default]
    Elected,
    /// In another process. This one serves its node, and reads the lease to see whether a leader
    /// exists.
    Elsewhere,
    /// In this process while it holds the lease. It serves no node and, with --drivername, calls no
    /// CSI driver.
    Only,
}

/// What kubelet sees.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Kubelet")]
pub struct KubeletArgs {
    /// The directory kubelet looks for drivers in
    #[arg(
        long,
        env = "HOSTLOOP_PLUGIN_REGISTRATION_PATH",
        value_name = "DIR",
        default_value = "/var/lib/kubelet/plugins_registry"
    )]
    pub plugin_registration_path: PathBuf,

    /// The driver's socket, as kubelet sees it [default: the endpoint in `run`; without it
    /// `controllers` registers nothing]
    #[arg(long, env = "HOSTLOOP_KUBELET_REGISTRATION_PATH", value_name = "PATH")]
    pub kubelet_registration_path: Option<PathBuf>,

    /// The port of the liveness endpoint /healthz
    #[arg(
        long,
        env = "HOSTLOOP_HEALTH_PORT",
        value_name = "PORT",
        default_value_t = 9808
    )]
    pub health_port: u16,

    /// How long the driver's Probe may take
    #[arg(
        long,
        env = "HOSTLOOP_PROBE_TIMEOUT",
        value_name = "DURATION",
        default_value = "3s",
        value_parser = duration::parse
    )]
    pub probe_timeout: Duration,
}

fn label(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Args {
    /// What loops share.
    pub fn common(&self, default_fstype: &str) -> Common {
        Common {
            timeout: self.timeout,
            worker_threads: self.worker_threads,
            retry_interval_start: Some(self.retry_interval_start),
            retry_interval_max: Some(self.retry_interval_max),
            resync_period: self.resync_period,
            extra_create_metadata: self.extra_create_metadata,
            default_fstype: default_fstype.to_owned(),
        }
    }
}

impl ElectionArgs {
    /// Labels of the leases.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.leader_election_labels.iter().cloned().collect()
    }

    /// Checks that these flags agree. A leader must stop before another process takes over.
    pub fn check(&self) -> Result<(), String> {
        let elected = self.leader_election != Some(false);
        if self.leader_tasks == LeaderTasks::Elsewhere && !elected {
            return Err(
                "--leader-tasks=elsewhere needs --leader-election: the lease shows whether there \
                 is a leader"
                    .to_owned(),
            );
        }
        let ElectionArgs {
            leader_election_lease_duration: duration,
            leader_election_renew_deadline: deadline,
            leader_election_retry_period: period,
            ..
        } = self;
        if deadline >= duration {
            return Err(format!(
                "--leader-election-renew-deadline {deadline:?} must be less than \
                 --leader-election-lease-duration {duration:?}"
            ));
        }
        if period >= deadline {
            return Err(format!(
                "--leader-election-retry-period {period:?} must be less than \
                 --leader-election-renew-deadline {deadline:?}"
            ));
        }
        Ok(())
    }
}
