//! `kubectl hostloop`: commands for a person's machine, which see the whole cluster.
//!
//! They use the person's kubeconfig and rights. What the API server does not know, they read from
//! the node pods: by running `hostloop status --json` there (pods/exec), and from logs (pods/log).
//! The driver itself gets no right for them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod check;
mod cluster;
mod completion;
mod describe;
mod install;
mod load;
mod logs;
mod status;
mod uninstall;

pub use cluster::{Cluster, ClusterArgs};

/// The file name under which kubectl finds this program.
const PLUGIN: &str = "kubectl-hostloop";

/// The command line as a plugin of kubectl.
#[derive(Debug, Parser)]
#[command(
    name = PLUGIN,
    bin_name = "kubectl hostloop",
    version,
    max_term_width = 100,
    propagate_version = true,
    about = "Install, check and look into hostloop in a Kubernetes cluster"
)]
pub struct Cli {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// The subcommand.
    #[command(subcommand)]
    pub command: PluginCommand,
}

/// The subcommands of the plugin.
#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Show pools, volumes and snapshots of all nodes
    Status(status::Args),
    /// The commands that `hostloop` has, too.
    #[command(flatten)]
    Cluster(Command),
}

/// The commands that `kubectl hostloop` and `hostloop` share.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Install hostloop into the cluster, or change how it is installed
    Install(install::Args),
    /// Remove hostloop from the cluster, if no volumes are left
    Uninstall(uninstall::Args),
    /// Load an image archive into the nodes of a kind or minikube cluster
    Load(load::Args),
    /// Check that the cluster has what hostloop needs, and that hostloop works
    Check(check::Args),
    /// Show everything about one claim
    Describe(describe::Args),
    /// Print the log lines of all nodes about one claim
    Logs(logs::Args),
    /// Print a completion script for a shell
    Completion(completion::Args),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster can't be used.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// `install`.
    #[error("install: {0}")]
    Install(#[from] install::Error),
    /// `uninstall`.
    #[error("uninstall: {0}")]
    Uninstall(#[from] uninstall::Error),
    /// `load`.
    #[error("load: {0}")]
    Load(#[from] load::Error),
    /// `check`.
    #[error("check: {0}")]
    Check(#[from] check::Error),
    /// `status`.
    #[error("status: {0}")]
    Status(#[from] status::Error),
    /// `describe`.
    #[error("describe: {0}")]
    Describe(#[from] describe::Error),
    /// `logs`.
    #[error("logs: {0}")]
    Logs(#[from] logs::Error),
    /// No runtime for the requests.
    #[error("starting threads: {0}")]
    Threads(#[source] std::io::Error),
}

/// True if the program was called as a plugin of kubectl.
pub fn is_plugin(program: &OsStr) -> bool {
    Path::new(program).file_stem().is_some_and(|name| name == PLUGIN)
}

/// Runs a command of the plugin. Blocks.
pub fn run(cli: &Cli) -> Result<ExitCode, Error> {
    match &cli.command {
        PluginCommand::Cluster(command) => run_command(command, &cli.cluster),
        PluginCommand::Status(args) => run_status(args, &cli.cluster),
    }
}

/// Runs a command that `kubectl hostloop` and `hostloop` share. Blocks.
pub fn run_command(command: &Command, cluster: &ClusterArgs) -> Result<ExitCode, Error> {
    if let Command::Completion(args) = command {
        return Ok(completion::run(args));
    }
    runtime()?.block_on(async {
        Ok(match command {
            Command::Install(args) => install::run(args, cluster).await?,
            Command::Uninstall(args) => {
                uninstall::run(args, &Cluster::connect(cluster).await?).await?
            }
            Command::Load(args) => load::run(args, &Cluster::connect(cluster).await?).await?,
            Command::Check(args) => check::run(args, &Cluster::connect(cluster).await?).await?,
            Command::Describe(args) => {
                describe::run(args, &Cluster::connect(cluster).await?).await?
            }
            Command::Logs(args) => logs::run(args, &Cluster::connect(cluster).await?).await?,
            Command::Completion(args) => completion::run(args),
        })
    })
}

/// Shows the status of all nodes. Blocks.
pub fn run_status(args: &status::Args, cluster: &ClusterArgs) -> Result<ExitCode, Error> {
    runtime()?.block_on(async {
        let cluster = Cluster::connect(cluster).await?;
        Ok(status::run(args, &cluster).await?)
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Threads)
}
