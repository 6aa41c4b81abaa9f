//! The arguments of `hostloop events`.

use std::path::{Path, PathBuf};

use clap::Args;
use hostloop_report::flags::events_beside;

use super::values;

/// The socket for events, which a driver serves and `hostloop events` reads.
#[derive(Clone, Debug, Args)]
pub struct EventsSocket {
    /// The Unix socket for events, for root alone [default: a file beside the driver's socket, as
    /// csi.events.sock beside csi.sock]
    #[arg(long, value_name = "unix:///PATH", value_parser = values::endpoint)]
    pub events_socket: Option<PathBuf>,
}

impl EventsSocket {
    /// The socket for the events of a driver with this endpoint. `None` without flag and endpoint.
    pub fn path(&self, endpoint: Option<&Path>) -> Option<PathBuf> {
        self.events_socket
            .clone()
            .or_else(|| endpoint.map(events_beside))
    }
}

/// Arguments of `hostloop events`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The events have no secrets, parameters or mount flags. The fields of --json are \
                  stable. A process keeps its last 1,500 events or so."
)]
pub struct EventsArgs {
    /// The socket of the driver, beside which it serves its events
    #[arg(
        long,
        value_name = "unix:///PATH",
        value_parser = values::endpoint,
        required_unless_present = "events_socket"
    )]
    pub endpoint: Option<PathBuf>,

    /// Where the events are.
    #[command(flatten)]
    pub socket: EventsSocket,

    /// Wait for further events, for up to an hour
    #[arg(short, long)]
    pub follow: bool,

    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,

    /// Begin with the event of this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide = true)]
    pub from: u64,

    /// The start of the process that the number is of
    #[arg(long, value_name = "BOOT", default_value = "", hide = true)]
    pub boot: String,

    /// End when standard input ends, as when the connection to a pod breaks
    #[arg(long, hide = true)]
    pub until_eof: bool,
}
