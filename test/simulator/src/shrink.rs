//! Leaves out steps of a failed history while it still fails in the same way.

use std::time::{Duration, Instant};

use tracing_subscriber::filter::LevelFilter;

use crate::history::History;
use crate::process::in_process;
use crate::run::Outcome;

/// The real time for it.
const LIMIT: Duration = Duration::from_secs(180);

/// The kind of a failure: its words before the first colon.
fn kind(outcome: &Outcome) -> Option<&str> {
    let first = outcome.violations.first()?;
    Some(first.split(':').next().unwrap_or(first))
}

/// The shortest history that was found, and its outcome.
pub(crate) fn shrink(history: &History, outcome: Outcome) -> std::io::Result<(History, Outcome)> {
    let Some(failure) = kind(&outcome).map(str::to_owned) else {
        return Ok((history.clone(), outcome));
    };
    let started = Instant::now();
    let (mut best, mut outcome) = (history.clone(), outcome);
    let mut part = best.steps.len().div_ceil(2);
    while part > 0 && started.elapsed() < LIMIT {
        let mut from = 0;
        let mut left_out = false;
        while from < best.steps.len() && started.elapsed() < LIMIT {
            let chosen: Vec<bool> = (0..best.steps.len())
                .map(|n| n < from || n >= from + part)
                .collect();
            let shorter = best.only(&chosen);
            let tried = in_process(&shorter, false, LevelFilter::INFO)?;
            if tried
                .violations
                .iter()
                .any(|text| text.starts_with(&failure))
            {
                (best, outcome, left_out) = (shorter, tried, true);
            } else {
                from += part;
            }
        }
        part = match part {
            1 if left_out => 1,
            1 => 0,
            part => part.div_ceil(2),
        };
    }
    Ok((best, outcome))
}
