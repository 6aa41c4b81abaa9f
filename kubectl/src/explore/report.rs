//! What an exploration has found, in the form that `-o json` prints. Names and meanings are stable;
//! fields may be added.

use hostloop_report::cuts::{EndedExploration, TakenCut};
use serde::Serialize;
use serde_json::Value;

use super::cut_check::{CutReason, CutResult};
use super::cut_objects::{ExplorationId, claim_again};
use super::explored_claim::ExploredClaim;

/// The words for results.
pub(super) const FAILED: &str = "failed";
const UNKNOWN: &str = "unknown";

/// The whole output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ExplorationReport {
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
    /// What went wrong beside the checks; a sentence each.
    pub(super) problems: Vec<String>,
}

/// A cut that has not passed.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
                let (word, reason) = match result {
                    CutResult::Passed => return None,
                    CutResult::Failed(reason) => (FAILED, reason),
                    CutResult::Unknown(reason) => (UNKNOWN, reason),
                };
                let cut = self.taken.iter().find(|cut| cut.number == *number)?;
                Some(self.row(cut, word, reason, first))
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
            burst_ns: last.saturating_sub(first),
            burst_ended: why_it_ended(self.requested, self.taken, self.ended),
            passed: self.checked.len() - failed - unknown,
            failed,
            unknown,
            cuts,
            problems: self.problems,
        }
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
    use crate::explore::testing::{cut, reason, report};

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
            ("burst_ended", json!(null)),
            ("passed", json!(98)),
            ("failed", json!(1)),
            ("unknown", json!(1)),
        ] {
            assert_eq!(json[field], value, "{field}");
        }
        assert_eq!(json["cuts"][0]["after_first_ns"], 1_600_000_000_u64);
        assert_eq!(json["cuts"][0]["again"]["kind"], "PersistentVolumeClaim");
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
