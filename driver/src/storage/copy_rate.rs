//! How fast pools copy bytes, to refuse a copy that would freeze a filesystem for too long.
//!
//! The estimate never refuses what recently worked. It comes from the largest copy of the last
//! minutes, also one that was stopped at the limit. Without such a copy, a sample from the start of
//! the image gives it. The page cache makes a sample faster than a large copy, so the first large
//! copy may still freeze until the limit. The next one is refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::freeze::longer_than;
use super::{Error, PoolId, Result};
use crate::kernel;
use crate::kernel::file::Copied;

/// Bytes of a sample. Smaller copies say nothing about larger ones.
pub(super) const SAMPLE: u64 = 64 << 20;

/// How long a measurement counts. Later, the disk may be less busy.
const KEPT: Duration = Duration::from_secs(600);

/// Bytes that were copied, and the time that took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) bytes: u64,
    pub(super) took: Duration,
}

impl Measured {
    fn bytes_per_second(self) -> f64 {
        self.bytes as f64 / self.took.as_secs_f64()
    }
}

/// The pool of a source, and the pool of its copy.
pub(super) type Route = (PoolId, PoolId);

/// The latest measurement of each route.
#[derive(Debug, Default)]
pub(super) struct CopyRates {
    latest: Mutex<BTreeMap<Route, (Measured, Instant)>>,
    /// Copies under way.
    running: AtomicUsize,
}

impl CopyRates {
    /// The measurement that counts now.
    pub(super) fn known(&self, route: Route) -> Option<Measured> {
        let (measured, at) = *self.latest.lock().get(&route)?;
        (at.elapsed() < KEPT).then_some(measured)
    }

    /// Runs a copy and measures it. Copies side by side slow each other down, so only a
    /// copy alone counts, or one that was stopped at the limit.
    pub(super) fn measured(
        &self,
        route: Route,
        copy: impl FnOnce() -> Result<Copied>,
    ) -> Result<Copied> {
        let began = Instant::now();
        let alone_at_first = self.running.fetch_add(1, Ordering::Relaxed) == 0;
        let copied = copy();
        let alone = self.running.fetch_sub(1, Ordering::Relaxed) == 1 && alone_at_first;
        let bytes = match &copied {
            Ok(Copied::Bytes(bytes)) if alone => *bytes,
            Err(Error::Kernel(kernel::Error::Stopped { copied, .. })) => *copied,
            _ => 0,
        };
        self.note(route, Measured { bytes, took: began.elapsed() });
        copied
    }

    /// Remembers a copy, if it says more than the one that counts now.
    fn note(&self, route: Route, measured: Measured) {
        if says_more(measured, self.known(route)) {
            self.latest.lock().insert(route, (measured, Instant::now()));
        }
    }
}

fn says_more(new: Measured, known: Option<Measured>) -> bool {
    new.bytes >= known.map_or(SAMPLE, |known| known.bytes)
}

/// Fails if copies one after another would take longer than a filesystem may stay frozen. `copies`
/// has the bytes of each copy, and the measurement of its route.
pub(super) fn check(volumes: &str, copies: &[(u64, Measured)], max_freeze: Duration) -> Result<()> {
    let bytes: u64 = copies.iter().map(|(bytes, _)| bytes).sum();
    let seconds: f64 =
        copies.iter().map(|(bytes, rate)| *bytes as f64 / rate.bytes_per_second()).sum();
    if seconds <= max_freeze.as_secs_f64() {
        return Ok(());
    }
    let rate = bytes as f64 / seconds / f64::from(1 << 20);
    let copying = format!(
        "copying the {bytes} bytes of {volumes} takes about {seconds:.1} s at {rate:.1} MiB/s,"
    );
    Err(longer_than(&copying, max_freeze))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MI: u64 = 1 << 20;

    fn measured(mib: u64, seconds: u64) -> Measured {
        Measured { bytes: mib * MI, took: Duration::from_secs(seconds) }
    }

    #[rstest]
    #[case::nothing_to_copy(&[], None)]
    #[case::short_enough(&[(1000, measured(100, 1))], None)]
    #[case::too_long(&[(1001, measured(100, 1))], Some((1001, "10.0 s at 100.0 MiB/s")))]
    #[case::by_a_slow_sample(&[(65, measured(4, 2))], Some((65, "32.5 s at 2.0 MiB/s")))]
    #[case::stopped_at_the_limit(&[(4000, measured(3000, 10))], Some((4000, "13.3 s at 300.0 MiB/s")))]
    #[case::each_short_enough_but_not_both(
        &[(600, measured(100, 1)), (600, measured(200, 2))],
        Some((1200, "12.0 s at 100.0 MiB/s"))
    )]
    #[case::two_pools(
        &[(100, measured(100, 1)), (100, measured(100, 10))],
        Some((200, "11.0 s at 18.2 MiB/s"))
    )]
    #[case::in_no_time(&[(1 << 20, measured(100, 0))], None)]
    fn what_freezes_too_long(
        #[case] copies: &[(u64, Measured)],
        #[case] expected: Option<(u64, &str)>,
    ) {
        let copies: Vec<_> = copies.iter().map(|(mib, rate)| (mib * MI, *rate)).collect();
        let checked = check("volume v", &copies, Duration::from_secs(10));
        let expected = expected.map(|(mib, time)| {
            format!(
                "copying the {} bytes of volume v takes about {time}, longer than the 10 s its \
                 filesystem may stay frozen (--max-freeze)",
                mib * MI
            )
        });
        match (checked, expected) {
            (Ok(()), None) => {}
            (Err(e), Some(says)) if e.to_string().starts_with(&says) => {}
            (checked, expected) => panic!("{checked:?} is not {expected:?}"),
        }
    }

    #[rstest]
    #[case::the_first(measured(64, 1), None, true)]
    #[case::too_small(measured(63, 1), None, false)]
    #[case::larger(measured(200, 1), Some(measured(100, 9)), true)]
    #[case::as_large(measured(100, 1), Some(measured(100, 9)), true)]
    #[case::smaller(measured(99, 1), Some(measured(100, 9)), false)]
    fn which_copy_counts(
        #[case] new: Measured,
        #[case] known: Option<Measured>,
        #[case] expected: bool,
    ) {
        assert_eq!(says_more(new, known), expected);
    }

    #[test]
    fn each_route_has_its_measurement() {
        let (a, b) = (PoolId::generate(), PoolId::generate());
        let rates = CopyRates::default();
        rates.note((a, b), measured(100, 1));
        rates.note((a, a), measured(10, 1));
        assert_eq!(rates.known((a, b)), Some(measured(100, 1)));
        assert_eq!((rates.known((a, a)), rates.known((b, a))), (None, None));
    }
}
