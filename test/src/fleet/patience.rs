//! A test's own requests to an API server that may be away on purpose.

use std::time::{Duration, Instant};

use crate::PATIENCE;
use crate::cluster::wait_at;

const PACE: Duration = Duration::from_millis(200);

/// Repeats a request until it has an answer. Transport errors and server errors are retried.
pub async fn patiently<T>(
    what: &str,
    ask: impl AsyncFn() -> Result<T, kube::Error>,
) -> Result<T, kube::Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Err(error) if is_passing(&error) => {
                assert!(Instant::now() < deadline, "{what}: {error}");
            }
            answer => return answer,
        }
        tokio::time::sleep(PACE).await;
    }
}

fn is_passing(error: &kube::Error) -> bool {
    match error {
        // A starting API server does not know its roles and namespaces yet.
        kube::Error::Api(status) => status.code >= 500 || matches!(status.code, 401 | 403 | 429),
        _ => true,
    }
}

/// True if the API server answered with this status code.
pub fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// [`wait_at`] long intervals, for looks that load the server.
pub async fn in_time<T>(
    what: &str,
    limit: Duration,
    look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    wait_at(2 * PACE, what, limit, look).await
}
