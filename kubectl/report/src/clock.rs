//! The time, as reports and records have it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The current time in seconds since the epoch.
pub fn now_s() -> u64 {
    since_epoch().as_secs()
}

/// The current time in nanoseconds since the epoch.
pub fn now_ns() -> u64 {
    u64::try_from(since_epoch().as_nanos()).unwrap_or(u64::MAX)
}

/// The current time in microseconds since the epoch.
pub fn now_us() -> u64 {
    u64::try_from(since_epoch().as_micros()).unwrap_or(u64::MAX)
}

/// A clock before the epoch reads as the epoch.
fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
