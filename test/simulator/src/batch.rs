//! Runs several histories, as many at once as the machine has processors. Each has a process of its
//! own, so none changes another.

use std::io;
use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::Args;
use crate::fairness;
use crate::history::History;
use crate::process::in_process;
use crate::run::{Outcome, Output};

/// What several histories came to.
#[derive(Default)]
pub(crate) struct Sum {
    histories: u64,
    steps: u64,
    virtual_seconds: u64,
}

impl Sum {
    /// Adds a history and its outcome.
    pub(crate) fn add(&mut self, history: &History, outcome: &Outcome) {
        self.histories += 1;
        self.steps += history.steps.len() as u64;
        self.virtual_seconds += outcome.seconds;
    }

    /// The sum as a line, with the real time that it took.
    pub(crate) fn line(&self, took: Duration) -> String {
        let Sum {
            histories,
            steps,
            virtual_seconds,
        } = self;
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
        format!(
            "{histories} histories, {steps} steps, {} virtual hours in {} s: {} virtual hours and {} \
             steps a minute",
            virtual_seconds / 3600,
            millis / 1000,
            virtual_seconds * 60_000 / 3600 / millis,
            steps * 60_000 / millis
        )
    }
}

/// Runs a history, and once more with `--twice`. Two runs that differ are a violation. Of some
/// histories, the modest namespace's waits are compared with those without the greedy one.
pub(crate) fn outcome_of(args: &Args, history: &History) -> io::Result<Outcome> {
    let mut outcome = in_process(history, args.output())?;
    if args.twice {
        let output = Output {
            trace: false,
            record: None,
            ..args.output()
        };
        let again = in_process(history, output)?;
        if again.digest != outcome.digest {
            let differ = format!("two runs differ: {} and {}", outcome.digest, again.digest);
            outcome.violations.push(differ);
        }
    }
    if outcome.violations.is_empty() && fairness::is_sampled(history) {
        outcome.violations = fairness::outcome(history)?.violations;
    }
    if let Some(expected) = &args.violation {
        outcome.violations.retain(|one| one.starts_with(expected));
    }
    Ok(outcome)
}

/// Histories of new seeds under way.
struct Batch<'a> {
    /// The next seed.
    next: u64,
    /// The first seed that is none of them.
    end: u64,
    sum: &'a mut Sum,
    /// Of those that failed, the one with the lowest seed.
    failed: Option<(History, Outcome)>,
}

/// Runs the histories of new seeds from this one on: as many as the arguments say, until a time or
/// until one fails. Returns the one that failed.
pub(crate) fn new_seeds(
    args: &Args,
    first: u64,
    until: Option<Instant>,
    sum: &mut Sum,
) -> io::Result<Option<(History, Outcome)>> {
    let batch = Mutex::new(Batch {
        next: first,
        end: first.saturating_add(args.count.unwrap_or(u64::MAX)),
        sum,
        failed: None,
    });
    thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..at_once(args) {
            workers.push(scope.spawn(|| work(args, &batch, until)));
        }
        for worker in workers {
            worker
                .join()
                .map_err(|_| io::Error::other("a thread panicked"))??;
        }
        Ok::<(), io::Error>(())
    })?;
    Ok(batch.into_inner().failed)
}

/// The number of histories at once. The traces of several would mix.
fn at_once(args: &Args) -> usize {
    if args.trace {
        return 1;
    }
    match args.jobs {
        Some(jobs) => jobs.get(),
        None => thread::available_parallelism().map_or(1, NonZeroUsize::get),
    }
}

/// Runs one history after the other.
fn work(args: &Args, batch: &Mutex<Batch>, until: Option<Instant>) -> io::Result<()> {
    loop {
        let seed = {
            let mut batch = batch.lock();
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if batch.failed.is_some() || is_late || batch.next == batch.end {
                return Ok(());
            }
            batch.next += 1;
            batch.next - 1
        };
        let history = args.history(seed);
        let outcome = outcome_of(args, &history)?;
        let mut batch = batch.lock();
        batch.sum.add(&history, &outcome);
        let is_first = batch
            .failed
            .as_ref()
            .is_none_or(|(other, _)| seed < other.seed);
        if !outcome.violations.is_empty() && is_first {
            batch.failed = Some((history, outcome));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_says_how_much_a_minute_has() {
        let sum = Sum {
            histories: 3,
            steps: 180,
            virtual_seconds: 5 * 3600,
        };
        for (seconds, line) in [
            (
                30,
                "3 histories, 180 steps, 5 virtual hours in 30 s: 10 virtual hours and 360 steps a \
                 minute",
            ),
            (
                0,
                "3 histories, 180 steps, 5 virtual hours in 0 s: 300000 virtual hours and 10800000 \
                 steps a minute",
            ),
        ] {
            assert_eq!(sum.line(Duration::from_secs(seconds)), line);
        }
    }
}
