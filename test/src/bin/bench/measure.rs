//! Figures: runs of the driver, runs of a floor, and the aims that they decide.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Minimum number of runs that decides an aim.
const ENOUGH: usize = 3;

/// One line of the report.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    /// The name of the measurement.
    pub(crate) what: String,
    /// The runs of the driver or the controllers, in `unit`.
    pub(crate) ours: Vec<f64>,
    /// The runs of the floor, in `unit`; empty without a floor. With an aim, each run alternated
    /// with the run of `ours` at its index.
    pub(crate) floor: Vec<f64>,
    pub(crate) unit: &'static str,
    pub(crate) aim: Aim,
}

/// The limit of a figure.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Aim {
    /// The ratio to the floor is at most this.
    RatioAtMost(f64),
    /// The ratio to the floor is at least this.
    RatioAtLeast(f64),
    /// The ratio to the floor differs from 1 by at most this.
    Within(f64),
    /// Ours is less than this, in the figure's unit.
    LessThan(f64),
    /// The size of a file is less than this. One run decides, because all runs find the same size.
    SizeLessThan(f64),
    None,
}

/// The decision about an aim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    NoAim,
    Met,
    Missed,
    /// This number of runs is too small.
    FewRuns(usize),
    /// The aim lies within the spread of the runs.
    Spread(f64, f64),
}

impl Verdict {
    pub(crate) fn undecided(self) -> bool {
        matches!(self, Verdict::FewRuns(_) | Verdict::Spread(..))
    }
}

/// Decides an aim by the median of at least three runs, or of the ratios of these runs to the
/// floor. The median decides only if its whole [`spread`] is on one side of the aim. Below and
/// above [`Aim::Within`] are two sides.
pub(crate) fn decide(aim: Aim, ours: &[f64], floor: &[f64]) -> Verdict {
    let (runs, needed) = match aim {
        Aim::None => return Verdict::NoAim,
        Aim::RatioAtMost(_) | Aim::RatioAtLeast(_) | Aim::Within(_) => {
            (ratios(ours, floor), ENOUGH)
        }
        Aim::LessThan(_) => (ours.to_vec(), ENOUGH),
        Aim::SizeLessThan(_) => (ours.to_vec(), 1),
    };
    if runs.len() < needed {
        return Verdict::FewRuns(runs.len());
    }
    let met = |value: f64| match aim {
        Aim::RatioAtMost(aim) => value <= aim,
        Aim::RatioAtLeast(aim) => value >= aim,
        Aim::Within(aim) => (value - 1.0).abs() <= aim,
        Aim::LessThan(aim) | Aim::SizeLessThan(aim) => value < aim,
        Aim::None => true,
    };
    let (low, high) = spread(&runs);
    let is_around = matches!(aim, Aim::Within(_)) && (low..=high).contains(&1.0);
    match (met(low), met(high)) {
        (true, true) => Verdict::Met,
        (false, false) if !is_around => Verdict::Missed,
        _ => Verdict::Spread(low, high),
    }
}

/// The ratio of each run to the run of the floor at its index.
pub(crate) fn ratios(ours: &[f64], floor: &[f64]) -> Vec<f64> {
    ours.iter().zip(floor).map(|(o, f)| o / f).collect()
}

/// The range that has the median of such runs in about 95 of 100 cases: the runs of ranks
/// n/2 ∓ 0.98 √n. Up to eight runs, this is the smallest and the largest.
fn spread(runs: &[f64]) -> (f64, f64) {
    let sorted = sorted(runs);
    let count = sorted.len() as f64;
    let rank = (count / 2.0 - 0.98 * count.sqrt()).round().max(1.0) as usize;
    (sorted[rank - 1], sorted[sorted.len() - rank])
}

impl Figure {
    /// A figure without a floor.
    pub(crate) fn alone(
        what: impl Into<String>,
        ours: Vec<f64>,
        unit: &'static str,
        aim: Aim,
    ) -> Figure {
        Figure::beside(what, ours, Vec::new(), unit, aim)
    }

    /// A figure with the runs of its floor.
    pub(crate) fn beside(
        what: impl Into<String>,
        ours: Vec<f64>,
        floor: Vec<f64>,
        unit: &'static str,
        aim: Aim,
    ) -> Figure {
        Figure {
            what: what.into(),
            ours,
            floor,
            unit,
            aim,
        }
    }

    /// Adds the runs of the same figure that was measured again.
    pub(crate) fn extend(&mut self, more: Figure) {
        assert_eq!(self.what, more.what, "another figure");
        self.ours.extend(more.ours);
        self.floor.extend(more.floor);
    }

    pub(crate) fn verdict(&self) -> Verdict {
        decide(self.aim, &self.ours, &self.floor)
    }
}

impl Display for Figure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let number = |n: f64| match n {
            n if n >= 1000.0 => format!("{n:.0}"),
            n if n >= 10.0 => format!("{n:.1}"),
            n => format!("{n:.2}"),
        };
        let with_unit = |n: f64| format!("{} {}", number(n), self.unit);
        let aim = match self.aim {
            Aim::RatioAtMost(aim) => format!("≤ {aim}×"),
            Aim::RatioAtLeast(aim) => format!("≥ {aim}×"),
            Aim::Within(aim) => format!("1 ± {aim}×"),
            Aim::LessThan(aim) | Aim::SizeLessThan(aim) => format!("< {}", with_unit(aim)),
            Aim::None => String::new(),
        };
        let verdict = match self.verdict() {
            Verdict::NoAim => String::new(),
            Verdict::Met => "met".to_owned(),
            Verdict::Missed => "MISSED".to_owned(),
            Verdict::FewRuns(1) => "undecided: one run".to_owned(),
            Verdict::FewRuns(count) => format!("undecided: {count} runs"),
            Verdict::Spread(low, high) => {
                format!("undecided: between {} and {}", number(low), number(high))
            }
        };
        let (floor, ratio) = match &*self.floor {
            [] => Default::default(),
            floor => {
                let ratio = median(&ratios(&self.ours, floor));
                let decimals = if ratio < 0.1 { 4 } else { 2 };
                (with_unit(median(floor)), format!("{ratio:.decimals$}×"))
            }
        };
        write!(
            f,
            "{:<52} {:>14} {floor:>14} {ratio:>7} {aim:>12} {verdict}",
            self.what,
            with_unit(median(&self.ours)),
        )
    }
}

/// The middle sample, or the larger of the two middle ones.
pub(crate) fn median(samples: &[f64]) -> f64 {
    assert!(!samples.is_empty(), "nothing was measured");
    sorted(samples)[samples.len() / 2]
}

pub(crate) fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The time that `work` takes, in milliseconds.
pub(crate) fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    millis(start.elapsed())
}

/// The time that `work` takes, in milliseconds.
pub(crate) async fn timed_async(work: impl Future<Output = ()>) -> f64 {
    let start = Instant::now();
    work.await;
    millis(start.elapsed())
}

/// A duration in milliseconds.
pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_is_decided_by_the_median_of_three_runs() {
        use Verdict::{FewRuns, Met, Missed, NoAim, Spread};
        let (floor, one_outlier) = ([10.0; 11], [[1.0; 10].as_slice(), &[90.0]].concat());
        type Case<'a> = (&'a str, Aim, &'a [f64], &'a [f64], Verdict);
        let cases: [Case; 23] = [
            ("no aim", Aim::None, &[1.0], &[], NoAim),
            ("no run", Aim::LessThan(5.0), &[], &[], FewRuns(0)),
            ("one run", Aim::LessThan(5.0), &[1.0], &[], FewRuns(1)),
            ("two", Aim::LessThan(5.0), &[1.0; 2], &[], FewRuns(2)),
            ("below", Aim::LessThan(5.0), &[1.0, 4.9, 2.0], &[], Met),
            ("at it", Aim::LessThan(5.0), &[5.0; 3], &[], Missed),
            ("above", Aim::LessThan(5.0), &[6.0, 9.0, 8.0], &[], Missed),
            (
                "around",
                Aim::LessThan(5.0),
                &[1.0, 1.0, 6.0],
                &[],
                Spread(1.0, 6.0),
            ),
            (
                "an outlier of many",
                Aim::LessThan(5.0),
                &one_outlier,
                &[],
                Met,
            ),
            ("a size", Aim::SizeLessThan(5.0), &[4.0], &[], Met),
            ("a large one", Aim::SizeLessThan(5.0), &[5.0], &[], Missed),
            ("at most", Aim::RatioAtMost(1.5), &[15.0; 3], &floor, Met),
            ("more", Aim::RatioAtMost(1.5), &[16.0; 3], &floor, Missed),
            ("at least", Aim::RatioAtLeast(0.8), &[8.0; 3], &floor, Met),
            ("less", Aim::RatioAtLeast(0.8), &[7.0; 3], &floor, Missed),
            ("within", Aim::Within(0.1), &[9.2, 10.0, 10.8], &floor, Met),
            (
                "below it",
                Aim::Within(0.1),
                &[8.0, 8.9, 8.5],
                &floor,
                Missed,
            ),
            (
                "above it",
                Aim::Within(0.1),
                &[11.2, 20.0, 12.0],
                &floor,
                Missed,
            ),
            (
                "within and below",
                Aim::Within(0.1),
                &[5.0, 10.0, 10.0],
                &floor,
                Spread(0.5, 1.0),
            ),
            (
                "within and above",
                Aim::Within(0.1),
                &[10.0, 10.0, 15.0],
                &floor,
                Spread(1.0, 1.5),
            ),
            (
                "below and above",
                Aim::Within(0.1),
                &[5.0, 15.0, 15.0],
                &floor,
                Spread(0.5, 1.5),
            ),
            // The machine was slower for both.
            (
                "run by run",
                Aim::RatioAtLeast(0.8),
                &[9.0, 4.0, 18.0],
                &[10.0, 5.0, 20.0],
                Met,
            ),
            (
                "few floors",
                Aim::RatioAtLeast(0.8),
                &[9.0; 3],
                &[10.0; 2],
                FewRuns(2),
            ),
        ];
        for (name, aim, ours, floor, verdict) in cases {
            assert_eq!(decide(aim, ours, floor), verdict, "{name}");
        }
    }

    #[test]
    fn more_runs_decide_what_few_left_open() {
        let runs = |of: &[f64]| {
            Figure::beside(
                "a figure",
                of.to_vec(),
                vec![10.0; of.len()],
                "ms",
                Aim::RatioAtMost(1.0),
            )
        };
        let mut figure = runs(&[9.0, 9.0, 11.0]);
        assert!(figure.verdict().undecided());
        figure.extend(runs(&[9.0; 8]));
        assert_eq!((figure.ours.len(), figure.floor.len()), (11, 11));
        assert_eq!(figure.verdict(), Verdict::Met);
    }

    #[test]
    fn the_spread_of_many_runs_is_narrow() {
        for (count, low, high) in [
            (3, 0.0, 2.0),
            (8, 0.0, 7.0),
            (9, 1.0, 7.0),
            (101, 40.0, 60.0),
        ] {
            let runs: Vec<_> = (0..count).map(f64::from).collect();
            assert_eq!(spread(&runs), (low, high), "{count} runs");
        }
    }
}
