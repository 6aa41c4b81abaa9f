//! How fast pools copy bytes, to refuse a copy that would freeze a filesystem for too long.
//!
//! A sample from the start of the image gives the estimate. The page cache makes a sample faster
//! than a large copy, and a small image has no sample. So a copy may still freeze until the limit.
//! For the next minutes, that copy counts instead of samples: a copy may have as many bytes as it
//! copied, and a retry is refused.
//!
//! A clone copies no bytes, but takes time for each extent of the image. One that reached the limit
//! is the measurement for the next ones of its pool.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hostloop_terminal::humanize::exact_bytes;
use parking_lot::Mutex;

use super::freeze::{clones_longer_than, longer_than};
use super::{Error, PoolId, Result};
use crate::kernel;
use crate::kernel::file::Copied;

/// Bytes of a sample. Smaller copies say nothing about larger ones.
pub(super) const SAMPLE: u64 = 64 << 20;

/// How long a measurement counts. Later, the disk may be less busy.
const KEPT: Duration = Duration::from_secs(600);

/// Bytes that were copied, and the time that took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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

/// The copies that reached the limit of their freeze.
#[derive(Debug, Default)]
pub(super) struct CopyRates {
    copies: Mutex<BTreeMap<Route, (Measured, Instant)>>,
    /// Clones in each pool, with extents for bytes.
    clones: Mutex<BTreeMap<PoolId, (Measured, Instant)>>,
}

impl CopyRates {
    /// The copy that counts now.
    pub(super) fn known(&self, route: Route) -> Option<Measured> {
        let (measured, at) = *self.copies.lock().get(&route)?;
        (at.elapsed() < KEPT).then_some(measured)
    }

    /// The clone that counts now, with extents for bytes.
    pub(super) fn known_clone(&self, pool: PoolId) -> Option<Measured> {
        let (measured, at) = *self.clones.lock().get(&pool)?;
        (at.elapsed() < KEPT).then_some(measured)
    }

    /// Begins to measure copies one after another, within a freeze that began at `since`.
    pub(super) fn series(&self, since: Instant) -> Series<'_> {
        Series {
            rates: self,
            measured_until: since,
            sums: BTreeMap::new(),
        }
    }
}

/// Measures the copies of one freeze.
pub(super) struct Series<'a> {
    rates: &'a CopyRates,
    /// The end of the time in `sums`.
    measured_until: Instant,
    /// All copies of each route until now. The first one includes the time of the freeze itself.
    sums: BTreeMap<Route, Measured>,
}

impl Series<'_> {
    /// Runs a copy and measures it. If `at_limit` is true after the copy, all copies of the series
    /// count.
    pub(super) fn measured(
        &mut self,
        route: Route,
        copy: impl FnOnce() -> Result<Copied>,
        at_limit: impl FnOnce() -> bool,
    ) -> Result<Copied> {
        let began = Instant::now();
        let copied = copy();
        let bytes = match &copied {
            Ok(Copied::Bytes(bytes)) => *bytes,
            Err(Error::Kernel(kernel::Error::Stopped { copied, .. })) => *copied,
            Err(Error::Kernel(kernel::Error::CloneStopped { extents, .. })) => {
                let measured = Measured {
                    bytes: *extents,
                    took: began.elapsed(),
                };
                self.rates
                    .clones
                    .lock()
                    .insert(route.1, (measured, Instant::now()));
                return copied;
            }
            _ => return copied,
        };
        let now = Instant::now();
        let sum = self.sums.entry(route).or_default();
        sum.bytes += bytes;
        sum.took += now - self.measured_until;
        self.measured_until = now;
        if at_limit() {
            // A sum without any bytes has no rate.
            let sums = self.sums.iter().filter(|(_, sum)| sum.bytes > 0);
            let counted = sums.map(|(route, sum)| (*route, (*sum, now)));
            self.rates.copies.lock().extend(counted);
        }
        copied
    }
}

/// Fails if copies one after another would take longer than a filesystem may stay frozen. `copies`
/// has the bytes of each copy, and the measurement of its route.
pub(super) fn check(volumes: &str, copies: &[(u64, Measured)], max_freeze: Duration) -> Result<()> {
    let bytes: u64 = copies.iter().map(|(bytes, _)| bytes).sum();
    let seconds: f64 = copies
        .iter()
        .map(|(bytes, rate)| *bytes as f64 / rate.bytes_per_second())
        .sum();
    if seconds <= max_freeze.as_secs_f64() {
        return Ok(());
    }
    let rate = bytes as f64 / seconds / f64::from(1 << 20);
    let copying = format!(
        "copying the {} of {volumes} takes about {seconds:.1} s at {rate:.1} MiB/s,",
        exact_bytes(bytes)
    );
    Err(longer_than(&copying, max_freeze))
}

/// Fails if clones one after another would take longer than a filesystem may stay frozen. `clones`
/// has the extents of each image, and the measurement of its pool.
pub(super) fn check_clones(
    volumes: &str,
    clones: &[(u64, Measured)],
    max_freeze: Duration,
) -> Result<()> {
    let extents: u64 = clones.iter().map(|(extents, _)| extents).sum();
    let seconds: f64 = clones
        .iter()
        .map(|(extents, rate)| *extents as f64 / rate.bytes_per_second())
        .sum();
    if seconds <= max_freeze.as_secs_f64() {
        return Ok(());
    }
    let cloning = format!("cloning the {extents} extents of {volumes} takes about {seconds:.1} s,");
    Err(clones_longer_than(&cloning, max_freeze))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MI: u64 = 1 << 20;

    fn measured(mib: u64, seconds: u64) -> Measured {
        Measured {
            bytes: mib * MI,
            took: Duration::from_secs(seconds),
        }
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
                "copying the {} of volume v takes about {time}, longer than the 10 s its filesystem \
                 may stay frozen (--max-freeze)",
                exact_bytes(mib * MI)
            )
        });
        match (checked, expected) {
            (Ok(()), None) => {}
            (Err(e), Some(says)) if e.to_string().starts_with(&says) => {}
            (checked, expected) => panic!("{checked:?} is not {expected:?}"),
        }
    }

    #[test]
    fn a_clone_that_reached_the_limit_refuses_longer_ones_of_its_pool() {
        let (a, b) = (PoolId::generate(), PoolId::generate());
        let rates = CopyRates::default();
        let stopped = || {
            std::thread::sleep(Duration::from_millis(1));
            Err(kernel::Error::CloneStopped {
                path: "copy".into(),
                extents: 512,
            }
            .into())
        };
        rates
            .series(Instant::now())
            .measured((a, a), stopped, || true)
            .unwrap_err();
        let known = rates.known_clone(a).unwrap();
        assert_eq!(
            (known.bytes, rates.known_clone(b), rates.known((a, a))),
            (512, None, None)
        );
        assert!(known.took >= Duration::from_millis(1));

        let limit = Duration::from_secs(10);
        let known = measured(1, 1);
        check_clones("volume v", &[(10 * MI, known)], limit).unwrap();
        let refused = check_clones("volume v", &[(10 * MI, known), (1, known)], limit);
        let says =
            "cloning the 10485761 extents of volume v takes about 10.0 s, longer than the 10 s";
        let why = refused.unwrap_err().to_string();
        assert!(
            why.starts_with(says) && why.contains("--max-freeze"),
            "{why}"
        );
    }

    const FREEZE: Duration = Duration::from_secs(1);

    fn bytes(mib: u64) -> Result<Copied> {
        Ok(Copied::Bytes(mib * MI))
    }

    fn stopped(mib: u64) -> Result<Copied> {
        Err(kernel::Error::Stopped {
            path: "copy".into(),
            copied: mib * MI,
        }
        .into())
    }

    fn no_space() -> Result<Copied> {
        Err(kernel::Error::NoSpace {
            op: "copy",
            path: "copy".into(),
        }
        .into())
    }

    /// The last copy reaches the limit. The second route and the third are one. The freeze itself
    /// took a second.
    #[rstest]
    #[case::stopped([bytes(1), bytes(2), stopped(3)], [Some(1), Some(5)])]
    #[case::complete_but_late([bytes(1), bytes(2), bytes(3)], [Some(1), Some(5)])]
    #[case::without_time([bytes(1), bytes(2), stopped(0)], [Some(1), Some(2)])]
    #[case::cloned([bytes(64), Ok(Copied::Shared), Ok(Copied::Shared)], [None, None])]
    #[case::failed([bytes(64), bytes(2), no_space()], [None, None])]
    fn all_copies_of_a_freeze_count_at_the_limit(
        #[case] copies: [Result<Copied>; 3],
        #[case] expected: [Option<u64>; 2],
    ) {
        let rates = CopyRates::default();
        let (a, b) = (PoolId::generate(), PoolId::generate());
        let mut series = rates.series(Instant::now().checked_sub(FREEZE).unwrap());
        let last = copies.len() - 1;
        for (i, copy) in copies.into_iter().enumerate() {
            let route = if i == 0 { (a, a) } else { (b, b) };
            let _ = series.measured(route, || copy, || i == last);
        }
        let known = [rates.known((a, a)), rates.known((b, b))];
        assert_eq!(
            known.map(|known| known.map(|known| known.bytes / MI)),
            expected
        );
        if let [Some(first), Some(second)] = known {
            assert!(
                first.took >= FREEZE && second.took < first.took,
                "{known:?}"
            );
        }
    }

    /// Copies from `a` to `b`, each in a freeze of its own: their MiB, and whether they reach the
    /// limit.
    #[rstest]
    #[case::in_time(&[(9000, false)], None)]
    #[case::stopped(&[(4, true)], Some(4))]
    #[case::stopped_without_time(&[(0, true)], None)]
    #[case::stopped_after_a_larger_one(&[(1024, true), (500, true)], Some(500))]
    #[case::stopped_after_a_smaller_one(&[(4, true), (500, true)], Some(500))]
    #[case::stopped_without_time_after_another(&[(4, true), (0, true)], Some(4))]
    #[case::in_time_after_a_stopped_one(&[(4, true), (5, false)], Some(4))]
    fn the_last_stopped_copy_of_a_route_counts(
        #[case] copies: &[(u64, bool)],
        #[case] expected: Option<u64>,
    ) {
        let rates = CopyRates::default();
        let (a, b) = (PoolId::generate(), PoolId::generate());
        for (mib, is_late) in copies {
            rates
                .series(Instant::now())
                .measured((a, b), || bytes(*mib), || *is_late)
                .unwrap();
        }
        let known = rates.known((a, b)).map(|known| known.bytes / MI);
        assert_eq!(known, expected);
        assert_eq!((rates.known((a, a)), rates.known((b, a))), (None, None));
    }
}
