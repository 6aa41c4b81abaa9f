//! The arguments of `hostloop fault-disks`.

use std::path::PathBuf;

use clap::Args;

use super::watch::LogArgs;
use crate::storage::config;

const EXAMPLE: &str = "\
Example, beside `hostloop serve --enable-faults` with the usual name of the driver:
  hostloop fault-disks --socket /var/lib/kubelet/plugins/hostloop.csi.dev/fault-disks/sock";

/// `hostloop fault-disks`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct FaultDisksArgs {
    /// The Unix socket for the driver, which looks for fault-disks/sock in its --statedir
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,

    /// Maximum memory of all disks, which is locked: 11 MiB for each disk, and its write cache
    #[arg(long, value_name = "SIZE", default_value = "512Mi", value_parser = config::size)]
    pub memory: u64,

    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}
