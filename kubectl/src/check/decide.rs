//! Judges facts. Every function here is pure, with a table of cases beside it.

use super::facts::{Fact, Facts, Unknown};
use super::line::{Line, Section};

mod access;
mod classes;
mod container;
mod csi_driver;
mod fault_disk_pods;
mod faults;
mod leader;
mod machines;
mod nodes;
mod policies;
mod pools;
mod server;
mod snapshots;
mod stuck;

pub(super) use classes::{is_default, is_immediate};
pub(super) use container::{driver_container, flag, snapshot_controllers};
pub(super) use nodes::{is_ready, pods_by_node};
pub(super) use snapshots::has_snapshots;

#[cfg(test)]
pub(super) mod testing;

/// Judges the facts of one section.
type Judge = fn(&Facts) -> Vec<Line>;

/// Judges all facts, in the order in which a person would repair what is wrong.
pub(super) fn decide(facts: &Facts) -> Vec<Section> {
    let sections: [(&'static str, Judge); 12] = [
        ("Kubernetes", server::lines),
        ("Snapshots", snapshots::lines),
        ("CSIDriver", csi_driver::lines),
        ("Classes", classes::lines),
        ("Rights", access::lines),
        ("Admission policies", policies::lines),
        ("Node pods", nodes::lines),
        ("Machines", machines::lines),
        ("Pools", pools::lines),
        ("Faults on request", faults::lines),
        ("Leader", leader::lines),
        ("Claims and attachments", stuck::lines),
    ];
    let judged = sections.map(|(title, lines)| Section {
        title,
        lines: lines(facts),
    });
    judged
        .into_iter()
        .filter(|section| !section.lines.is_empty())
        .collect()
}

/// Lines about one subject, or the one line that says why nothing is known about it.
type Part = Result<Vec<Line>, Line>;

/// Joins parts of a section.
fn join(parts: impl IntoIterator<Item = Part>) -> Vec<Line> {
    parts
        .into_iter()
        .flat_map(|part| part.unwrap_or_else(|line| vec![line]))
        .collect()
}

/// A fact about a subject, or the line that says why it is unknown.
fn known<'a, T>(subject: &str, fact: &'a Fact<T>) -> Result<&'a T, Line> {
    fact.as_ref().map_err(|why| unknown(subject, why))
}

fn unknown(subject: &str, why: &Unknown) -> Line {
    match why {
        Unknown::Failed(_) => Line::failed(
            format!("{subject}: {why}"),
            "The request failed. Run the check again; if it fails again, look at the API server.",
        ),
        _ => Line::skipped(format!("{subject}: skipped, because {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::line::Mark;

    #[test]
    fn a_missing_right_skips_and_an_error_fails() {
        for (why, mark, text) in [
            (
                Unknown::Forbidden("list nodes".into()),
                Mark::Skipped,
                "Nodes: skipped, because you may not list nodes",
            ),
            (
                Unknown::NotServed("nodes v9".into()),
                Mark::Skipped,
                "Nodes: skipped, because the server does not serve nodes v9",
            ),
            (
                Unknown::NotAsked("no pod is ready".into()),
                Mark::Skipped,
                "Nodes: skipped, because no pod is ready",
            ),
            (
                Unknown::Failed("timed out".into()),
                Mark::Failed,
                "Nodes: timed out",
            ),
        ] {
            let line = unknown("Nodes", &why);
            assert_eq!((line.mark, line.text.as_str()), (mark, text));
        }
    }

    #[test]
    fn facts_of_a_person_without_rights_fail_nothing() {
        let facts = testing::forbidden();
        let sections = decide(&facts);
        let marks = sections.iter().flat_map(|s| &s.lines).map(|line| line.mark);
        assert!(
            marks.into_iter().all(|mark| mark == Mark::Skipped),
            "{sections:#?}"
        );
        assert!(sections.len() > 5, "{sections:#?}");
    }

    #[test]
    fn a_good_cluster_passes() {
        let sections = decide(&testing::good());
        let bad: Vec<_> = sections
            .iter()
            .flat_map(|s| &s.lines)
            .filter(|line| line.mark != Mark::Passed)
            .collect();
        assert!(bad.is_empty(), "{bad:#?}");
        assert_eq!(sections.len(), 12);
    }
}
