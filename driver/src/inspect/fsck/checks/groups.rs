//! Groups and their members.

use crate::inspect::inventory::{Contents, Survey, readable};
use crate::storage::PoolId;

use super::{Kind, Problem, Repair, Severity, person, problem};

/// Finds members without their group, and groups without a member. A member or group may be in an
/// unreadable pool, so its absence does not count then. A snapshot without its source volume is
/// correct: snapshots outlive volumes.
pub(super) fn check(survey: &Survey, contents: &Contents, found: &mut Vec<Problem>) {
    for (snapshot, item) in readable(&contents.snapshots) {
        let Some(group) = snapshot.group.filter(|g| can_be_read(survey, g.pool())) else {
            continue;
        };
        let name = group.to_string();
        let there = survey
            .contents()
            .any(|(_, c)| c.groups.iter().any(|g| g.name == name));
        if !there {
            // During creation and deletion the group's record is a leftover, which recovery
            // handles.
            let mut leftovers = survey.contents().flat_map(|(_, c)| &c.leftovers);
            let (why, repair) = match leftovers.any(|l| l.name == name) {
                true => ("was never finished, or is half deleted", Repair::Recovery),
                false => (
                    "is not there",
                    person(
                        "put the group's record back, or delete the snapshot if it is not needed",
                    ),
                ),
            };
            found.push(problem(
                Severity::Warning,
                Kind::GroupMissing,
                &item.name,
                format!("is of {group}, which {why}"),
                repair,
            ));
        }
    }
    for (group, item) in readable(&contents.groups) {
        let gone: Vec<String> = group
            .snapshots
            .iter()
            .filter(|s| can_be_read(survey, s.pool()) && !snapshot_there(survey, &s.to_string()))
            .map(ToString::to_string)
            .collect();
        if !gone.is_empty() {
            found.push(problem(
                Severity::Error,
                Kind::GroupIncomplete,
                &item.name,
                format!("lacks {}", gone.join(", ")),
                person("delete the group: it can't be restored whole"),
            ));
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
