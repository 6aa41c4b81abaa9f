//! Requests of a test's own, which may meet an API server that is away on purpose.

use std::time::{Duration, Instant};

/// How long it may be away.
const PATIENCE: Duration = Duration::from_secs(120);
const PACE: Duration = Duration::from_millis(200);

/// Asks until there is an answer: what failed on the way, or on the server's side, is asked again.
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
        // A server that begins does not know its rights and namespaces yet.
        kube::Error::Api(status) => status.code >= 500 || matches!(status.code, 401 | 403 | 429),
        _ => true,
    }
}

/// Whether the API server said so.
pub fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Looks every now and then until what is looked for is there; else fails with what was seen last.
/// Slower than [`crate::cluster::wait_for`], for looks that are a load.
pub async fn in_time<T>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(seen) => assert!(
                Instant::now() < deadline,
                "{what}: not so after {limit:?}; seen last: {seen}"
            ),
        }
        tokio::time::sleep(2 * PACE).await;
    }
}
