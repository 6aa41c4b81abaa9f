//! `install`: looks at the cluster, says what it found, and applies the objects of `deploy/`.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use hostloop_api_objects::duration;
use hostloop_report::driver_name;
use hostloop_terminal::terminal;

use super::api::{ApiError, Objects};
use super::dry_run::{DryRun, DryRunArgs};
use super::manifests::{self, Class, Pool};
use super::{Cluster, ClusterArgs, cluster};

mod apply;
mod decide;
mod kubelet;
mod progress;
mod report;
mod shared;
mod snapshots;
mod survey;
mod unrequested;
mod wait;

use decide::InstallPlan;
use shared::{SharedError, SharedNodes};
use survey::Survey;

/// The namespace of the embedded objects.
const NAMESPACE: &str = "hostloop";

const EXAMPLES: &str = "\
Examples:
  Into the cluster of the current context, with a default StorageClass:
    kubectl hostloop install --default-class

  A pool with instant snapshots on any filesystem, of 20 GiB at most:
    kubectl hostloop install --pool default=/var/lib/hostloop,image=20Gi

  Under another driver name, which all commands then need:
    kubectl hostloop install --driver-name volumes.example.com

  Print what would be applied to this cluster, or what a cluster unknown so far would get:
    kubectl hostloop install --dry-run
    kubectl hostloop install --dry-run=client

  Into kind, with volumes that all of its nodes can use:
    kubectl hostloop install --shared

Without --kubelet-dir, --pool and --default-class, an installed hostloop keeps what it has.";

/// Arguments of `install`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Make a class of hostloop the cluster's default
    #[arg(
        long,
        value_name = "CLASS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "ext4"
    )]
    pub default_class: Option<Class>,

    /// Kubelet's root directory on the nodes [default: found by what the cluster shows]
    #[arg(long, value_name = "DIR", value_parser = directory)]
    pub kubelet_dir: Option<String>,

    /// A pool on each node: a directory or an empty block device; repeat the flag for several.
    /// docs/running.md explains the options [default: a directory; in kind and minikube an image of 20 GiB]
    #[arg(long = "pool", value_name = "NAME=PATH[,OPTION...]")]
    pub pools: Vec<Pool>,

    /// Attach volumes before they are staged: the complete CSI lifecycle, but slower
    #[arg(long)]
    pub attach: bool,

    /// Let volumes follow their pods among nodes that are containers over one kernel, and let these use
    /// a volume at once. This implies --attach [default nodes: all of kind and minikube]
    #[arg(
        long,
        value_name = "NODE,...",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        value_parser = shared::nodes
    )]
    pub shared: Option<SharedNodes>,

    /// Let volumes, pools and calls fail on request, for clusters that test software
    #[arg(long)]
    pub faults: bool,

    /// Serve the changed blocks of snapshots to backup tools
    #[arg(long)]
    pub snapshot_metadata: bool,

    /// Make hostloop the cluster's snapshot controller; auto does so if the cluster has none
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub snapshot_controller: Choice,

    /// The container image [default: the one of this version]
    #[arg(long, value_name = "NAME")]
    pub image: Option<String>,

    #[command(flatten)]
    pub dry_run: DryRunArgs,

    /// How long to wait for the nodes; 0s does not wait
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    pub timeout: Duration,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// By what the cluster has.
    Auto,
    /// In any case.
    Yes,
    /// Never.
    No,
}

/// Why `install` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// A request failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The embedded objects are in one namespace.
    #[error(
        "--system-namespace: the objects of this version are made for {:?} only; leave the flag out",
        NAMESPACE
    )]
    FixedNamespace,
    /// Objects can't be named by the driver's name.
    #[error("--driver-name: {name:?} {why}")]
    DriverName { name: String, why: String },
    /// hostloop is there under another name.
    #[error(
        "hostloop is installed as driver {installed}, and volumes belong to the name that they were \
         made under. To keep it, add --driver-name {installed}. To change it, uninstall first: kubectl \
         hostloop uninstall --driver-name {installed}"
    )]
    OtherName {
        /// The driver's name in the cluster.
        installed: String,
    },
    /// The container would have the arguments of two versions.
    #[error(
        "the container of DaemonSet hostloop has arguments in its command, which stay beside the new \
         args: in its manifest, move all but the program to args, apply that, and install again"
    )]
    CommandHasArguments,
    /// Another pool would take the place of those that hold the volumes.
    #[error(
        "the installed DaemonSet hostloop shows {found}, and volumes may be in its pools: name each of \
         them by --pool"
    )]
    UnreadPools {
        /// What it shows.
        found: String,
    },
    /// The server is too old.
    #[error(
        "the server is Kubernetes {found}, and hostloop needs {} or newer: upgrade the cluster",
        manifests::Version::OLDEST
    )]
    TooOld {
        /// The server's version.
        found: String,
    },
    /// `attachRequired` of the CSIDriver can't be changed.
    #[error(
        "CSIDriver {driver} has attachRequired: {installed}, which is immutable. To keep it, {keep}. \
         To change it: drain the nodes, run `kubectl delete csidriver {driver}`, and install again"
    )]
    AttachIsFixed {
        /// The driver's name.
        driver: String,
        /// What the object has.
        installed: bool,
        /// What to do to keep it.
        keep: &'static str,
    },
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
    /// Helm installed hostloop.
    #[error("Helm release {0} has installed hostloop: change it by `helm upgrade {0}`")]
    Helm(String),
    /// It is not known which nodes share a kernel, or volumes need that they do.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// An object of another owner is in the way.
    #[error(
        "{object} exists and is not hostloop's: {message}; rename or delete it, then install again"
    )]
    Taken {
        object: String,
        /// The API server's message, which names the fields and their managers.
        message: String,
    },
    /// The server does not serve a kind that hostloop needs.
    #[error("{object}: the server does not serve {version} {kind}, which hostloop needs")]
    NotServed {
        object: String,
        /// Its `apiVersion`.
        version: String,
        kind: String,
    },
    /// New definitions do not take effect.
    #[error("the API server does not serve {0} although it is defined: kubectl describe crd {0}")]
    NotEstablished(String),
    /// The end of their server is a power cut.
    #[error("{}", unrequested::sentence(.0))]
    FaultDisksInUse(Vec<String>),
    /// Some nodes are not ready in time.
    #[error("{}; the objects are applied: when the cause is removed, hostloop starts", .0.join("; "))]
    NotReady(Vec<String>),
}

/// Parses an absolute directory.
fn directory(word: &str) -> Result<String, String> {
    let path = word.trim_end_matches('/');
    if path.starts_with('/') && !path.split('/').any(|part| part == "..") {
        Ok(path.to_owned())
    } else {
        Err(format!("{word:?} is not an absolute directory"))
    }
}

pub(super) async fn run(args: &Args, flags: &ClusterArgs) -> Result<ExitCode, Error> {
    check_names(flags)?;
    let how = args.dry_run.how;
    if how == DryRun::Client {
        let plan = InstallPlan::decide(args, &flags.driver_name, None)?;
        print_yaml(&plan.all_objects())?;
        return Ok(ExitCode::SUCCESS);
    }
    let cluster = Cluster::connect(flags).await?;
    let is_dry = how == DryRun::Server;
    let mut objects = if is_dry {
        Objects::for_dry_run(cluster.client.clone())
    } else {
        Objects::new(cluster.client.clone())
    };
    let survey = Survey::take(&cluster, &mut objects).await?;
    let plan = InstallPlan::decide(args, &flags.driver_name, Some(&survey))?;
    for line in report::lines(&plan, &survey) {
        // Standard output has the objects of a dry run alone.
        if is_dry {
            terminal::warn(&line);
        } else {
            terminal::print(&[line])?;
        }
    }
    refuse_in_use(&plan, &survey, &cluster, &mut objects).await?;
    let fitted = apply::fit(&plan, &survey, &mut objects).await?;
    for line in &fitted.left_out {
        terminal::warn(&report::left_out(line));
    }
    if is_dry {
        let all: Vec<_> = plan.crds.applied().chain(fitted.objects).collect();
        let unchecked = apply::rehearse(&all, &mut objects).await?;
        if unchecked > 0 {
            terminal::warn(&report::unchecked(unchecked));
        }
        let removed = unrequested::remove(&plan, &survey, &cluster, &mut objects).await?;
        for key in removed {
            terminal::warn(&format!("{key} would be removed"));
        }
        print_yaml(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let counts = apply::apply(&plan, fitted.objects, &mut objects).await?;
    terminal::print(&[report::applied(counts)])?;
    if !args.timeout.is_zero() {
        wait::until_ready(&cluster, &survey, args.timeout).await?;
        // The drivers have restarted, and make no more volumes that need what goes. Those until then
        // count.
        refuse_in_use(&plan, &survey, &cluster, &mut objects).await?;
    }
    let removed = unrequested::remove(&plan, &survey, &cluster, &mut objects).await?;
    if !removed.is_empty() {
        terminal::print(&[report::removed(&removed)])?;
    }
    let next = report::next(plan.settings.driver_name.as_deref());
    terminal::print(&[String::new(), next])?;
    Ok(ExitCode::SUCCESS)
}

/// Fails if volumes need a component that is not asked for any more.
async fn refuse_in_use(
    plan: &InstallPlan,
    survey: &Survey,
    cluster: &Cluster,
    objects: &mut Objects,
) -> Result<(), Error> {
    shared::refuse_in_use(plan.settings.kernels.as_ref(), survey, cluster, objects).await?;
    unrequested::refuse_in_use(plan, survey, cluster, objects).await
}

fn print_yaml(objects: &[serde_json::Value]) -> io::Result<()> {
    terminal::print(&[terminal::document(manifests::to_yaml(objects).trim_end())])
}

/// The policies name the namespace, so that no flag can change it.
fn check_names(flags: &ClusterArgs) -> Result<(), Error> {
    if flags.system_namespace != NAMESPACE {
        return Err(Error::FixedNamespace);
    }
    let name = &flags.driver_name;
    driver_name::check_in_manifests(name).map_err(|why| Error::DriverName {
        name: name.clone(),
        why,
    })
}

#[cfg(test)]
mod tests;
