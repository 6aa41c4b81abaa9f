//! Why the controllers do not run.

use crate::runtime::driver::DriverError;
use crate::runtime::kube::ClientError;

/// Why the controllers do not run, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line contradicts itself.
    #[error("{0}")]
    Args(String),
    /// There is no API server to work with.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The driver can't be worked with.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A controller ended by itself.
    #[error("{role} ended: {why}")]
    Ended {
        /// Its name.
        role: &'static str,
        /// The reason.
        why: String,
    },
    /// Another process leads now.
    #[error("lease {0} was lost; another process may be doing this one's work")]
    Lost(String),
}
