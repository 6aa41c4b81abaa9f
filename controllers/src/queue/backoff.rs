//! How long a failed key waits: twice as long after each failure, up to a maximum.

use std::time::Duration;

/// The delays of a key that fails again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub start: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl Backoff {
    /// The delay after this many failures in a row, at least one.
    pub fn delay(&self, failures: u32) -> Duration {
        let doubled = 2_u32
            .checked_pow(failures.saturating_sub(1))
            .and_then(|factor| self.start.checked_mul(factor));
        doubled.map_or(self.max, |delay| delay.min(self.max))
    }
}
