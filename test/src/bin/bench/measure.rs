//! Figures: measured side by side in one run, told as ratios.

use std::time::{Duration, Instant};

use serde::Serialize;

/// One line of the report.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) what: String,
    /// Ours, in `unit`.
    pub(crate) ours: f64,
    /// The floor of the same run, in `unit`.
    pub(crate) floor: Option<f64>,
    /// Of both.
    pub(crate) unit: &'static str,
    /// Ours over the floor, or ours alone, and what it is to be.
    pub(crate) aim: Aim,
}

/// What a figure is to be.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Aim {
    /// Ours over the floor, at most.
    RatioAtMost(f64),
    /// Ours over the floor, at least.
    RatioAtLeast(f64),
    /// Ours alone, less than, in the figure's unit.
    LessThan(f64),
    /// Measured once: an aim is decided by the median of at least three runs that alternate with
    /// those of the floor.
    Undecided,
    /// No aim.
    None,
}

impl Figure {
    /// Ours over the floor.
    pub(crate) fn ratio(&self) -> Option<f64> {
        self.floor.map(|floor| self.ours / floor)
    }

    /// Whether the aim is met.
    pub(crate) fn met(&self) -> bool {
        match (self.aim, self.ratio()) {
            (Aim::RatioAtMost(aim), Some(ratio)) => ratio <= aim,
            (Aim::RatioAtLeast(aim), Some(ratio)) => ratio >= aim,
            (Aim::LessThan(aim), _) => self.ours < aim,
            (Aim::Undecided | Aim::None, _) => true,
            (Aim::RatioAtMost(_) | Aim::RatioAtLeast(_), None) => false,
        }
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = |n: f64| match n {
            n if n >= 1000.0 => format!("{n:.0}"),
            n if n >= 10.0 => format!("{n:.1}"),
            n => format!("{n:.2}"),
        };
        let with_unit = |n: f64| format!("{} {}", number(n), self.unit);
        let aim = match self.aim {
            Aim::RatioAtMost(aim) => format!("≤ {aim}×"),
            Aim::RatioAtLeast(aim) => format!("≥ {aim}×"),
            Aim::LessThan(aim) => format!("< {}", with_unit(aim)),
            Aim::Undecided | Aim::None => String::new(),
        };
        let verdict = match (self.aim, self.met()) {
            (Aim::None, _) => "",
            (Aim::Undecided, _) => "undecided: one run",
            (_, true) => "met",
            (_, false) => "MISSED",
        };
        write!(
            f,
            "{:<52} {:>14} {:>14} {:>7} {:>12} {verdict}",
            self.what,
            with_unit(self.ours),
            self.floor.map(with_unit).unwrap_or_default(),
            self.ratio().map(|r| format!("{r:.2}×")).unwrap_or_default(),
            aim
        )
    }
}

/// The middle one.
pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    assert!(!samples.is_empty(), "nothing was measured");
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// How long it takes, in milliseconds.
pub(crate) fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    millis(start.elapsed())
}

/// How long it takes, in milliseconds.
pub(crate) async fn timed_async(work: impl Future<Output = ()>) -> f64 {
    let start = Instant::now();
    work.await;
    millis(start.elapsed())
}

/// A duration in milliseconds.
pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
