//! What an exploration has found, in the form that `-o json` prints. Names and meanings are stable;
//! fields may be added.

use std::collections::BTreeMap;

use hostloop_report::cuts::{EndedExploration, TakenCut};
use serde::Serialize;
use serde_json::Value;

use super::cut_check::{CutReason, CutResult};
use super::cut_objects::{ExplorationId, claim_again};
use super::explored_claim::ExploredClaim;

/// The words for results.
pub(super) const FAILED: &str = "failed";
const UNKNOWN: &str = "unknown";
const PASSED: &str = "passed";
const UNCHECKED: &str = "unchecked";

/// What an exploration has found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ExplorationReport {
    /// The exploration's ID.
    pub(super) exploration: String,
    pub(super) namespace: String,
    pub(super) claim: String,
    pub(super) node: String,
    /// The volume's ID.
    pub(super) volume: String,
    /// Draws the order of the checks.
    pub(super) seed: u64,
    /// The number of cuts that were requested.
    pub(super) requested: u32,
    /// The requested time from one cut to the next, in nanoseconds.
    pub(super) every_ns: u64,
    /// The number of cuts that were taken.
    pub(super) taken: usize,
    /// When the first cut was taken, in nanoseconds since the epoch; null without one.
    pub(super) first_taken_ns: Option<u64>,
    /// The time from the first cut to the last one, in nanoseconds.
    pub(super) burst_ns: u64,
    /// Why there are fewer cuts than requested.
    pub(super) burst_ended: Option<String>,
    pub(super) passed: usize,
    pub(super) failed: usize,
    /// The number of cuts that were to be checked, and the check did not begin.
    pub(super) unknown: usize,
    /// The cuts that have not passed, by number.
    pub(super) cuts: Vec<CutRow>,
    /// All cuts that were taken, by number.
    pub(super) timeline: Vec<CutMoment>,
    /// What went wrong beside the checks; a sentence each.
    pub(super) problems: Vec<String>,
}

/// A cut at its moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct CutMoment {
    pub(super) number: u32,
    /// `passed`, `failed`, `unknown` if its check did not begin, or `unchecked`.
    pub(super) result: &'static str,
    /// The time since the first cut, in nanoseconds.
    pub(super) after_first_ns: u64,
    /// Bytes that were written since the cut before, at most; null for the first one.
    pub(super) written_bytes: Option<u64>,
}

/// A cut that has not passed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct CutRow {
    pub(super) number: u32,
    /// `failed`, or `unknown` if its check did not begin.
    pub(super) result: &'static str,
    /// The time since the first cut, in nanoseconds.
    pub(super) after_first_ns: u64,
    /// The VolumeSnapshot that has it.
    pub(super) snapshot: String,
    pub(super) why: String,
    /// The last lines of the check.
    pub(super) log: Vec<String>,
    /// A claim that has its content again.
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, Value>"))]
    pub(super) again: Value,
}

/// What is known of an exploration.
pub(super) struct Explored<'a> {
    pub(super) claim: &'a ExploredClaim,
    pub(super) node: &'a str,
    pub(super) exploration: &'a ExplorationId,
    pub(super) seed: u64,
    pub(super) requested: u32,
    pub(super) every_ns: u64,
    pub(super) taken: &'a [TakenCut],
    pub(super) ended: Option<&'a EndedExploration>,
    pub(super) checked: &'a [(u32, CutResult)],
    pub(super) problems: Vec<String>,
}

impl Explored<'_> {
    pub(super) fn report(self) -> ExplorationReport {
        let first = self.taken.first().map_or(0, |cut| cut.monotonic_ns);
        let last = self.taken.last().map_or(0, |cut| cut.monotonic_ns);
        let mut cuts: Vec<CutRow> = self
            .checked
            .iter()
            .filter_map(|(number, result)| {
                let (CutResult::Failed(reason) | CutResult::Unknown(reason)) = result else {
                    return None;
                };
                let cut = self.taken.iter().find(|cut| cut.number == *number)?;
                Some(self.row(cut, word(result), reason, first))
            })
            .collect();
        cuts.sort_by_key(|row| row.number);
        let failed = cuts.iter().filter(|row| row.result == FAILED).count();
        let unknown = cuts.len() - failed;
        ExplorationReport {
            exploration: self.exploration.as_str().to_owned(),
            namespace: self.claim.namespace.clone(),
            claim: self.claim.name.clone(),
            node: self.node.to_owned(),
            volume: self.claim.handle.clone(),
            seed: self.seed,
            requested: self.requested,
            every_ns: self.every_ns,
            taken: self.taken.len(),
            first_taken_ns: self.taken.first().map(|cut| cut.taken_ns),
            burst_ns: last.saturating_sub(first),
            burst_ended: why_it_ended(self.requested, self.taken, self.ended),
            passed: self.checked.len() - failed - unknown,
            failed,
            unknown,
            cuts,
            timeline: self.timeline(first),
            problems: self.problems,
        }
    }

    fn timeline(&self, first_ns: u64) -> Vec<CutMoment> {
        let results: BTreeMap<u32, &CutResult> = self
            .checked
            .iter()
            .map(|(number, result)| (*number, result))
            .collect();
        self.taken
            .iter()
            .enumerate()
            .map(|(index, cut)| CutMoment {
                number: cut.number,
                result: results
                    .get(&cut.number)
                    .map_or(UNCHECKED, |result| word(result)),
                after_first_ns: cut.monotonic_ns.saturating_sub(first_ns),
                // The first cut promises all that there is.
                written_bytes: (index > 0).then_some(cut.promised_bytes),
            })
            .collect()
    }

    fn row(
        &self,
        cut: &TakenCut,
        result: &'static str,
        reason: &CutReason,
        first_ns: u64,
    ) -> CutRow {
        let snapshot = self.exploration.name(&self.claim.name, cut.number);
        CutRow {
            number: cut.number,
            result,
            after_first_ns: cut.monotonic_ns.saturating_sub(first_ns),
            again: claim_again(self.claim, &snapshot, cut.size_bytes),
            snapshot,
            why: reason.why.clone(),
            log: reason.log.clone(),
        }
    }
}

/// The word for a result.
fn word(result: &CutResult) -> &'static str {
    match result {
        CutResult::Passed => PASSED,
        CutResult::Failed(_) => FAILED,
        CutResult::Unknown(_) => UNKNOWN,
    }
}

/// Why a burst has fewer cuts than requested; `None` if it has all.
fn why_it_ended(
    requested: u32,
    taken: &[TakenCut],
    ended: Option<&EndedExploration>,
) -> Option<String> {
    if taken.len() >= requested as usize {
        return None;
    }
    Some(match ended {
        Some(ended) => {
            let why = ended.why.as_deref().unwrap_or_default();
            let words = [&*ended.outcome, why];
            let words = words.into_iter().filter(|word| !word.is_empty());
            words.collect::<Vec<_>>().join(": ")
        }
        None => "the connection to the node ended before the burst".to_owned(),
    })
}

impl ExplorationReport {
    /// The objects for `-o name`.
    pub(super) fn names(&self) -> Vec<String> {
        let kept = self.cuts.iter();
        kept.map(|row| format!("volumesnapshot/{}", row.snapshot))
            .collect()
    }

    pub(super) fn checked(&self) -> usize {
        self.passed + self.failed + self.unknown
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::explore::testing::{cut, exploration, explored, reason, report};

    #[test]
    fn a_report_for_programs() {
        let report = report();
        let json = serde_json::to_value(&report).unwrap();
        for (field, value) in [
            (
                "exploration",
                json!("exploration-0123456789abcdef0123456789abcdef"),
            ),
            ("requested", json!(100)),
            ("taken", json!(100)),
            ("burst_ns", json!(9_900_000_000_u64)),
            ("first_taken_ns", json!(5_100_000_000_u64)),
            ("burst_ended", json!(null)),
            ("passed", json!(98)),
            ("failed", json!(1)),
            ("unknown", json!(1)),
        ] {
            assert_eq!(json[field], value, "{field}");
        }
        assert_eq!(json["cuts"][0]["after_first_ns"], 1_600_000_000_u64);
        assert_eq!(json["cuts"][0]["again"]["kind"], "PersistentVolumeClaim");
        for (index, moment) in [
            (
                0_usize,
                json!({"number": 1, "result": "passed", "after_first_ns": 0, "written_bytes": null}),
            ),
            (
                16,
                json!({"number": 17, "result": "failed", "after_first_ns": 1_600_000_000_u64,
                       "written_bytes": 4096}),
            ),
            (
                41,
                json!({"number": 42, "result": "unknown", "after_first_ns": 4_100_000_000_u64,
                       "written_bytes": 4096}),
            ),
        ] {
            assert_eq!(json["timeline"][index], moment);
        }
        assert_eq!(
            report.names(),
            [
                "volumesnapshot/explore-data-01234567-0017",
                "volumesnapshot/explore-data-01234567-0042",
            ]
        );
        assert_eq!(report.checked(), 100);
        assert_eq!(report.cuts[0].log, reason().log);
    }

    /// After the first failure with --fail-fast, the other cuts are not checked.
    #[test]
    fn cuts_without_a_check_are_on_the_timeline() {
        let (taken, checked) = ([cut(1), cut(2)], [(2, CutResult::Failed(reason()))]);
        let report = Explored {
            claim: &explored(),
            node: "n1",
            exploration: &exploration(),
            seed: 1,
            requested: 2,
            every_ns: 100_000_000,
            taken: &taken,
            ended: None,
            checked: &checked,
            problems: Vec::new(),
        }
        .report();
        let results: Vec<_> = report.timeline.iter().map(|moment| moment.result).collect();
        assert_eq!(results, ["unchecked", "failed"]);
    }

    #[rstest]
    #[case::all(2, None, None)]
    #[case::no_room(3, Some(("no-room", Some("the pool is full"))), Some("no-room: the pool is full"))]
    #[case::without_reason(3, Some(("busy", None)), Some("busy"))]
    #[case::lost(3, None, Some("the connection to the node ended before the burst"))]
    fn bursts(
        #[case] requested: u32,
        #[case] ended: Option<(&'static str, Option<&str>)>,
        #[case] expected: Option<&str>,
    ) {
        let ended = ended.map(|(outcome, why)| EndedExploration {
            exploration: "exploration-1".to_owned(),
            taken: 2,
            outcome: outcome.into(),
            why: why.map(str::to_owned),
        });
        let why = why_it_ended(requested, &[cut(1), cut(2)], ended.as_ref());
        assert_eq!(why.as_deref(), expected);
    }
}
