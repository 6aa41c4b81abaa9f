//! Limits the rate of API requests with a token bucket.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// Allows a number of requests per second, and a burst after a quiet time. Waiting requests are
/// served in order of arrival.
#[derive(Debug)]
pub struct Limit {
    interval: Duration,
    burst: u32,
    /// When the bucket was, or will be, full again less what was taken: the theoretical arrival
    /// time of the generic cell rate algorithm.
    due: Mutex<Instant>,
}

impl Limit {
    /// Returns `None` if the rate is 0: the API server then limits requests.
    pub fn new(per_second: f64, burst: u32) -> Option<Self> {
        (per_second > 0.0).then(|| Limit {
            interval: Duration::from_secs_f64(1.0 / per_second),
            burst: burst.max(1),
            due: Mutex::new(Instant::now()),
        })
    }

    /// Waits until a request may be sent.
    pub async fn take(&self) {
        let at = {
            let mut due = self.due.lock().await;
            let now = Instant::now();
            let slack = self.interval * (self.burst - 1);
            let turn = (*due).max(now);
            *due = turn + self.interval;
            turn.checked_sub(slack).unwrap_or(now).max(now)
        };
        sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_a_rate() {
        let limit = Limit::new(10.0, 5).expect("a limit");
        let start = Instant::now();
        let mut took = Vec::new();
        for _ in 0..8 {
            limit.take().await;
            took.push(start.elapsed().as_millis());
        }
        assert_eq!(took, [0, 0, 0, 0, 0, 100, 200, 300]);
        // The burst is available again after a rest.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        for _ in 0..5 {
            limit.take().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[test]
    fn no_rate_is_no_limit() {
        assert!(Limit::new(0.0, 10).is_none());
    }
}
