//! The arguments of `hostloop events`.

use std::path::PathBuf;

use clap::Args;

use super::values;

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

    /// The socket with the events, if it is elsewhere
    #[arg(long, value_name = "unix:///PATH", value_parser = values::endpoint)]
    pub events_socket: Option<PathBuf>,

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
