//! `kubectl hostloop`: the client of a cluster, on a person's machine.
//!
//! It works with the person's kubeconfig and rights. What the API server does not know, it reads
//! from the node pods: by running `hostloop status --json` there (pods/exec), and from logs
//! (pods/log). The driver's accounts get no right for it. kubectl finds the program by its name,
//! `kubectl-hostloop`, and under the name `kubectl_complete-hostloop` it completes command lines.
//!
//! A person's machine need not run Linux: what differs by the system is in `platform` alone.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use hostloop_api_objects::lease_name::SNAPSHOT_CONTROLLER_LEASE;

mod api;
mod backup;
mod check;
mod claim_objects;
mod cluster;
mod completion;
mod container_end;
mod container_flags;
mod describe;
mod distribution;
#[cfg(test)]
mod documented;
mod dry_run;
mod events;
mod explore;
mod fault;
mod install;
mod load;
mod log_line;
mod logs;
mod manifests;
mod new_objects;
mod node_pods;
mod output;
mod persist;
mod platform;
mod pod_logs;
mod powercut;
mod progress_line;
mod status;
mod subject;
mod target;
#[cfg(test)]
mod test_objects;
mod timeline;
mod ui;
mod uninstall;
mod verdict;
mod version;
mod volume_objects;
mod waiting;

pub use api::ApiError;
pub use cluster::{Cluster, ClusterArgs};
pub use completion::{complete, is_completer};
pub use ui::{RecordedCluster, Recorder, read_recording};

/// The file name under which kubectl finds this program.
const PLUGIN: &str = "kubectl-hostloop";

/// The file name under which kubectl finds the program that completes the plugin's arguments.
const COMPLETER: &str = "kubectl_complete-hostloop";

/// The label of every object that `install` applies.
const NAME_LABEL: (&str, &str) = ("app.kubernetes.io/name", "hostloop");

/// The DaemonSet of the servers of fault disks, and the name in the label of its pods.
const FAULT_DISKS: &str = "hostloop-fault-disks";

/// The lease that all snapshot controllers share: its namespace and its name.
const SNAPSHOT_LEASE: (&str, &str) = ("kube-system", SNAPSHOT_CONTROLLER_LEASE);

/// The exit codes, as `--help` says them.
const EXIT_CODES: &str = "\
Exit codes:
  0   done; check: each expectation is met or could not be looked at
  1   failed, and why is on standard error; check: an expectation is not met
  64  the command line can't be read, or asks for an output that the command does not have
      (check -o name)";

/// The command line of the client.
#[derive(Debug, Parser)]
#[command(
    name = PLUGIN,
    version,
    max_term_width = 100,
    propagate_version = true,
    about = "Install, check and look into hostloop in a Kubernetes cluster",
    after_help = EXIT_CODES
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
    /// Show everything about one claim, snapshot, group or inline volume
    Describe(describe::Args),
    /// Print the log lines of all nodes about one claim, snapshot, group or inline volume
    Logs(logs::Args),
    /// Print what happened to one claim, snapshot, group or pod
    Events(timeline::Args),
    /// Let the volumes of claims or the pools of a node fail, end that, or show it
    Fault(fault::Args),
    /// Cut the power of claims, as a machine that crashes does for a whole application
    Powercut(powercut::Args),
    /// Back the volume of a claim up into a directory, by its changed blocks
    Backup(backup::Args),
    /// Make a claim with the last state of a backup
    Restore(backup::RestoreArgs),
    /// Cut the power of a claim many times under load, and check what each cut has left
    Explore(explore::Args),
    /// Show the life of every volume in a browser
    Ui(ui::Args),
    /// Print the versions of this program and of hostloop in the cluster
    Version(version::Args),
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
    #[error("events: {0}")]
    Events(#[from] timeline::Error),
    #[error("fault: {0}")]
    Fault(#[from] fault::Error),
    #[error("powercut: {0}")]
    Powercut(#[from] powercut::Error),
    #[error("backup: {0}")]
    Backup(#[source] backup::Error),
    #[error("restore: {0}")]
    Restore(#[source] backup::Error),
    #[error("explore: {0}")]
    Explore(#[from] explore::Error),
    #[error("ui: {0}")]
    Ui(#[from] ui::Error),
    #[error("version: {0}")]
    Version(#[from] version::Error),
    /// No runtime for the requests.
    #[error("starting threads: {0}")]
    Threads(#[source] std::io::Error),
}

/// Parses the command line.
pub fn parse(line: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = command_line().try_get_matches_from(line)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command_line()))
}

/// clap's description of the command line, with the words that the person types.
fn command_line() -> clap::Command {
    Cli::command().bin_name("kubectl hostloop")
}

/// Runs a command. Blocks.
pub fn run(cli: &Cli) -> Result<ExitCode, Error> {
    let threads = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    threads.map_err(Error::Threads)?.block_on(perform(cli))
}

async fn perform(cli: &Cli) -> Result<ExitCode, Error> {
    let flags = &cli.cluster;
    Ok(match &cli.command {
        Command::Install(args) => install::run(args, flags).await?,
        Command::Uninstall(args) => uninstall::run(args, &Cluster::connect(flags).await?).await?,
        Command::Load(args) => load::run(args, &Cluster::connect(flags).await?).await?,
        Command::Check(args) => check::run(args, &Cluster::connect(flags).await?).await?,
        Command::Status(args) => {
            let cluster = Cluster::connect(flags).await.map_err(Error::NodeStatus)?;
            status::run(args, &cluster).await?
        }
        Command::Describe(args) => describe::run(args, &Cluster::connect(flags).await?).await?,
        Command::Logs(args) => logs::run(args, &Cluster::connect(flags).await?).await?,
        Command::Events(args) => timeline::run(args, &Cluster::connect(flags).await?).await?,
        Command::Fault(args) => fault::run(args, &Cluster::connect(flags).await?).await?,
        Command::Powercut(args) => powercut::run(args, &Cluster::connect(flags).await?).await?,
        Command::Backup(args) => {
            let done = backup::run(args, &Cluster::connect(flags).await?).await;
            done.map_err(Error::Backup)?
        }
        Command::Restore(args) => {
            let done = backup::run_restore(args, &Cluster::connect(flags).await?).await;
            done.map_err(Error::Restore)?
        }
        Command::Explore(args) => explore::run(args, &Cluster::connect(flags).await?).await?,
        Command::Ui(args) => ui::run(args, flags).await?,
        Command::Version(args) => version::run(args, flags).await?,
        Command::Completion(args) => completion::run(args),
    })
}

#[cfg(test)]
mod tests {
    use hostloop_report::flags::{CLIENT_COMMANDS, CLIENT_FLAGS};

    use super::test_objects::parsed;
    use super::*;

    #[test]
    fn the_command_line_is_sound_and_in_the_reference() {
        let source = "the client's command line";
        hostloop_document::flags::check(Cli::command(), "kubectl hostloop", source);
    }

    #[test]
    fn usage_has_the_words_that_the_person_types() {
        let line = ["any", "load", "--help"].map(OsString::from);
        let help = parse(&line).unwrap_err().to_string();
        assert!(help.contains("Usage: kubectl hostloop load ["), "{help}");
    }

    /// The program of a node knows them, so that it can say what they are.
    #[test]
    fn the_node_knows_the_commands_and_the_flags() {
        let mut all = Cli::command();
        all.build();
        let commands: Vec<&str> = all
            .get_subcommands()
            .map(clap::Command::get_name)
            .filter(|name| !["status", "events", "help"].contains(name))
            .collect();
        assert_eq!(commands, CLIENT_COMMANDS);
        let args = all.get_arguments().filter(|arg| arg.is_global_set());
        let mut flags = Vec::new();
        for arg in args {
            flags.extend(arg.get_long().map(|long| format!("--{long}")));
            flags.extend(arg.get_short().map(|short| format!("-{short}")));
        }
        assert_eq!(flags, CLIENT_FLAGS);
    }

    /// A flag means the same in each command that has it, and the others say that they have not.
    #[test]
    fn a_flag_is_taken_or_refused_by_its_name() {
        for (command, flag, is_taken) in [
            ("status", "-o name", true),
            ("status", "-o jsonpath={.volumes[*].claim}", true),
            ("status", "--json", true),
            ("status", "--no-headers", true),
            ("status", "-A", true),
            ("status", "-l app=web", true),
            ("check", "-o yaml", true),
            ("check", "-o name", false),
            ("events data", "-o name", false),
            ("version", "-o name", true),
            ("check", "--no-headers", true),
            ("check", "-A", false),
            ("check", "-l app=web", false),
            ("events data", "-o json", true),
            ("version", "-o json", true),
            ("describe data", "-o json", false),
            ("describe snapshot s", "-n shop", true),
            ("logs data", "--no-headers", false),
            ("install", "-o json", false),
            ("install", "--dry-run=none", true),
            ("uninstall", "--dry-run=client", true),
            ("load", "--dry-run=client", true),
            ("load", "--as ann", true),
            ("check", "--dry-run", false),
            ("completion bash", "-A", false),
            ("fault list", "-A", true),
            ("fault list", "-l app=web", true),
            ("fault list", "-o name", true),
            ("fault list", "--dry-run", false),
            ("fault set data gone", "-A", false),
            ("fault set data gone", "--for=5m", true),
            ("fault set data gone", "--for=5", false),
            ("fault set data gone", "--dry-run=client", true),
            ("fault set data gone", "--wait=false", true),
            ("fault set gone", "-l app=web", true),
            ("fault clear", "-l app=web", true),
            ("fault clear data", "-o yaml", true),
            ("powercut", "-l app=web", true),
            ("powercut data", "--delete-pods", true),
            ("powercut data --delete-pods", "--force", true),
            ("powercut data --delete-pods --now", "--force", false),
            ("powercut data", "-n shop", true),
            ("backup data --to d", "--full", true),
            ("backup data --to d", "--dry-run", false),
            ("restore d --claim data", "--class fast", true),
            ("restore d --claim data", "-n shop", true),
            ("restore d --claim data", "-o json", false),
            ("explore data --check job.yaml", "--cuts 200", true),
            ("explore data --check job.yaml", "--cuts 0", false),
            ("explore data --check job.yaml", "--every=1h", false),
            ("explore data --check job.yaml", "--parallel 8", true),
            ("explore data --check job.yaml", "--seed 7", true),
            ("explore data --check job.yaml", "-o name", true),
            ("explore data --check job.yaml", "-l app=web", false),
            ("explore --clean-up", "-n shop", true),
            ("explore --clean-up", "--fail-fast", false),
        ] {
            match parsed(&format!("{command} {flag}")) {
                Ok(_) => assert!(is_taken, "{command} {flag}"),
                Err(error) => {
                    assert!(!is_taken, "{error}");
                    let name = flag.split([' ', '=']).next().unwrap();
                    assert!(error.to_string().contains(name), "{error}");
                }
            }
        }
    }

    /// An error of clap that is printed to standard error has the exit code 64.
    #[test]
    fn a_form_that_a_command_has_not_is_refused_with_those_that_it_has() {
        for (line, forms) in [
            ("check -o name", "wide, json, yaml or jsonpath=TEMPLATE"),
            (
                "events data -o name",
                "wide, json, yaml or jsonpath=TEMPLATE",
            ),
            (
                "status -o xml",
                "wide, json, yaml, name or jsonpath=TEMPLATE",
            ),
            (
                "version -o text",
                "wide, json, yaml, name or jsonpath=TEMPLATE",
            ),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.use_stderr(), "{line}");
            let said = error.to_string();
            assert!(said.contains(&format!(" prints {forms}")), "{said}");
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
