//! The arguments of `hostloop delete`.

use std::path::PathBuf;

use clap::Args;

use super::values;

/// Arguments of `hostloop delete`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The driver deletes them as for the orchestrator: one that is published, staged, \
                  mounted or attached is refused. The command does not ask the API server, so look \
                  first at kubectl hostloop status, which shows the volumes without a \
                  PersistentVolume as Unclaimed."
)]
pub struct DeleteArgs {
    /// The driver's Unix socket
    #[arg(long, value_name = "unix:///PATH", value_parser = values::endpoint)]
    pub endpoint: PathBuf,

    /// The IDs of the volumes and snapshots, as hostloop status and fsck print them
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
}
