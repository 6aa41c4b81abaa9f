//! `hostloop status`: the pools, volumes and devices of this node, read from disk and kernel.
//!
//! It needs no driver and no lock, and changes nothing.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cli::{PoolArgs, PoolArgsError};
use crate::inspect::inventory::Survey;
use crate::kernel;
use crate::kernel::linux::Linux;

pub mod color;
pub mod humanize;
pub mod render;
pub mod report;
pub mod table;

pub use report::Report;

/// Arguments of `hostloop status`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Reads disk and kernel itself and changes nothing: the driver may be running or \
                  not. The fields of --json are stable."
)]
pub struct Options {
    /// The configured pools
    #[command(flatten)]
    pub pools: PoolArgs,

    /// Print JSON instead of tables
    #[arg(long, env = "HOSTLOOP_JSON")]
    pub json: bool,
}

/// Why the status can't be shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments contradict each other.
    #[error(transparent)]
    Arguments(#[from] PoolArgsError),
    /// The kernel does not report loop devices or mounts.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

/// Takes a survey and prints it. Blocks.
pub fn run(options: &Options) -> Result<ExitCode, Error> {
    let specs = options.pools.specs()?;
    let report = Report::of(&Survey::take(
        &specs,
        &options.pools.state_dir(),
        &Linux::new(),
    )?);
    let mut out = anstream::stdout().lock();
    if options.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        for line in render::text(&report, terminal_width(), now_ns()) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Number of columns if standard output is a terminal.
fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| usize::from(size.ws_col))
}

/// Now, in nanoseconds since the epoch.
pub fn now_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
