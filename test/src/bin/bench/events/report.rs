//! The cost of events: data, a table, and aims.

use serde::{Deserialize, Serialize};

use crate::measure::{Aim, Figure, median, sorted};
use crate::page::Report;

/// Maximum share of events in the CPU time of a claim, in percent.
const SHARE: f64 = 1.0;
/// Maximum memory of a ring in MiB.
const MEMORY: f64 = 1.0;

/// All measurements.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Cost {
    /// MiB of a full ring.
    pub(super) ring_mib: Vec<f64>,
    pub(super) rounds: Vec<Round>,
}

/// A round of claims, and the time of an event measured beside it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Round {
    pub(super) claims: usize,
    /// Claims bound per second.
    pub(super) rate: f64,
    /// Events of driver and provisioner for each claim.
    pub(super) events: f64,
    /// Milliseconds of CPU time of driver and provisioner for each claim.
    pub(super) cpu_ms: f64,
    /// Microseconds of an event.
    pub(super) event_us: f64,
}

impl Round {
    /// The percentage of a claim's CPU time that its events take.
    fn share(&self) -> f64 {
        self.events * self.event_us / (self.cpu_ms * 1e3) * 100.0
    }
}

impl Cost {
    fn each(&self, value: impl Fn(&Round) -> f64) -> Vec<f64> {
        self.rounds.iter().map(value).collect()
    }
}

impl Report for Cost {
    const NAME: &'static str = "events";
    const PAGE: &'static str = "ui";

    fn table(&self) -> String {
        let claims = self
            .rounds
            .iter()
            .map(|round| round.claims)
            .max()
            .unwrap_or_default();
        let rows = [
            (
                format!("{claims} claims bound at once, claims per second"),
                self.each(|r| r.rate),
            ),
            (
                "Events of a claim, until it is deleted".to_owned(),
                self.each(|r| r.events),
            ),
            (
                "CPU time of a claim, ms".to_owned(),
                self.each(|r| r.cpu_ms),
            ),
            ("One event, µs".to_owned(), self.each(|r| r.event_us)),
            (
                "Events' share of the CPU time, %".to_owned(),
                self.each(Round::share),
            ),
            ("A full ring, MiB".to_owned(), self.ring_mib.clone()),
        ];
        let head = "| | Median | Least | Most |\n|---|--:|--:|--:|\n".to_owned();
        rows.iter().fold(head, |table, (what, values)| {
            let sorted = sorted(values);
            let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
            format!(
                "{table}| {what} | {:.2} | {least:.2} | {most:.2} |\n",
                median(values)
            )
        })
    }

    fn charts(&self) -> String {
        String::new()
    }

    fn figures(&self) -> Vec<Figure> {
        let share = "events, of a claim's CPU time without a reader";
        vec![
            Figure::alone(
                "claims bound at once",
                self.each(|r| r.rate),
                "volumes/s",
                Aim::None,
            ),
            Figure::alone("events of a claim", self.each(|r| r.events), "", Aim::None),
            Figure::alone("an event", self.each(|r| r.event_us), "µs", Aim::None),
            Figure::alone(share, self.each(Round::share), "%", Aim::LessThan(SHARE)),
            Figure::alone(
                "a full ring",
                self.ring_mib.clone(),
                "MiB",
                Aim::LessThan(MEMORY),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Verdict;
    use crate::page::tests::require_drawn;

    #[test]
    fn the_page_shows_the_data_in_the_tree() {
        require_drawn::<Cost>();
    }

    #[test]
    fn the_share_decides() {
        let round = |event_us| Round {
            claims: 300,
            rate: 100.0,
            events: 20.0,
            cpu_ms: 2.0,
            event_us,
        };
        for (event_us, ring_mib, share, memory) in [
            (0.9, 0.5, Verdict::Met, Verdict::Met),
            (1.1, 1.5, Verdict::Missed, Verdict::Missed),
        ] {
            let cost = Cost {
                ring_mib: vec![ring_mib; 3],
                rounds: vec![round(event_us); 3],
            };
            let figures = cost.figures();
            assert_eq!(
                (figures[3].verdict(), figures[4].verdict()),
                (share, memory)
            );
        }
    }
}
