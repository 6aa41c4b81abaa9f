//! Why the process can't serve.

use std::io;
use std::path::PathBuf;

use hostloop_controllers::socket;
use hostloop_controllers::tasks::Ended;

use super::config::SettingsError;
use crate::rpc_faults::FaultRulesError;
use crate::storage;

/// The reason why the driver can't serve, or stopped serving.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Flags contradict each other or the machine.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("--log-level: {0}")]
    LogLevel(String),
    /// The machine lacks requirements of the driver.
    #[error("this machine lacks {}", .0.join("; "))]
    Machine(Vec<String>),
    #[error("opening the pools: {0}")]
    Pools(#[from] storage::Error),
    #[error(transparent)]
    Socket(#[from] socket::Error),
    /// `--http-endpoint`.
    #[error("--http-endpoint {address}: {source}")]
    Http {
        /// The value of the flag.
        address: String,
        /// Why the address can't be listened on.
        source: io::Error,
    },
    /// `--otlp-endpoint` and the variables beside it.
    #[error(transparent)]
    Otlp(#[from] hostloop_events::otlp::Error),
    /// `--fault-rules`.
    #[error(transparent)]
    FaultRules(#[from] FaultRulesError),
    /// `hostloop fault-disks`.
    #[error(transparent)]
    FaultDisks(#[from] hostloop_fault_disk::Error),
    /// `--csi-address` of the proxy.
    #[error(
        "--csi-address and --endpoint are both {0}, and the proxy would call itself: give the driver \
         another socket"
    )]
    ProxyOfItself(PathBuf),
    /// `--record`.
    #[error("--record {path}: {source}")]
    Record {
        /// The value of the flag.
        path: PathBuf,
        source: io::Error,
    },
    /// The operating system refused something at start.
    #[error("{0}: {1}")]
    Start(&'static str, #[source] io::Error),
    /// The controllers.
    #[error(transparent)]
    Controllers(#[from] hostloop_controllers::manager::Error),
    /// A task ended that must run as long as the driver serves.
    #[error(transparent)]
    Role(#[from] Ended),
}
