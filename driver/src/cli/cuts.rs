//! The arguments of `hostloop cuts`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use hostloop_controllers::api::duration;
use hostloop_report::cuts::MAX_CUTS;

use super::values;

/// Arguments of `hostloop cuts`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The running driver takes, keeps and drops cuts, with --enable-faults. Each is a \
                  snapshot that is a power cut: a claim can be made of it. Cuts that are not kept \
                  expire."
)]
pub struct CutsArgs {
    /// The driver's Unix socket, beside which it serves cuts
    #[arg(long, value_name = "unix:///PATH", value_parser = values::endpoint)]
    pub endpoint: PathBuf,

    /// The subcommand.
    #[command(subcommand)]
    pub command: CutsCommand,
}

/// The subcommands of `hostloop cuts`.
#[derive(Clone, Debug, Subcommand)]
pub enum CutsCommand {
    /// Take cuts of a volume that is in use, in one burst, and print each as a line of JSON
    Take(TakeCutsArgs),
    /// List the cuts that are neither kept nor deleted
    List {
        /// Only those of this exploration
        #[arg(long, value_name = "ID")]
        exploration: Option<String>,

        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Make an ordinary snapshot of a cut, which does not expire
    Keep {
        /// The snapshot's ID
        #[arg(value_name = "SNAPSHOT")]
        snapshot: String,
    },
    /// End an exploration, and delete its cuts that are left
    Drop {
        /// The exploration's ID
        #[arg(value_name = "EXPLORATION")]
        exploration: String,
    },
}

/// Arguments of `hostloop cuts take`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Exit code: 0 all cuts are taken, 1 it could not be done, 2 the burst ended \
                  earlier, and its last line says why."
)]
pub struct TakeCutsArgs {
    /// The volume's ID
    #[arg(long, value_name = "ID")]
    pub volume: String,

    /// How many cuts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CUTS)))]
    pub cuts: u32,

    /// The time from one cut to the next, from 10ms to 1m
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub every: Duration,

    /// How long the cuts are kept, from 1m to 168h
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "24h",
        value_parser = duration::parse
    )]
    pub expire_after: Duration,

    /// End when standard input ends, as when the connection to a pod breaks
    #[arg(long, hide = true)]
    pub until_eof: bool,
}
