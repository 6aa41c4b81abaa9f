//! `kubectl hostloop`: the client of a cluster, on a person's machine.
//!
//! It works with the person's kubeconfig and rights. What the API server does not know, it reads
//! from the node pods: by running `hostloop status --json` there (pods/exec), and from logs
//! (pods/log). The driver's accounts get no right for it. The same binary is the client under three
//! names: `kubectl-hostloop` (kubectl finds plugins by this name), `hostloop`, and
//! `kubectl_complete-hostloop` ([`Program`] decides).

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod api;
mod check;
mod claim_objects;
mod cluster;
mod completion;
mod describe;
mod distribution;
mod events;
mod install;
mod load;
mod log_line;
mod logs;
mod manifests;
mod node_pods;
mod output;
mod pod_logs;
mod program;
mod status;
mod subject;
#[cfg(test)]
mod test_objects;
mod ui;
mod uninstall;
mod volume_objects;

pub use api::ApiError;
pub use cluster::{Cluster, ClusterArgs};
pub use program::Program;

/// The file name under which kubectl finds this program.
const PLUGIN: &str = "kubectl-hostloop";

/// The file name under which kubectl finds the program that completes the plugin's arguments.
const COMPLETER: &str = "kubectl_complete-hostloop";

/// The label of every object that `install` applies.
const NAME_LABEL: (&str, &str) = ("app.kubernetes.io/name", "hostloop");

/// The lease that all snapshot controllers share: its namespace and its name.
const SNAPSHOT_LEASE: (&str, &str) = ("kube-system", "snapshot-controller-leader");

/// The command line of the client.
#[derive(Debug, Parser)]
#[command(
    name = PLUGIN,
    version,
    max_term_width = 100,
    propagate_version = true,
    about = "Install, check and look into hostloop in a Kubernetes cluster"
)]
pub struct Cli {
    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
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
    /// Show pools, volumes and snapshots of all nodes
    Status(status::Args),
    /// Show everything about one claim, snapshot or inline volume
    Describe(describe::Args),
    /// Print the log lines of all nodes about one claim
    Logs(logs::Args),
    /// Show the life of every volume in a browser
    Ui(ui::Args),
    /// Print a completion script for a shell
    Completion(completion::Args),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster can't be used.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The cluster can't be used for `status`, which one node also has without a cluster.
    #[error(
        "{0}. (The status of one node needs no cluster but its pools: hostloop status --pool \
         NAME=PATH)"
    )]
    NodeStatus(#[source] cluster::Error),
    #[error("install: {0}")]
    Install(#[from] install::Error),
    #[error("uninstall: {0}")]
    Uninstall(#[from] uninstall::Error),
    #[error("load: {0}")]
    Load(#[from] load::Error),
    #[error("check: {0}")]
    Check(#[from] check::Error),
    #[error("status: {0}")]
    Status(#[from] status::Error),
    #[error("describe: {0}")]
    Describe(#[from] describe::Error),
    #[error("logs: {0}")]
    Logs(#[from] logs::Error),
    #[error("ui: {0}")]
    Ui(#[from] ui::Error),
    /// No runtime for the requests.
    #[error("starting threads: {0}")]
    Threads(#[source] std::io::Error),
}

/// Parses the command line of the client under one of its names.
pub fn parse(line: Vec<OsString>, program: Program) -> Result<Cli, clap::Error> {
    let matches = command_line(program).try_get_matches_from(line)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command_line(program)))
}

/// clap's description of the command line, with the words that the person types.
fn command_line(program: Program) -> clap::Command {
    match program {
        Program::Plugin | Program::Completer => Cli::command().bin_name("kubectl hostloop"),
        Program::Client | Program::Driver => Cli::command().name("hostloop").bin_name("hostloop"),
    }
}

/// Prints what may come next on the command line of `kubectl hostloop`, for kubectl.
pub fn complete(words: &[OsString]) -> ExitCode {
    completion::complete(words)
}

/// Runs a command. Blocks.
pub fn run(cli: &Cli, program: Program) -> Result<ExitCode, Error> {
    let threads = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    threads
        .map_err(Error::Threads)?
        .block_on(perform(cli, program))
}

async fn perform(cli: &Cli, program: Program) -> Result<ExitCode, Error> {
    let connected = || Cluster::connect(&cli.cluster);
    Ok(match &cli.command {
        Command::Install(args) => install::run(args, &cli.cluster).await?,
        Command::Uninstall(args) => uninstall::run(args, &connected().await?).await?,
        Command::Load(args) => load::run(args, &connected().await?).await?,
        Command::Check(args) => check::run(args, &connected().await?).await?,
        Command::Status(args) => {
            let cluster = connected().await.map_err(Error::NodeStatus)?;
            status::run(args, &cluster).await?
        }
        Command::Describe(args) => describe::run(args, &connected().await?).await?,
        Command::Logs(args) => logs::run(args, &connected().await?).await?,
        Command::Ui(args) => ui::run(args, &cli.cluster).await?,
        Command::Completion(args) => completion::run(args, program),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_accepts_the_command_line() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_reference_has_every_flag() {
        let tables = hostloop_document::flags::tables(Cli::command(), "kubectl hostloop");
        hostloop_document::check_named_table(
            "docs/reference/flags.md",
            "kubectl hostloop",
            &tables,
            "the client's command line",
        );
    }

    #[test]
    fn usage_has_the_words_that_the_person_types() {
        for (program, usage) in [
            (Program::Plugin, "kubectl hostloop load"),
            (Program::Client, "hostloop load"),
        ] {
            let line = ["any", "load", "--help"].map(OsString::from).to_vec();
            let help = parse(line, program).unwrap_err().to_string();
            assert!(help.contains(&format!("Usage: {usage} [")), "{help}");
        }
    }

    #[test]
    fn every_flag_has_a_help_text() {
        let mut all = Cli::command();
        all.build();
        for command in all.get_subcommands() {
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{command} {arg}");
            }
        }
    }
}
