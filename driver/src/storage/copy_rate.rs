//! Estimates how long a copy would freeze a filesystem, to refuse one that takes too long.
//!
//! A sample from the start of the image gives the estimate. The page cache makes a sample faster
//! than a large copy, and a small image has no sample. So a copy may still freeze until the limit.
//! A copy that was stopped counts instead of samples for ten minutes, for the same source and pool:
//! one may have as many bytes as were copied, and a retry is refused. It says nothing of other
//! sources, which may be other users': the disk was busy, or the copy was one of a large group.
//!
//! A clone copies no bytes, but takes time for each extent of the image. One that reached the limit
//! counts alike.
//!
//! Copies that ended in time do not count. They would rarely change an answer: a sample is nearly
//! always faster than a copy, and refuses none that would work.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hostloop_terminal::humanize::exact_bytes;
use parking_lot::Mutex;

use super::freeze::{clones_longer_than, longer_than};
use super::{Error, PoolId, Result, Source};
use crate::kernel;
use crate::kernel::file::Copied;

/// Bytes of a sample. Smaller copies say nothing about larger ones.
pub(super) const SAMPLE: u64 = 64 << 20;

/// How long a measurement counts. Later, the disk may be less busy.
const KEPT: Duration = Duration::from_secs(600);

/// How many measurements count at once.
const MOST: usize = 1024;

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

/// The source of a copy, and the pool of the copy.
pub(super) type Route = (Source, PoolId);

/// The copies that reached the limit of their freeze.
#[derive(Debug, Default)]
pub(super) struct CopyRates {
    copies: Measurements,
    /// Clones, with extents for bytes.
    clones: Measurements,
}

/// The last measurement of each route.
#[derive(Debug, Default)]
struct Measurements(Mutex<HashMap<Route, (Measured, Instant)>>);

impl Measurements {
    fn get(&self, route: Route, now: Instant) -> Option<Measured> {
        let (measured, at) = *self.0.lock().get(&route)?;
        (now.duration_since(at) < KEPT).then_some(measured)
    }

    /// Adds a measurement. Drops those that no longer count, and the oldest one of too many.
    fn put(&self, route: Route, measured: Measured, now: Instant) {
        let mut all = self.0.lock();
        all.retain(|_, (_, at)| now.duration_since(*at) < KEPT);
        all.insert(route, (measured, now));
        if all.len() > MOST {
            let oldest = all.iter().min_by_key(|(_, (_, at))| *at);
            if let Some(oldest) = oldest.map(|(route, _)| *route) {
                all.remove(&oldest);
            }
        }
    }
}

impl CopyRates {
    /// The copy that counts now.
    pub(super) fn known(&self, route: Route) -> Option<Measured> {
        self.copies.get(route, Instant::now())
    }

    /// The clone that counts now, with extents for bytes.
    pub(super) fn known_clone(&self, route: Route) -> Option<Measured> {
        self.clones.get(route, Instant::now())
    }

    /// Begins to measure copies one after another, since the start of their freeze.
    pub(super) fn series(&self, since: Instant) -> Series<'_> {
        Series {
            rates: self,
            measured_until: since,
            sums: HashMap::new(),
            clones: Vec::new(),
        }
    }
}

/// Measures the copies of one freeze.
pub(super) struct Series<'a> {
    rates: &'a CopyRates,
    /// The end of the time in `sums`.
    measured_until: Instant,
    /// All copies of each route until now. The first one includes the time of the freeze itself.
    sums: HashMap<Route, Measured>,
    clones: Vec<WholeClone<'a>>,
}

/// A clone that was not stopped.
struct WholeClone<'a> {
    route: Route,
    /// Counts its extents.
    extents: Box<dyn Fn() -> u64 + 'a>,
    took: Duration,
}

impl<'a> Series<'a> {
    /// Runs a copy and measures it. If `at_limit` is true after the copy, all copies of the series
    /// count. If a clone is stopped, all clones do. `extents` counts those of the source.
    pub(super) fn measured(
        &mut self,
        route: Route,
        extents: Box<dyn Fn() -> u64 + 'a>,
        copy: impl FnOnce() -> Result<Copied>,
        at_limit: impl FnOnce() -> bool,
    ) -> Result<Copied> {
        let began = Instant::now();
        let copied = copy();
        let bytes = match &copied {
            Ok(Copied::Bytes(bytes)) => *bytes,
            Err(Error::Kernel(kernel::Error::Stopped { copied, .. })) => *copied,
            Ok(Copied::Shared) => {
                let took = began.elapsed();
                self.clones.push(WholeClone {
                    route,
                    extents,
                    took,
                });
                return copied;
            }
            Err(Error::Kernel(kernel::Error::CloneStopped { extents, .. })) => {
                let stopped = Measured {
                    bytes: *extents,
                    took: began.elapsed(),
                };
                self.count_clones(route, stopped);
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
            for (route, sum) in self.sums.iter().filter(|(_, sum)| sum.bytes > 0) {
                self.rates.copies.put(*route, *sum, now);
            }
        }
        copied
    }

    /// Lets the clones until now count, and the one that was stopped. The filesystems are thawed at
    /// the limit, so none waits for this.
    fn count_clones(&mut self, route: Route, stopped: Measured) {
        let now = Instant::now();
        for clone in self.clones.drain(..) {
            let measured = Measured {
                bytes: (clone.extents)(),
                took: clone.took,
            };
            if measured.bytes > 0 {
                self.rates.clones.put(clone.route, measured, now);
            }
        }
        self.rates.clones.put(route, stopped, now);
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
/// has the extents of each image, and the measurement of its route.
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
    use crate::storage::VolumeId;

    const MI: u64 = 1 << 20;

    /// Routes of as many volumes, from pools of their own.
    fn routes<const N: usize>() -> [Route; N] {
        [(); N].map(|()| {
            let pool = PoolId::generate();
            (Source::Volume(VolumeId::generate(pool)), pool)
        })
    }

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

    fn stopped_clone() -> Result<Copied> {
        std::thread::sleep(Duration::from_millis(1));
        Err(kernel::Error::CloneStopped {
            path: "copy".into(),
            extents: 512,
        }
        .into())
    }

    #[test]
    fn a_stopped_clone_counts_for_its_own_route_with_the_clones_before_it() {
        let [a, b, silent, other] = routes();
        let rates = CopyRates::default();
        let mut series = rates.series(Instant::now());
        for (route, extents) in [(a, 300), (silent, 0)] {
            let copied = series.measured(
                route,
                Box::new(move || extents),
                || Ok(Copied::Shared),
                || false,
            );
            copied.unwrap();
        }
        assert_eq!(rates.known_clone(a), None);
        series
            .measured(b, Box::new(|| 9000), stopped_clone, || true)
            .unwrap_err();
        let known = [a, b, silent, other].map(|route| rates.known_clone(route));
        let extents = known.map(|known| known.map(|known| known.bytes));
        assert_eq!(extents, [Some(300), Some(512), None, None]);
        assert_eq!(rates.known(b), None);
        assert!(known[1].unwrap().took >= Duration::from_millis(1));

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
        let [a, b] = routes();
        let mut series = rates.series(Instant::now().checked_sub(FREEZE).unwrap());
        let last = copies.len() - 1;
        for (i, copy) in copies.into_iter().enumerate() {
            let route = if i == 0 { a } else { b };
            let _ = series.measured(route, Box::new(|| 0), || copy, || i == last);
        }
        let known = [rates.known(a), rates.known(b)];
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

    /// Copies of one volume to a pool, each in a freeze of its own: their MiB, and whether they
    /// reach the limit. They don't count for another volume, or for another pool.
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
        let [route, (other, elsewhere)] = routes();
        for (mib, is_late) in copies {
            rates
                .series(Instant::now())
                .measured(route, Box::new(|| 0), || bytes(*mib), || *is_late)
                .unwrap();
        }
        let known = rates.known(route).map(|known| known.bytes / MI);
        assert_eq!(known, expected);
        let others = [(other, route.1), (route.0, elsewhere)].map(|route| rates.known(route));
        assert_eq!(others, [None, None]);
    }

    #[rstest]
    #[case::at_once(Duration::ZERO, true)]
    #[case::a_moment_before_the_end(KEPT - Duration::from_millis(1), true)]
    #[case::too_old(KEPT, false)]
    fn how_long_a_measurement_counts(#[case] age: Duration, #[case] expected: bool) {
        let [route, other] = routes();
        let (measurements, began) = (Measurements::default(), Instant::now());
        measurements.put(route, measured(1, 1), began);
        let known = measurements.get(route, began + age);
        assert_eq!(known, expected.then_some(measured(1, 1)));
        // The next one drops it.
        measurements.put(other, measured(1, 1), began + age);
        assert_eq!(measurements.0.lock().contains_key(&route), expected);
    }

    #[test]
    fn the_oldest_of_too_many_measurements_goes() {
        let routes = routes::<{ MOST + 1 }>();
        let (measurements, began) = (Measurements::default(), Instant::now());
        for (route, age) in routes.iter().zip(0..) {
            let now = began + Duration::from_millis(age);
            measurements.put(*route, measured(1, 1), now);
        }
        let known = measurements.0.lock();
        let dropped = routes.iter().filter(|route| !known.contains_key(*route));
        assert_eq!(dropped.collect::<Vec<_>>(), [&routes[0]]);
    }
}
