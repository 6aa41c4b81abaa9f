//! Why the controllers do not run.

use crate::client::kube::ClientError;
use crate::csi::driver::DriverError;
use crate::tasks::Ended;
use crate::tls::certificates::CertificateError;

/// Why the controllers did not start, or have stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Args(String),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Ended(#[from] Ended),
    #[error("lease {0} was lost; another process may be doing this one's work")]
    Lost(String),
}
