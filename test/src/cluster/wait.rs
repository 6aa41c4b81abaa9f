//! Polls until the cluster has made a change.

use std::time::{Duration, Instant};

/// The interval between looks.
const PACE: Duration = Duration::from_millis(100);

/// Looks until `look` has a value, and returns it; while it has none it says what it saw. Fails
/// the test with what was seen last.
///
/// ```ignore
/// let bound = wait_for("the claim's volume", Duration::from_secs(30), async || {
///     let claim = claims.get("data").await.map_err(|e| e.to_string())?;
///     let volume = claim.spec.and_then(|s| s.volume_name);
///     volume.ok_or_else(|| format!("phase {:?}", claim.status.and_then(|s| s.phase)))
/// });
/// ```
pub async fn wait_for<T>(
    what: &str,
    timeout: Duration,
    look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    wait_at(PACE, what, timeout, look).await
}

/// A look of [`wait_for`]: the end, or the state that was seen.
pub fn check(held: bool, seen: impl FnOnce() -> String) -> Result<(), String> {
    if held { Ok(()) } else { Err(seen()) }
}

/// [`wait_for`] with this interval between looks.
pub async fn wait_at<T>(
    pace: Duration,
    what: &str,
    timeout: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let started = Instant::now();
    loop {
        match look().await {
            Ok(value) => return value,
            Err(seen) => assert!(
                started.elapsed() < timeout,
                "{what}: not there after {timeout:?}; seen last: {seen}"
            ),
        }
        tokio::time::sleep(pace).await;
    }
}
