//! `uninstall`: removes hostloop's objects, unless volumes are left.

use std::io::{self, BufRead, IsTerminal};
use std::process::ExitCode;

use hostloop_terminal::color::{GOOD, QUIET, TITLE, paint};
use hostloop_terminal::humanize::count;
use hostloop_terminal::terminal;
use serde_json::Value;

use super::Cluster;
use super::api::{ApiError, Objects};
use super::dry_run::{DryRun, DryRunArgs};
use super::manifests::{Installed, ObjectKey};

mod node_files;
mod remove;
mod still_used;

/// Arguments of `uninstall`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Volumes, snapshots and pods with inline volumes that are left are named, and \
                  nothing is removed. The files of the pools stay on the nodes in any case."
)]
pub struct Args {
    /// Say what is left on the nodes, and how to remove it
    #[arg(long)]
    pub data: bool,

    /// Also remove the snapshot API's CRDs, if no object of them is left
    #[arg(long)]
    pub crds: bool,

    /// Do not ask
    #[arg(long)]
    pub yes: bool,

    #[command(flatten)]
    pub dry_run: DryRunArgs,
}

/// Why `uninstall` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// Objects that need hostloop are left.
    #[error("{}", still_used::sentence(.0))]
    InUse(Vec<String>),
    /// Helm installed hostloop.
    #[error("Helm release {0} has installed hostloop: remove it by `helm uninstall {0}`")]
    Helm(String),
    /// hostloop has another name in the cluster. Its volumes would be overlooked.
    #[error(
        "hostloop is installed as driver {installed}, not {requested}: add --driver-name {installed}"
    )]
    OtherName {
        /// The driver's name in the cluster.
        installed: String,
        requested: String,
    },
    /// The question needs a terminal.
    #[error("standard input is not a terminal: add --yes to remove hostloop without a question")]
    NoTerminal,
    #[error(
        "namespace {name} does not end within {} s. See what is left in it: \
         kubectl get all --namespace {name}",
        remove::END.as_secs()
    )]
    NamespaceStays {
        /// The namespace.
        name: String,
    },
    /// A CRD was deleted, and does not end.
    #[error(
        "CustomResourceDefinition {name} is deleted, but does not end within {} s: a controller keeps \
         it, or an object of it. See its finalizers and conditions: kubectl get crd {name} -o yaml",
        remove::END.as_secs()
    )]
    CrdStays {
        /// The CRD.
        name: String,
    },
    /// The answer can't be read, or the output not written.
    #[error("reading the answer, or printing: {0}")]
    Answer(#[from] io::Error),
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let how = args.dry_run.how;
    let mut objects = if how == DryRun::None {
        Objects::new(cluster.client.clone())
    } else {
        Objects::for_dry_run(cluster.client.clone())
    };
    let ours = remove::ours(cluster, &mut objects).await?;
    if let Some(release) = ours.iter().find_map(super::manifests::helm_release) {
        return Err(Error::Helm(release.to_owned()));
    }
    check_driver(&ours, &cluster.driver_name)?;
    let data = node_files::lines(&installed(&ours), &cluster.driver_name);
    if ours.is_empty() {
        terminal::print(&["hostloop is not installed in this cluster.".to_owned()])?;
    } else {
        still_used::refuse(cluster, &mut objects).await?;
        if how != DryRun::None {
            if how == DryRun::Server {
                remove::remove(&ours, &mut objects).await?;
            }
            terminal::print(&would_be_removed(&ours))?;
            return Ok(ExitCode::SUCCESS);
        }
        if !args.yes && !is_confirmed(ours.len())? {
            terminal::print(&["Nothing is removed.".to_owned()])?;
            return Ok(ExitCode::FAILURE);
        }
        remove_all(ours, cluster, &mut objects).await?;
    }
    for line in remove::definitions(args.crds, how, &mut objects).await? {
        terminal::print(&[paint(QUIET, &line)])?;
    }
    say_data(args, &data)?;
    Ok(ExitCode::SUCCESS)
}

/// Fails if the objects are those of a driver with another name.
fn check_driver(ours: &[Value], requested: &str) -> Result<(), Error> {
    let other = ours
        .iter()
        .map(ObjectKey::of)
        .find(|key| key.kind == "CSIDriver" && key.name != requested);
    match other {
        Some(key) => Err(Error::OtherName {
            installed: key.name,
            requested: requested.to_owned(),
        }),
        None => Ok(()),
    }
}

/// What a dry run says.
fn would_be_removed(ours: &[Value]) -> Vec<String> {
    let keys = ours.iter().map(ObjectKey::of);
    keys.map(|key| format!("{key} would be removed")).collect()
}

async fn remove_all(
    ours: Vec<Value>,
    cluster: &Cluster,
    objects: &mut Objects,
) -> Result<(), Error> {
    let (classes, rest): (Vec<Value>, Vec<Value>) = ours.into_iter().partition(remove::is_class);
    remove::remove(&classes, objects).await?;
    // Without classes no new claim gets a volume. Those of a moment ago count.
    still_used::refuse(cluster, objects).await?;
    let kept = remove::remove_rest(&rest, cluster, objects).await?;
    let removed = count(classes.len() + rest.len() - kept.len(), "object");
    terminal::print(&[format!("{} {removed} removed", paint(GOOD, "✓"))])?;
    terminal::print(
        &kept
            .iter()
            .map(|line| paint(QUIET, line))
            .collect::<Vec<_>>(),
    )?;
    if kept.is_empty() {
        remove::until_gone(cluster, objects).await?;
    }
    Ok(())
}

/// What the installed DaemonSet says about the nodes.
fn installed(ours: &[Value]) -> Option<Installed> {
    let daemon_set = ours.iter().find(|object| {
        let key = ObjectKey::of(object);
        (key.kind.as_str(), key.name.as_str()) == ("DaemonSet", "hostloop")
    })?;
    Some(Installed::of(daemon_set, None))
}

fn say_data(args: &Args, data: &[String]) -> io::Result<()> {
    if !args.data {
        let line =
            "The pools' files stay on the nodes: kubectl hostloop uninstall --data names them.";
        return terminal::print(&[paint(QUIET, line)]);
    }
    let lines = data.iter().map(|line| format!("  {line}"));
    let title = paint(TITLE, "On each node stays");
    terminal::print(&[title].into_iter().chain(lines).collect::<Vec<_>>())
}

/// Asks on the terminal.
fn is_confirmed(objects: usize) -> Result<bool, Error> {
    let mut input = io::stdin().lock();
    if !io::stdin().is_terminal() {
        return Err(Error::NoTerminal);
    }
    let what = count(objects, "object");
    terminal::begin_line(
        false,
        &format!("Remove hostloop ({what}) from the cluster? [y/N] "),
    )?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

#[cfg(test)]
mod tests;
