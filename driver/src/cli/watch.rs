//! Arguments for those who watch the driver: logs, metrics, events and spans.

use clap::{Args, ValueEnum};
use hostloop_events::otlp::Address;

use super::events::EventsSocket;
use super::values::HttpEndpoint;

/// Logging.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logging and HTTP")]
pub struct LogArgs {
    /// The format of log lines
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// error, warn, info, debug or trace, optionally per module, as in
    /// info,hostloop_driver::storage=debug
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,

    /// The verbosity flag of Go programs, for existing manifests: 5 and above means debug.
    #[arg(long = "v", value_name = "N", hide = true)]
    pub verbosity: Option<u8>,
}

/// Logging, metrics and health endpoints.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logging and HTTP")]
pub struct WatchArgs {
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,

    /// Serve /metrics and /healthz here, as HOST:PORT or :PORT [default: not served]
    #[arg(long, value_name = "ADDRESS")]
    pub http_endpoint: Option<HttpEndpoint>,

    /// Where events are served.
    #[command(flatten)]
    pub events: EventsSocket,

    /// Send what the process does as spans to this collector, by OTLP over gRPC. The trace ID is
    /// the UID of the claim [default: not sent]
    #[arg(long, value_name = "http://HOST:PORT")]
    pub otlp_endpoint: Option<Address>,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}
