//! The arguments of `hostloop proxy`.

use std::path::PathBuf;

use clap::Args;

use super::faults::FaultRulesArgs;
use super::values;
use super::watch::WatchArgs;

const EXAMPLES: &str = "\
Examples:
  A driver that fails on request, for its sidecars or csi-sanity:
    hostloop proxy --csi-address unix:///csi/driver.sock --endpoint unix:///csi/csi.sock \\
      --fault-rules /etc/faults/rules.yaml

  A record of all calls, and what happens now:
    hostloop proxy --csi-address /csi/driver.sock --endpoint /csi/csi.sock --record calls.jsonl
    hostloop events --endpoint unix:///csi/csi.sock --follow";

/// `hostloop proxy`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ProxyArgs {
    /// The driver's Unix socket
    #[arg(long, value_name = "unix:///PATH", value_parser = values::endpoint)]
    pub csi_address: PathBuf,

    /// The Unix socket to serve on, for the driver's clients
    #[arg(long, value_name = "unix:///PATH", value_parser = values::endpoint)]
    pub endpoint: PathBuf,

    /// The node that rules compare with if a request names none [default: no node]
    #[arg(long = "nodeid", value_name = "ID")]
    pub node_id: Option<String>,

    /// Append each call to this file, one JSON object a line, as `hostloop events --json` prints
    /// them [default: no file]
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// The rules of faults.
    #[command(flatten)]
    pub faults: FaultRulesArgs,

    /// Logging and HTTP.
    #[command(flatten)]
    pub watch: WatchArgs,
}
