//! Leaves out steps of a failed history while it still breaks the same rule.

use std::io;
use std::time::{Duration, Instant};

use crate::fairness;
use crate::history::History;
use crate::process::in_process;
use crate::run::{Outcome, SILENT};

/// The real time for it.
const LIMIT: Duration = Duration::from_secs(180);

/// The oracle's rule that a violation breaks: its words before the first colon, without names.
/// Names and numbers have digits.
fn rule(violation: &str) -> String {
    let head = violation.split(':').next().unwrap_or_default();
    let words = head.split(' ');
    let words = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

/// The shortest history that was found, and its outcome.
pub(crate) fn shrink(history: &History, outcome: Outcome) -> io::Result<(History, Outcome)> {
    let Some(broken) = outcome.violations.first().map(|first| rule(first)) else {
        return Ok((history.clone(), outcome));
    };
    let started = Instant::now();
    let mut best = (history.clone(), outcome);
    fewest(history.steps.len(), |places| {
        if started.elapsed() > LIMIT {
            return Ok(false);
        }
        let shorter = history.only(places);
        let tried = if fairness::has_rule(&broken) {
            fairness::outcome(&shorter)?
        } else {
            in_process(&shorter, SILENT)?
        };
        let fails = tried.violations.iter().any(|one| rule(one) == broken);
        if fails {
            best = (shorter, tried);
        }
        Ok(fails)
    })?;
    Ok(best)
}

/// Leaves out half of the steps, then a quarter, and so on down to single ones, while `fails` is
/// true for the rest. Returns the places of the steps that are left.
fn fewest(
    count: usize,
    mut fails: impl FnMut(&[usize]) -> io::Result<bool>,
) -> io::Result<Vec<usize>> {
    let mut left: Vec<usize> = (0..count).collect();
    let mut part = count.div_ceil(2);
    while part > 0 {
        let (mut from, mut found) = (0, false);
        while from < left.len() {
            let end = left.len().min(from + part);
            let fewer = [&left[..from], &left[end..]].concat();
            if fails(&fewer)? {
                (left, found) = (fewer, true);
            } else {
                from = end;
            }
        }
        part = match part {
            1 if found => 1,
            1 => 0,
            part => part.div_ceil(2),
        };
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_steps_that_matter_are_left() {
        let all: [&[usize]; 6] = [&[], &[0], &[9], &[3, 4], &[0, 5, 9], &[1, 2, 3, 7]];
        for matter in all {
            let left = fewest(10, |places| {
                Ok(matter.iter().all(|one| places.contains(one)))
            });
            assert_eq!(left.expect("places"), matter);
        }
        let none = fewest(0, |_| Ok(true)).expect("places");
        assert!(none.is_empty());
    }

    #[test]
    fn a_rule_has_no_names() {
        for (violation, expected) in [
            ("data lost: the snapshot s1 was to be kept", "data lost"),
            (
                "claim c1 is pending, and nothing says why: deleted null",
                "claim is pending, and nothing says why",
            ),
            (
                "a dead process of n2 still has its pools",
                "a dead process of still has its pools",
            ),
        ] {
            assert_eq!(rule(violation), expected);
        }
    }
}
