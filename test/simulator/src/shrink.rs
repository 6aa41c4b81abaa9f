//! Shortens a failed history while it still breaks the same rule: leaves out steps, and makes those
//! that are left plainer.

use std::io;
use std::time::{Duration, Instant};

use crate::fairness;
use crate::history::History;
use crate::process::in_process;
use crate::run::{Outcome, Output, SILENT, Until};

mod plainer;
mod related;

/// How many histories are tried. What is left is the same on each machine, as long as it takes no
/// longer than [`LIMIT`].
const TRIES: usize = 400;
/// The real time for them.
const LIMIT: Duration = Duration::from_secs(900);
/// Steps that belong together are left out before the last parts of so many.
const FEW: usize = 4;

/// Tries a history: true if it still fails.
type Fails<'a> = &'a mut dyn FnMut(&History) -> io::Result<bool>;

/// The shortest history that was found, and its outcome. What is left of it has a violation that
/// begins with `sentence`, and breaks the rule that the first violation breaks.
pub(crate) fn shrink(
    history: &History,
    outcome: Outcome,
    sentence: Option<&str>,
) -> io::Result<(History, Outcome)> {
    let Some(first) = outcome.violations.first() else {
        return Ok((history.clone(), outcome));
    };
    let broken = BrokenRule {
        rule: rule(first),
        sentence: sentence.unwrap_or_default(),
    };
    let (started, mut tries) = (Instant::now(), 0);
    let until = broken.until(history)?;
    let short = shortest(history, &mut |shorter| {
        if tries == TRIES || started.elapsed() > LIMIT {
            return Ok(false);
        }
        tries += 1;
        broken.is_by(shorter, until)
    })?;
    let whole = broken.run(&short, Until::End)?;
    if broken.is_in(&whole) {
        return Ok((short, whole));
    }
    Ok((history.clone(), outcome))
}

/// The rule of the oracle that a history has to break.
struct BrokenRule<'a> {
    rule: String,
    /// How a violation of it begins.
    sentence: &'a str,
}

impl BrokenRule<'_> {
    fn is_in(&self, outcome: &Outcome) -> bool {
        let mut violations = outcome.violations.iter();
        violations.any(|one| one.starts_with(self.sentence) && rule(one) == self.rule)
    }

    fn run(&self, history: &History, until: Until) -> io::Result<Outcome> {
        if fairness::has_rule(&self.rule) {
            return fairness::outcome(history);
        }
        let output = Output { until, ..SILENT };
        in_process(history, output)
    }

    /// True if a history breaks the rule by then.
    fn is_by(&self, history: &History, until: Until) -> io::Result<bool> {
        Ok(self.is_in(&self.run(history, until)?))
    }

    /// How much of a failed history shows it. Shorter ones go as far: most of a history comes after
    /// its steps.
    fn until(&self, history: &History) -> io::Result<Until> {
        if fairness::has_rule(&self.rule) {
            return Ok(Until::End);
        }
        for until in [Until::Steps, Until::Quiet] {
            if self.is_by(history, until)? {
                return Ok(until);
            }
        }
        Ok(Until::End)
    }
}

/// The oracle's rule that a violation breaks: its words before the first colon, without names.
/// Names and numbers have digits.
fn rule(violation: &str) -> String {
    let head = violation.split(':').next().unwrap_or_default();
    let words = head.split(' ');
    let words = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

/// The shortest history that `fails`, beginning with one that does.
fn shortest(history: &History, fails: Fails<'_>) -> io::Result<History> {
    let mut best = history.clone();
    with_plainer_steps(&mut best, &plainer::FIRST, fails)?;
    best = with_fewest_steps(&best, fails)?;
    for form in plainer::CLUSTERS {
        if let Some(plainer) = form(&best) {
            replace_if(&mut best, plainer, fails)?;
        }
    }
    // What has a plainer form may need no other step.
    with_plainer_steps(&mut best, &plainer::FORMS, fails)?;
    with_fewest_steps(&best, fails)
}

/// Puts a history in the place of the best one, if it fails.
fn replace_if(best: &mut History, tried: History, fails: Fails<'_>) -> io::Result<()> {
    if fails(&tried)? {
        *best = tried;
    }
    Ok(())
}

fn with_plainer_steps(
    best: &mut History,
    forms: &[plainer::Form],
    fails: Fails<'_>,
) -> io::Result<()> {
    for place in 0..best.steps.len() {
        for form in forms {
            if let Some(step) = form(&best.steps[place]) {
                let mut plainer = best.clone();
                plainer.steps[place] = step;
                replace_if(best, plainer, fails)?;
            }
        }
    }
    Ok(())
}

fn with_fewest_steps(history: &History, fails: Fails<'_>) -> io::Result<History> {
    let related = related::groups(&history.steps);
    let places = fewest(history.steps.len(), &related, |places| {
        fails(&history.only(places))
    })?;
    Ok(history.only(&places))
}

/// Leaves out half of the steps, then a quarter, and so on down to single ones, while `fails` is
/// true for the rest, and meanwhile those that belong together. Returns the places of the steps that
/// are left.
fn fewest(
    count: usize,
    related: &[Vec<usize>],
    mut fails: impl FnMut(&[usize]) -> io::Result<bool>,
) -> io::Result<Vec<usize>> {
    let mut left: Vec<usize> = (0..count).collect();
    let mut part = count.div_ceil(2);
    while part > FEW {
        left = without_parts(left, part, &mut fails)?;
        part = part.div_ceil(2);
    }
    for group in related {
        let mut fewer = left.clone();
        fewer.retain(|place| !group.contains(place));
        // Single steps come later.
        if fewer.len() + 1 < left.len() && fails(&fewer)? {
            left = fewer;
        }
    }
    loop {
        let before = left.len();
        left = without_parts(left, part, &mut fails)?;
        if part <= 1 && left.len() == before {
            return Ok(left);
        }
        part = part.div_ceil(2);
    }
}

/// Leaves out one part of so many steps after the other, while `fails` is true for the rest.
fn without_parts(
    mut left: Vec<usize>,
    part: usize,
    fails: &mut impl FnMut(&[usize]) -> io::Result<bool>,
) -> io::Result<Vec<usize>> {
    let mut from = 0;
    while from < left.len() {
        let end = left.len().min(from + part);
        let fewer = [&left[..from], &left[end..]].concat();
        if fails(&fewer)? {
            left = fewer;
        } else {
            from = end;
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests;
