//! Why the controllers do not run.

use crate::client::kube::ClientError;
use crate::csi::driver::DriverError;
use crate::tasks::Ended;

/// Why the controllers did not start, or have stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line contradicts itself.
    #[error("{0}")]
    Args(String),
    /// The client of the API server could not be created.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The driver can't be used.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A task ended before the stop.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// Another process leads now.
    #[error("lease {0} was lost; another process may be doing this one's work")]
    Lost(String),
}
