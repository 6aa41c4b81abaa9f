//! The command line of the controllers. Flags have upstream's names where upstream has the flag. A
//! flag that several sidecars share is one flag here, for all of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::api::duration;
use crate::capacity;
use crate::controller::context::{Common, Context};
use crate::per_controller::PerController;
use crate::provisioner;
use crate::roles::{Role, Roles};
use crate::{
    attacher, health, node_cleanup, orphaned_volumes, placement, resizer, snapshot_controller,
    snapshot_metadata, snapshotter,
};

/// Flags of all controllers.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Controllers")]
pub struct Args {
    /// Which controllers run: names, * for all except snapshot-controller and snapshot-metadata, -name
    /// to exclude one
    #[arg(
        long,
        value_name = "NAME,...",
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub controllers: Roles,

    /// Serve one node's volumes (true) or the whole cluster's (false) [default: true in `run`,
    /// false in `controllers`]
    #[arg(long, value_name = "BOOL")]
    pub node_deployment: Option<bool>,

    /// The Kubernetes name of this node; NODE_NAME from the environment is used too [default: the
    /// node ID that the driver returns]
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,

    /// Timeout of one CSI call [default: 10s; 15s to attach, 1m for snapshots]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub timeout: Option<Duration>,

    /// Objects that each controller works on at once, at most three quarters of them for one
    /// namespace [default: 100 claims, or 32 if it serves one node, and 10 of anything else]
    #[arg(long, value_name = "N")]
    pub worker_threads: Option<usize>,

    /// The wait after the first failure; it doubles after each further one
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    pub retry_interval_start: Duration,

    /// The longest wait after a failure
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    pub retry_interval_max: Duration,

    /// How often to reconcile all objects again [default: 10m to resize, 15m for the rest]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub resync_period: Option<Duration>,

    /// Pass the names of claims, volumes and snapshots to the driver
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub extra_create_metadata: bool,

    /// Values of shared flags for one controller, as attacher-timeout=30s; `controllers` also takes
    /// them as flags, as --attacher-timeout=30s
    #[arg(long, value_name = "NAME-FLAG=VALUE,...", value_delimiter = ',')]
    pub per_controller: Vec<PerController>,

    #[command(flatten)]
    pub api: ApiArgs,

    #[command(flatten)]
    pub election: ElectionArgs,

    #[command(flatten)]
    pub kubelet: KubeletArgs,

    #[command(flatten)]
    pub capacity: capacity::Options,

    #[command(flatten)]
    pub placement: placement::PlacementArgs,

    #[command(flatten)]
    pub attacher: attacher::Options,

    #[command(flatten)]
    pub resizer: resizer::Options,

    #[command(flatten)]
    pub snapshotter: snapshotter::Options,

    #[command(flatten)]
    pub health: health::Options,

    #[command(flatten)]
    pub gone: node_cleanup::Options,

    #[command(flatten)]
    pub orphans: orphaned_volumes::Options,

    #[command(flatten)]
    pub snapshot_controller: snapshot_controller::Options,

    #[command(flatten)]
    pub snapshot_metadata: snapshot_metadata::Options,

    #[command(flatten)]
    pub provisioner: provisioner::Options,
}

/// How to reach the API server.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "API server")]
pub struct ApiArgs {
    /// The kubeconfig file [default: the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The limit of requests per second; 0 leaves limiting to the server
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    pub kube_api_qps: f64,

    /// The burst of requests after a quiet time, if --kube-api-qps is set
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub kube_api_burst: u32,
}

/// Which process does the work that one process does for the whole cluster.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub struct ElectionArgs {
    /// Elect a leader; without an election this process leads [default: true if every node has a
    /// process]
    #[arg(long, value_name = "BOOL")]
    pub leader_election: Option<bool>,

    /// Where the cluster-wide tasks run: placement, labels, cleanup after deleted nodes, source
    /// protection, the snapshot-controller
    #[arg(long, value_name = "WHERE", default_value = "elected")]
    pub leader_tasks: LeaderTasks,

    /// The namespace of the leases [default: the pod's]
    #[arg(long, value_name = "NAME")]
    pub leader_election_namespace: Option<String>,

    /// How long other processes wait for a leader that does not renew its lease
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration::parse)]
    pub leader_election_lease_duration: Duration,

    /// How long a leader keeps leading when it can't renew its lease
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub leader_election_renew_deadline: Duration,

    /// The wait between attempts to acquire or renew the lease
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse)]
    pub leader_election_retry_period: Duration,

    /// Labels of the leases; KEY:VALUE means the same
    #[arg(long, value_name = "KEY=VALUE,...", value_delimiter = ',', value_parser = label)]
    pub leader_election_labels: Vec<(String, String)>,

    /// The namespace of the snapshot-controller's lease
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    pub snapshot_controller_namespace: String,
}

/// Where the cluster-wide tasks run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LeaderTasks {
    /// In the process that holds the lease: every process is a candidate.
    #[default]
    Elected,
    /// In another process. This one serves its node, and reads the lease to see whether a leader
    /// exists.
    Elsewhere,
    /// In this process while it holds the lease. It serves no node and, with --drivername, calls no
    /// CSI driver.
    Only,
}

/// Flags of the endpoints for kubelet.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Kubelet")]
pub struct KubeletArgs {
    /// The directory in which kubelet looks for plugin sockets
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/plugins_registry"
    )]
    pub plugin_registration_path: PathBuf,

    /// The path of the driver's socket on the host [default: the endpoint in `run`; without it
    /// `controllers` registers nothing]
    #[arg(long, value_name = "PATH")]
    pub kubelet_registration_path: Option<PathBuf>,

    /// The port of the liveness endpoint /healthz
    #[arg(long, value_name = "PORT", default_value_t = 9808)]
    pub health_port: u16,

    /// Timeout of the driver's Probe
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = duration::parse)]
    pub probe_timeout: Duration,
}

/// Upstream's sidecars separate key and value by a colon. Neither can contain one of the two.
fn label(text: &str) -> Result<(String, String), String> {
    let pair = text
        .split_once(['=', ':'])
        .filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Args {
    /// The flags that all controllers share.
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

    /// The flags that all controllers share, as they are for this one.
    pub(crate) fn common_of(&self, role: Role, common: &Common) -> Common {
        let mut common = common.clone();
        for value in &self.per_controller {
            value.set(role, &mut common);
        }
        common
    }

    /// The context of this controller: `--per-controller` may have values for it.
    pub(crate) fn context_of(&self, role: Role, context: &Context) -> Context {
        Context {
            common: self.common_of(role, &context.common),
            ..context.clone()
        }
    }
}

impl ElectionArgs {
    /// The labels of the leases.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_either_separator() {
        for (text, expected) in [
            ("a=b", Some(("a", "b"))),
            ("a:b", Some(("a", "b"))),
            ("example.com/team=x.y", Some(("example.com/team", "x.y"))),
            ("a=", Some(("a", ""))),
            ("a", None),
            ("=b", None),
            (":b", None),
        ] {
            let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
            assert_eq!(label(text).ok(), expected, "{text}");
        }
    }
}
