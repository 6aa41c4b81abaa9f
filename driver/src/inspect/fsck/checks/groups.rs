//! Groups and their members.

use crate::inspect::inventory::{Contents, PoolSurvey, Survey, readable};
use crate::storage::{PoolId, SnapshotId};

use super::{ProblemKind, Repair, ReportedProblem, Severity, Subject, problem};
use crate::diagnose::Problem;

/// Finds members without their group, and groups without a member. A member or group may be in an
/// unreadable pool, so its absence does not count then. A snapshot without its source volume is
/// correct: snapshots outlive volumes.
pub(super) fn check(
    survey: &Survey,
    pool: &PoolSurvey,
    contents: &Contents,
    found: &mut Vec<ReportedProblem>,
) {
    for (snapshot, item) in readable(&contents.snapshots) {
        let Some(group) = snapshot.group.filter(|g| can_be_read(survey, g.pool())) else {
            continue;
        };
        let name = group.to_string();
        let mut pools = survey.contents();
        if pools.any(|(_, c)| c.groups.iter().any(|g| g.name == name)) {
            continue;
        }
        // During creation and deletion the group's record is a leftover, which recovery handles.
        let mut leftovers = survey.contents().flat_map(|(_, c)| &c.leftovers);
        if leftovers.any(|leftover| leftover.name == name) {
            found.push(problem(
                Severity::Warning,
                ProblemKind::GroupMissing,
                &item.name,
                format!("it is of {group}, which was never finished, or is half deleted"),
                Repair::Recovery,
            ));
        } else {
            let subject = Subject::snapshot(pool, &item.name);
            found.extend(subject.report(&Problem::GroupMissing(group)));
        }
    }
    for (group, item) in readable(&contents.groups) {
        let lost: Vec<SnapshotId> = group
            .snapshots
            .iter()
            .copied()
            .filter(|s| can_be_read(survey, s.pool()) && !snapshot_there(survey, &s.to_string()))
            .collect();
        if !lost.is_empty() {
            let subject = Subject::entry(pool, &item.name);
            found.extend(subject.report(&Problem::GroupIncomplete(lost)));
        }
    }
}

/// True if a readable pool has a snapshot with this directory name.
fn snapshot_there(survey: &Survey, name: &str) -> bool {
    survey
        .contents()
        .any(|(_, c)| c.snapshots.iter().any(|s| s.name == name))
}

/// True if the pool with this ID is readable.
fn can_be_read(survey: &Survey, id: PoolId) -> bool {
    survey.contents().any(|(_, c)| c.id == id)
}
