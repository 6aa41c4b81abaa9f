//! Rules that make operations fail or take longer.

use std::ops::Range;
use std::time::Duration;

pub use hostloop_report::fault_disk::Operation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::draw::Draws;
use crate::{Error, Result};

/// The most rules of a disk.
pub const MOST_RULES: usize = 64;

/// The most ranges of bytes of a rule.
pub const MOST_RANGES: usize = 256;

/// The longest delay of a rule: a disk that does not answer blocks sync(2) of the whole node.
pub const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// The error that a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DiskError {
    /// EIO.
    Io,
    /// ENOSPC.
    NoSpace,
}

impl DiskError {
    pub(crate) fn errno(self) -> Errno {
        match self {
            DiskError::Io => Errno::IO,
            DiskError::NoSpace => Errno::NOSPC,
        }
    }
}

/// What a rule does to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// The operation is not done, and fails.
    Fail(DiskError),
    /// It is done, and its answer comes this many microseconds later, as long as something asks for the
    /// disk's state each minute.
    DelayMicros(u64),
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// The operations that it may take. None means all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<Operation>,
    /// The bytes of the disk of which an operation must touch some; a flush touches none. `None` means
    /// all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Vec<Range<u64>>>,
    /// The share of these operations that it takes, above 0 and up to 1.
    pub share: f64,
    /// What it does to them.
    pub effect: Effect,
}

impl Rule {
    /// Refuses a rule that takes nothing, or delays too long.
    pub fn check(&self) -> Result<()> {
        if !(self.share > 0.0 && self.share <= 1.0) {
            let reason = format!("{} is not above 0 and up to 1", self.share);
            return Err(Error::invalid("share", reason));
        }
        self.bytes.as_deref().map_or(Ok(()), check_ranges)?;
        match self.effect {
            Effect::DelayMicros(micros) if Duration::from_micros(micros) > LONGEST_DELAY => {
                let longest = LONGEST_DELAY.as_secs();
                let reason = format!("{micros} microseconds are more than {longest} seconds");
                Err(Error::invalid("effect", reason))
            }
            Effect::DelayMicros(_) | Effect::Fail(_) => Ok(()),
        }
    }

    fn matches(&self, operation: Operation, bytes: &Range<u64>) -> bool {
        let is_one = self.operations.is_empty() || self.operations.contains(&operation);
        is_one
            && self.bytes.as_ref().is_none_or(|own| {
                own.iter()
                    .any(|own| own.start < bytes.end && bytes.start < own.end)
            })
    }
}

fn check_ranges(ranges: &[Range<u64>]) -> Result<()> {
    let reason = if ranges.is_empty() {
        "there are none".to_owned()
    } else if ranges.len() > MOST_RANGES {
        format!("{} ranges are more than {MOST_RANGES}", ranges.len())
    } else if let Some(empty) = ranges.iter().find(|range| range.is_empty()) {
        format!("there is nothing from {} to {}", empty.start, empty.end)
    } else {
        return Ok(());
    };
    Err(Error::invalid("bytes", reason))
}

/// What the rules do to an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) error: Option<DiskError>,
    pub(crate) delay: Duration,
}

/// The rules in force, with their draws.
#[derive(Debug, Default)]
pub(crate) struct ActiveRules(Vec<(Rule, Draws)>);

impl ActiveRules {
    /// A rule draws by its place, so that a rule behind it changes none of its draws.
    pub(crate) fn new(rules: &[Rule], seed: u64) -> ActiveRules {
        let seeds = Draws::new(seed);
        let active = rules.iter().scan(seeds, |seeds, rule| {
            Some((rule.clone(), Draws::new(seeds.bits())))
        });
        ActiveRules(active.collect())
    }

    /// All rules that take the operation count: delays add up, and the first error wins.
    pub(crate) fn decide(&mut self, operation: Operation, bytes: &Range<u64>) -> Verdict {
        let mut verdict = Verdict::default();
        for (rule, draws) in &mut self.0 {
            if !rule.matches(operation, bytes) || !draws.takes(rule.share) {
                continue;
            }
            match rule.effect {
                Effect::Fail(error) => verdict.error = verdict.error.or(Some(error)),
                Effect::DelayMicros(micros) => {
                    let delay = verdict.delay.saturating_add(Duration::from_micros(micros));
                    verdict.delay = delay.min(LONGEST_DELAY);
                }
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Operation::*;
    use super::*;

    fn rule(operations: &[Operation], bytes: Option<Range<u64>>, effect: Effect) -> Rule {
        Rule {
            operations: operations.to_vec(),
            bytes: bytes.map(|bytes| vec![bytes]),
            share: 1.0,
            effect,
        }
    }

    const EIO: Effect = Effect::Fail(DiskError::Io);

    #[rstest]
    #[case::all(&[], None, Read, 0..4096, true)]
    #[case::one_operation(&[Write], None, Write, 0..4096, true)]
    #[case::another_operation(&[Write], None, Read, 0..4096, false)]
    #[case::one_of_two(&[Write, Flush], None, Flush, 0..0, true)]
    #[case::within(&[], Some(8192..12_288), Read, 8192..12_288, true)]
    #[case::at_its_begin(&[], Some(8192..12_288), Read, 0..8193, true)]
    #[case::before(&[], Some(8192..12_288), Read, 4096..8192, false)]
    #[case::behind(&[], Some(8192..12_288), Read, 12_288..16_384, false)]
    #[case::around(&[], Some(8192..12_288), Read, 0..65_536, true)]
    #[case::a_flush_has_no_bytes(&[], Some(0..12_288), Flush, 0..0, false)]
    fn a_rule_takes(
        #[case] operations: &[Operation],
        #[case] bytes: Option<Range<u64>>,
        #[case] operation: Operation,
        #[case] touched: Range<u64>,
        #[case] takes: bool,
    ) {
        let mut rules = ActiveRules::new(&[rule(operations, bytes, EIO)], 0);
        let verdict = rules.decide(operation, &touched);
        assert_eq!(verdict.error.is_some(), takes, "{verdict:?}");
    }

    #[rstest]
    #[case::the_first(0..1, true)]
    #[case::between(4096..8192, false)]
    #[case::the_second(8000..8193, true)]
    #[case::all(0..65_536, true)]
    #[case::behind(12_288..16_384, false)]
    fn a_rule_of_several_ranges_takes(#[case] touched: Range<u64>, #[case] takes: bool) {
        let several = Rule {
            bytes: Some(vec![0..4096, 8192..12_288]),
            ..rule(&[], None, EIO)
        };
        let mut rules = ActiveRules::new(&[several], 0);
        let verdict = rules.decide(Read, &touched);
        assert_eq!(verdict.error.is_some(), takes, "{verdict:?}");
    }

    #[rstest]
    #[case::none(0, false)]
    #[case::one(1, true)]
    #[case::the_most(MOST_RANGES, true)]
    #[case::more(MOST_RANGES + 1, false)]
    fn a_rule_has_so_many_ranges(#[case] count: usize, #[case] is_right: bool) {
        let ranges = (0..count as u64).map(|at| 2 * at..2 * at + 1);
        let rule = Rule {
            bytes: Some(ranges.collect()),
            ..rule(&[], None, EIO)
        };
        assert_eq!(rule.check().is_ok(), is_right);
    }

    #[test]
    fn delays_add_up_and_the_first_error_wins() {
        let rules = [
            rule(&[], None, Effect::DelayMicros(1000)),
            rule(&[Write], None, Effect::Fail(DiskError::NoSpace)),
            rule(&[], None, EIO),
            rule(&[Write], None, Effect::DelayMicros(500)),
        ];
        let verdict = ActiveRules::new(&rules, 0).decide(Write, &(0..4096));
        let expected = Verdict {
            error: Some(DiskError::NoSpace),
            delay: Duration::from_micros(1500),
        };
        assert_eq!(verdict, expected);
    }

    #[test]
    fn a_share_is_taken_the_same_with_the_same_seed() {
        fn taken(seed: u64, rules: &[Rule]) -> Vec<bool> {
            let mut active = ActiveRules::new(rules, seed);
            (0..1000)
                .map(|_| active.decide(Read, &(0..4096)).error.is_some())
                .collect()
        }
        let tenth = Rule {
            share: 0.1,
            ..rule(&[], None, EIO)
        };
        let alone = taken(7, std::slice::from_ref(&tenth));
        let count = alone.iter().filter(|taken| **taken).count();
        assert!((70..130).contains(&count), "{count}");
        assert_ne!(alone, taken(8, std::slice::from_ref(&tenth)));
        let beside = [tenth, rule(&[Write], None, EIO)];
        assert_eq!(alone, taken(7, &beside));
    }

    #[rstest]
    #[case::right(1.0, None, EIO, None)]
    #[case::no_share(0.0, None, EIO, Some("share"))]
    #[case::no_number(f64::NAN, None, EIO, Some("share"))]
    #[case::more_than_all(1.5, None, EIO, Some("share"))]
    #[case::no_bytes(1.0, Some(5..5), EIO, Some("bytes"))]
    #[case::too_long(1.0, None, Effect::DelayMicros(30_000_001), Some("effect"))]
    #[case::long(1.0, None, Effect::DelayMicros(30_000_000), None)]
    fn a_mistake_is_refused(
        #[case] share: f64,
        #[case] bytes: Option<Range<u64>>,
        #[case] effect: Effect,
        #[case] field: Option<&str>,
    ) {
        let rule = Rule {
            share,
            ..rule(&[], bytes, effect)
        };
        let refused = rule.check().err().map(|e| e.to_string());
        assert_eq!(
            refused.as_deref().and_then(|text| text.split(':').next()),
            field
        );
    }
}
