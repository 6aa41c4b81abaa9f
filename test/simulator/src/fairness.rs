//! Compares how long the modest namespace waits beside a greedy one with how long it waits alone.

use std::io;

use crate::dice::Dice;
use crate::history::History;
use crate::process::in_process;
use crate::run::{Outcome, Output, SILENT, Until};
use crate::waits::Wait;

/// Of so many of a hundred histories with a greedy namespace, the waits are compared: two more runs
/// of these take less than a tenth of the time.
const SAMPLED: u64 = 8;
/// How much longer than twice all waits together may take: a single call may last that long.
const ALLOWANCE: u64 = 60_000;
/// How much longer than twice one wait may take, on average.
const EACH: u64 = 20_000;
/// The longest copy of a modest user. How long a copy takes is a chance of its own.
const COPY: u64 = 1_500_000;
/// The longest pause of a caller between two calls: by then it learns that its copy is done.
const PAUSE: u64 = 300_000;

/// The rule that a history breaks if the modest namespace waits for too long.
const STARVED: &str = "starved beside a greedy namespace";
/// What begins a violation of another rule.
const APART: &str = "without other troubles";

/// True if the waits of a history are compared.
pub(crate) fn is_sampled(history: &History) -> bool {
    history.is_greedy() && Dice::of(history.seed, "fairness", 0).percent(SAMPLED)
}

/// True if a rule is one of those that [`outcome`] looks at.
pub(crate) fn has_rule(rule: &str) -> bool {
    [STARVED, APART].contains(&rule)
}

/// How far a history goes without the greedy namespace. What is still not done after the quiet time
/// waits for users, and no rule is checked in that run.
const ALONE: Output<'static> = Output {
    until: Until::Quiet,
    ..SILENT
};

/// Runs a history without other troubles, beside the greedy namespace and without it. Otherwise a
/// trouble would hit something else in each run.
pub(crate) fn outcome(history: &History) -> io::Result<Outcome> {
    let mut outcome = in_process(&history.without_troubles(true), SILENT)?;
    for violation in &mut outcome.violations {
        *violation = format!("{APART}: {violation}");
    }
    if outcome.violations.is_empty() {
        let alone = in_process(&history.without_troubles(false), ALONE)?;
        let starved = starved(&outcome.waits, &alone.waits);
        outcome.violations.extend(starved);
    }
    Ok(outcome)
}

/// Waits for the same, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    beside: u64,
    alone: u64,
}

/// What is wrong, if the same takes more than twice as long beside a greedy namespace as alone.
fn starved(beside: &[Wait], alone: &[Wait]) -> Option<String> {
    let (mut copies, mut others) = (Vec::new(), Vec::new());
    let mut longest: Option<(u64, &Wait)> = None;
    for wait in beside {
        let mut same = alone.iter().filter(|one| is_same(one, wait));
        let Some(same) = same.next() else {
            continue;
        };
        let pair = Pair {
            beside: wait.millis,
            alone: same.millis,
        };
        if wait.is_copy {
            copies.push(pair);
        } else {
            others.push(pair);
        }
        let more = pair.beside.saturating_sub(pair.alone);
        if longest.is_none_or(|(most, _)| more > most) {
            longest = Some((more, wait));
        }
    }
    let (_, longest) = longest?;
    let found = [
        (
            "copies together",
            exceeds(sum(&copies), copies.len(), COPY + PAUSE),
        ),
        (
            "the rest together",
            exceeds(sum(&others), others.len(), EACH),
        ),
        ("half of the rest", exceeds(median(&others), 0, 0)),
    ];
    let (what, pair) = found
        .into_iter()
        .find_map(|(what, pair)| Some((what, pair?)))?;
    Some(format!(
        "{STARVED}: {what} waited {} s, and {} s alone; {} waited longest, {} s",
        pair.beside / 1000,
        pair.alone / 1000,
        longest.of,
        longest.millis / 1000
    ))
}

/// True if two waits are for the same.
fn is_same(one: &Wait, other: &Wait) -> bool {
    one.step == other.step && one.of == other.of && one.with == other.with
}

/// A pair of `count` waits that takes more than twice as long and what is allowed.
fn exceeds(pair: Pair, count: usize, each: u64) -> Option<Pair> {
    let allowed = 2 * pair.alone + ALLOWANCE + each * count as u64;
    (pair.beside > allowed).then_some(pair)
}

fn sum(pairs: &[Pair]) -> Pair {
    Pair {
        beside: pairs.iter().map(|pair| pair.beside).sum(),
        alone: pairs.iter().map(|pair| pair.alone).sum(),
    }
}

/// The wait that half of all waits do not exceed, in each of both runs.
fn median(pairs: &[Pair]) -> Pair {
    let mut beside: Vec<u64> = pairs.iter().map(|pair| pair.beside).collect();
    let mut alone: Vec<u64> = pairs.iter().map(|pair| pair.alone).collect();
    beside.sort_unstable();
    alone.sort_unstable();
    let at = pairs.len().saturating_sub(1) / 2;
    Pair {
        beside: beside.get(at).copied().unwrap_or_default(),
        alone: alone.get(at).copied().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::World;

    #[test]
    fn few_histories_run_more_than_once() {
        let all = (0..400).map(|seed| History::of(seed, World::Rough, 60));
        let sampled = all.filter(is_sampled).count();
        assert!((10..=28).contains(&sampled), "{sampled}");
    }

    /// Waits of so many seconds.
    fn waits(seconds: &[u64], is_copy: bool) -> Vec<Wait> {
        let all = seconds.iter().enumerate();
        all.map(|(step, seconds)| Wait {
            step,
            of: "claim".to_owned(),
            with: Vec::new(),
            is_copy,
            millis: seconds * 1000,
        })
        .collect()
    }

    #[test]
    fn waits_take_at_most_twice_as_long_beside_a_greedy_namespace() {
        for (beside, alone, is_copy, is_starved) in [
            (vec![], vec![], false, false),
            (vec![2, 3, 4], vec![2, 3, 4], false, false),
            // A few long calls by chance.
            (vec![60, 2, 15], vec![2, 3, 4], false, false),
            (vec![280, 280, 280], vec![120, 120, 120], false, false),
            // Together.
            (vec![2, 3, 400], vec![2, 3, 4], false, true),
            // Half of them; the last one waits alone, too.
            (
                vec![90, 90, 90, 90, 1000],
                vec![2, 2, 2, 2, 1000],
                false,
                true,
            ),
            // A copy may take long by itself.
            (vec![1500, 1500], vec![10, 10], true, false),
            (vec![4000, 3000], vec![10, 10], true, true),
            // Its caller learns of the end at its next call.
            (vec![1790], vec![15], true, false),
            (vec![1900], vec![15], true, true),
        ] {
            let found = starved(&waits(&beside, is_copy), &waits(&alone, is_copy));
            assert_eq!(
                found.is_some(),
                is_starved,
                "{beside:?} {alone:?}: {found:?}"
            );
        }
        // What was made of something else is something else.
        let other: Vec<Wait> = waits(&[2], false)
            .into_iter()
            .map(|wait| Wait {
                with: vec![1],
                ..wait
            })
            .collect();
        assert_eq!(starved(&waits(&[900], false), &other), None);
    }
}
